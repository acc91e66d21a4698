"""The endpoints of tasks with answers, such as ``/v1/classify``; each task names its own."""

import asyncio
from collections.abc import Sequence
from typing import cast

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from ..evaluation.intervals import Metrics
from .answer_engine import Question
from .http_errors import HttpError
from .json_bodies import BodyLimits, check_content_type, read_body, validate
from .request_fields import AnswerRequest
from .scores import check_count
from .server import until_disconnect
from .service import ServedAnswerer, Service
from .strict_json import JsonResponse, parse_json
from .text_jobs import failure


class Answers:
    """The endpoint of the models of one task.

    Args:
        service: the server.
        path: of the endpoint.
    """

    def __init__(self, service: Service, path: str) -> None:
        self.service, self.path = service, path

    async def respond(self, request: Request) -> Response:
        """Answer a request."""
        limits = BodyLimits(self.service.limits.max_body)
        check_content_type(request)
        body = await read_body(request, limits.size, limits.seconds)
        name = parse_json(body).get("model")
        model = self.service.find(name if isinstance(name, str) else None, self.path)
        assert isinstance(model, ServedAnswerer)
        fields = validate(body, model.request)
        items: list[object] = [fields.input] if isinstance(fields.input, str) else list(fields.input)
        check_count(items, self.service.limits.max_inputs)
        predictor = model.run.predictor
        for i, item in enumerate(items):
            predictor.check_item(item, "input" if isinstance(fields.input, str) else f"input.{i}")
        sizes = await self._sizes(model, items)
        given = fields.model_fields_set - AnswerRequest.model_fields.keys()
        question = Question(items, {name: getattr(fields, name) for name in sorted(given)}, sizes)
        answers = await self._answers(model, question, request)
        data = [{"object": "answer", "index": i, **answer} for i, answer in enumerate(answers)]
        return JsonResponse({"object": "list", "model": model.name, "data": data})

    async def _sizes(self, model: ServedAnswerer, items: Sequence[object]) -> list[int]:
        """Return the numbers of tokens of the inputs; raise HttpError if they have too many together."""
        texts = [item if isinstance(item, str) else " ".join(cast(list[str], item)) for item in items]
        sizes = await asyncio.to_thread(lambda: [len(model.run.tokenizer.encode(text)) for text in texts])
        most, tokens = self.service.limits.max_prompt_tokens, sum(sizes)
        if tokens > most:
            problem = f"must have at most {most:,} tokens together, got {tokens:,}; send less at once"
            raise HttpError(400, f"input: {problem}", param="input")
        return sizes

    async def _answers(self, model: ServedAnswerer, question: Question, request: Request) -> list[Metrics]:
        """Wait for the answers, or for the client to go away."""
        engine = model.engine
        if not engine.has_room(question.count):
            raise HttpError(429, "too many inputs wait; try again in a second", headers={"Retry-After": "1"})
        engine.ask(question)
        gone = asyncio.ensure_future(until_disconnect(request.receive))
        answers = asyncio.ensure_future(asyncio.wrap_future(question.answers))
        try:
            await asyncio.wait((answers, gone), return_when=asyncio.FIRST_COMPLETED)
            if not answers.done():
                raise ClientDisconnect
            try:
                return answers.result()
            except Exception as error:
                raise failure(error) from error
        finally:
            gone.cancel()
            answers.cancel()
            engine.leave(question)

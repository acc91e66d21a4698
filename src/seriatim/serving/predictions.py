"""The endpoints of tasks with answers, such as ``/v1/classify``; each task names its own (`Task.endpoint`)."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import cast

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from ..tasks import TASKS
from .http_errors import BODY_ERRORS, HttpError, described_errors
from .json_bodies import JsonResponse, new_router
from .prediction_engine import PredictionRequest
from .schemas import AnswerList, AnswerRequest, answer_request
from .scores import check_count
from .server import unless_disconnected
from .service import CurrentService, ServedPredictor


def prediction_router() -> APIRouter:
    """Return the endpoint of each task with answers, whether one of its models is served or not."""
    router = new_router()
    for name, task in {task.endpoint: task for task in TASKS.values() if not task.generates_text}.items():
        router.add_api_route(
            f"/v1/{name}",
            _endpoint(f"/v1/{name}", answer_request(task)),
            methods=["POST"],
            description=task.summary,
            response_model=AnswerList,
            responses=described_errors(404, 429, 503, *BODY_ERRORS),
        )
    return router


def _endpoint(path: str, kind: type[AnswerRequest]) -> Callable[..., Awaitable[Response]]:
    async def predict(fields: AnswerRequest, request: Request, service: CurrentService) -> Response:
        model, limits = service.find(fields.model, path), service.limits
        assert isinstance(model, ServedPredictor)

        # All inputs are checked before the first is answered: a request is answered as a whole, or not at all.
        items: list[object] = [fields.input] if isinstance(fields.input, str) else list(fields.input)
        check_count(items, limits.max_inputs)
        for i, item in enumerate(items):
            model.run.predictor.check_item(item, "input" if isinstance(fields.input, str) else f"input.{i}")
        sizes = await _sizes(model, items, limits.max_prompt_tokens)

        given = fields.model_fields_set - AnswerRequest.model_fields.keys()
        waiting = PredictionRequest(items, {name: getattr(fields, name) for name in sorted(given)}, sizes)
        if not model.engine.has_room(waiting.count):
            raise HttpError(429, "too many inputs wait; try again in a second", headers={"Retry-After": "1"})
        model.engine.ask(waiting)
        try:
            answers = await unless_disconnected(asyncio.wrap_future(waiting.answers), request.receive)
        finally:
            model.engine.leave(waiting)
        data = [{"object": "answer", "index": i, **answer} for i, answer in enumerate(answers)]
        return JsonResponse({"object": "list", "model": model.name, "data": data})

    predict.__annotations__["fields"] = kind  # FastAPI reads the settings of the task from it
    return predict


async def _sizes(model: ServedPredictor, items: Sequence[object], most: int) -> list[int]:
    """Return the numbers of tokens of the inputs; raise HttpError if they have too many together."""
    texts = [item if isinstance(item, str) else " ".join(cast(list[str], item)) for item in items]
    sizes = await asyncio.to_thread(lambda: [len(model.run.tokenizer.encode(text)) for text in texts])
    if (tokens := sum(sizes)) > most:
        problem = f"must have at most {most:,} tokens together, got {tokens:,}; send less at once"
        raise HttpError(400, f"input: {problem}", param="input")
    return sizes

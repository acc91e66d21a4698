"""The endpoints of tasks with answers, such as ``/v1/classify``; each task names its own."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import cast

from fastapi import APIRouter
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from ..evaluation.intervals import Metrics
from ..tasks import TASKS
from .answer_engine import Question
from .completions import failure
from .http_errors import BODY_ERRORS, HttpError, described_errors
from .json_bodies import new_router
from .request_fields import AnswerRequest, answer_request
from .response_fields import AnswerList
from .scores import check_count
from .server import unless_disconnected
from .service import CurrentService, ServedAnswerer
from .strict_json import JsonResponse


def answer_router() -> APIRouter:
    """Return the endpoint of each task with answers, whether one of its models is served or not."""
    router = new_router()
    for name, task in {task.endpoint: task for task in TASKS.values() if not task.continues_text}.items():
        router.add_api_route(
            f"/v1/{name}",
            _endpoint(f"/v1/{name}", answer_request(task)),
            methods=["POST"],
            description=task.__doc__,
            response_model=AnswerList,
            responses=described_errors(404, 429, 503, *BODY_ERRORS),
        )
    return router


def _endpoint(path: str, fields: type[AnswerRequest]) -> Callable[..., Awaitable[Response]]:
    async def answer(fields: AnswerRequest, request: Request, service: CurrentService) -> Response:
        model = service.find(fields.model, path)
        assert isinstance(model, ServedAnswerer)
        items: list[object] = [fields.input] if isinstance(fields.input, str) else list(fields.input)
        check_count(items, service.limits.max_inputs)
        task = model.run.task
        for i, item in enumerate(items):
            task.check_item(item, "input" if isinstance(fields.input, str) else f"input.{i}")
        sizes = await _sizes(model, items, service.limits.max_prompt_tokens)
        given = fields.model_fields_set - AnswerRequest.model_fields.keys()
        question = Question(items, {name: getattr(fields, name) for name in sorted(given)}, sizes)
        answers = await _answers(model, question, request)
        data = [{"object": "answer", "index": i, **answer} for i, answer in enumerate(answers)]
        return JsonResponse({"object": "list", "model": model.name, "data": data})

    answer.__annotations__["fields"] = fields  # FastAPI reads the settings of the task from it
    return answer


async def _sizes(model: ServedAnswerer, items: Sequence[object], most: int) -> list[int]:
    """Return the numbers of tokens of the inputs; raise HttpError if they have too many together."""
    texts = [item if isinstance(item, str) else " ".join(cast(list[str], item)) for item in items]
    sizes = await asyncio.to_thread(lambda: [len(model.run.tokenizer.encode(text)) for text in texts])
    tokens = sum(sizes)
    if tokens > most:
        problem = f"must have at most {most:,} tokens together, got {tokens:,}; send less at once"
        raise HttpError(400, f"input: {problem}", param="input")
    return sizes


async def _answers(model: ServedAnswerer, question: Question, request: Request) -> list[Metrics]:
    """Wait for the answers, or for the client to go away."""
    engine = model.engine
    if not engine.has_room(question.count):
        raise HttpError(429, "too many inputs wait; try again in a second", headers={"Retry-After": "1"})
    engine.ask(question)
    try:
        return await unless_disconnected(asyncio.wrap_future(question.answers), request.receive)
    except (ClientDisconnect, HttpError):
        raise
    except Exception as error:
        raise failure(error) from error
    finally:
        engine.leave(question)

"""Endpoints that answer whole inputs: predictions such as ``/v1/classify``, ``/v1/score`` and ``/v1/tokenize``."""

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from typing import cast

import numpy as np
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from ..data.tokenizers import END, Spelling, Tokenizer, name_of_bytes
from ..decoding.sampling import CandidateScore, TextRequest
from ..tasks import TASKS
from .completions import TextGeneration, usage
from .json_bodies import BODY_ERRORS, HttpError, JsonResponse, described_errors, new_router
from .prediction_engine import PredictionRequest
from .schemas import AnswerList, AnswerRequest, ScoreAnswer, ScoreRequest, TokenizeRequest, TokenList, answer_request
from .server import unless_disconnected
from .service import CurrentService, ServedPredictor

PATH = "/v1/score"
router = new_router()


def prediction_router() -> APIRouter:
    """Return the endpoint that each task with answers names, whether one of its models is served or not."""
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
        raise HttpError(400, f"input: must have at most {most:,} tokens together, got {tokens:,}; send less at once")
    return sizes


@router.post(
    PATH,
    response_model=ScoreAnswer,
    responses=described_errors(404, 409, 429, 503, *BODY_ERRORS),
)
async def score(fields: ScoreRequest, request: Request, service: CurrentService) -> Response:
    """Score texts."""
    model = service.language_model(fields.model, PATH)
    inputs = [fields.input] if isinstance(fields.input, str) else fields.input
    check_count(inputs, service.limits.max_inputs)
    if fields.session is not None and len(inputs) > 1:
        raise HttpError(400, f"session: continues one text, got {len(inputs)}")

    # A line ends with its line end, after which nothing depends on it.
    tokenizer = model.run.tokenizer
    if fields.session is not None and model.run.config.data.unit == "line":
        raise HttpError(400, "session: the model reads single lines, which do not depend on each other; leave it out")

    async with TextGeneration(service, model, fields.session) as generation:
        await _add_texts(generation, inputs, fields.top_logprobs)
        await generation.finish(request.receive)

        # Thousands of tokens take a while to describe, in which the event loop serves others.
        def build() -> Response:
            data = [
                {"object": "score", "index": i, **scored(tokenizer, text, stream.prompt_tokens, stream.prompt_scores)}
                for i, (text, stream) in enumerate(zip(inputs, generation.texts, strict=True))
            ]
            answer = {"object": "list", "model": model.name, "data": data, "usage": usage(generation.texts)}
            return JsonResponse(answer)

        return await asyncio.to_thread(build)


async def _add_texts(generation: TextGeneration, inputs: Sequence[str], num_alternatives: int) -> None:
    """Add the texts to score; a line that is a text of its own has an end, which is scored, too."""
    has_lines = generation.model.run.config.data.unit == "line"
    for i, text in enumerate(inputs):
        param = "input" if len(inputs) == 1 else f"input.{i}"
        if has_lines and "\n" in text:
            problem = "contains a line end, but the model reads single lines; send a list of lines"
            raise HttpError(400, f"{param}: {problem}")
        ids = await generation.encode(text, param)
        if has_lines:
            ids.append(END)
        generation.add(TextRequest(ids, 0, 0, num_alternatives=num_alternatives, scores_prompt=True), param)


@router.post(
    "/v1/tokenize",
    response_model=TokenList,
    responses=described_errors(404, 503, *BODY_ERRORS),
)
async def tokenize(fields: TokenizeRequest, service: CurrentService) -> Response:
    """Divide a text into tokens."""
    model = service.find(fields.model, "/v1/tokenize")
    tokenizer, most = model.run.tokenizer, service.limits.max_prompt_tokens

    def respond() -> Response:
        ids: Sequence[int] = tokenizer.encode(fields.input).tolist()
        if len(ids) > most:
            raise HttpError(400, f"input: must have at most {most:,} tokens, got {len(ids):,}; shorten it")
        return JsonResponse({"object": "list", "model": model.name, "data": spans(tokenizer, fields.input, ids)})

    return await asyncio.to_thread(respond)


def check_count(inputs: Sequence[object], most: int) -> None:
    """Raise HttpError unless there is at least one input, and at most ``most``."""
    if not 0 < len(inputs) <= most:
        raise HttpError(400, f"input: must be 1 to {most:,} texts, got {len(inputs):,}; send several requests")


def scored(tokenizer: Tokenizer, text: str, ids: Sequence[int], scores: Sequence[CandidateScore]) -> dict[str, object]:
    """Return what the endpoint says about a text; its bits include the spelling of unknown words or characters."""
    tokens = [
        {**token, "logprob": score.log_probability, "top": _alternatives(tokenizer, score)}
        for token, score in zip(spans(tokenizer, text, ids), scores, strict=True)
    ]
    total, size = sum(score.log_probability for score in scores), len(text.encode())

    # Without the spelling, a model that knows few words would have the fewest bits.
    unknown = tokenizer.find_unknown(text)
    spelled = tokenizer.spelling.nats(Spelling.count_symbols(unknown)) if unknown else 0.0
    bits = (spelled - total) / math.log(2) / size if size else None
    return {
        "text": text,
        "log_probability": total,
        "bits_per_byte": bits,
        "bytes": size,
        "unknown_tokens": len(unknown),
        "tokens": tokens,
    }


def spans(tokenizer: Tokenizer, text: str, ids: Sequence[int]) -> list[dict[str, object]]:
    """Return each token of a text with the characters that it covers; a boundary at its end covers none.

    All tokens of one character cover this character.
    """
    # Tokens end at bytes, and clients count characters.
    prepared = tokenizer.prepare(text)
    raw = np.frombuffer(prepared.encode(), dtype=np.uint8)
    before = np.concatenate([[0], np.cumsum((raw & 0xC0) != 0x80)])  # characters that begin in so many bytes

    # The end of a line model's text is a token without bytes; a tokenizer whose lines have ends wrote them itself.
    is_line_end = tokenizer.ends_lines and prepared.endswith("\n")
    inner = np.asarray(ids[:-1] if len(ids) and ids[-1] == END and not is_line_end else ids, dtype=np.int64)
    ends = np.minimum(tokenizer.token_ends(prepared, inner), len(raw)).tolist() if len(inner) else []
    ends += [len(raw)] * (len(ids) - len(inner))

    found, start = list[dict[str, object]](), 0
    for token, end in zip(ids, ends, strict=True):
        name = name_of_bytes(raw[start:end].tobytes()) if end > start else tokenizer.describe(int(token))
        first = int(before[start]) - (1 if start < end and raw[start] & 0xC0 == 0x80 else 0)  # within a character
        found.append({"id": int(token), "text": name, "start": first, "end": int(before[end])})
        start = end
    return found


def _alternatives(tokenizer: Tokenizer, score: CandidateScore) -> list[dict[str, object]]:
    return [{"id": token, "text": tokenizer.describe(token), "logprob": value} for token, value in score.alternatives]

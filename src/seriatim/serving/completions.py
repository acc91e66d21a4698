"""``/v1/completions``: generated texts, as the client of OpenAI asks for them."""

import asyncio
import time
import uuid
from collections.abc import Sequence
from typing import cast

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ..core.errors import InputError
from ..decoding.continuous_batch import TextRequest
from ..decoding.sampling_settings import Sampling
from ..runs.generation_settings import choose_seed
from ..storage.atomic_files import json_line
from .event_stream import EventStream, LateResponse
from .http_errors import BODY_ERRORS, HttpError, described_errors
from .json_bodies import new_router
from .live_text import LiveText, ScoredToken
from .request_fields import CompletionRequest
from .response_fields import CompletionAnswer
from .service import CurrentService
from .service_limits import Limits
from .strict_json import JsonResponse
from .text_jobs import TextJob

PATH = "/v1/completions"
DEFAULT_MAX_TOKENS = 16
SMALLEST = -9999.0
"""Stands for the logarithm of 0, which JSON does not have."""
GAP_SECONDS = 0.01
"""Tokens that follow an event sooner than this are sent together."""


router = new_router()


@router.post(
    PATH,
    response_model=CompletionAnswer,
    responses={
        200: {"content": {"text/event-stream": {}}},
        **described_errors(404, 409, 429, 503, *BODY_ERRORS),
    },
)
async def complete(fields: CompletionRequest, service: CurrentService) -> Response:
    """Generate texts."""
    _check(fields, service.limits)
    model = service.writer(fields.model, PATH)

    async def run(scope: Scope, receive: Receive, send: Send) -> None:
        async with TextJob(service, model, fields.session) as job:
            await _add_texts(job, fields)
            job.submit()
            answer = Completion(model.name, model.fingerprint, fields)
            if fields.stream:
                await _stream(job, answer, fields, receive, send)
            else:
                await job.finished(receive)
                await job.close()
                choices = [answer.choice(i, text, has_ended=True) for i, text in enumerate(job.texts)]
                response = JsonResponse({**answer.envelope(choices), "usage": usage(job.texts)})
                await response(scope, receive, send)

    return LateResponse(run)


def _check(fields: CompletionRequest, limits: Limits) -> None:
    """Raise HttpError for values that contradict each other or exceed a limit."""
    count = fields.n or 1
    if fields.best_of not in (None, count):
        raise HttpError(400, "best_of: must be equal to n; leave it out", param="best_of")
    if (fields.max_tokens or 0) > limits.max_tokens:
        problem = f"must be at most {limits.max_tokens:,}, got {fields.max_tokens:,}"
        raise HttpError(400, f"max_tokens: {problem}", param="max_tokens")
    num_texts = len(prompts_of(fields)) * count
    if not 0 < num_texts <= limits.max_texts:
        problem = f"the number of prompts times n must be 1 to {limits.max_texts}, got {num_texts:,}"
        raise HttpError(400, f"prompt: {problem}; send several requests", param="prompt")
    if fields.session is not None and num_texts > 1:
        raise HttpError(400, f"session: continues one text, got {num_texts}; leave out n", param="session")


async def _add_texts(job: TextJob, fields: CompletionRequest) -> None:
    tokenizer, seed = job.model.run.tokenizer, choose_seed(fields.seed)
    sampling, biases = _sampling(fields), _biases(fields, tokenizer.vocabulary_size)
    max_tokens = DEFAULT_MAX_TOKENS if fields.max_tokens is None else fields.max_tokens
    stops = [fields.stop] if isinstance(fields.stop, str) else fields.stop or []
    prompts = prompts_of(fields)
    for i, prompt in enumerate(prompts):
        param = "prompt" if len(prompts) == 1 else f"prompt.{i}"
        if isinstance(prompt, str):
            _check_known(job, prompt, param)
        ids = await job.encode(prompt, param)
        job.check_context(len(ids), max_tokens, param)
        echoed, shows_begin = None, job.start is None and prompt[:1] == [tokenizer.begin]
        if fields.echo:
            echoed = prompt if isinstance(prompt, str) else tokenizer.decode(ids[job.start is None :])
        for _ in range(fields.n or 1):
            request = TextRequest(
                ids, seed + len(job.texts), max_tokens, sampling, biases,
                num_alternatives=fields.logprobs, scores_prompt=bool(fields.echo) and fields.logprobs is not None,
            )  # fmt: skip
            job.add(
                request,
                stops=stops,
                echoed=echoed,
                shows_begin=shows_begin,
                has_ids=not isinstance(prompt, str),
                streams=bool(fields.stream),
            )


class Completion:
    """The objects of the answer to one request."""

    def __init__(self, model: str, fingerprint: str, fields: CompletionRequest) -> None:
        self.has_scores = fields.logprobs is not None
        self.common = {
            "id": f"cmpl-{uuid.uuid4().hex}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": model,
            "system_fingerprint": fingerprint,
        }

    def envelope(self, choices: Sequence[object]) -> dict[str, object]:
        """Return an object with some choices."""
        return {**self.common, "choices": choices}

    def choice(self, index: int, text: LiveText, *, has_ended: bool) -> dict[str, object]:
        """Return what a text has more than at the last call, and the reason if it has ended."""
        piece = text.take()
        return {
            "index": index,
            "text": piece.text,
            "logprobs": _logprobs(piece.tokens) if self.has_scores else None,
            "finish_reason": text.finish_reason if has_ended else None,
        }


async def _stream(job: TextJob, answer: Completion, fields: CompletionRequest, receive: Receive, send: Send) -> None:
    """Send the texts in pieces, as server-sent events."""
    ended: set[int] = set()
    async with EventStream(receive, send) as stream:
        while len(ended) < len(job.texts):
            await stream.wait_for(job.signal.changed)
            job.signal.changed.clear()
            are_done = [text.is_done for text in job.texts]  # read before the texts, which may end in the meantime
            if all(are_done):
                await job.close()
            for i, text in enumerate(job.texts):
                if i in ended:
                    continue
                job.raise_failure()
                choice = answer.choice(i, text, has_ended=are_done[i])
                if choice["text"] or choice["finish_reason"] or choice["logprobs"] not in (None, NO_SCORES):
                    await stream.send(json_line(answer.envelope([choice])))
                if choice["finish_reason"]:
                    ended.add(i)
            if len(ended) < len(job.texts):
                await _pause(job)
        if fields.stream_options is not None and fields.stream_options.include_usage:
            last = {**answer.envelope([]), "usage": usage(job.texts)}
            await stream.send(json_line(last))
        await stream.send("[DONE]")


async def _pause(job: TextJob) -> None:
    """Wait for more tokens to send together, but not longer than the texts take."""
    try:
        async with asyncio.timeout(GAP_SECONDS):
            await job.signal.done.wait()
    except TimeoutError:
        return


def prompts_of(fields: CompletionRequest) -> list[str | list[int]]:
    """Return the prompts of a request as a list: one for a string or a list of token ids."""
    prompt = fields.prompt
    if prompt is None or isinstance(prompt, str):
        return [prompt or ""]
    if prompt and isinstance(prompt[0], int):
        return [prompt]
    return list(cast(list[str | list[int]], prompt))


def usage(texts: Sequence[LiveText]) -> dict[str, object]:
    """Return the numbers of tokens; a prompt of several texts counts once."""
    prompts = {id(text.request.prompt): text for text in reversed(texts)}.values()
    read, cached = sum(text.num_prompt for text in prompts), sum(text.num_cached for text in prompts)
    generated = sum(text.num_generated for text in texts)
    return {
        "prompt_tokens": read,
        "completion_tokens": generated,
        "total_tokens": read + generated,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def _sampling(fields: CompletionRequest) -> Sampling:
    values = {
        name: value
        for name in Sampling.__dataclass_fields__
        if (value := getattr(fields, name)) is not None
    }  # fmt: skip
    return Sampling(**values)


def _biases(fields: CompletionRequest, vocabulary_size: int) -> dict[int, float]:
    biases: dict[int, float] = {}
    for token, bias in (fields.logit_bias or {}).items():
        if not (token.isascii() and token.isdigit() and len(token) < 11 and int(token) < vocabulary_size):
            problem = f"{token!r} is no token id; give a number from 0 to {vocabulary_size - 1:,}"
            raise HttpError(400, f"logit_bias: {problem} (see /v1/tokenize)", param="logit_bias")
        biases[int(token)] = bias
    return biases


def _check_known(job: TextJob, prompt: str, param: str) -> None:
    try:
        job.model.run.tokenizer.check_known(prompt)
    except InputError as error:
        raise HttpError(400, f"{param}: {error}", param=param) from None


NO_SCORES: dict[str, list[object]] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}


def _finite(log_probability: float | None) -> float | None:
    return None if log_probability is None else max(SMALLEST, log_probability)


def _logprobs(tokens: Sequence[ScoredToken]) -> dict[str, list[object]]:
    return {
        "tokens": [token.text for token in tokens],
        "token_logprobs": [_finite(token.log_probability) for token in tokens],
        "top_logprobs": [{text: _finite(value) for text, value in token.alternatives.items()} for token in tokens],
        "text_offset": [token.offset for token in tokens],
    }

"""``/v1/completions``: generated texts, as the client of OpenAI asks for them.

A `CompletionRequest` asks for texts. `TextGeneration` has them generated, each as a `GenerationStream`, from the
arrival of the request to its end, also for ``/v1/score``. What is new of a text is a `TextDelta`, which is sent as an
event.
"""

import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import replace
from typing import NamedTuple, Self, cast

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from ..core.errors import InputError
from ..decoding.sampling import TextRequest, TextState
from ..decoding.token_draws import Sampling
from ..runs.generation import choose_seed
from ..storage.files import json_line
from .json_bodies import (
    BODY_ERRORS,
    LOGGER,
    HttpError,
    JsonResponse,
    as_http_error,
    described_errors,
    error_body,
    new_router,
)
from .limits import Limits
from .schemas import CompletionAnswer, CompletionRequest
from .server import unless_disconnected
from .service import CurrentService, ServedLanguageModel, Service
from .session_store import Session
from .text_engine import GenerationStream, ModelDeadError, ScoredToken

PATH = "/v1/completions"
DEFAULT_MAX_TOKENS = 16
LONG_TEXT = 20_000
"""Characters from which a text is divided into tokens outside the event loop, which has to serve others, too."""
SMALLEST = -9999.0
"""Stands for the logarithm of 0, which JSON does not have."""
GAP_SECONDS = 0.01
"""Tokens that follow an event sooner than this are sent together."""
PING_SECONDS = 15.0
"""After this time without an event a comment is sent, so that no proxy ends the connection."""
router = new_router()


@router.post(
    PATH,
    response_model=CompletionAnswer,
    responses={200: {"content": {"text/event-stream": {}}}, **described_errors(404, 409, 429, 503, *BODY_ERRORS)},
)
async def complete(fields: CompletionRequest, request: Request, service: CurrentService) -> Response:
    """Generate texts."""
    _check(fields, service.limits)
    model = service.language_model(fields.model, PATH)
    if fields.stream:
        return await EventStream.begin(_events(fields, service, model), request.receive)
    async with TextGeneration(service, model, fields.session) as generation:
        await _add_texts(generation, fields)
        about = _about(model)
        await generation.finish(request.receive)
        deltas = [TextDelta(i, *text.take(), text.finish_reason) for i, text in enumerate(generation.texts)]
        choices = [_choice(delta, fields) for delta in deltas]
        return JsonResponse({**about, "choices": choices, "usage": usage(generation.texts)})


def _check(fields: CompletionRequest, limits: Limits) -> None:
    """Raise HttpError for values that contradict each other or exceed a limit."""
    count = fields.n or 1
    if fields.best_of not in (None, count):
        raise HttpError(400, "best_of: must be equal to n; leave it out")
    if (fields.max_tokens or 0) > limits.max_tokens:
        raise HttpError(400, f"max_tokens: must be at most {limits.max_tokens:,}, got {fields.max_tokens:,}")
    num_texts = len(prompts_of(fields)) * count
    if not 0 < num_texts <= limits.max_texts:
        problem = f"the number of prompts times n must be 1 to {limits.max_texts}, got {num_texts:,}"
        raise HttpError(400, f"prompt: {problem}; send several requests")
    if fields.session is not None and num_texts > 1:
        raise HttpError(400, f"session: continues one text, got {num_texts}; leave out n")


def prompts_of(fields: CompletionRequest) -> list[str | list[int]]:
    """Return the prompts of a request as a list: one for a string or a list of token ids."""
    prompt = fields.prompt
    if prompt is None or isinstance(prompt, str):
        return [prompt or ""]
    if prompt and isinstance(prompt[0], int):
        return [prompt]
    return list(cast(list[str | list[int]], prompt))


class TextDelta(NamedTuple):
    """What a text has more than before, and why it has ended if it has."""

    number: int  # of the text in its request
    text: str
    tokens: list[ScoredToken]
    finish_reason: str | None


class TextGeneration:
    """The texts of one request, as a context: when it ends, for whatever reason, so do the texts.

    Args:
        service: the server.
        model: that generates the texts.
        session: the name of the session that the text continues, if any; there is only one text then.

    Attributes:
        texts: in order.
        changed: is set when a text has changed.
        done: is set when all texts have ended.

    Raises:
        HttpError: another request uses the session.
    """

    def __init__(self, service: Service, model: ServedLanguageModel, session: str | None = None) -> None:
        self.service, self.model, self.limits = service, model, service.limits
        self.session: Session | None = None if session is None else model.sessions.open(session)
        self.texts: list[GenerationStream] = []
        self.changed, self.done = asyncio.Event(), asyncio.Event()
        self._submitted: list[GenerationStream] = []
        self._is_closed = False

    @property
    def start(self) -> TextState | None:
        """The text that is continued; None for new texts."""
        return None if self.session is None else self.session.text

    async def encode(self, prompt: str | Sequence[int], param: str) -> list[int]:
        """Return the tokens of a prompt, with the boundary if it begins a text.

        Raises:
            HttpError: it has too many tokens, or ids that do not exist.
        """
        tokenizer, is_new = self.model.run.tokenizer, self.start is None
        begin = [tokenizer.begin] if is_new else []
        if isinstance(prompt, str):
            encode = tokenizer.encode if is_new else tokenizer.encode_continued
            ids = (await asyncio.to_thread(encode, prompt) if len(prompt) > LONG_TEXT else encode(prompt)).tolist()
        else:
            ids, size = list(prompt), tokenizer.vocabulary_size
            for token in ids:
                if token >= size:
                    raise HttpError(400, f"{param}: there is no token {token}; give ids below {size:,}")
            begin = [] if ids[:1] == begin else begin
        if len(ids) > self.limits.max_prompt_tokens:
            problem = f"must have at most {self.limits.max_prompt_tokens:,} tokens, got {len(ids):,}"
            raise HttpError(400, f"{param}: {problem}; shorten it, or send it in parts to a session")
        return [*begin, *ids]

    def add(
        self,
        request: TextRequest,
        param: str,
        *,
        stops: Sequence[str] = (),
        echoed: str | None = None,
        shows_begin: bool = False,
        has_ids: bool = False,
        streams: bool = False,
    ) -> None:
        """Add a text; the state of the session is added to the request.

        ``has_ids`` says that the prompt was given as tokens, which may end within a character; `GenerationStream`
        explains the other arguments.

        Raises:
            HttpError: the model cannot read so many tokens; ``param`` is the field of the prompt.
        """
        self._check_context(len(request.prompt), request.max_tokens, param)
        last, decoder = None, None
        if self.session is not None:
            read, last = self.session.seen_tokens.nonzero().squeeze(1).tolist(), self.session.last
            request = replace(request, start=self.start, keeps_state=True, read_before=read)
            # The session may hold the first bytes of a character, which the new tokens complete.
            if self.session.decoder is not None and (has_ids or not len(request.prompt)):
                decoder = self.session.decoder.copy()
                for token in request.prompt:
                    decoder.feed(token)
        text = GenerationStream(
            request, self.model.run.tokenizer, self._notify,
            stops=stops, echoed=echoed, shows_begin=shows_begin, last=last, decoder=decoder, streams=streams,
        )  # fmt: skip
        self.texts.append(text)

    def _check_context(self, num_prompt: int, max_tokens: int, param: str) -> None:
        context, before = self.model.engine.context, 0
        if self.session is not None and self.start is not None:  # else the prompt includes the boundary
            before = 1 + self.session.num_tokens
        # The last token is not read, but if the text can be continued.
        needed = before + num_prompt + (max(0, max_tokens - 1) if self.session is None else max_tokens)
        if context is None or needed <= context:
            return
        if (read := before + num_prompt) > context:
            raise HttpError(400, f"{param}: {read:,} tokens, the model reads {context:,}; shorten it")
        problem = f"the {param} and max_tokens need {needed:,} tokens, the model can read {context:,}"
        raise HttpError(400, f"max_tokens: {problem}; lower one of them")

    def submit(self) -> None:
        """Let all texts wait for their rows in the batch.

        Raises:
            HttpError: too many texts wait, or the reply would be too large.
            ModelDeadError: the thread of the model has ended.
        """
        engine, scores = self.model.engine, sum(_num_scores(text.request) for text in self.texts)
        if scores > self.limits.max_scores:
            most = f"the answer has at most {self.limits.max_scores:,} log probabilities, this one may have {scores:,}"
            raise HttpError(400, f"{most}; ask for fewer alternatives or texts, or send several requests")
        if not engine.has_room(len(self.texts)):
            after = {"Retry-After": str(engine.retry_after)}
            raise HttpError(429, f"too many texts wait; try again in {engine.retry_after} seconds", headers=after)
        for text in self.texts:
            engine.submit(text)
            self._submitted.append(text)

    async def finish(self, receive: Receive) -> None:
        """Generate all texts, to their end.

        Raises:
            ClientDisconnect: the client went away before.
            HttpError: see `submit`; or a text failed.
        """
        self.submit()
        await unless_disconnected(self.done.wait(), receive)
        self.raise_failure()
        await self.close()

    async def deltas(self) -> AsyncIterator[TextDelta | None]:
        """Generate all texts, and yield what is added to them; None if nothing was added for `PING_SECONDS`.

        Raises:
            HttpError: see `submit`; or a text failed.
        """
        self.submit()
        running = set(range(len(self.texts)))
        while running:
            if not await _is_set(self.changed, PING_SECONDS):
                yield None
                continue
            self.changed.clear()

            # This is read before the texts, which may end in the meantime: a reason is sent after all of its text.
            have_ended = {i for i in running if self.texts[i].is_done}
            if have_ended == running:
                await self.close()
            for i in sorted(running):
                self.raise_failure()
                delta = TextDelta(i, *self.texts[i].take(), self.texts[i].finish_reason if i in have_ended else None)
                if delta.text or delta.tokens or delta.finish_reason:
                    yield delta
            running -= have_ended
            if running:
                await _is_set(self.done, GAP_SECONDS)  # wait for more tokens to send together

    def raise_failure(self) -> None:
        """Raise HttpError if a text failed."""
        for text in self.texts:
            if text.error is not None:
                raise as_http_error(text.error)  # its thread has logged it

    def _notify(self) -> None:
        self.changed.set()
        if all(text.is_done for text in self.texts):
            self.done.set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Cancel texts that have not ended, and give the session back with its new state; a second call does nothing.

        A reply is completed after it, so that a client who has it all can continue the session at once. It is done
        even if the task that waits for it is cancelled.
        """
        if not self._is_closed:
            self._is_closed = True
            await asyncio.shield(self._close())

    async def _close(self) -> None:
        open_texts = [text for text in self._submitted if not text.is_done]
        with contextlib.suppress(ModelDeadError):
            ends = [asyncio.wrap_future(self.model.engine.cancel(text)) for text in open_texts]
            await asyncio.gather(*ends, return_exceptions=True)
        for text in self._submitted:
            self.service.metrics.observe_text(self.model.name, text, is_cancelled=text in open_texts)
            if self.session is not None and text.state is not None:
                self.session.extend(text.state, [*text.prompt_tokens, *text.generated], text.decoder)
        if self.session is not None:
            self.model.sessions.close(self.session)


def _num_scores(request: TextRequest) -> int:
    """Return the largest number of log probabilities that the reply to a request has."""
    if request.num_alternatives is None:
        return 0
    tokens = request.max_tokens + (len(request.prompt) if request.scores_prompt else 0)
    return tokens * (1 + request.num_alternatives)


async def _add_texts(generation: TextGeneration, fields: CompletionRequest) -> None:
    """Add the texts that a request asks for: each prompt, as often as it says."""
    tokenizer, seed = generation.model.run.tokenizer, choose_seed(fields.seed)
    sampling, biases = _sampling(fields), _biases(fields, tokenizer.vocabulary_size)
    max_tokens = DEFAULT_MAX_TOKENS if fields.max_tokens is None else fields.max_tokens
    prompts = prompts_of(fields)

    # A field of several prompts is named by its position, so that a client knows which one to correct.
    for i, prompt in enumerate(prompts):
        param = "prompt" if len(prompts) == 1 else f"prompt.{i}"
        if isinstance(prompt, str):
            try:
                tokenizer.check_known(prompt)
            except InputError as error:
                raise HttpError(400, f"{param}: {error}") from None

        # The boundary that begins a new text is not part of the prompt that is repeated.
        ids, is_new = await generation.encode(prompt, param), generation.start is None
        echoed = None
        if fields.echo:
            echoed = prompt if isinstance(prompt, str) else tokenizer.decode(ids[is_new:])

        # Each text has a seed of its own, the one with which `seriatim generate` writes it.
        for _ in range(fields.n or 1):
            generation.add(
                TextRequest(
                    ids,
                    seed + len(generation.texts),
                    max_tokens,
                    sampling,
                    biases,
                    num_alternatives=fields.logprobs,
                    scores_prompt=bool(fields.echo) and fields.logprobs is not None,
                ),
                param,
                stops=[fields.stop] if isinstance(fields.stop, str) else fields.stop or [],
                echoed=echoed,
                shows_begin=is_new and prompt[:1] == [tokenizer.begin],
                has_ids=not isinstance(prompt, str),
                streams=bool(fields.stream),
            )


def _sampling(fields: CompletionRequest) -> Sampling:
    given = {name: getattr(fields, name) for name in Sampling.__dataclass_fields__}
    return Sampling(**{name: value for name, value in given.items() if value is not None})


def _biases(fields: CompletionRequest, vocabulary_size: int) -> dict[int, float]:
    biases: dict[int, float] = {}
    for token, bias in (fields.logit_bias or {}).items():
        if not (token.isascii() and token.isdigit() and len(token) < 11 and int(token) < vocabulary_size):
            problem = f"{token!r} is no token id; give a number from 0 to {vocabulary_size - 1:,}"
            raise HttpError(400, f"logit_bias: {problem} (see /v1/tokenize)")
        biases[int(token)] = bias
    return biases


def _about(model: ServedLanguageModel) -> dict[str, object]:
    """Return the fields that the reply to one request, or each event of its stream, begins with."""
    return {
        "id": f"cmpl-{uuid.uuid4().hex}",
        "object": "text_completion",
        "created": int(time.time()),
        "model": model.name,
        "system_fingerprint": model.fingerprint,
    }


def _choice(delta: TextDelta, fields: CompletionRequest) -> dict[str, object]:
    tokens = delta.tokens
    scores = {
        "tokens": [token.text for token in tokens],
        "token_logprobs": [_finite(token.log_probability) for token in tokens],
        "top_logprobs": [{text: _finite(value) for text, value in token.alternatives.items()} for token in tokens],
        "text_offset": [token.offset for token in tokens],
    }
    return {
        "index": delta.number,
        "text": delta.text,
        "logprobs": None if fields.logprobs is None else scores,
        "finish_reason": delta.finish_reason,
    }


def _finite(log_probability: float | None) -> float | None:
    return None if log_probability is None else max(SMALLEST, log_probability)


def usage(texts: Sequence[GenerationStream]) -> dict[str, object]:
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


async def _events(fields: CompletionRequest, service: Service, model: ServedLanguageModel) -> AsyncGenerator[str, None]:
    """Yield the reply in pieces, as server-sent events."""
    async with TextGeneration(service, model, fields.session) as generation:
        await _add_texts(generation, fields)
        about = _about(model)
        async for delta in generation.deltas():
            if delta is None:
                yield ": waiting\n\n"
            else:
                yield _event({**about, "choices": [_choice(delta, fields)]})
        if fields.stream_options is not None and fields.stream_options.include_usage:
            yield _event({**about, "choices": [], "usage": usage(generation.texts)})
        yield "data: [DONE]\n\n"


def _event(content: object) -> str:
    return f"data: {json_line(content)}\n\n"


async def _is_set(event: asyncio.Event, seconds: float) -> bool:
    """Wait for an event, but only for some time; return whether it was set."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
    return event.is_set()


class EventStream(StreamingResponse):
    """A response of server-sent events, whose client may go away at any time.

    Until the first event, an error is an ordinary response; after it, an error is an event. (https://html.spec.whatwg.org/
    multipage/server-sent-events.html; the package sse-starlette begins a response before the first event, and ends its
    streams when the server begins to shut down.)
    """

    def __init__(self, first: str, events: AsyncGenerator[str, None]) -> None:
        # The last header lets nginx pass on events at once.
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        super().__init__(self._with_errors(first, events), headers=headers, media_type="text/event-stream")
        self._events = events

    @classmethod
    async def begin(cls, events: AsyncGenerator[str, None], receive: Receive) -> Self:
        """Return the response when there is a first event.

        Raises:
            ClientDisconnect: the client went away before.
        """
        return cls(await unless_disconnected(anext(events), receive), events)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response. What generates the events ends with it, also if the client does not read them."""
        async with contextlib.aclosing(self._events):
            await super().__call__(scope, receive, send)

    async def _with_errors(self, first: str, events: AsyncGenerator[str, None]) -> AsyncIterator[str]:
        yield first
        try:
            async for event in events:
                yield event
        except Exception as error:
            if not isinstance(error, HttpError):
                LOGGER.error("a stream failed", exc_info=error)
            yield f"data: {error_body(as_http_error(error)).decode()}\n\n"

"""The texts of one request: checked, handed to the thread of their model, and given back whatever happens."""

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Self

from starlette.requests import ClientDisconnect
from starlette.types import Receive

from ..core.errors import InputError, is_out_of_memory
from ..decoding.continuous_batch import TextRequest
from ..decoding.prompt_reading import TextState
from .http_errors import HttpError, as_http_error
from .live_text import LiveText, Signal
from .model_thread import ModelDeadError
from .server import until_disconnect
from .service import ServedWriter, Service
from .session_store import Session

LONG_TEXT = 20_000
"""Characters from which a text is divided into tokens outside the event loop, which has to serve others, too."""


class TextJob:
    """The texts of a request, as a context: when it ends, for whatever reason, so do the texts.

    An answer is completed after `close`, so that a client who has it all can continue the session at once.

    Args:
        service: the server.
        model: that generates the texts.
        session: the name of the session that the text continues, if any; there is only one text then.

    Raises:
        HttpError: another request uses the session.
    """

    def __init__(self, service: Service, model: ServedWriter, session: str | None = None) -> None:
        self.service, self.model, self.limits = service, model, service.limits
        self.session: Session | None = None if session is None else model.sessions.open(session)
        self.signal = Signal()
        self._submitted: list[LiveText] = []
        self._is_closed = False

    @property
    def texts(self) -> Sequence[LiveText]:
        """The texts, in order."""
        return self.signal.texts

    @property
    def start(self) -> TextState | None:
        """The text that is continued; None for new texts."""
        return None if self.session is None else self.session.text

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Cancel texts that have not ended, and give the session back with its new state; a second call does nothing.

        It is done even if the task that waits for it is cancelled.
        """
        if not self._is_closed:
            self._is_closed = True
            await asyncio.shield(self._close())

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
                    raise HttpError(400, f"{param}: there is no token {token}; give ids below {size:,}", param=param)
            begin = [] if ids[:1] == begin else begin
        if len(ids) > self.limits.max_prompt_tokens:
            problem = f"must have at most {self.limits.max_prompt_tokens:,} tokens, got {len(ids):,}"
            raise HttpError(400, f"{param}: {problem}; shorten it, or send it in parts to a session", param=param)
        return [*begin, *ids]

    def check_context(self, num_prompt: int, max_tokens: int, param: str) -> None:
        """Raise HttpError if a model with a limited context cannot read so many tokens; ``param`` is the prompt."""
        is_new = self.session is None or self.session.text is None  # the prompt then includes the boundary
        context, before = (
            self.model.engine.context,
            0 if is_new or self.session is None else 1 + self.session.num_tokens,
        )
        # The last token is not read, but if the text can be continued.
        needed = before + num_prompt + (max(0, max_tokens - 1) if self.session is None else max_tokens)
        if context is None or needed <= context:
            return
        if (read := before + num_prompt) > context:
            raise HttpError(400, f"{param}: {read:,} tokens, the model reads {context:,}; shorten it", param=param)
        problem = f"the {param} and max_tokens need {needed:,} tokens, the model can read {context:,}"
        raise HttpError(400, f"max_tokens: {problem}; lower one of them", param="max_tokens")

    def add(
        self,
        request: TextRequest,
        *,
        stops: Sequence[str] = (),
        echoed: str | None = None,
        shows_begin: bool = False,
        has_ids: bool = False,
        streams: bool,
    ) -> None:
        """Add a text; the state of the session is added to the request.

        ``has_ids`` says that the prompt was given as tokens, which may end within a character; `LiveText` explains the
        other arguments.
        """
        last, decoder = None, None
        if self.session is not None:
            read, last = self.session.occurred.nonzero().squeeze(1).tolist(), self.session.last
            request = replace(request, start=self.start, keeps_state=True, read_before=read)
            if self.session.decoder is not None and (has_ids or not len(request.prompt)):
                decoder = self.session.decoder.copy()
                for token in request.prompt:
                    decoder.feed(token)
        LiveText(
            request, self.model.run.tokenizer, self.signal,
            stops=stops, echoed=echoed, shows_begin=shows_begin, last=last, decoder=decoder, streams=streams,
        )  # fmt: skip

    def submit(self) -> None:
        """Let all texts wait for their places in the batch.

        Raises:
            HttpError: too many texts wait, or the answer would be too large.
            ModelDeadError: the thread of the model has ended.
        """
        engine, scores = self.model.engine, sum(_num_scores(text.request) for text in self.texts)
        if scores > self.limits.max_scores:
            problem = (
                f"the answer has at most {self.limits.max_scores:,} log probabilities, this one may have {scores:,}"
            )
            raise HttpError(400, f"{problem}; ask for fewer alternatives or texts, or send several requests")
        if not engine.has_room(len(self.texts)):
            after = {"Retry-After": str(engine.retry_after)}
            raise HttpError(429, f"too many texts wait; try again in {engine.retry_after} seconds", headers=after)
        for text in self.texts:
            engine.submit(text)
            self._submitted.append(text)

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

    async def finished(self, receive: Receive) -> None:
        """Wait until all texts have ended.

        Raises:
            ClientDisconnect: the client went away before.
            HttpError: a text failed.
        """
        done, gone = asyncio.ensure_future(self.signal.done.wait()), asyncio.ensure_future(until_disconnect(receive))
        try:
            await asyncio.wait((done, gone), return_when=asyncio.FIRST_COMPLETED)
        finally:
            done.cancel()
            gone.cancel()
        if not self.signal.done.is_set():
            raise ClientDisconnect
        self.raise_failure()

    def raise_failure(self) -> None:
        """Raise HttpError if a text failed."""
        for text in self.texts:
            if text.error is not None:
                raise failure(text.error)


def _num_scores(request: TextRequest) -> int:
    """Return the largest number of log probabilities that the answer to a request has."""
    if request.num_alternatives is None:
        return 0
    tokens = request.max_tokens + (len(request.prompt) if request.scores_prompt else 0)
    return tokens * (1 + request.num_alternatives)


def failure(error: Exception) -> HttpError:
    """Return the answer to a request that failed in the thread of its model."""
    if isinstance(error, InputError | HttpError):
        return as_http_error(error)
    if is_out_of_memory(error):
        return HttpError(500, "the server has too little memory for this request; send less at once")
    return HttpError(500, "internal error; see the log of the server")

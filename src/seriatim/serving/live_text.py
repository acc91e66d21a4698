"""A text that is generated for a client: the thread of its model writes it, and the event loop reads it."""

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from ..data.tokenizers import END, Decoder, Tokenizer
from ..decoding.continuous_batch import PromptRead, TextRequest, TokenDrawn
from ..decoding.next_token_scores import TokenScore
from ..decoding.prompt_reading import TextState
from ..decoding.stop_strings import StopStrings


class ScoredToken(NamedTuple):
    """A token of an answer, with natural logarithms of probabilities."""

    text: str
    offset: int  # of its first character in the answer
    log_probability: float | None  # None for the boundary at the beginning of a prompt, which nothing predicts
    alternatives: dict[str, float]


class Piece(NamedTuple):
    """What an answer has more than before."""

    text: str
    tokens: list[ScoredToken]


class Signal:
    """Tells a handler that one of the texts of its request has changed. Used in the event loop only.

    Attributes:
        changed: is set when a text has changed.
        done: is set when all texts have ended.
    """

    def __init__(self) -> None:
        self.texts: list[LiveText] = []
        self.changed, self.done = asyncio.Event(), asyncio.Event()

    def notify(self) -> None:
        """Set the events."""
        self.changed.set()
        if all(text.is_done for text in self.texts):
            self.done.set()


class LiveText:
    """One text of a request. Whole characters are passed on, up to the first stop string.

    Args:
        request: what is generated.
        tokenizer: that of the model.
        signal: that of the client's request.
        stops: strings that end the text.
        echoed: the prompt, if the answer repeats it.
        shows_begin: whether the client sent the boundary that begins a text, as the first token of its prompt.
        last: the last token before an empty prompt; None for a new text.
        decoder: of its own, after the prompt, which may hold the first bytes of a character; None for a new one.
        streams: whether the handler wants to know of every change, not only of the end.

    Attributes:
        num_cached: tokens of the prompt that were known from an earlier text.
        num_generated: tokens that have been generated.
        prompt_scores: of the tokens of the prompt, if the request wants them.
        state: the text that can be continued, after its end; None if it cannot, or if its prompt was not read.
        generated: the generated tokens, for texts that can be continued.
        error: why the text failed.
        finish_reason: ``stop`` or ``length``, after the end.
        arrived: the time of the request, as `time.monotonic` returns it.
        first_token: the time of the first generated token.
        is_read: whether the prompt has been read.
        is_done: whether nothing follows.
    """

    def __init__(
        self,
        request: TextRequest,
        tokenizer: Tokenizer,
        signal: Signal,
        *,
        stops: Sequence[str] = (),
        echoed: str | None = None,
        shows_begin: bool = False,
        last: int | None = None,
        decoder: Decoder | None = None,
        streams: bool = False,
    ) -> None:
        self.request, self.tokenizer, self.signal = request, tokenizer, signal
        self.echoed, self.shows_begin, self.streams = echoed, shows_begin, streams
        signal.texts.append(self)
        self.num_cached = self.num_generated = 0
        self.arrived, self.is_read = time.monotonic(), False
        self.first_token: float | None = None
        self.prompt_scores: Sequence[TokenScore] = ()
        self.state: TextState | None = None
        self.generated: list[int] = []
        self.error: Exception | None = None
        self.is_done = False
        self.finish_reason: str | None = None
        before = request.prompt[-1] if len(request.prompt) else last
        self.decoder = decoder or tokenizer.decoder(after=tokenizer.begin if before is None else before)
        self._stops = StopStrings(stops)
        self._decoded = self._released = 0  # characters
        self._held: deque[ScoredToken] = deque()  # of characters that have not been released
        self._pieces: deque[Piece] = deque()

    @property
    def prompt_tokens(self) -> Sequence[int]:
        """The tokens of the prompt, without the boundary that begins a new text."""
        return self.request.prompt[1:] if self.request.start is None else self.request.prompt

    @property
    def num_prompt(self) -> int:
        """The number of tokens of the prompt that the client knows of."""
        return len(self.prompt_tokens) + self.shows_begin

    @property
    def has_more(self) -> bool:
        """Whether more tokens may be generated."""
        return self.num_generated < self.request.max_tokens

    # In the thread of the model

    def read_prompt(self, event: PromptRead) -> None:
        """Note that the prompt has been read."""
        hidden = self.request.start is None and not self.shows_begin
        self.num_cached, self.prompt_scores = max(0, event.num_cached - hidden), event.scores
        self.is_read = True
        if self.echoed is None:
            return
        if self.shows_begin and self.request.scores_prompt:
            self._held.append(ScoredToken(self.tokenizer.describe(self.request.prompt[0]), 0, None, {}))
        decoder = self.tokenizer.decoder()
        for token, score in zip(self.prompt_tokens, event.scores, strict=False):
            self._held.append(self._scored(token, score))
            self._decoded += len(decoder.feed(token))
        self._decoded = len(self.echoed)
        self._release(self.echoed)

    def add_token(self, event: TokenDrawn) -> bool:
        """Add a token, and return whether a stop string ends the text."""
        self.num_generated += 1
        if self.first_token is None:
            self.first_token = time.monotonic()
        if self.request.keeps_state:
            self.generated.append(event.token)
        if event.score is not None:
            self._held.append(self._scored(event.token, event.score))
        piece = self.decoder.feed(event.token)
        self._decoded += len(piece)
        self._release(self._stops.feed(piece))
        return self._stops.has_ended

    def end(self, state: TextState | None, score: TokenScore | None = None, *, is_cancelled: bool = False) -> None:
        """Note the end of the text, the state after it, and the score of the token that ended it."""
        is_full = not self.has_more and not self._stops.has_ended
        if not self._stops.has_ended:
            goes_on = self.request.keeps_state and (is_full or is_cancelled)  # so may its last character
            piece = "" if goes_on else self.decoder.finish()
            self._decoded += len(piece)
            if score is not None:
                self._held.append(self._scored(END, score))
            self._release(self._stops.feed(piece) + self._stops.finish(), is_last=not self._stops.has_ended)
        self.finish_reason = "length" if is_full else "stop"
        self.state, self.is_done = state, True

    def fail(self, error: Exception) -> None:
        """Note that nothing follows because of an error."""
        self.error, self.is_done = error, True

    def _release(self, text: str, *, is_last: bool = False) -> None:
        """Pass on text, and the tokens that begin in it or before it."""
        self._released += len(text)
        tokens = []
        while self._held and (is_last or self._held[0].offset < self._released):
            tokens.append(self._held.popleft())
        if text or tokens:
            self._pieces.append(Piece(text, tokens))

    def _scored(self, token: int, score: TokenScore) -> ScoredToken:
        names: dict[str, int] = {}  # by which the answer tells tokens apart
        for other in (*(other for other, _ in score.alternatives), token):
            name = self.tokenizer.describe(other)
            names.setdefault(name if names.get(name, other) == other else f"token_id:{other}", other)
        named = {other: name for name, other in names.items()}
        alternatives = {named[other]: value for other, value in score.alternatives}
        return ScoredToken(named[token], self._decoded, score.log_probability, alternatives)

    # In the event loop

    def take(self) -> Piece:
        """Return what was added since the last call."""
        texts, tokens = [], []
        while self._pieces:
            piece = self._pieces.popleft()
            texts.append(piece.text)
            tokens += piece.tokens
        return Piece("".join(texts), tokens)

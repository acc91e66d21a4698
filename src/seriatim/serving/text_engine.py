"""The thread that alone uses one model, and the one of a language model: it generates the texts of all clients.

Others hand a thread calls, which it runs between two units of its work. A text in progress is a `GenerationStream`: the
thread writes it, token by token, and the event loop of the server reads what can be sent.
"""

import asyncio
import contextlib
import contextvars
import math
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import NamedTuple, TypeVar

import torch

from ..compiler.module_cache import assume_unchanging
from ..data.tokenizers import END, Decoder, Tokenizer
from ..decoding.continuous_batch import ContinuousBatch, PromptRead, TokenDrawn
from ..decoding.sampling import CandidateScore, StopStrings, TextRequest, TextState
from ..layers.positions import learned_positions
from ..models.probabilities import naming
from ..runs.generation import banned_tokens
from ..runs.run import Run
from .json_bodies import LOGGER, HttpError
from .limits import Limits

Result = TypeVar("Result")
REPEATS = 3
STALLED_SECONDS = 120.0
"""A thread whose present unit of work takes longer counts as dead."""


def use_fastest_threads(work: Callable[[], object], most: int) -> None:
    """Let PyTorch use one processor or ``most`` of them in this thread, whichever does some work faster.

    Several are slower where they must wait for each other after each little product, as in a recurrence.
    """
    seconds = {}
    best = most
    try:
        for threads in sorted({1, most}):
            torch.set_num_threads(threads)
            work()
            times = []
            for _ in range(REPEATS):
                began = time.perf_counter()
                work()
                times.append(time.perf_counter() - began)
            seconds[threads] = min(times)
        best = min(seconds, key=lambda threads: seconds[threads])
    finally:
        torch.set_num_threads(best)


class ModelDeadError(HttpError):
    """The thread of a model has ended, or does not answer any more."""

    def __init__(self) -> None:
        super().__init__(503, "the model does not answer any more; restart the server", code="model_dead")


class ModelThread:
    """A thread with work of its own. Subclasses define `prepare`, `has_work`, `work` and `fail`.

    Args:
        name: of the model, for messages.

    Attributes:
        max_threads: the number of processors that PyTorch may use.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.max_threads = torch.get_num_threads()  # before the thread of another model sets the number for new threads
        self._calls: queue.SimpleQueue[Callable[[BaseException | None], None] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()  # so that no call is put into the queue after the thread has emptied it
        self._has_ended = False
        self._since: float | None = None  # the beginning of the present unit of work
        run = contextvars.copy_context().run  # settings such as `uncompiled` hold in the thread, too
        self._thread = threading.Thread(target=run, args=(self._run,), name=f"seriatim-{name}", daemon=True)

    def start(self) -> "Future[None]":
        """Start the thread, and return the future end of `prepare`."""
        self._thread.start()
        return self.call(self.prepare)

    def end(self) -> None:
        """Let the thread end after its present unit of work."""
        self._calls.put(None)

    def wait(self, seconds: float) -> bool:
        """Wait for the end of the thread, and return whether it has ended."""
        if self._thread.ident is not None:
            self._thread.join(max(0.0, seconds))
        return not self._thread.is_alive()

    @property
    def is_alive(self) -> bool:
        """Whether the thread runs, and its present unit of work has not taken too long."""
        since = self._since
        stalled = since is not None and time.monotonic() - since > STALLED_SECONDS
        return self._thread.is_alive() and not self._has_ended and not stalled

    def call(self, function: Callable[[], Result]) -> "Future[Result]":
        """Let the thread run a function, and return its future result.

        Raises:
            ModelDeadError: the thread has ended.
        """
        # A future that is running cannot be cancelled, so that its result can always be set.
        future: Future[Result] = Future()
        future.set_running_or_notify_cancel()

        def run(refusal: BaseException | None) -> None:
            try:
                if refusal is not None:
                    raise refusal
                result = function()
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)

        # Without the lock, a call could enter the queue after the thread has emptied it, and wait for ever.
        with self._lock:
            if self._has_ended:
                raise ModelDeadError
            self._calls.put(run)
        return future

    def prepare(self) -> None:
        """Do what takes time at the first use of a model, such as compiling its step."""
        raise NotImplementedError

    @property
    def has_work(self) -> bool:
        """Whether `work` has something to do."""
        raise NotImplementedError

    def work(self) -> None:
        """Do one unit of work."""
        raise NotImplementedError

    def fail(self, error: Exception) -> None:
        """End everything that is in progress with an error."""
        raise NotImplementedError

    def _run(self) -> None:
        assume_unchanging()
        try:
            while self._run_calls():
                if self.has_work:
                    self._work()
        except BaseException:
            LOGGER.exception("%s: the thread of the model has ended", self.name)
        finally:
            with self._lock:
                self._has_ended = True
            self.fail(ModelDeadError())
            while not self._calls.empty():
                if (call := self._calls.get()) is not None:
                    call(ModelDeadError())

    def _work(self) -> None:
        self._since = time.monotonic()
        try:
            self.work()
        except Exception as error:
            LOGGER.exception("%s: the work in progress failed", self.name)
            self.fail(error)
        self._since = None

    def _run_calls(self) -> bool:
        """Run the calls that wait; without other work, wait for one. Return False if the thread is to end."""
        block = not self.has_work
        while True:
            try:
                call = self._calls.get(block)
            except queue.Empty:
                return True
            if call is None:
                return False
            self._since = time.monotonic()
            call(None)
            self._since, block = None, False


# The texts of a language model.

PREPARED_PROMPT, PREPARED_TOKENS = 64, 16
SMOOTHING = 0.1
"""The weight of the newest text in the average time of a text."""
MAX_RETRY = 60


class ScoredToken(NamedTuple):
    """A token of a reply, with natural logarithms of probabilities."""

    text: str
    offset: int  # of its first character in the reply
    log_probability: float | None  # None for the boundary at the beginning of a prompt, which nothing predicts
    alternatives: dict[str, float]


class GenerationStream:
    """One text of a request. Whole characters are passed on, up to the first stop string.

    Args:
        request: what is generated.
        tokenizer: that of the model.
        on_change: is called in the event loop when there is more to read, and at the end.
        stops: strings that end the text.
        echoed: the prompt, if the reply repeats it.
        shows_begin: whether the client sent the boundary that begins a text, as the first token of its prompt.
        last: the last token before an empty prompt; None for a new text.
        decoder: of its own, after the prompt, which may hold the first bytes of a character; None for a new one.
        streams: whether ``on_change`` is called for every change, not only at the end.

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
        on_change: Callable[[], None],
        *,
        stops: Sequence[str] = (),
        echoed: str | None = None,
        shows_begin: bool = False,
        last: int | None = None,
        decoder: Decoder | None = None,
        streams: bool = False,
    ) -> None:
        self.request, self.tokenizer, self.on_change = request, tokenizer, on_change
        self.echoed, self.shows_begin, self.streams = echoed, shows_begin, streams
        self.num_cached = self.num_generated = 0
        self.arrived, self.is_read, self.is_done = time.monotonic(), False, False
        self.first_token: float | None = None
        self.prompt_scores: Sequence[CandidateScore] = ()
        self.state: TextState | None = None
        self.generated: list[int] = []
        self.error: Exception | None = None
        self.finish_reason: str | None = None
        before = request.prompt[-1] if len(request.prompt) else last
        self.decoder = decoder or tokenizer.decoder(after=tokenizer.begin if before is None else before)
        self._stops = StopStrings(stops)
        self._decoded = self._released = 0  # characters
        self._held: deque[ScoredToken] = deque()  # of characters that have not been released
        self._unread: deque[tuple[str, list[ScoredToken]]] = deque()

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

    def take(self) -> tuple[str, list[ScoredToken]]:
        """Return the text and the tokens that were added since the last call. Called in the event loop."""
        texts, tokens = list[str](), list[ScoredToken]()
        while self._unread:
            text, more = self._unread.popleft()
            texts.append(text)
            tokens += more
        return "".join(texts), tokens

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
        # The offsets of tokens are those in the decoded text, whose characters may have several tokens.
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
        text = self.decoder.feed(event.token)
        self._decoded += len(text)
        self._release(self._stops.feed(text))
        return self._stops.has_ended

    def end(self, state: TextState | None, score: CandidateScore | None = None, *, is_cancelled: bool = False) -> None:
        """Note the end of the text, the state after it, and the score of the token that ended it."""
        is_full = not self.has_more and not self._stops.has_ended
        if not self._stops.has_ended:
            # The next request to a session may bring the other bytes of the last character.
            goes_on = self.request.keeps_state and (is_full or is_cancelled)
            text = "" if goes_on else self.decoder.finish()
            self._decoded += len(text)
            if score is not None:
                self._held.append(self._scored(END, score))
            self._release(self._stops.feed(text) + self._stops.finish(), is_last=not self._stops.has_ended)
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
            self._unread.append((text, tokens))

    def _scored(self, token: int, score: CandidateScore) -> ScoredToken:
        names: dict[str, int] = {}  # by which the reply tells tokens apart
        for other in (*(other for other, _ in score.alternatives), token):
            name = self.tokenizer.describe(other)
            names.setdefault(name if names.get(name, other) == other else f"token_id:{other}", other)
        named = {other: name for name, other in names.items()}
        alternatives = {named[other]: value for other, value in score.alternatives}
        return ScoredToken(named[token], self._decoded, score.log_probability, alternatives)


class TextEngine(ModelThread):
    """Generates texts; all methods but those of `ModelThread` are called in the event loop.

    Args:
        name: of the model.
        run: that of a language model.
        limits: of the server.

    Attributes:
        context: the largest number of tokens that the model can read; None for any number.
        texts: those that have not ended.
    """

    def __init__(self, name: str, run: Run, limits: Limits) -> None:
        super().__init__(name)
        self.run, self.limits, self.context = run, limits, learned_positions(run.model)
        self.batch = self._new_batch()
        self.texts: dict[TextRequest, GenerationStream] = {}
        self._seconds = 0.0  # that a text takes, on average
        self._loop: asyncio.AbstractEventLoop | None = None

    def _new_batch(self) -> ContinuousBatch:
        return ContinuousBatch(
            self.run.language_model,
            stop=self.run.stop,
            banned=banned_tokens(self.run.tokenizer, self.run.stop),
            max_rows=self.limits.max_running,
            memory=self.limits.batch_bytes,
            cache_bytes=self.limits.cache_bytes,
        )

    @property
    def num_waiting(self) -> int:
        """The number of texts that have no row in the batch yet."""
        return max(0, len(self.texts) - self.batch.num_running)

    def has_room(self, count: int) -> bool:
        """Return whether so many more texts may wait; a request that comes alone may have any allowed number."""
        return not self.texts or len(self.texts) + count <= self.limits.max_running + self.limits.max_waiting

    @property
    def retry_after(self) -> int:
        """Whole seconds after which a row may be free: the time of a text, times those that wait for each row."""
        rounds = 1 + self.num_waiting / self.limits.max_running
        return min(MAX_RETRY, max(1, math.ceil(self._seconds * rounds)))

    def submit(self, text: GenerationStream) -> None:
        """Let a text wait for its row in the batch.

        Raises:
            ModelDeadError: the thread has ended.
        """
        self._loop = asyncio.get_running_loop()
        self.texts[text.request] = text
        try:
            self.call(lambda: self.batch.add(text.request) if text.request in self.texts else None)
        except ModelDeadError:
            self.texts.pop(text.request, None)
            raise

    def cancel(self, text: GenerationStream) -> "Future[None]":
        """End a text soon, if it has not ended."""
        return self.call(lambda: self._cancel(text))

    # In the thread of the model

    def prepare(self) -> None:
        """Read a prompt and generate some tokens, which compiles the step, and choose the number of threads."""
        context = self.context or PREPARED_PROMPT + PREPARED_TOKENS
        max_tokens = min(PREPARED_TOKENS, context)
        prompt = [self.run.tokenizer.begin] * max(1, min(PREPARED_PROMPT, context - max_tokens))

        def work() -> None:
            batch = ContinuousBatch(self.run.language_model, cache_bytes=0)
            batch.add(TextRequest(prompt, 0, max_tokens))
            while not batch.is_empty:
                batch.advance()

        with naming(self.run.place):
            use_fastest_threads(work, self.max_threads)

    @property
    def has_work(self) -> bool:
        """Whether a text is in progress or waits."""
        return not self.batch.is_empty

    def work(self) -> None:
        """Advance all texts by one token."""
        changed = set()
        with naming(self.run.place):
            events = self.batch.advance()

        # A text may have been cancelled since the batch was asked; the batch then knows more than the server.
        for event in events:
            text = self.texts.get(event.request)
            if text is None:
                continue
            if isinstance(event, PromptRead):
                text.read_prompt(event)
            elif not isinstance(event, TokenDrawn):
                self._end(text, event.state, event.score)
            elif text.add_token(event) and (not text.request.keeps_state or text.has_more):
                self._end(text, self.batch.end(event.request))  # else the text ends by itself, with its state
            if text.streams or text.is_done:
                changed.add(text.on_change)
        self._publish(changed)

    def fail(self, error: Exception) -> None:
        """End all texts with an error, and start with an empty batch."""
        texts = []
        with contextlib.suppress(KeyError):  # texts may come and go at the same time
            while True:
                texts.append(self.texts.popitem()[1])
                texts[-1].fail(error)
        self.batch = self._new_batch()
        self._publish({text.on_change for text in texts})

    def _cancel(self, text: GenerationStream) -> None:
        if text.request in self.texts:
            self._end(text, self.batch.end(text.request), is_cancelled=True)
            self._publish({text.on_change})

    def _end(
        self,
        text: GenerationStream,
        state: TextState | None,
        score: CandidateScore | None = None,
        *,
        is_cancelled: bool = False,
    ) -> None:
        del self.texts[text.request]
        self._seconds += SMOOTHING * (time.monotonic() - text.arrived - self._seconds)
        text.end(state, score, is_cancelled=is_cancelled)

    def _publish(self, changed: set[Callable[[], None]]) -> None:
        """Tell the event loop which requests have changed, by one call for all of them."""

        def notify() -> None:
            for on_change in changed:
                on_change()

        if changed and self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has been closed
                self._loop.call_soon_threadsafe(notify)

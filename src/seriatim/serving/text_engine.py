"""The thread of a language model: it generates the texts of all clients in one batch."""

import asyncio
import contextlib
import math
import threading
import time
from concurrent.futures import Future

from ..decoding.continuous_batch import ContinuousBatch, PromptRead, TextRequest, TokenDrawn
from ..decoding.next_token_scores import TokenScore
from ..decoding.prompt_reading import TextState
from ..layers.positions import learned_positions
from ..models.probabilities import naming
from ..runs.run import Run
from ..runs.text_batches import banned_tokens
from .live_text import LiveText, Signal
from .model_thread import ModelDeadError, ModelThread, use_fastest_threads
from .service_limits import Limits

PREPARED_PROMPT, PREPARED_TOKENS = 64, 16
SMOOTHING = 0.1
"""The weight of the newest text in the average time of a text."""
MAX_RETRY = 60


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
        self.texts: dict[TextRequest, LiveText] = {}
        self._seconds = 0.0  # that a text takes, on average
        self._changed: set[Signal] = set()
        self._changing = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    def _new_batch(self) -> ContinuousBatch:
        return ContinuousBatch(
            self.run.answering,
            stop=self.run.stop,
            banned=banned_tokens(self.run.tokenizer, self.run.stop),
            max_rows=self.limits.max_running,
            memory=self.limits.batch_bytes,
            cache_bytes=self.limits.cache_bytes,
        )

    @property
    def num_waiting(self) -> int:
        """The number of texts that have no place in the batch yet."""
        return max(0, len(self.texts) - self.batch.num_running)

    def has_room(self, count: int) -> bool:
        """Return whether so many more texts may wait; a request that comes alone may have any allowed number."""
        return not self.texts or len(self.texts) + count <= self.limits.max_running + self.limits.max_waiting

    @property
    def retry_after(self) -> int:
        """Whole seconds after which a place may be free: the time of a text, times those that wait for each place."""
        rounds = 1 + self.num_waiting / self.limits.max_running
        return min(MAX_RETRY, max(1, math.ceil(self._seconds * rounds)))

    def submit(self, text: LiveText) -> None:
        """Let a text wait for its place in the batch.

        Raises:
            ModelDeadError: the thread has ended.
        """
        self._loop = asyncio.get_running_loop()
        self.texts[text.request] = text
        try:
            self.call(lambda: self._add(text))
        except ModelDeadError:
            self.texts.pop(text.request, None)
            raise

    def cancel(self, text: LiveText) -> "Future[None]":
        """End a text soon, if it has not ended."""
        return self.call(lambda: self._cancel(text))

    # In the thread of the model

    def prepare(self) -> None:
        """Read a prompt and generate some tokens, which compiles the step, and choose the number of threads."""
        context = self.context or PREPARED_PROMPT + PREPARED_TOKENS
        max_tokens = min(PREPARED_TOKENS, context)
        prompt = [self.run.tokenizer.begin] * max(1, min(PREPARED_PROMPT, context - max_tokens))

        def work() -> None:
            batch = ContinuousBatch(self.run.answering, cache_bytes=0)
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
                changed.add(text.signal)
        self._publish(changed)

    def fail(self, error: Exception) -> None:
        """End all texts with an error, and start with an empty batch."""
        texts = []
        with contextlib.suppress(KeyError):  # texts may come and go at the same time
            while True:
                texts.append(self.texts.popitem()[1])
                texts[-1].fail(error)
        self.batch = self._new_batch()
        self._publish({text.signal for text in texts})

    def _add(self, text: LiveText) -> None:
        if text.request in self.texts:
            self.batch.add(text.request)

    def _cancel(self, text: LiveText) -> None:
        if text.request in self.texts:
            self._end(text, self.batch.end(text.request), is_cancelled=True)
            self._publish({text.signal})

    def _end(
        self,
        text: LiveText,
        state: TextState | None,
        score: TokenScore | None = None,
        *,
        is_cancelled: bool = False,
    ) -> None:
        del self.texts[text.request]
        self._seconds += SMOOTHING * (time.monotonic() - text.arrived - self._seconds)
        text.end(state, score, is_cancelled=is_cancelled)

    def _publish(self, changed: set[Signal]) -> None:
        """Tell the event loop which requests have changed; several changes need one call."""
        if not changed or self._loop is None:
            return
        with self._changing:
            is_first = not self._changed
            self._changed |= changed
        if is_first:
            try:
                self._loop.call_soon_threadsafe(self._notify)
            except RuntimeError:  # the loop has been closed
                return

    def _notify(self) -> None:
        with self._changing:
            changed, self._changed = self._changed, set()
        for signal in changed:
            signal.notify()

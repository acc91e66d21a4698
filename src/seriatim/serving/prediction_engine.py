"""The thread of a model that answers: inputs of several requests are answered together, a few at a time."""

import contextlib
import functools
import time
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import TypeAlias

from ..core.errors import InputError
from ..core.json_object import JsonObject
from ..runs.run import Run
from .limits import Limits
from .text_engine import ModelDeadError, ModelThread, use_fastest_threads

UNIT_SECONDS = 0.25
"""The time that the inputs that are answered together may take, as estimated; other requests wait for it."""
FIRST_TOKENS = 128
"""Tokens that are answered together before their time is known."""


Item: TypeAlias = tuple[object, int]
"""An input and the number of its tokens."""


class PredictionRequest:
    """The inputs of one request, their settings, their future answers, and the number of tokens of each."""

    def __init__(self, items: Sequence[object], settings: Mapping[str, object], sizes: Sequence[int]) -> None:
        self.settings, self.count = dict(settings), len(items)
        self.unanswered = deque((item, max(1, size)) for item, size in zip(items, sizes, strict=True))
        self.found: list[JsonObject] = []
        self.answers: Future[list[JsonObject]] = Future()
        self.seconds: float | None = None  # that a token takes, on average


class PredictionEngine(ModelThread):
    """Answers inputs; `ask` and `leave` are called in the event loop.

    Args:
        name: of the model.
        run: that of a task with answers.
        limits: of the server.

    Attributes:
        num_waiting: inputs of requests that have not been answered.
    """

    def __init__(self, name: str, run: Run, limits: Limits) -> None:
        super().__init__(name)
        self.run, self.limits, self.num_waiting = run, limits, 0
        self._asked: set[PredictionRequest] = set()
        self._waiting: deque[PredictionRequest] = deque()  # the one that is answered next is first

    def has_room(self, count: int) -> bool:
        """Return whether so many more inputs may wait: more than one request may ask for, but not many more."""
        return self.num_waiting + count <= self.limits.max_inputs + self.limits.max_waiting

    def ask(self, request: PredictionRequest) -> None:
        """Let inputs wait for their answers.

        Raises:
            ModelDeadError: the thread has ended.
        """
        self._asked.add(request)
        self.num_waiting += request.count
        try:
            self.call(lambda: self._waiting.append(request))
        except ModelDeadError:
            self.leave(request)
            raise

    def leave(self, request: PredictionRequest) -> None:
        """Note that the answers have arrived or are not wanted any more; inputs that still wait are not answered."""
        self._asked.discard(request)
        self.num_waiting -= request.count
        request.answers.cancel()

    # In the thread of the model

    def prepare(self) -> None:
        """Answer an input, if the model can read this one, and choose the number of threads."""
        with contextlib.suppress(InputError):
            work = functools.partial(self.run.predict, ["a b c d e f g h"], details=True)
            use_fastest_threads(lambda: list(work()), self.max_threads)

    @property
    def has_work(self) -> bool:
        """Whether inputs wait."""
        return bool(self._waiting)

    def work(self) -> None:
        """Answer some inputs of the next request, together with those of others that have the same settings."""
        # Only what can be computed in one call is answered together, and only as much as others can wait for: a whole
        # request of a thousand inputs would hold up all that come after it. One input is never divided.
        first = self._waiting[0]
        tokens = FIRST_TOKENS if first.seconds is None else int(UNIT_SECONDS / max(first.seconds, 1e-7))
        unit, count = list[tuple[PredictionRequest, list[Item]]](), 0
        for request in list(self._waiting):
            if request.answers.cancelled():
                self._waiting.remove(request)
            elif request.settings == first.settings:
                items = list[Item]()
                while request.unanswered and count < self.run.predictor.batch_size:
                    if count and request.unanswered[0][1] > tokens:
                        break
                    items.append(request.unanswered.popleft())
                    tokens, count = tokens - items[-1][1], count + 1
                if items or not request.count:
                    unit.append((request, items))

        # Requests take turns: those that were not served come first the next time.
        for request, _ in unit:
            self._waiting.remove(request)
            self._waiting.append(request)
        self._answer_unit(unit)

    def fail(self, error: Exception) -> None:
        """End all requests with an error."""
        self._waiting.clear()
        for request in list(self._asked):
            _set_error(request, error)

    def _answer_unit(self, unit: Sequence[tuple[PredictionRequest, list[Item]]]) -> None:
        try:
            self._answer(unit)
        except Exception as error:  # one of them has bad settings or inputs; the others must not suffer from it
            for portion in unit if len(unit) > 1 else ():
                self._answer_unit([portion])
            if len(unit) == 1:
                self._waiting.remove(unit[0][0])
                _set_error(unit[0][0], error)

    def _answer(self, unit: Sequence[tuple[PredictionRequest, list[Item]]]) -> None:
        items = [item for _, portion in unit for item, _ in portion]
        tokens, began = sum(size for _, portion in unit for _, size in portion), time.monotonic()
        answers = iter(list(self.run.predict_batches([items], details=True, **unit[0][0].settings)) if items else [])
        seconds = (time.monotonic() - began) / max(1, tokens)
        for request, portion in unit:
            request.found += [next(answers) for _ in portion]
            request.seconds = seconds if portion else request.seconds
            if not request.unanswered:
                self._waiting.remove(request)
                with contextlib.suppress(Exception):  # the request was cancelled meanwhile
                    request.answers.set_result(request.found)


def _set_error(request: PredictionRequest, error: Exception) -> None:
    with contextlib.suppress(Exception):  # the request was cancelled, or has its answers
        request.answers.set_exception(error)

"""The thread of a model that answers: inputs of several requests are answered together, a few at a time."""

import contextlib
import functools
import time
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import TypeAlias

from ..core.errors import InputError
from ..evaluation.intervals import Metrics
from ..runs.run import Run
from .http_errors import LOGGER
from .model_thread import ModelDeadError, ModelThread, use_fastest_threads
from .service_limits import Limits

UNIT_SECONDS = 0.25
"""The time that the inputs that are answered together may take, as estimated; other requests wait for it."""
FIRST_TOKENS, USUAL_TOKENS = 128, 8
"""Tokens that are answered together before their time is known; and tokens of an input whose size is not known."""


Item: TypeAlias = tuple[object, int]
"""An input and the number of its tokens."""


class Question:
    """The inputs of one request, their settings, their future answers, and the number of tokens of each."""

    def __init__(
        self, items: Sequence[object], settings: Mapping[str, object], sizes: Sequence[int] | None = None
    ) -> None:
        self.settings, self.count = dict(settings), len(items)
        known = [USUAL_TOKENS] * len(items) if sizes is None else [max(1, size) for size in sizes]
        self.unanswered, self.found = deque(zip(items, known, strict=True)), list[Metrics]()
        self.answers: Future[list[Metrics]] = Future()
        self.seconds: float | None = None  # that a token takes, on average


class AnswerEngine(ModelThread):
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
        self._asked: set[Question] = set()
        self._waiting: deque[Question] = deque()  # the one that is answered next is first

    def has_room(self, count: int) -> bool:
        """Return whether so many more inputs may wait: more than one request may ask for, but not many more."""
        return self.num_waiting + count <= self.limits.max_inputs + self.limits.max_waiting

    def ask(self, question: Question) -> None:
        """Let inputs wait for their answers.

        Raises:
            ModelDeadError: the thread has ended.
        """
        self._asked.add(question)
        self.num_waiting += question.count
        try:
            self.call(lambda: self._waiting.append(question))
        except ModelDeadError:
            self.leave(question)
            raise

    def leave(self, question: Question) -> None:
        """Note that the answers have arrived or are not wanted any more; inputs that still wait are not answered."""
        self._asked.discard(question)
        self.num_waiting -= question.count
        question.answers.cancel()

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
        first = self._waiting[0]
        tokens = FIRST_TOKENS if first.seconds is None else int(UNIT_SECONDS / max(first.seconds, 1e-7))
        unit, count = list[tuple[Question, list[Item]]](), 0
        for question in list(self._waiting):
            if question.answers.cancelled():
                self._waiting.remove(question)
            elif question.settings == first.settings:
                items = list[Item]()
                while question.unanswered and count < self.run.predictor.batch_size:
                    if count and question.unanswered[0][1] > tokens:
                        break
                    items.append(question.unanswered.popleft())
                    tokens, count = tokens - items[-1][1], count + 1
                if items or not question.count:
                    unit.append((question, items))
        for question, _ in unit:  # the others come first the next time
            self._waiting.remove(question)
            self._waiting.append(question)
        self._answer_unit(unit)

    def fail(self, error: Exception) -> None:
        """End all questions with an error."""
        self._waiting.clear()
        for question in list(self._asked):
            _set_error(question, error)

    def _answer_unit(self, unit: Sequence[tuple[Question, list[Item]]]) -> None:
        try:
            self._answer(unit)
        except Exception as error:  # one of them has bad settings or inputs; the others must not suffer from it
            for part in unit if len(unit) > 1 else ():
                self._answer_unit([part])
            if len(unit) == 1:
                if not isinstance(error, InputError):
                    LOGGER.exception("%s: an answer failed", self.name)
                self._waiting.remove(unit[0][0])
                _set_error(unit[0][0], error)

    def _answer(self, unit: Sequence[tuple[Question, list[Item]]]) -> None:
        items = [item for _, part in unit for item, _ in part]
        tokens, began = sum(size for _, part in unit for _, size in part), time.monotonic()
        answers = iter(list(self.run.predict_batches([items], details=True, **unit[0][0].settings)) if items else [])
        seconds = (time.monotonic() - began) / max(1, tokens)
        for question, part in unit:
            question.found += [next(answers) for _ in part]
            question.seconds = seconds if part else question.seconds
            if not question.unanswered:
                self._waiting.remove(question)
                with contextlib.suppress(Exception):  # the request was cancelled meanwhile
                    question.answers.set_result(question.found)


def _set_error(question: Question, error: Exception) -> None:
    with contextlib.suppress(Exception):  # the request was cancelled, or has its answers
        question.answers.set_exception(error)

"""The thread of a model that answers: inputs of several requests are answered together, a few at a time."""

import contextlib
import functools
import time
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future

from ..core.errors import InputError
from ..evaluation.intervals import Metrics
from ..runs.run import Run
from .http_errors import LOGGER
from .model_thread import ModelThread, use_fastest_threads
from .service_limits import Limits

UNIT_SECONDS = 0.25
"""The time that the inputs that are answered together may take, as estimated; other requests wait for it."""
FIRST_UNIT = 8
"""Number of inputs that are answered together before their time is known."""


class Question:
    """The inputs of one request, their settings and their future answers."""

    def __init__(self, items: Sequence[object], settings: Mapping[str, object]) -> None:
        self.settings = dict(settings)
        self.unanswered, self.found = deque(items), list[Metrics]()
        self.count = len(items)
        self.answers: Future[list[Metrics]] = Future()
        self.seconds: float | None = None  # that an input takes, on average


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
        self.call(lambda: self._waiting.append(question))
        self._asked.add(question)
        self.num_waiting += question.count

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
        size = FIRST_UNIT if first.seconds is None else int(UNIT_SECONDS / max(first.seconds, 1e-6))
        left = max(1, min(size, self.run.task.answer_batch_size))
        unit = list[tuple[Question, list[object]]]()
        for question in list(self._waiting):
            if question.answers.cancelled():
                self._waiting.remove(question)
            elif left and question.settings == first.settings:
                items = [question.unanswered.popleft() for _ in range(min(left, len(question.unanswered)))]
                left -= len(items)
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

    def _answer_unit(self, unit: Sequence[tuple[Question, list[object]]]) -> None:
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

    def _answer(self, unit: Sequence[tuple[Question, list[object]]]) -> None:
        items = [item for _, part in unit for item in part]
        if items:
            began = time.monotonic()
            answers = iter(list(self.run.predict_batches([items], details=True, **unit[0][0].settings)))
            seconds = (time.monotonic() - began) / len(items)
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

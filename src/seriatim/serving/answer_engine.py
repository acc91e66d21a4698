"""The thread of a model that answers: inputs of several requests that wait are answered in one batch."""

import contextlib
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future

from ..core.errors import InputError
from ..evaluation.intervals import Metrics
from ..runs.run import Run
from .model_thread import ModelThread, use_fastest_threads
from .service_limits import Limits


class Question:
    """The inputs of one request, their settings and their future answers."""

    def __init__(self, items: Sequence[object], settings: Mapping[str, object]) -> None:
        self.items, self.settings = list(items), dict(settings)
        self.answers: Future[list[Metrics]] = Future()


class AnswerEngine(ModelThread):
    """Answers inputs; `ask` and `cancel` are called in the event loop.

    Args:
        name: of the model.
        run: that of a task with answers.
        limits: of the server.

    Attributes:
        num_waiting: inputs that have not been answered.
    """

    def __init__(self, name: str, run: Run, limits: Limits) -> None:
        super().__init__(name)
        self.run, self.limits, self.num_waiting = run, limits, 0
        self._waiting: deque[Question] = deque()

    def has_room(self, count: int) -> bool:
        """Return whether so many more inputs may wait: more than one request may ask for, but not many more."""
        return self.num_waiting + count <= self.limits.max_inputs + self.limits.max_waiting

    def ask(self, question: Question) -> None:
        """Let inputs wait for their answers.

        Raises:
            ModelDeadError: the thread has ended.
        """
        self.call(lambda: self._waiting.append(question))
        self.num_waiting += len(question.items)

    def leave(self, question: Question) -> None:
        """Note that the answers have arrived or are not wanted any more; inputs that still wait are not answered."""
        self.num_waiting -= len(question.items)
        question.answers.cancel()

    # In the thread of the model

    def prepare(self) -> None:
        """Answer an input, if the model can read this one, and choose the number of threads."""
        with contextlib.suppress(InputError):
            use_fastest_threads(lambda: list(self.run.predict(["a b c d e f g h"], details=True)))

    @property
    def has_work(self) -> bool:
        """Whether inputs wait."""
        return bool(self._waiting)

    def work(self) -> None:
        """Answer the inputs that came first, together with others that have the same settings."""
        together, count = list[Question](), 0
        while self._waiting and (not together or self._waiting[0].settings == together[0].settings):
            if together and count + len(self._waiting[0].items) > self.run.task.answer_batch_size:
                break
            question = self._waiting.popleft()
            if question.answers.set_running_or_notify_cancel():
                together.append(question)
                count += len(question.items)
        try:
            self._answer(together)
        except InputError:  # one of them has bad settings or inputs; the others must not suffer from it
            for question in together:
                try:
                    self._answer([question])
                except Exception as error:
                    question.answers.set_exception(error)
        except Exception as error:
            for question in together:
                question.answers.set_exception(error)
            raise

    def fail(self, error: Exception) -> None:
        """End all questions with an error."""
        while self._waiting:
            question = self._waiting.popleft()
            if question.answers.set_running_or_notify_cancel():
                question.answers.set_exception(error)

    def _answer(self, questions: Sequence[Question]) -> None:
        if not questions:
            return
        items = [item for question in questions for item in question.items]
        size = self.run.task.answer_batch_size
        batches = [items[start : start + size] for start in range(0, len(items), size)]
        answers = iter(list(self.run.predict_batches(batches, details=True, **questions[0].settings)))
        for question in questions:
            question.answers.set_result([next(answers) for _ in question.items])

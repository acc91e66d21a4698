"""The checks of a training before its first step, with all problems reported at once."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from ..config import Config, Model, resolve_leniently
from ..core.errors import InputError, ProblemsError
from ..data.vocabulary import Vocabulary
from ..storage.lock import refuse_locked
from ..tasks import find, with_current_layer
from ..training.hardware import choose_device
from ..training.initial import Initial, open_initial
from ..training.resource_limits import build_model, check_memory
from ..training.run_files import check_out
from ..training.setup import check_initial
from ..training.task import AnyTask

Result = TypeVar("Result")
Report = dict[str, dict[str, object]]


def check_training(
    config: Config | Mapping[str, object] | str | Path, *, overrides: Mapping[str, object] | None = None
) -> Report:
    """Check configuration, data, tokenizer and model as a training does.

    Args:
        config: as in `seriatim.train`; ``out`` is checked if it is given.
        overrides: values by dotted name, applied last.

    Returns:
        The statistics of each part of the data; see `Task.report`.

    Raises:
        ProblemsError: all problems that can be found at once.
    """
    return _Check(config, overrides or {}).run()


class _Check:
    """Continues after a problem with whatever does not depend on it."""

    def __init__(self, source: Config | Mapping[str, object] | str | Path, overrides: Mapping[str, object]) -> None:
        self.config, self.problems = resolve_leniently(source, overrides)

    def attempt(self, step: Callable[[], Result]) -> Result | None:
        """Return the result of a step, or record its problem and return None."""
        try:
            return step()
        except InputError as error:
            self.problems.extend(getattr(error, "problems", [str(error)]))
            return None

    def run(self) -> Report:
        """Make all checks, and return the statistics of the data."""
        self.attempt(lambda: choose_device(self.config.training.device))
        if self.config.out is not None:
            self.attempt(lambda: refuse_locked(check_out(self.config.out, overwrite=False)))
        task = self.attempt(lambda: find(with_current_layer(self.config)))
        fits = task is not None
        if task is None:  # the data can be read all the same
            others = self.config.model_copy(update={"model": Model()})
            task = self.attempt(lambda: find(others))
        report = None if task is None else self.data(task, fits)
        if self.problems or report is None:
            raise ProblemsError(self.problems)
        return report

    def data(self, task: AnyTask, fits: bool) -> Report | None:
        """Check the data, and the model if its configuration fits; return the statistics of the data."""
        self.attempt(lambda: check_initial(task.config))
        self.attempt(task.check_held_out)
        initial = self.attempt(lambda: self.initial(task))
        vocabulary = self.attempt(task.learn_vocabulary)
        if vocabulary is None:
            for part in ("valid", "test"):
                if spec := self.spec(task, part):
                    self.attempt(lambda spec=spec, part=part: task.skim(spec, part))  # type: ignore[misc]
            return None
        if initial is not None:
            vocabulary = initial.with_tokenizer(vocabulary)
        if fits:
            self.attempt(lambda: self.model(task, vocabulary, initial))
        self.fit(task, vocabulary)
        return None if self.problems else self.attempt(lambda: task.report(vocabulary))

    def initial(self, task: AnyTask) -> Initial | None:
        """Return the run that the training starts from, if any."""
        if task.config.training.init is None:
            return None
        initial = open_initial(task.config.training.init)
        initial.settle(task.config)
        return initial

    def model(self, task: AnyTask, vocabulary: Vocabulary, initial: Initial | None) -> None:
        """Check the size of the model, and build it if it takes parameters from a run."""
        if initial is None:
            check_memory(task, vocabulary)
        else:
            initial.copy_to(build_model(task, vocabulary), task.config.model)

    def fit(self, task: AnyTask, vocabulary: Vocabulary) -> None:
        """Read each part of the data, and check that the parts and the configuration fit each other."""
        parts = {}
        for part in ("train", "valid", "test"):
            spec = self.spec(task, part)
            if spec is not None:
                before = len(self.problems)
                parts[part] = self.attempt(lambda spec=spec, part=part: task.read(spec, part, vocabulary))  # type: ignore[misc]
                if len(self.problems) > before:
                    parts[part] = None
        if parts.get("train") is not None:
            self.attempt(lambda: task.check(parts["train"], parts.get("valid")))

    def spec(self, task: AnyTask, part: str) -> str | None:
        """Return the name of this part of the data in the configuration."""
        if part == "train":
            return task.training_spec()
        return task.validation_spec() if part == "valid" else task.config.data.test

"""The checks of a training before its first step, with all problems reported at once."""

from collections.abc import Callable, Mapping
from typing import TypeVar

from ..config import Config, ConfigSource, Model, resolve_leniently
from ..core.errors import InputError, ProblemsError
from ..storage.lock import refuse_locked
from ..tasks import find, with_current_layer
from ..training.hardware import choose_device
from ..training.overlap import warn_of_overlap
from ..training.resource_limits import build_model, check_memory
from ..training.run_files import check_out, files_read, refuse_overwriting
from ..training.setup import open_initial
from ..training.task import AnyTask
from .simple_baseline import check_automatic_weight, check_weight

Result = TypeVar("Result")
Report = dict[str, dict[str, object]]


def check_training(config: ConfigSource, *, overrides: Mapping[str, object] | None = None) -> Report:
    """Check configuration, data, tokenizer and model as a training does; return statistics of each part of the data.

    Args:
        config: as in `seriatim.train`; ``out`` is checked if it is given.
        overrides: values by dotted name, applied last.

    Raises:
        ProblemsError: all problems that can be found at once.
    """
    check = _Check(*resolve_leniently(config, overrides))
    report = check.run()
    if check.problems or report is None:
        raise ProblemsError(check.problems)
    return report


class _Check:
    """Continues after a problem with whatever does not depend on it."""

    def __init__(self, config: Config, problems: list[str]) -> None:
        self.config, self.problems = config, problems

    def attempt(self, step: Callable[..., Result], *arguments: object) -> Result | None:
        """Return the result of a step, or record its problem and return None."""
        try:
            return step(*arguments)
        except InputError as error:
            self.problems.extend(getattr(error, "problems", [str(error)]))
            return None

    def run(self) -> Report | None:
        """Make all checks, and return the statistics of the data if there is no problem."""
        self.attempt(choose_device, self.config.training.device)
        if self.config.out is not None:
            self.attempt(lambda: refuse_locked(check_out(self.config.out, overwrite=False)))
            self.attempt(refuse_overwriting, self.config.out, files_read(self.config))
        task = self.attempt(lambda: find(with_current_layer(self.config)))
        if task is not None:
            return self.data(task, model_fits=True)
        task = self.attempt(
            find, self.config.model_copy(update={"model": Model()})
        )  # the data can be read all the same
        return None if task is None else self.data(task, model_fits=False)

    def data(self, task: AnyTask, *, model_fits: bool) -> Report | None:
        """Check the data, and the model if its configuration fits; return the statistics of the data."""
        config = task.config
        self.attempt(task.hold_out)
        self.attempt(check_weight, task)
        self.attempt(check_automatic_weight, task)
        self.attempt(task.check_held_out)
        initial = self.attempt(open_initial, config)
        vocabulary = self.attempt(task.learn_vocabulary)
        specs = {"train": config.data.train, "valid": task.validation_spec(), "test": config.data.test}
        specs = {part: spec for part, spec in specs.items() if spec is not None}
        if vocabulary is None:
            for part, spec in specs.items():
                if part != "train":
                    self.attempt(task.skim, spec, part)
            return None
        if initial is not None:
            vocabulary = initial.with_tokenizer(vocabulary)
            model = self.attempt(build_model, task, vocabulary) if model_fits else None
            if model is not None:
                self.attempt(initial.copy_to, model, config, vocabulary)
        elif model_fits:
            self.attempt(check_memory, task, vocabulary)
        parts = {part: self.attempt(task.read, spec, part, vocabulary) for part, spec in specs.items()}
        if parts["train"] is not None:
            self.attempt(task.check, parts["train"], parts.get("valid"))
            warn_of_overlap(task, parts["train"], parts.get("valid"))
        return None if self.problems else self.attempt(task.report, vocabulary)

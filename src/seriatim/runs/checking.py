"""The checks of a training before its first step, with all problems reported at once."""

import warnings
from collections.abc import Callable, Mapping
from typing import TypeVar

from ..config import Config, ConfigSource, Model, resolve_leniently
from ..core.errors import InputError, ProblemsError
from ..data.sources import skipped_files
from ..data.vocabulary import Vocabulary
from ..storage.files import refuse_locked
from ..tasks import open_task, with_defaults, with_imported_layers
from ..tasks.data_files import NOTHING
from ..tasks.model_size import build_model, check_memory
from ..tasks.task import Task
from ..training.hardware import choose_device
from ..training.initial import open_initial
from ..training.run_files import check_out, files_read, refuse_overwriting
from ..training.settle import (
    check_weight,
    leave_out_markers,
    require_validation,
    split_data,
    warn_of_overlap,
    with_data_defaults,
    with_tokenizer_of,
)

Result = TypeVar("Result")
Report = dict[str, dict[str, object]]


def check_training(config: ConfigSource, *, overrides: Mapping[str, object] | None = None) -> Report:
    """Check configuration, data, tokenizer and model as a training does; return statistics of each split of the data.

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
    """Goes through the stages of `seriatim.training.settle.settle`, and continues after a problem with the others."""

    def __init__(self, config: Config, problems: list[str]) -> None:
        self.given, self.problems = config, problems

    def attempt(self, step: Callable[..., Result], *arguments: object) -> Result | None:
        """Return the result of a step, or record its problem and return None."""
        try:
            return step(*arguments)
        except InputError as error:
            self.problems.extend(getattr(error, "problems", [str(error)]))
            return None

    def run(self) -> Report | None:
        """Make all checks, and return the statistics of the data if there is no problem."""
        self.attempt(choose_device, self.given.training.device)
        if self.given.out is not None:
            self.attempt(lambda: refuse_locked(check_out(self.given.out, overwrite=False)))
            self.attempt(refuse_overwriting, self.given.out, files_read(self.given))
        config = self.attempt(lambda: with_defaults(with_imported_layers(self.given)))
        if config is not None:
            return self.data(config, model_fits=True)

        # The data can be read all the same.
        self.given = self.given.model_copy(update={"model": Model()})
        config = self.attempt(with_defaults, self.given)
        return None if config is None else self.data(config, model_fits=False)

    def data(self, config: Config, *, model_fits: bool) -> Report | None:
        """Check the data, and the model if its configuration fits; return the statistics of the data."""
        initial = None if config.training.init is None else self.attempt(open_initial, config)
        if initial is not None:
            config = with_tokenizer_of(initial, config)
        config = self.attempt(leave_out_markers, config) or config
        # A fraction that cannot be held out is a problem of its own, and not one of the data.
        config = self.attempt(split_data, config) or config.replaced({"data.valid": NOTHING})
        has_validation = open_task(config).files.validation_source() is not None
        self.attempt(lambda: check_weight(config, has_validation=has_validation))
        self.attempt(require_validation, config)

        # Without a vocabulary the data are only read, to find what is wrong with them.
        config = self.attempt(self.choose, config) or config
        task = open_task(config)
        vocabulary = self.attempt(task.reader.learn_vocabulary)
        data = config.data
        sources = {"train": data.train, "valid": task.files.validation_source(), "test": data.test}
        named = {split: source for split, source in sources.items() if source is not None}
        if vocabulary is None:
            for split, source in named.items():
                if split != "train":
                    self.attempt(task.reader.check_readable, source, split)
            return None

        if initial is not None:
            vocabulary = initial.with_tokenizer(vocabulary)
        if model_fits:
            self.attempt(check_memory, task.builder, vocabulary)
        splits = {split: self.attempt(task.reader.read, source, split, vocabulary) for split, source in named.items()}
        if (train := splits["train"]) is not None:
            task = open_task(self.attempt(with_data_defaults, config, train) or config)
            self.attempt(task.check, train, splits.get("valid"))
            warn_of_overlap(task, train, splits.get("valid"))
            if model_fits:
                model = self.attempt(build_model, task.builder, vocabulary)
                self.attempt(task.builder.initialise, model, train) if model is not None else None
                if model is not None and initial is not None:
                    self.attempt(initial.copy_to, model, config, vocabulary)
        if self.problems:
            return None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the same data were read above
            return self.attempt(describe_data, task, vocabulary)

    def choose(self, config: Config) -> Config:
        """Return the configuration with what the texts suggest; refuse settings that contradict each other."""
        task = open_task(config)
        config = task.kind.choose(self.given, config, task.reader)
        task.kind.check_config(config)
        return config


def describe_data(task: Task, vocabulary: Vocabulary) -> Report:
    """Return statistics of the tokenizer and of each split of the data that the configuration names."""
    tokenizer, data = task.kind.output_tokenizer(vocabulary), task.config.data
    report: Report = {"tokenizer": {"kind": tokenizer.kind, "vocabulary_size": tokenizer.vocabulary_size}}
    for split, source in {"train": data.train, "valid": task.files.validation_source(), "test": data.test}.items():
        if source:
            report[split] = task.reader.count(source, split, vocabulary)
            if skipped := skipped_files(source, task.files.suffixes):
                report[split]["skipped_files"] = skipped
    return report

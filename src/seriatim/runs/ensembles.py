"""Several runs at once: one answer from all of them, or whether two differ."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..core.errors import InputError
from ..data.arguments import data_name
from ..data.paths import check_named_by_run
from ..evaluation.intervals import Paired, paired
from ..evaluation.perplexity import each_loss
from ..models.mixture import Mixture, fit_weights
from .run import Run


def ensemble(runs: Sequence[Run]) -> Run:
    """Several runs as one, whose probabilities are the mean of theirs; task and vocabulary are the same for all.

    Raises:
        InputError: they are not.
    """
    first = runs[0]
    for other in runs[1:]:
        if (other.config.task, other.vocabulary.fingerprint()) != (first.config.task, first.vocabulary.fingerprint()):
            raise InputError(
                f"{other.path}: of another task or vocabulary than {first.path}; an ensemble needs runs trained on the "
                "same data with the same tokenizer settings"
            )
        _refuse_other_unit(first, other)
    if len(runs) == 1:
        return first
    model = first.task.combine([run.model for run in runs])
    return Run(first.path, first.task, first.vocabulary, model)


def interpolate(
    runs: Sequence[Run], held_out: str | None = None, *, file_format: str | None = None
) -> tuple[Run, list[float]]:
    """Several language models as one, with the weights that make some held-out text likeliest, and these weights.

    Args:
        runs: of one vocabulary.
        held_out: the text; None for the one that the first run was trained with.
        file_format: as for `Run.evaluate`.

    Raises:
        InputError: runs that are no language models of one vocabulary, or no text.
    """
    first = runs[0]
    for run in runs:
        run.needs("lm")
        if run.vocabulary.fingerprint() != first.vocabulary.fingerprint():
            raise InputError(
                f"{run.path}: reads text in other tokens than {first.path}; train both on the same data with the same "
                "tokenizer settings"
            )
        _refuse_other_unit(first, run)
    spec = held_out or first.task.validation_spec()
    if spec is None:
        raise InputError(f"--interpolate: {first.path} was trained without held-out text; give --interpolate FILE")
    if not held_out:
        check_named_by_run(spec, f"{first.path}: data.valid")
    corpus = first.task.read(spec, "valid", first.vocabulary, file_format=file_format)
    weights = fit_weights(np.stack([each_loss(run.model, corpus) for run in runs]))
    return Run(first.path, first.task, first.vocabulary, Mixture([run.model for run in runs], weights)), weights


def compare(
    first: Run, second: Run, data: str, *, file_format: str | None = None, **settings: Any
) -> dict[str, Paired]:
    """Whether two runs of one task differ on some data: the first's figures less the second's, by paired bootstrap.

    Args:
        first: a run.
        second: another.
        data: as for `Run.evaluate`.
        file_format: likewise.
        settings: likewise.

    Raises:
        InputError: the runs were trained for different tasks, or read the data in different pieces.
    """
    data = data_name(data)
    if first.config.task != second.config.task:
        raise InputError(
            f"{second.path}: trained for {second.config.task}, but {first.path} for {first.config.task}; compare "
            "runs of one task"
        )
    _refuse_other_unit(first, second)
    mine, others = (
        run.task.measures(run.model, run.task.read(data, "test", run.vocabulary, file_format=file_format), **settings)
        for run in (first, second)
    )
    same = first.vocabulary.fingerprint() == second.vocabulary.fingerprint()
    names = [name for name in mine if name in others and (same or name not in first.task.per_token)]
    if not names:
        raise InputError(
            f"{second.path}: reads the data in other tokens than {first.path}, and what both have is per token; train "
            "both with one tokenizer, or compare bits_per_byte"
        )
    return {name: paired(mine[name].statistics, others[name].statistics, mine[name].compute) for name in names}


def _refuse_other_unit(first: Run, other: Run) -> None:
    """Raises InputError for a model of running text beside one of lines: they begin and end a text differently."""
    units = first.config.data.unit, other.config.data.unit
    if units[0] != units[1]:
        raise InputError(
            f"{other.path}: trained with data.unit {units[1]}, but {first.path} with data.unit {units[0]}; their "
            "probabilities are of different texts, train both with the same unit"
        )

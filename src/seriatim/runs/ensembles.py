"""Several runs at once: ensembles, interpolation, and tests of the difference between two runs."""

import math
from collections.abc import Sequence

import numpy as np

from ..core.errors import InputError, shown
from ..core.json_object import JsonObject
from ..data.arguments import data_name
from ..data.paths import check_named_by_run
from ..evaluation.intervals import Paired, paired
from ..evaluation.perplexity import each_loss
from ..models.mixture import Mixture, fit_weights
from ..models.probabilities import naming
from .run import Run, load
from .weight_rounding import RoundingCost, measure_speeds


def ensemble(runs: Sequence[Run]) -> Run:
    """Combine several runs of the same task and vocabulary into one that averages their probabilities.

    Raises:
        InputError: the runs have different tasks or vocabularies, or the task does not support ensembles.
    """
    _check_alike(runs)
    first = runs[0]
    if len(runs) == 1:
        return first
    combined = Run(
        first.path, first.task, first.vocabulary, first.task.builder.combine([run.answering for run in runs])
    )
    combined.weights, combined.num_combined = first.weights, len(runs)
    combined.place = _places(runs)
    return combined


def interpolate(
    runs: Sequence[Run], held_out: str | None = None, *, file_format: str | None = None
) -> tuple[Run, list[float]]:
    """Combine language models into a mixture, with the weights that give a held-out text the largest probability.

    Args:
        runs: language models with the same vocabulary.
        held_out: the text; None for that of the first run.
        file_format: as in `Run.evaluate`.

    Returns:
        The mixture, and the weights of the runs.

    Raises:
        InputError: the runs are not language models of one vocabulary, or there is no text.
    """
    _check_alike(runs)
    runs[0].needs("lm")
    first = runs[0]
    spec = held_out or first.task.files.validation_source()
    if spec is None:
        raise InputError(f"--interpolate: {first.path} was trained without held-out text; give --interpolate FILE")
    if not held_out:
        check_named_by_run(first.task.files.subset(spec, "valid").source, f"{first.path}: data.valid")
    corpus = first.task.reader.read(spec, "valid", first.vocabulary, file_format=file_format)
    losses = []
    for run in runs:
        with naming(run.place):
            losses.append(each_loss(run.model, corpus))
    weights = fit_weights(np.stack(losses))
    mixture = Run(first.path, first.task, first.vocabulary, Mixture([run.model for run in runs], weights))
    mixture.place = _places(runs)
    return mixture, weights


def compare(
    first: Run, second: Run, data: str, *, file_format: str | None = None, **settings: object
) -> dict[str, Paired]:
    """Test by paired bootstrap whether two runs of one task differ on some data.

    The arguments ``data``, ``file_format`` and ``settings`` are those of `Run.evaluate`.

    Returns:
        The metrics of the first run minus those of the second, by key.

    Raises:
        InputError: the runs were trained for different tasks, or read the data in different units.
    """
    data = data_name(data)
    if first.config.task != second.config.task:
        raise InputError(
            f"{second.path}: trained for {second.config.task}, but {first.path} for {first.config.task}; compare "
            "runs of one task"
        )
    _check_units(first, second)
    measured = []
    for run in (first, second):
        test = run.task.reader.read(data, "test", run.vocabulary, file_format=file_format)
        with naming(run.place):
            measured.append(run.task.evaluator.statistics(run.answering, test, **settings))
    measures, others = measured
    same = first.vocabulary.fingerprint() == second.vocabulary.fingerprint()
    names = [name for name in measures if name in others and (same or name not in first.task.evaluator.per_token)]
    if not names:
        raise InputError(
            f"{second.path}: reads the data in other tokens than {first.path}, and what both have is per token; train "
            "both with one tokenizer, or compare bits_per_byte"
        )
    return {name: paired(measures[name].statistics, others[name].statistics, measures[name].compute) for name in names}


def cost_of_rounding(
    run: Run, metrics: JsonObject, data: str, *, file_format: str | None = None, **settings: object
) -> RoundingCost:
    """Measure what the rounded weights of a run cost and gain on some data, of which ``metrics`` are the run's.

    The other arguments are those of `compare`.
    """
    full = load(run.path, device=str(run.device), allow_code="changed")  # which has been allowed for `run`
    test = run.task.reader.read(data_name(data), "test", run.vocabulary, file_format=file_format)
    before = run.task.evaluator.evaluate(full.answering, test, **settings)
    measures, others = (
        run.task.evaluator.statistics(model, test, **settings) for model in (run.answering, full.answering)
    )
    differences = {
        name: paired(measure.statistics, others[name].statistics, measure.compute) for name, measure in measures.items()
    }
    if "bits_per_byte" in metrics and 0 < metrics["loss"] < math.inf:
        bits = metrics["bits_per_byte"] / metrics["loss"]  # of the same bytes, so that the interval is in proportion
        loss = differences["loss"]
        low, high = (None if value is None else value * bits for value in (loss.low, loss.high))
        differences["bits_per_byte"] = Paired(loss.difference * bits, low, high, loss.p_value)
    return RoundingCost(run.weights, before, differences, measure_speeds(run.answering, full.answering))


def _places(runs: Sequence[Run]) -> str:
    return ", ".join(run.place for run in runs)


def _check_alike(runs: Sequence[Run]) -> None:
    """Raise InputError for runs whose models cannot be combined."""
    if not isinstance(runs, Sequence) or not runs or not all(isinstance(run, Run) for run in runs):
        raise InputError(f"expected a list of one or more runs, got {shown(runs)}; open each with seriatim.load")
    first = runs[0]
    for other in runs[1:]:
        if (other.config.task, other.vocabulary.fingerprint()) != (first.config.task, first.vocabulary.fingerprint()):
            raise InputError(
                f"{other.path}: of another task or vocabulary than {first.path}; train both on the same data with the "
                "same tokenizer settings"
            )
        _check_units(first, other)


def _check_units(first: Run, other: Run) -> None:
    """Raise InputError for a model of running text and one of lines, which begin and end a text differently."""
    units = first.config.data.unit, other.config.data.unit
    if units[0] != units[1]:
        raise InputError(
            f"{other.path}: trained with data.unit {units[1]}, but {first.path} with data.unit {units[0]}; their "
            "probabilities are of different texts, train both with the same unit"
        )

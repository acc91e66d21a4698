"""Several runs: ensembles, mixtures, differences between two, surprisals side by side, and simple baselines."""

import itertools
import math
import os
import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from ..core.errors import DuplicateError, InputError, MismatchError, RangeError, RequiredError, data_name, shown
from ..core.json_object import JsonObject
from ..data.sources import check_named_by_run
from ..evaluation.intervals import Paired
from ..evaluation.perplexity import each_loss
from ..evaluation.word_surprisal import By
from ..models.base_models import TextModel
from ..models.mixture import Mixture, fit_weights
from ..models.probabilities import naming
from ..storage.written_folders import file_state
from ..tasks.beside_baseline import BesideBaseline, beside_baseline
from ..training.hardware import freed_memory_kept
from ..training.run_files import BASELINE
from .run import Run, load
from .weight_rounding import RoundingCost, measure_speeds

COLUMNS = ("bits", "entropy", "rank", "tokens", "unknown")
"""The columns of each run in `surprisal_table`; the first one of a masked language model is ``pseudo_bits``."""


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
    combined.place = _locations(runs)
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
    source = held_out or first.task.files.validation_source()
    if source is None:
        raise RequiredError(f"--interpolate: {first.path} was trained without held-out text; give --interpolate FILE")
    if not held_out:
        check_named_by_run(first.task.files.subset(source, "valid").source, f"{first.path}: data.valid")

    # The weights are fitted to the losses of every token, which each model computes once.
    corpus = first.task.reader.read(source, "valid", first.vocabulary, file_format=file_format)
    models, losses = [], []
    for run in runs:
        assert isinstance(run.model, TextModel)
        models.append(run.model)
        with naming(run.place):
            losses.append(each_loss(run.model, corpus))
    weights = fit_weights(np.stack(losses))
    mixture = Run(first.path, first.task, first.vocabulary, Mixture(models, weights))
    mixture.place = _locations(runs)
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
        raise MismatchError(
            f"{second.path}: trained for {second.config.task}, but {first.path} for {first.config.task}; compare "
            "runs of one task"
        )
    _check_units(first, second)

    # Each run reads the data with its own tokenizer, and answers them as a user would get the answers.
    measured = []
    for run in (first, second):
        test = run.task.reader.read(data, "test", run.vocabulary, file_format=file_format)
        with naming(run.place):
            measured.append(run.task.evaluator.measure(run.answering, test, **settings).measures)

    # A metric per token cannot be compared across tokenizers, nor one that only one of the runs has.
    measures, others = measured
    same = first.vocabulary.fingerprint() == second.vocabulary.fingerprint()
    names = [name for name in measures if name in others and (same or name not in first.task.evaluator.per_token)]
    if not names:
        raise MismatchError(
            f"{second.path}: its tokens differ from those of {first.path}, and values per token cannot be compared; "
            "train both with one tokenizer, or compare bits_per_byte"
        )
    return {name: measures[name].paired_with(others[name]) for name in names}


def cost_of_rounding(
    run: Run, metrics: JsonObject, data: str, *, file_format: str | None = None, **settings: object
) -> RoundingCost:
    """Measure what the rounded weights of a run cost and gain on some data, of which ``metrics`` are the run's.

    The other arguments are those of `compare`.
    """
    full = load(run.path, device=str(run.device), allow_code="changed")  # which has been allowed for `run`
    test = run.task.reader.read(data_name(data), "test", run.vocabulary, file_format=file_format)
    after, before = (run.task.evaluator.measure(model, test, **settings) for model in (run.answering, full.answering))
    differences = {name: measure.paired_with(before.measures[name]) for name, measure in after.measures.items()}
    if "bits_per_byte" in metrics and 0 < metrics["loss"] < math.inf:
        bits = metrics["bits_per_byte"] / metrics["loss"]  # of the same bytes, so that the interval is in proportion
        loss = differences["loss"]
        low, high = (None if value is None else value * bits for value in (loss.low, loss.high))
        differences["bits_per_byte"] = Paired(loss.difference * bits, low, high, loss.p_value)
    return RoundingCost(run.weights, before.metrics, differences, measure_speeds(run.answering, full.answering))


def _locations(runs: Sequence[Run]) -> str:
    return ", ".join(run.place for run in runs)


def _check_alike(runs: Sequence[Run]) -> None:
    """Raise InputError for runs whose models cannot be combined."""
    if not isinstance(runs, Sequence) or not runs or not all(isinstance(run, Run) for run in runs):
        raise RangeError(f"expected a list of one or more runs, got {shown(runs)}; open each with seriatim.load")
    first = runs[0]
    for other in runs[1:]:
        if (other.config.task, other.vocabulary.fingerprint()) != (first.config.task, first.vocabulary.fingerprint()):
            raise MismatchError(
                f"{other.path}: of another task or vocabulary than {first.path}; train both on the same data with the "
                "same tokenizer settings"
            )
        _check_units(first, other)


def _check_units(first: Run, other: Run) -> None:
    """Raise InputError for a model of running text and one of lines, which begin and end a text differently."""
    units = first.config.data.unit, other.config.data.unit
    if units[0] != units[1]:
        raise MismatchError(
            f"{other.path}: trained with data.unit {units[1]}, but {first.path} with data.unit {units[0]}, so that "
            "their texts differ; train both with the same unit"
        )


def surprisal_table(
    runs: Sequence[Run], lines: Iterable[str], *, by: By = "word", carry_context: bool = False
) -> Iterator[list[object]]:
    """Yield the rows of a table for several runs, the headings first; arguments as in `Run.surprisal`.

    Columns: the number of the line and of the unit, both from 1; the unit; and for each run those of `COLUMNS`, with
    the name of the run before them if there are several.

    Raises:
        InputError: as in `Run.surprisal`; or tokens of runs that split the text differently.
    """
    if by == "token" and len({run.vocabulary.fingerprint() for run in runs}) > 1:
        raise MismatchError("--by token: the runs have different tokens; use --by word")
    if len({os.path.abspath(run.path) for run in runs}) < len(runs):
        raise DuplicateError(f"{runs[-1].path}: a run is given twice; give it once")

    # A masked model gives another quantity, and its column another name.
    names = [f"{name}." for name in distinct_names([run.path for run in runs])] if len(runs) > 1 else [""]
    headings = [f"{name}{column}" for name in names for column in COLUMNS]
    for i, run in enumerate(runs):
        if run.config.task == "mlm":
            headings[i * len(COLUMNS)] = f"{names[i]}pseudo_bits"
    yield ["line", "index", by, *headings]

    # All runs read the same lines lazily, and a row needs the same unit from each of them.
    copies = itertools.tee(lines, len(runs))
    each = [run.surprisal(copy, by=by, carry_context=carry_context) for run, copy in zip(runs, copies, strict=True)]
    for number, rows in enumerate(zip(*each, strict=True), start=1):
        if len({tuple(unit.text for unit in row) for row in rows}) > 1:
            raise MismatchError(
                f"line {number}: the runs read different {by}s of it (one in lower case); use --by word"
            )
        for index, row in enumerate(zip(*rows, strict=True), start=1):
            yield [number, index, row[0].text, *(value for unit in row for value in unit[1:])]


def distinct_names(paths: Sequence[str | os.PathLike[str]]) -> list[str]:
    """Return the names of the folders of runs, with as many of those around them as tell them apart."""
    parents = [Path(path).absolute().parts[1:] for path in paths]
    for size in range(1, max(map(len, parents), default=0) + 1):
        names = ["/".join(parts[-size:]) for parts in parents]
        if len(set(names)) == len(set(parents)):
            break
    return [name if names.index(name) == i else f"{name} ({names[:i].count(name) + 1})" for i, name in enumerate(names)]


def open_baseline(run: Run) -> Run | None:
    """Open the baseline of a run; None if it has none. One that cannot be opened is left out with a warning."""
    name, folder = run.task.kind.reference_model, run.path / BASELINE
    if name is None or run.config.training.baseline == "none" or not (folder / "summary.json").is_file():
        return None
    try:
        baseline = load(folder, device="cpu")
        if run.file_state not in (None, file_state(run.path / "model.safetensors")):
            raise MismatchError(f"{run.path}: the run was replaced after it was opened; open it again")
        if (baseline.config.task, baseline.config.model.layer) != (run.config.task, name):
            raise MismatchError(f"{folder}: not the baseline {name} of the run; restore it, or remove the folder")
        if baseline.vocabulary.fingerprint() != run.vocabulary.fingerprint():
            raise MismatchError(f"{folder}: of another vocabulary than the run; restore it, or remove the folder")
    except InputError as error:
        warnings.warn(f"the simple baseline is left out: {error}", stacklevel=2)
        return None
    return baseline


def evaluate_beside_baseline(
    run: Run, data: str | os.PathLike[str], *, file_format: str | None = None, **settings: object
) -> BesideBaseline | None:
    """Measure a run and its baseline on some data; the arguments are those of `Run.evaluate`.

    Returns:
        The results of `beside_baseline`; None if the run has no baseline.
    """
    baseline = open_baseline(run)
    if baseline is None:
        return None
    test = run.task.reader.read(data_name(data), "test", run.vocabulary, file_format=file_format)
    with freed_memory_kept(), naming(run.place):
        return beside_baseline(run.measured, baseline.measured, test, **settings)

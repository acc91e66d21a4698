"""The simple baseline of a run: a standalone model that is trained on the same data, and stored in the run's folder.

A model that is worse than it is not worth its cost, whatever its architecture. The baseline of a task is named by
`Task.simple_baseline`; ``training.baseline`` ``none`` leaves it out.
"""

import os
import warnings
from collections.abc import Mapping
from typing import NamedTuple

from torch import nn

from ..config import Config, Model, Training
from ..core.allocator import freed_memory_kept
from ..core.errors import InputError
from ..data.arguments import data_name
from ..data.vocabulary import Vocabulary
from ..evaluation.intervals import Measure, Metrics, Paired, is_significant, paired
from ..tasks import STANDALONE, find, shared_options
from ..training.task import AnyTask, Task
from ..training.task_data import Metric
from .run import BASELINE, Run, load

KEY = "simple"
"""The key of its figures among those of the simplest model in a summary."""
ADVICE = " A run trained with --training.baseline_weight auto answers with both."
MINUTES = 3.0
"""Limit of the time in which the weights of a baseline are fitted; one that is reached is reported."""
MAX_TOKENS = 1 << 24
"""Largest number of tokens of a running text whose n-grams are counted for a baseline, which takes about a minute."""


def baseline_task(task: AnyTask) -> AnyTask | None:
    """Return the task of a run's baseline; None if there is none, or the configuration leaves it out."""
    config, name = task.config, task.simple_baseline
    if name is None or config.training.baseline == "none":
        return None
    options = shared_options(config.task, name, config.model.options)
    return find(
        Config(
            task=config.task,
            data=config.data,
            tokenizer=config.tokenizer,
            model=Model(layer=name, options=options),
            training=Training(minutes=MINUTES, seed=config.training.seed, device="cpu", baseline="none"),
        )
    )


def check_weight(task: AnyTask) -> None:
    """Raise InputError if the configuration blends a model with a baseline that it cannot have."""
    weight = task.config.training.baseline_weight
    if not weight:
        return
    reason = ""
    if type(task).blend is Task.blend:
        reason = f"not supported for {task.config.task}"
    elif baseline_task(task) is None:
        reason = "there is no simple baseline to answer with"
    if reason:
        raise InputError(f"training.baseline_weight: {reason}; leave it out")


def check_automatic_weight(task: AnyTask) -> None:
    """Raise InputError if a weight is to be chosen on held-out data and there are none; call `hold_out` before."""
    if task.config.training.baseline_weight == "auto" and task.validation_spec() is None:
        reason = "auto chooses the weight on held-out data, and there are none; give --valid, or a weight"
        raise InputError(f"training.baseline_weight: {reason}")


def refuse_long(task: AnyTask, train: object) -> None:
    """Raise InputError if a running text is so long that a baseline would take more than about a minute."""
    if len(getattr(train, "ids", ())) > MAX_TOKENS:
        raise InputError(
            f"the training text has more than {MAX_TOKENS:,} tokens; train it with --layer {task.config.model.layer}"
        )


def open_baseline(run: Run) -> Run | None:
    """Open the baseline of a run; None if it has none. One that cannot be opened is left out with a warning."""
    name, folder = run.task.simple_baseline, run.path / BASELINE
    if name is None or run.config.training.baseline == "none" or not (folder / "summary.json").is_file():
        return None
    try:
        baseline = load(folder, device="cpu")
        if (baseline.config.task, baseline.config.model.layer) != (run.config.task, name):
            raise InputError(f"{folder}: not the baseline {name} of the run; restore it, or remove the folder")
        if baseline.vocabulary.fingerprint() != run.vocabulary.fingerprint():
            raise InputError(f"{folder}: of another vocabulary than the run; restore it, or remove the folder")
    except InputError as error:
        warnings.warn(f"the simple baseline is left out: {error}", stacklevel=2)
        return None
    return baseline


class BesideBaseline(NamedTuple):
    """The metrics of a run, and facts about its baseline on the same data: see `beside_baseline`."""

    metrics: Metrics
    baseline: Metrics
    network: Metrics
    """The metrics of the network alone, if the run answers with both; else empty."""


def beside_baseline(run: Run, baseline: Run, data: object, **settings: object) -> BesideBaseline:
    """Measure a run and its baseline on the same data, as ``task.read`` returns it; ``settings`` as in `Run.evaluate`.

    Returns:
        The metrics of the run; and of the baseline ``layer``, ``name``, its figures with their intervals,
        ``difference``, ``difference_low`` and ``difference_high`` of the main figure (the run minus the baseline,
        paired bootstrap), and ``verdict``, a sentence. If the run answers with both, also the metrics of its network
        alone, with ``name`` and ``text`` of the main figure, and ``verdict``, which compares it with the baseline.
    """
    metrics, measures = _examine(run.task, run.answering, data, settings)
    others, other_measures = _examine(baseline.task, baseline.answering, data, settings)
    figure = _compared_figure(run, measures, other_measures)
    keys = [key for one in run.task.figures for key in (one.key, f"{one.key}_low", f"{one.key}_high")]
    name = _name(baseline)
    facts = {"layer": baseline.config.model.layer, "name": name, **{key: others[key] for key in keys if key in others}}
    if figure is not None:
        first, second = measures[figure.key], other_measures[figure.key]
        result = paired(first.statistics, second.statistics, first.compute)
        facts |= {"difference": result.difference, "difference_low": result.low, "difference_high": result.high}
        could_blend = type(run.task).blend is not Task.blend and run.answering is run.model
        facts["verdict"] = verdict(figure, metrics, others, result, name, advice=ADVICE if could_blend else "")
    network = {} if run.answering is run.model else _network_alone(run, data, settings, others, other_measures, name)
    return BesideBaseline(metrics, facts, network)


def _network_alone(
    run: Run, data: object, settings: dict[str, object], others: Metrics, measures: Mapping[str, Measure], name: str
) -> Metrics:
    """Return the metrics of the network of a run that answers with both models; ``others`` are of the baseline."""
    metrics, own = _examine(run.task, run.model, data, settings)
    figure = _compared_figure(run, own, measures)
    if figure is None:
        return metrics
    first, second = own[figure.key], measures[figure.key]
    sentence = verdict(
        figure, metrics, others, paired(first.statistics, second.statistics, first.compute), name, model="network alone"
    )
    return {**metrics, "name": figure.name, "text": figure.text(metrics), "verdict": sentence}


def _compared_figure(run: Run, first: Mapping[str, Measure], second: Mapping[str, Measure]) -> Metric | None:
    """Return the main figure, or a headline instead if one of both models lacks it, or if both have the same value.

    Answers that are never exactly right can still differ in BLEU. None if the models share no headline.
    """
    main = main_figure(run.task, run.vocabulary)
    headlines = [figure for figure in run.task.figures_for(run.vocabulary) if figure.headline]
    shared = [figure for figure in (main, *headlines) if figure.key in first and figure.key in second]

    def value(measure: Measure) -> float:
        return float(measure.compute(measure.statistics.sum(0)))

    differing = (figure for figure in shared if value(first[figure.key]) != value(second[figure.key]))
    return next(differing, next(iter(shared), None))


def _examine(
    task: AnyTask, model: nn.Module, data: object, settings: dict[str, object]
) -> tuple[Metrics, dict[str, Measure]]:
    if settings:
        return task.evaluate(model, data, **settings), task.measures(model, data, **settings)
    return task.examine(model, data)


def _name(baseline: Run) -> str:
    """Return what a baseline is called, with its article."""
    return type(baseline.task).model_name


def main_figure(task: AnyTask, vocabulary: Vocabulary | None = None) -> Metric:
    """Return the figure that selects weights if it is a headline, or else the first headline of the task.

    Figures that the simple baseline of the task lacks are left out, so that every model can be compared with it.
    Some figures depend on the labels of the training data, and so on its vocabulary, where that is known.
    """
    figures = task.figures if vocabulary is None else task.figures_for(vocabulary)
    headlines = {figure.key: figure for figure in figures if figure.headline}
    if task.simple_baseline is not None:
        measured = {figure.key for figure in STANDALONE[task.simple_baseline].figures}
        headlines = {key: figure for key, figure in headlines.items() if key in measured}
    selects = task.selects if vocabulary is None else task.selection_metric(vocabulary)
    return headlines.get(selects) or next(iter(headlines.values()))


def verdict(
    figure: Metric,
    metrics: Metrics,
    baseline: Metrics,
    result: Paired,
    name: str,
    *,
    model: str = "model",
    advice: str = "",
) -> str:
    """Return a sentence: whether a model is better or worse than its baseline, or cannot be told from it.

    ``advice`` follows where the model is worse.
    """
    values = f"{figure.name} {figure.text(metrics)} against {figure.text(baseline)}"
    if not is_significant(result.p_value, result.low, result.high):
        return f"The {model} and its simple baseline, {name}, cannot be told apart: {values}."
    better = (result.difference > 0) == figure.more_is_better
    sentence = f"The {model} is {'better' if better else 'worse'} than its simple baseline, {name}: {values}."
    return sentence if better else f"{sentence}{advice}"


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
    test = run.task.read(data_name(data), "test", run.vocabulary, file_format=file_format)
    with freed_memory_kept():
        return beside_baseline(run, baseline, test, **settings)

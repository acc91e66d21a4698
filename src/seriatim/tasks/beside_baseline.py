"""The metrics of a run beside those of its simple baseline on the same data, and which of both is better."""

from dataclasses import dataclass
from typing import NamedTuple

from torch import nn

from ..core.json_object import JsonObject
from ..data.vocabulary import Vocabulary
from ..evaluation.intervals import Measurement, Metric, Paired, is_significant
from . import FITTED
from .task import Task

ADVICE = " A run trained with --training.baseline_weight auto answers with both."


@dataclass(frozen=True)
class Measured:
    """What is measured of a run: its network, ``model``, and what it answers with, which may include a baseline."""

    task: Task
    vocabulary: Vocabulary
    model: nn.Module
    answering: nn.Module


class BesideBaseline(NamedTuple):
    """The metrics of a run, and facts about its baseline on the same data: see `beside_baseline`."""

    metrics: JsonObject
    baseline: JsonObject
    network: JsonObject
    """The metrics of the network alone, if the run answers with both; else empty."""

    def as_json(self, weight: float | str | None) -> JsonObject:
        """Return the metrics of the run with those of the models alone as ``network`` and ``baseline``.

        ``weight`` is that of the baseline in the answers, which stand beside the network's.
        """
        alone = {"network": self.network, "baseline_weight": weight} if self.network else {}
        return {**self.metrics, "baseline": self.baseline, **alone}


def beside_baseline(run: Measured, baseline: Measured, data: object, **settings: object) -> BesideBaseline:
    """Measure a run and its baseline on the same data, as ``task.read`` returns it; ``settings`` as in `Run.evaluate`.

    Returns:
        The metrics of the run; and of the baseline ``layer``, ``name``, its metrics with their intervals; of the main
        ``metric``, ``difference``, ``difference_low``, ``difference_high`` (the run minus the baseline, paired
        bootstrap) and ``p_value``; and ``verdict``, a sentence. If the run answers with both, also the metrics
        of its network alone, with ``name`` and ``text`` of the main metric, and ``verdict``, which compares it with
        the baseline.
    """
    answers = run.task.evaluator.measure(run.answering, data, **settings)
    others = baseline.task.evaluator.measure(baseline.answering, data, **settings)
    keys = [key for one in run.task.evaluator.metrics for key in (one.key, f"{one.key}_low", f"{one.key}_high")]
    facts = {
        "layer": baseline.task.config.model.layer,
        "name": baseline.task.kind.model_name,
        **{key: others.metrics[key] for key in keys if key in others.metrics},
    }
    is_blended = run.answering is not run.model
    advice = ADVICE if run.task.blender is not None and not is_blended else ""
    if compared := _compare(run, answers, others):
        metric, result = compared
        facts |= {"difference": result.difference, "difference_low": result.low, "difference_high": result.high}
        facts |= {"metric": metric.key, "p_value": result.p_value}
        facts["verdict"] = verdict(metric, answers.metrics, others.metrics, result, facts["name"], advice=advice)
    if not is_blended:
        return BesideBaseline(answers.metrics, facts, {})

    # Beside the answers of both models stand those of the network alone, which may be worse than the baseline's.
    alone = run.task.evaluator.measure(run.model, data, **settings)
    network = alone.metrics
    if compared := _compare(run, alone, others):
        metric, result = compared
        sentence = verdict(metric, network, others.metrics, result, facts["name"], model="network alone")
        network = {**network, "name": metric.name, "text": metric.text(network), "verdict": sentence}
    return BesideBaseline(answers.metrics, facts, network)


def _compare(run: Measured, first: Measurement, second: Measurement) -> tuple[Metric, Paired] | None:
    """Compare the main metric, or a headline instead if one of both models lacks it, or if both have the same value.

    Answers that are never exactly right can still differ in BLEU. None if the models share no headline.
    """
    main = main_metric(run.task, run.vocabulary)
    headlines = [metric for metric in run.task.evaluator.metrics_for(run.vocabulary) if metric.headline]
    pairs = [
        (metric, first.measures[metric.key], second.measures[metric.key])
        for metric in (main, *headlines)
        if metric.key in first.measures and metric.key in second.measures
    ]

    differing = (pair for pair in pairs if pair[1].value != pair[2].value)
    chosen = next(differing, next(iter(pairs), None))
    if chosen is None:
        return None
    metric, one, other = chosen
    return metric, one.paired_with(other)


def main_metric(task: Task, vocabulary: Vocabulary | None = None) -> Metric:
    """Return the metric that selects weights if it is a headline, or else the first headline of the task.

    Metrics that the simple baseline of the task lacks are left out, so that every model can be compared with it.
    Some metrics depend on the labels of the training data, and so on its vocabulary, where that is known.
    """
    evaluator, reference = task.evaluator, task.kind.reference_model
    metrics = evaluator.metrics if vocabulary is None else evaluator.metrics_for(vocabulary)
    headlines = {metric.key: metric for metric in metrics if metric.headline}
    if reference is not None:
        measured = {metric.key for metric in FITTED[reference].evaluator.metrics}
        headlines = {key: metric for key, metric in headlines.items() if key in measured}
    selects = evaluator.selects if vocabulary is None else evaluator.selection(vocabulary).key
    return headlines.get(selects) or next(iter(headlines.values()))


def verdict(
    metric: Metric,
    metrics: JsonObject,
    baseline: JsonObject,
    result: Paired,
    name: str,
    *,
    model: str = "model",
    advice: str = "",
) -> str:
    """Return a sentence: whether a model is better or worse than its baseline, or cannot be told from it.

    ``advice`` follows where the model is worse.
    """
    values = f"{metric.name} {metric.text(metrics)} against {metric.text(baseline)}"
    if not is_significant(result.p_value, result.low, result.high):
        return f"The {model} and its simple baseline, {name}, cannot be told apart: {values}."
    better = (result.difference > 0) == metric.more_is_better
    sentence = f"The {model} is {'better' if better else 'worse'} than its simple baseline, {name}: {values}."
    return sentence if better else f"{sentence}{advice}"

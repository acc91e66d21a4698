"""Where a model stands on its held-out data: beside the most trivial prediction and its simple baseline.

What a model attends to says something only if the model predicts better than these; see `below_baseline`.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from ..core.json_object import JsonMapping
from ..evaluation.intervals import Metric
from ..pages.opening import Tile
from ..pages.statements import Statement
from ..pages.wording import sentence_case
from ..runs.run import Run
from ..tasks.beside_baseline import main_metric
from ..training.finish import KEY
from .inspected_run import ALONE


@dataclass(frozen=True)
class Standing:
    """A model, called ``who``, beside a simpler one, on the same held-out data: both by the same metric."""

    who: str
    metric: Metric
    metrics: JsonMapping
    simpler: JsonMapping
    is_trivial: bool = False

    @property
    def subject(self) -> str:
        """The model as the subject of a sentence."""
        return sentence_case(self.who) if self.who == ALONE else self.who

    @property
    def other(self) -> str:
        """What the simpler model is called."""
        return str(self.simpler["name"])

    @property
    def value(self) -> str:
        """The metric of the model."""
        return self.metric.text(self.metrics)

    @property
    def best(self) -> str:
        """The metric of the simpler model."""
        return self.metric.text(self.simpler, self.metrics)

    @property
    def is_below(self) -> bool:
        """Whether a trivial prediction is as good as the model, or a simple model better than its interval."""
        value, other = self.metrics[self.metric.key], self.simpler[self.metric.key]
        if self.is_trivial:
            return bool(value <= other if self.metric.more_is_better else value >= other)
        low, high = self.metric.bounds(self.metrics) or (value, value)
        return bool(high < other if self.metric.more_is_better else low > other)

    @property
    def degree(self) -> str:
        """How the model stands to the simpler one."""
        return "no better" if self.is_trivial else "worse"


BELOW: tuple[Statement[Standing], ...] = (
    Statement(
        lambda standing: True,
        "{subject} is {degree} than {other}: {metric.name} {value} against {best} on held-out data.",
    ),
    Statement(lambda standing: True, "What it attends to and keeps is not interpreted: train it longer first."),
)
"""The warning about a model that is worse than a simpler one."""


def standings(run: Run) -> Iterator[Standing]:
    """Yield the run beside the simplest model and beside its simple baseline, and the network alone beside both."""
    summary, metric = run.summary, main_metric(run.task, run.vocabulary)
    trivial, valid = summary.get("baseline") or {}, summary.get("valid") or {}
    others = [(trivial, True), (trivial.get(KEY) or {}, False)]
    for who, metrics in (("This model", valid), (ALONE, summary.get("network") or {})):
        for other, is_trivial in others:
            if metrics.get(metric.key) is not None and other.get(metric.key) is not None and "name" in other:
                yield Standing(who, metric, metrics, other, is_trivial)


def below_baseline(run: Run) -> Standing | None:
    """Return how a run stands beside a simpler model that is better; None if there is none, or nothing is known."""
    return next((standing for standing in standings(run) if standing.is_below), None)


def held_out_tiles(run: Run) -> list[Tile]:
    """Return the headline metrics of the run on its held-out data, each beside the simple baseline if there is one."""
    summary = run.summary
    valid, trivial = summary.get("valid") or {}, summary.get("baseline") or {}
    tiles = []
    for metric in run.task.evaluator.metrics_for(run.vocabulary):
        if metric.headline and valid.get(metric.key) is not None:
            beside = [
                f"{other['name']}: {metric.text(other, valid)}"
                for other in (trivial, trivial.get(KEY) or {})
                if other.get(metric.key) is not None and "name" in other
            ]
            tiles.append(Tile(f"Held-out {metric.name}", metric.text(valid), metric.interval(valid), "; ".join(beside)))
    main = main_metric(run.task, run.vocabulary).name
    return sorted(tiles, key=lambda tile: tile.name != f"Held-out {main}")

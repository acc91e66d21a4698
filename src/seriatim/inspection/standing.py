"""Where a model stands on its held-out data: beside the most trivial prediction and its simple baseline.

What a model attends to says something only if the model predicts better than these; see `below_baseline`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..core.errors import InputError
from ..core.json_object import JsonMapping
from ..evaluation.intervals import Metric
from ..pages.page import Tile
from ..pages.statements import Statement
from ..pages.wording import sentence_case, short_name
from ..runs.run import Run
from ..storage.files import read_json
from ..tasks.beside_baseline import main_metric
from ..training.finish import KEY
from .inspected_run import ALONE

MAX_RESULTS = 1 << 28
"""Largest size of the results of a comparison, in bytes."""


@dataclass(frozen=True)
class Standing:
    """A model, called ``who``, beside a simpler one, on the same ``data``: both by the same metric."""

    who: str
    metric: Metric
    metrics: JsonMapping
    simpler: JsonMapping
    is_trivial: bool = False
    data: str = "the validation data"

    @property
    def is_known(self) -> bool:
        """Whether both were measured; null stands for an infinite metric of a model that diverged."""
        key = self.metric.key
        return "name" in self.simpler and key in self.metrics and self.simpler.get(key) is not None

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
        return "infinite" if self.metrics[self.metric.key] is None else self.metric.text(self.metrics)

    @property
    def best(self) -> str:
        """The metric of the simpler model."""
        return self.metric.text(self.simpler, self.metrics)

    @property
    def is_below(self) -> bool:
        """Whether a trivial prediction is as good as the model, or a simple model better than its interval."""
        value, other = self.metrics[self.metric.key], self.simpler[self.metric.key]
        if value is None:
            return not self.metric.more_is_better
        if self.is_trivial:
            return bool(value <= other if self.metric.more_is_better else value >= other)
        low, high = self.metric.bounds(self.metrics) or (value, value)
        return bool(high < other if self.metric.more_is_better else low > other)

    @property
    def degree(self) -> str:
        """How the model stands to the simpler one."""
        return "no better" if self.is_trivial else "worse"


WORSE: Statement[Standing] = Statement(
    lambda standing: True,
    "{subject} is {degree} than {other}: {metric.name} {value} against {best} on {data}.",
)
BELOW: tuple[Statement[Standing], ...] = (
    WORSE,
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
            standing = Standing(who, metric, metrics, other, is_trivial)
            if standing.is_known:
                yield standing
    yield from _in_comparison(run, metric)


def _in_comparison(run: Run, metric: Metric) -> Iterator[Standing]:
    """Yield the run beside the simple baseline of the comparison to which it belongs."""
    path = run.path.absolute()
    file = path.parent.parent / "results.json"
    if path.parent.name != "runs" or not file.is_file():
        return
    try:
        results = read_json(file, max_bytes=MAX_RESULTS, remedy="")
        rows, data = results["rows"], short_name(results["data"]["measured_on"])
        metrics = [each["metrics"] for row in rows for each in row["runs"] if Path(each["path"]).name == path.name]
        others = [{**row["metrics"], "name": f"the baseline {row['layer']}"} for row in rows if row["baseline"]]
        found = [Standing("This model", metric, *each, data=data) for each in zip(metrics, others, strict=False)]
        yield from (each for each in found if each.is_known)
    except (InputError, LookupError, TypeError):  # damaged, or of another version, which is no matter of this run
        return


def below_baseline(run: Run) -> Standing | None:
    """Return how a run stands beside a simpler model that is better; None if there is none, or nothing is known."""
    return next((standing for standing in standings(run) if standing.is_below), None)


def held_out_tiles(run: Run) -> list[Tile]:
    """Return the headline metrics of the run on its held-out data, each beside the simple baseline if there is one."""
    valid, trivial = run.summary.get("valid") or {}, run.summary.get("baseline") or {}
    simpler = [other for other in (trivial, trivial.get(KEY) or {}) if "name" in other]
    main = main_metric(run.task, run.vocabulary).name
    metrics = sorted(run.task.evaluator.metrics_for(run.vocabulary), key=lambda metric: metric.name != main)
    tiles = []
    for metric in metrics:
        if metric.headline and valid.get(metric.key) is not None:
            known = [other for other in simpler if other.get(metric.key) is not None]
            note = "; ".join(f"{other['name']}: {metric.text(other, valid)}" for other in known)
            name = f"{sentence_case(metric.name)}, validation data"
            tiles.append(Tile(name, metric.text(valid), metric.interval(valid), note))
    return tiles

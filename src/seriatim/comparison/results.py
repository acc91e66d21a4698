"""The rows of a comparison, one for each training and one for each layer, and the results that pages and consoles read.

The same fields are measured in the process of a training, written to `rows/LAYER-SEED.json`, read, joined to the row of
a layer in `results.json`, and shown. The row of a layer may lack anything but its name, since a layer may have failed.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from operator import itemgetter
from typing import NamedTuple, Self

from ..core.json_object import JsonMapping, JsonObject
from ..evaluation.intervals import Metric, is_significant

EQUAL = 1.1  # the largest ratio of two amounts of a budget that counts as equal
MAX_DRAWN = 30  # rows that figures and samples show; of more rows, the best ones


UNLESS_MEASURED = {
    *("ngrams", "state_by_source", "state_at_length", "milliseconds_spread", "distance", "machine", "simplest"),
    *("answers", "token_losses", "difference", "beside_best_trained", "beside_baseline"),
}
"""Fields that are empty where nothing was measured; a file has null there."""


@dataclass(eq=False)
class FromJson:
    """A dataclass that is read from a JSON object, and written to one."""

    @classmethod
    def read(cls, values: JsonMapping) -> Self:
        """Read the fields; unknown keys and null are left out.

        Raises:
            TypeError: a field without a default is missing.
        """
        names = {each.name for each in fields(cls)}
        return cls(**{name: value for name, value in values.items() if name in names and value is not None})

    def to_json(self) -> JsonObject:
        """Return the fields by name."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        measured = {name: value or None if name in UNLESS_MEASURED else value for name, value in values.items()}
        return {name: value.to_json() if isinstance(value, FromJson) else value for name, value in measured.items()}


@dataclass
class Distance(FromJson):
    """A figure ``of`` a model at several distances, each measured on ``count`` of some ``items``.

    ``kind`` is ``context`` or ``distance``; ``values`` are by the distance, in ``unit``, and ``bounds``
    are their 95 % intervals. With the kind ``context``, ``whole`` is the value with the full context, and ``gains`` say
    how many ``bits`` a token (``low`` to ``high``) the context ``beyond`` some tokens saves; ``measured`` says on which
    tokens of the text.
    """

    kind: str = ""
    of: str = "accuracy"
    name: str = ""
    unit: str = "tokens"
    values: Mapping[str, float | None] = field(default_factory=dict)
    count: int = 0
    items: str = ""
    whole: float | None = None
    bounds: Mapping[str, Sequence[float | None]] = field(default_factory=dict)
    gains: Sequence[JsonMapping] = ()
    measured: str = ""

    def __bool__(self) -> bool:
        """Return whether anything was measured."""
        return bool(self.kind)

    @cached_property
    def points(self) -> list[tuple[float, float, tuple[float, float] | None]]:
        """The distances, nearest first, with the gains or the values there, and their intervals where known."""
        if self.kind == "context":
            return [(gain["beyond"], gain["bits"], (gain["low"], gain["high"])) for gain in self.gains]
        known = {far: (low, high) for far, (low, high) in self.bounds.items() if low is not None and high is not None}
        points = [(int(far), value, known.get(far)) for far, value in self.values.items() if value is not None]
        return sorted(points, key=itemgetter(0))


@dataclass(eq=False, kw_only=True)
class Row(FromJson):
    """What is measured of a layer: by one training, or by all of its trainings.

    The sizes of a model that is not trained by steps are None. ``held_out`` has the
    validations; see `comparison.row` for costs and ``distance``.
    """

    layer: str
    metrics: Mapping[str, float | None] = field(default_factory=dict)
    hidden_size: int | None = None
    embedding_size: int | None = None
    num_layers: int | None = None
    bidirectional: bool = False
    options: JsonMapping = field(default_factory=dict)
    parameters: int | None = None
    learning_rate: float | None = None
    precision: str | None = None
    epochs: float | None = None
    tokens_per_second: float | None = None
    memory_bytes: float | None = None
    disk_bytes: int | None = None
    held_out: Sequence[JsonMapping] = ()
    ngrams: Sequence[JsonMapping] = ()
    state_bytes: Mapping[str, float | None] = field(default_factory=dict)
    state_by_source: Mapping[str, int] = field(default_factory=dict)
    state_at_length: Mapping[str, int] = field(default_factory=dict)
    step_milliseconds: Mapping[str, float | None] = field(default_factory=dict)
    step_spread: Mapping[str, Sequence[float]] = field(default_factory=dict)
    milliseconds_per_token: float | None = None
    milliseconds_spread: Sequence[float] = ()
    reading_milliseconds: Mapping[str, float | None] = field(default_factory=dict)
    reading_spread: Mapping[str, Sequence[float]] = field(default_factory=dict)
    distance: Distance = field(default_factory=Distance)
    samples: Sequence[JsonMapping] = ()

    def __post_init__(self) -> None:
        if isinstance(self.distance, Mapping):  # of a file
            self.distance = Distance.read(self.distance)


@dataclass(eq=False, kw_only=True)
class TrainingRow(Row):
    """A row for one training: what `rows/LAYER-SEED.json` holds.

    Attributes:
        planned_seconds: the budget in time; None where there is none, or where the training ended early.
        ended_early: whether the training stopped by itself before its budget ended.
        load: what other programs did meanwhile; None for a run that an earlier process trained.
        machine: the record of `worker.EventReporter.machine`.
        trained_on, data, tokenizer: digests of the training data, of the measured data, and of the tokenizer.
        interval: how the intervals of the metrics were computed: the ``method``, and ``over`` how many (``count``) of
            which items.
        validated_tokens: the tokens that were validated while it was trained, the same for every row; None for all.
        simplest, answers, token_losses: figures of the simplest prediction, and what `item_answers` keeps of single
            items; only of the first seed.
    """

    version: str
    seed: int
    metrics: Mapping[str, float | None]
    steps: int
    tokens: int
    tokens_per_second: float
    training_seconds: float
    planned_seconds: float | None = None
    load: JsonMapping | None = None
    ended_early: bool = False
    machine: JsonObject = field(default_factory=dict)
    trained_on: str | None = None
    data: str | None = None
    described: str = ""
    interval: JsonMapping = field(default_factory=dict)
    validated_tokens: int | None = None
    tokenizer: str | None = None
    tokenizer_kind: str = ""
    vocabulary_size: int | None = None
    simplest: JsonMapping = field(default_factory=dict)
    answers: JsonMapping = field(default_factory=dict)
    token_losses: JsonMapping = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name of the run's folder, and of the files of the row."""
        return f"{self.layer}-{self.seed}"


@dataclass(eq=False, kw_only=True)
class ResultRow(Row):
    """A row for one layer, of `results.json`: means over its ``runs``, and the costs of the first of them.

    Attributes:
        spread: the smallest and the largest value of each metric.
        tried: the learning rates that were tried.
        missing_seeds: those that failed or are not trained yet, for the reason in ``note``.
        difference, beside_best_trained, beside_baseline: tests against the best row, the best trained row and the
            simple baseline.
    """

    architecture: str = ""
    width: int | None = None
    counted: bool = False
    learned: str = ""
    keeps: str = ""
    parallel: bool = False
    paper: str = ""
    baseline: bool = False
    tried: Sequence[JsonObject] = ()
    spread: Mapping[str, Sequence[float]] = field(default_factory=dict)
    runs: Sequence[JsonObject] = ()
    missing_seeds: Sequence[int] = ()
    note: str | None = None
    rank: int | None = None
    difference: JsonMapping = field(default_factory=dict)
    beside_best_trained: JsonMapping = field(default_factory=dict)
    beside_baseline: JsonMapping = field(default_factory=dict)
    failed: str | None = None

    @property
    def title(self) -> str:
        """The name of the layer, marked if it is the simple baseline."""
        return f"{self.layer} (baseline)" if self.baseline else self.layer

    @property
    def lacking(self) -> str:
        """Which seeds are missing: ``1 of 2 seeds failed``; empty if none is. Such a row is not ranked."""
        was = "was" if len(self.missing_seeds) == 1 else "were"
        missing, count = len(self.missing_seeds), len(self.missing_seeds) + len(self.runs)
        return f"{missing} of {count} seeds {'failed' if self.note else f'{was} not trained yet'}" if missing else ""

    @property
    def state_after_thousand(self) -> float | None:
        """Bytes of the state after 1,000 tokens, which are those of the source if an answer is written for one."""
        return (self.state_by_source or self.state_bytes).get("1000")

    @property
    def has_memory(self) -> bool:
        """Whether it keeps anything of the past; the layer `prior` does not: it is the simplest prediction, trained."""
        return self.state_after_thousand != 0

    def value(self, key: str) -> float | None:
        """Return a finite figure, or None."""
        value = self.metrics.get(key)
        return value if value is not None and math.isfinite(value) else None

    def interval(self, key: str) -> tuple[float, float] | None:
        """Return the 95 % interval of a figure, or None; an empty one says nothing."""
        low, high = self.value(f"{key}_low"), self.value(f"{key}_high")
        return None if low is None or high is None or low == high else (low, high)

    @property
    def trainings(self) -> list[JsonMapping]:
        """The trainings with a budget in time, each with its ``planned_seconds`` and ``training_seconds``."""
        return [run for run in self.runs if run.get("planned_seconds") and run.get("training_seconds")]

    @property
    def seconds(self) -> list[float]:
        """The seconds of each training, without validations."""
        return [run["training_seconds"] for run in self.runs if run.get("training_seconds")]

    @property
    def training_seconds(self) -> float | None:
        """The mean seconds of the trainings."""
        return sum(self.seconds) / len(self.seconds) if self.seconds else None

    @property
    def seconds_range(self) -> tuple[float, ...]:
        """The shortest and the longest training of several."""
        return (min(self.seconds), max(self.seconds)) if len(self.seconds) > 1 else ()

    @property
    def others_processors(self) -> float | None:
        """How many processors other programs used during the trainings, as a mean over the seeds; None if unknown."""
        known = [used for run in self.runs if (used := run.get("others_processors")) is not None]
        return sum(known) / len(known) if known else None

    @property
    def missed_budget(self) -> bool:
        """Whether a training took more or less time than the budget by more than `EQUAL`."""
        ratios = [run["training_seconds"] / run["planned_seconds"] for run in self.trainings]
        return any(max(ratio, 1 / ratio) > EQUAL for ratio in ratios)

    @property
    def state(self) -> int:
        """Bytes of the state after the longest input; 0 where they were not measured."""
        return self.state_at_length.get("bytes", 0)

    @property
    def is_tested(self) -> bool:
        """Whether the row was compared with the best row by the paired bootstrap."""
        return self.difference.get("p_value") is not None

    @property
    def differs(self) -> bool:
        """Whether the difference from the best row is significant."""
        return is_significant(*(self.difference.get(name) for name in ("p_value", "low", "high")))

    @property
    def is_tied(self) -> bool:
        """Whether the difference from the best row was tested and is not significant."""
        return self.is_tested and not self.differs


SPENT = {"minutes": "training_seconds", "tokens": "tokens", "steps": "steps"}
"""The field of a training that says what it spent of each kind of budget."""


class Spent(NamedTuple):
    """What the trained rows spent of the budget: ``low`` to ``high`` ``seconds``, ``tokens`` or ``steps``."""

    of: str
    low: float
    high: float

    @property
    def is_equal(self) -> bool:
        """Whether the rows spent so nearly the same that their figures can be ranked."""
        return self.high <= EQUAL * self.low


def spent(budget: JsonMapping, rows: Sequence[ResultRow]) -> Spent | None:
    """Return what the rows that were trained by steps spent of a budget, as means over their seeds; None without any.

    A training that stopped by itself had as much as the others, and is left out.
    """
    key = next((SPENT[name] for name in budget if name in SPENT), None)
    amounts = []
    for row in rows:
        known = [run[key] for run in row.runs if key and run.get(key) and not run.get("ended_early")]
        if known and not row.counted:
            amounts.append(sum(known) / len(known))
    return Spent(str(key).removeprefix("training_"), min(amounts), max(amounts)) if amounts else None


class Results:
    """The results of a comparison, from what `results.json` holds."""

    def __init__(self, values: JsonMapping) -> None:
        self.values = values
        self.metric = Metric(**values["metric"])
        self.figures = [Metric(**figure) for figure in values.get("figures") or ()]
        self.rows = [ResultRow.read(row) for row in values["rows"]]
        self.ran = [row for row in self.rows if not row.failed]
        self.seeds: Sequence[int] = values.get("seeds") or []
        sign = -1 if self.metric.more_is_better else 1
        known = [row for row in self.rows if row.value(self.metric.key) is not None]
        known.sort(key=lambda row: (bool(row.missing_seeds), sign * self.of(row)))
        self.measured = [row for row in known if not row.missing_seeds]
        """The rows that have the metric for all seeds, best first."""
        self.ranked = [*known, *(row for row in self.rows if row not in known)]
        """All rows, best first; after them those of which a seed is missing, and those without the metric."""

    @property
    def trained(self) -> list[ResultRow]:
        """The measured rows that were trained by steps, best first."""
        return [row for row in self.measured if not row.counted]

    @property
    def spent(self) -> Spent | None:
        """What the trained rows spent of the budget; see `spent`."""
        return spent(self.section("budget"), self.measured)

    def drawn(self) -> "Results":
        """Return the results of the rows that figures and samples show: the best ones and the baseline, or all."""
        if len(self.rows) <= MAX_DRAWN:
            return self
        chosen = [*self.ranked[:MAX_DRAWN], *(row for row in self.ranked[MAX_DRAWN:] if row.baseline)]
        identities = {id(row) for row in chosen}
        rows = [given for given, row in zip(self.values["rows"], self.rows, strict=True) if id(row) in identities]
        return Results({**self.values, "rows": rows})

    def section(self, name: str) -> JsonMapping:
        """Return an object in the results, empty where it is missing."""
        return values if isinstance(values := self.values.get(name), Mapping) else {}

    def by_width(self) -> dict[str, list[ResultRow]]:
        """Return the measured rows with a width by layer, smallest state first."""
        rows: dict[str, list[ResultRow]] = {row.architecture: [] for row in self.rows}
        for row in sorted(self.rows, key=lambda row: row.state):
            if row.width and row.state and row in self.measured:
                rows[row.architecture].append(row)
        return {layer: group for layer, group in rows.items() if group}

    @property
    def has_sources(self) -> bool:
        """Whether the rows write an answer for a source, so that their state is that of the source."""
        return any(row.state_by_source for row in self.ran)

    @property
    def is_tested(self) -> bool:
        """Whether any two rows were compared by the paired bootstrap."""
        tests = (test for row in self.measured for test in (row.difference, row.beside_best_trained))
        return any(test.get("p_value") is not None for test in tests)

    def of(self, row: ResultRow) -> float:
        """Return the metric of a row that has it."""
        value = row.value(self.metric.key)
        assert value is not None
        return value

    def at_distance(self) -> Distance:
        """Return the first figure at several distances; all rows have the same kind."""
        return next((row.distance for row in self.rows if row.distance), Distance())

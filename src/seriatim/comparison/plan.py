"""The plan of a comparison (layers, sizes, budget, seeds, data), and the folder that keeps it with rows and trials.

A row of a comparison has a name: ``lstm``, ``mamba+transformer`` for a stack that mixes two layers, ``lstm@32`` for a
layer of width 32.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import numpy as np
from pydantic import Field, ValidationError

from ..config import Config, Count, Positive, Section, explain, read_yaml, resolve
from ..core.errors import DamagedError, MismatchError, MissingError, TrainingError, UnknownNameError, nearest
from ..core.json_object import JsonObject
from ..data.sources import SPLITS
from ..data.vocabulary import Vocabulary
from ..evaluation.intervals import Compute, Measure, Metric, exp_mean, mean, paired
from ..evaluation.label_metrics import FIGURES as OF_LABELS
from ..evaluation.translation import FIGURES as OF_TRANSLATIONS
from ..layers import REGISTRY, split_names
from ..layers.outside_code import origin_of, outside_names, stacks_of
from ..storage.files import dump_plain, read_json, to_json, write_whole
from ..storage.written_folders import RUN, discard, finish_replacing
from ..tasks import FITTED, new_task
from ..tasks.beside_baseline import main_metric
from ..tasks.task import Task
from ..version import __version__
from .results import TrainingRow

# The metric that a comparison ranks by, and how two rows are compared by it.


SAME_ORDER = {"word_perplexity": "loss", "bits_per_byte": "loss"}
"""Figures without statistics of their own: they rise and fall with another figure of the same text."""
FIGURE_OF_SUMS: Mapping[str, Compute] = {"loss": mean, "perplexity": exp_mean, **OF_LABELS, **OF_TRANSLATIONS}
"""Figures as functions of the summed statistics of items."""


def choose_metric(task: Task, key: str | None, vocabulary: Vocabulary | None = None) -> Metric:
    """Return the figure that a comparison ranks by; refuse a key that the task does not have.

    Without a key, it is the figure that selects weights, or else the first headline of the task. Some figures depend on
    the labels of the training data, and so on its vocabulary, where that is known.
    """
    if key is None:
        return main_metric(task, vocabulary)
    figures = task.evaluator.metrics if vocabulary is None else task.evaluator.metrics_for(vocabulary)
    known = {figure.key: figure for figure in figures}
    if key not in known:
        raise UnknownNameError(f"--metric: {task.config.task} has no {key!r}; {nearest(key, list(known))}")
    return known[key]


def statistics_of(measures: Mapping[str, Measure]) -> dict[str, np.ndarray]:
    """Return the statistics of every item ``(items, k)`` by figure, which a row stores for paired tests."""
    arrays = {
        name: np.asarray(measure.statistics, float) for name, measure in measures.items() if name in FIGURE_OF_SUMS
    }
    if "loss" in arrays:
        arrays.setdefault("perplexity", arrays["loss"])
    return arrays


def difference(first: Mapping[str, np.ndarray], second: Mapping[str, np.ndarray], key: str) -> JsonObject | None:
    """Return how far the figure ``key`` of one row is above that of another, by the paired bootstrap.

    The rows are given by their statistics, as `statistics_of` returns them. Where the figure has no statistics, the
    test uses the figure in `SAME_ORDER`, which the answer names.

    Returns:
        The fields of `seriatim.evaluation.intervals.Paired` and ``key``; None where the rows cannot be paired.
    """
    name = key if key in first else SAME_ORDER.get(key, key)
    if name not in first or name not in second or first[name].shape != second[name].shape:
        return None
    return {"key": name, **paired(first[name], second[name], FIGURE_OF_SUMS[name])._asdict()}


FORMAT = "seriatim comparison 1"
WIDTH = "@"  # between a layer and its width in the name of a row
START_NEW = "start a new comparison with another --out"
BASELINE = "baseline"
"""Among the automatic fields of a plan: the row of the baseline was added, not named."""
REPORT = "report.html"
ROW_DIGESTS = {"train": "trained_on", "tokenizer": "tokenizer", "measured": "data"}
"""Digests of a plan, and the fields of a row that hold the same."""
MAX_BYTES = 1 << 26  # the largest size of the file of a row


class MeasuredData(NamedTuple):
    """The name of some data (a file, a folder or a built-in corpus), and the split of a built-in corpus to read."""

    source: str
    split: str

    def __str__(self) -> str:
        names_split = self.source.rsplit(":", 1)[-1].split("-")[0] in SPLITS
        is_complete = names_split or not self.source.startswith("builtin:")
        return self.source if is_complete else f"{self.source}, part {self.split}"


class Sized(Section):
    """A layer with its sizes. ``options`` are the model options that the layer or the task accepts."""

    hidden_size: Count
    embedding_size: Count
    options: JsonObject = Field(default_factory=dict)
    learning_rate: Positive | None = None
    parameters: int | None = None


class Budget(Section):
    """The budget of each layer: minutes of training, tokens or steps. Exactly one is set."""

    minutes: Positive | None = None
    tokens: Annotated[int, Field(ge=1, lt=2**53, strict=True)] | None = None
    steps: Count | None = None

    def amount(self) -> dict[str, float]:
        """Return the field that is set, with its value."""
        return self.model_dump(exclude_none=True)


class Plan(Section):
    """A comparison.

    Attributes:
        base: the configuration that all trainings share, without layer, sizes and budget.
        sized: the sizes of each row, by its name.
        parameters: the target of the solved widths; None where no layer is trained.
        described: the amount of training data, in words.
        digests: identify the data of the comparison: ``tokenizer``, ``train``, ``valid`` and ``measured``.
        code: where layers from outside the library are defined; see `seriatim.layers.outside_code`.
        baseline: the row of the simple baseline; None if there is none.
        automatic: fields of ``base`` that were not set, and that depend on the speed or the sizes of a layer.
    """

    format: Literal["seriatim comparison 1"] = "seriatim comparison 1"
    version: str = __version__
    command: str = ""
    base: Config
    layers: list[str]
    sized: dict[str, Sized] = Field(default_factory=dict)
    budget: Budget
    parameters: int | None = None
    seeds: list[int]
    tune: int | None = None
    metric: str
    described: str = ""
    digests: dict[str, str] = Field(default_factory=dict)
    baseline: str | None = None
    automatic: list[str] = Field(default_factory=list)
    code: list[dict[str, str | None]] = Field(default_factory=list)

    def outside_layers(self, *rows: str) -> list[str]:
        """Return the layers from outside the library that some rows, or all, and their decoders are made of."""
        return outside_names([*map(stack_name, rows or self.layers), *stacks_of(self.base)[1:]])

    def record_code(self) -> None:
        """Record where layers from outside the library are defined; refuse one that no other process can import."""
        self.code = [origin_of(name).to_record() for name in self.outside_layers() if name in REGISTRY]

    def config(self, row: str, seed: int | None = None) -> Config:
        """Return the configuration of one training, without budget and folder; the first seed by default."""
        sized = self.sized[row]
        tree = self.base.model_dump(exclude={"out"})
        tree["model"] |= {"layer": stack_name(row), "options": sized.options}
        if not is_non_neural(row):
            tree["model"] |= {"hidden_size": sized.hidden_size, "embedding_size": sized.embedding_size}
        tree["training"] |= {"seed": self.seeds[0] if seed is None else seed, "learning_rate": sized.learning_rate}
        return resolve(tree)

    def task(self, row: str | None = None) -> Task:
        """Return the task of a row, by default of the first one."""
        return new_task(self.config(self.layers[0] if row is None else row))

    def measured(self, task: Task | None = None) -> MeasuredData:
        """Return the data that rows are measured on: the test data, or else the held-out data of any row's task."""
        data = self.base.data
        source = (task or self.task()).files.validation_source() if data.test is None else data.test
        assert source is not None
        return MeasuredData(source, "test" if data.valid is None or data.test is not None else "valid")

    def to_yaml(self) -> str:
        """Return the text of `comparison.yaml`."""
        return dump_plain(self.model_dump(exclude={"base": {"out"}}))


def read_plan(folder: Path) -> Plan:
    """Read the plan of a comparison from its folder; refuse one that is damaged, or that another version wrote."""
    finish_replacing(folder)
    path = folder / "comparison.yaml"
    if not path.is_file():
        raise MissingError(
            f"{folder}: not a comparison (no comparison.yaml); give a folder that seriatim compare wrote"
        )
    tree = read_yaml(path)
    check_version(path, tree.get("version"))
    try:
        return Plan.model_validate(tree)
    except ValidationError as error:
        raise DamagedError(f"{path}: {explain(error, tree)}; restore it, or start again with --overwrite") from None


def check_version(path: Path, version: object) -> None:
    """Refuse a file that another version wrote, because its figures cannot be compared with present ones."""
    if version != __version__:
        versions = f"it was made by Seriatim {version}, and this is {__version__}"
        raise MismatchError(f"{path}: {versions}, and their figures cannot be compared; {START_NEW}")


def architecture(row: str) -> str:
    """Return the name of a row without its width."""
    return row.partition(WIDTH)[0]


def stack_name(row: str) -> str:
    """Return the layers of a row as ``model.layer`` names them: ``mamba,transformer``."""
    return architecture(row).replace("+", ",")


def layers_of(row: str) -> list[str]:
    """Return the layers of a row, of which a mixed stack has several."""
    return split_names(stack_name(row))


def width_of(row: str) -> int | None:
    """Return the width in the name of a row; None where the width is solved for equal parameters."""
    _, sign, width = row.partition(WIDTH)
    return int(width) if sign else None


def is_non_neural(row: str) -> bool:
    """Return whether the model of a row is counted, or fitted as a whole, instead of trained by steps."""
    return row in FITTED


def default_out(task: str, data: str) -> str:
    """Return ``comparisons/TASK-DATA``."""
    built_in, first_file = data.startswith("builtin:"), Path(data.split(",")[0])
    stem = data.split(":")[1] if built_in else first_file.name.split(".")[0]
    return f"comparisons/{task}-{re.sub(r'[^A-Za-z0-9_-]+', '-', stem).strip('-') or 'data'}"


def read_row(folder: Path, name: str, plan: Plan) -> TrainingRow | None:
    """Read a row, None where it is not finished; refuse one that is damaged, or of another version or other data."""
    path = folder / "rows" / f"{name}.json"
    if not path.exists() or not path.with_suffix(".safetensors").exists():
        return None
    remedy = "remove it to measure this row again"
    values = read_json(path, max_bytes=MAX_BYTES, remedy=remedy)
    try:
        check_version(path, values["version"])
        row = TrainingRow.read(values)
    except (KeyError, TypeError):
        row = None
    if row is None or not isinstance(row.metrics, dict):
        raise DamagedError(f"{path}: is damaged, or not a row of a comparison; {remedy}")
    check_row(path, row, plan)
    return row


def check_row(path: Path, row: TrainingRow, plan: Plan) -> None:
    """Refuse a row that was trained or measured on other data than the comparison's."""
    for subject, key in ROW_DIGESTS.items():
        if getattr(row, key) != plan.digests.get(subject):
            how = "with a different tokenizer" if subject == "tokenizer" else "on different data"
            verb = "trained" if subject == "train" else "measured"
            raise MismatchError(f"{path}: was {verb} {how}; remove it and resume, or {START_NEW}")


def check_runs(folder: Path, plan: Plan) -> None:
    """Refuse a run that another version made, or whose layer differs from the plan's."""
    for path in sorted((folder / "runs").glob("*/summary.json")):
        run, remedy = path.parent, "remove the folder of the run to train it again"
        summary = read_json(path, max_bytes=1 << 20, remedy=remedy)
        summary = summary if isinstance(summary, dict) else {}
        check_version(run, summary.get("versions", {}).get("seriatim"))
        row, layer = run.name.rpartition("-")[0], summary.get("layer")
        if row in plan.layers and layer != stack_name(row):
            raise MismatchError(f"{run}: is a run of {layer}, not of {row}; remove it to train it again")


# The learning rates that are tried for a layer before it is trained.

RATE_FACTOR = 3.0  # the factor between two learning rates that are tried


@dataclass
class Trials:
    """The learning rates that ``--tune`` tries for a layer, once for all of its seeds; trials are numbered from 1.

    Attributes:
        results: what `read_trials` returns, by number; a failed training has the value None and a ``reason``.
        waiting: the numbers of the trials that have not been started.
        error: the reason why no trial of this layer can be made, such as a budget that is too small.
    """

    plan: Plan
    layer: str
    count: int
    results: dict[int, JsonObject] = field(default_factory=dict)
    waiting: list[int] = field(init=False)
    error: Exception | None = None

    def __post_init__(self) -> None:
        self.waiting = [number for number in range(1, self.count + 1) if number not in self.results]

    @property
    def seed(self) -> int:
        """The seed of all trials."""
        return self.plan.seeds[0]

    @property
    def ended(self) -> bool:
        """Whether nothing is left to try."""
        return self.error is not None or len(self.results) == self.count

    def rate(self, trial: int) -> float:
        """Return the learning rate of a trial: those of all trials lie around the planned one."""
        planned = self.plan.sized[self.layer].learning_rate or 1.0
        return float(planned * RATE_FACTOR ** (trial - (self.count + 1) / 2))

    def add(self, folder: Path, trial: int, outcome: JsonObject | Exception) -> None:
        """Take the outcome of a trial; after the last one write the file of the trials, and remove their runs."""
        if isinstance(outcome, Exception):
            outcome = {"reason": str(outcome)}
        recorded = {name: value for name, value in outcome.items() if name != "event"}
        self.results[trial] = {"learning_rate": self.rate(trial), "value": None, **recorded}
        if len(self.results) < self.count:
            return
        path = folder / "trials" / f"{self.layer}.json"
        path.parent.mkdir(exist_ok=True)
        write_whole(path, to_json([self.results[number] for number in sorted(self.results)]))
        for run in path.parent.glob(f"{self.layer}-{self.seed}-*"):
            discard(run, RUN)


def read_trials(folder: Path, layer: str) -> list[JsonObject]:
    """Return the ``learning_rate`` and ``value`` of each trial of a layer; a failed one has no value, but a reason."""
    path, remedy = folder / "trials" / f"{layer}.json", "remove it to try the learning rates again"
    return read_json(path, max_bytes=MAX_BYTES, remedy=remedy) if path.exists() else []


def trials_left(folder: Path, plan: Plan, layer: str, *, repeat_failed: bool) -> Trials | None:
    """Return the trials of a layer that an earlier process has not made, or None if there are none.

    Failed trials are made again if ``repeat_failed``: the reason may have been the machine, and not the learning rate.
    """
    assert plan.tune is not None
    tried = read_trials(folder, layer)
    if len(tried) != plan.tune:
        tried = []
    kept = {number: trial for number, trial in enumerate(tried, 1) if trial["value"] is not None or not repeat_failed}
    return None if len(kept) == plan.tune else Trials(plan, layer, plan.tune, kept)


def best_rate(folder: Path, plan: Plan, layer: str) -> float:
    """Return the best of the learning rates that were tried; a TrainingError says why none succeeded."""
    tried = read_trials(folder, layer)
    succeeded = [trial for trial in tried if trial["value"] is not None]
    if not succeeded:
        reasons = [trial["reason"] for trial in tried if trial.get("reason")]
        last = f"; the last reason: {reasons[-1]}" if reasons else ""
        raise TrainingError(f"the training failed with every learning rate that was tried{last}")
    best = max if any(trial["more_is_better"] for trial in succeeded) else min
    return float(best(succeeded, key=itemgetter("value"))["learning_rate"])

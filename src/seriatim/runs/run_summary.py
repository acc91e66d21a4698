"""`summary.json` of a run, checked before anything of it is shown."""

from collections.abc import Collection, Mapping
from html import escape
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ..config import explain
from ..core.errors import DamagedError, shown
from ..core.json_object import JsonObject
from ..storage.files import read_json
from ..tasks.task import Task

MAX_SUMMARY_BYTES = 1 << 26  # ten thousand classes have figures of their own
REMEDY = "remove the file to use the run without its summary"
METRICS = ("valid", "baseline", "network")
"""Fields that contain the metrics of a task."""
Count = Annotated[int, Field(ge=0, lt=2**53)]
Time = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Number = Annotated[float, Field(allow_inf_nan=False)] | None


class Extensible(BaseModel):
    """Values of which only the known ones are checked, as other versions have others."""

    model_config = ConfigDict(strict=True, extra="allow")


class OrderFigures(Extensible):
    """The figures of the n-grams of one order."""

    __pydantic_extra__: dict[str, Number]
    order: Count
    predicted: Count


class Metrics(Extensible):
    """Figures by name; some metrics are texts, lists, or figures of each label or type of entity."""

    __pydantic_extra__: dict[str, Number | str | list[object]]
    ngrams: Annotated[list[OrderFigures], Field(min_length=1)] = []
    simple: dict[str, Number | str] = {}  # of the simple baseline, among those of the simplest model
    classes: JsonObject = {}
    entities: JsonObject = {}


class Summary(Extensible):
    """The fields of a summary."""

    task: str = ""
    layer: str = ""
    precision: str = ""
    device: str = ""
    parameters: Count = 0
    vocabulary_size: Count = 0
    steps: Count = 0
    epochs: Count = 0
    tokens: Count = 0
    documents: Count = 0
    skipped_steps: Count = 0
    threads: Count = 0
    seconds: Time = 0
    tokens_per_second: Time = 0
    best_valid: Number = None
    valid: Metrics = Metrics()
    baseline: Metrics = Metrics()
    network: Metrics = Metrics()
    versions: dict[str, str] = {}


def main_facts(task: Task, summary: JsonObject, parameters: int) -> dict[str, str]:
    """Return what `repr` and notebooks show of a run: task, layer, parameters and the main metrics.

    If the run answers with its network together with its simple baseline, those of the network alone follow.
    """
    config, metrics, network = task.config, summary.get("valid", {}), summary.get("network", {})
    facts = {"task": config.task, "layer": config.model.layer, "parameters": f"{parameters:,}"}
    headlines = [figure for figure in task.evaluator.metrics if figure.headline and metrics.get(figure.key) is not None]
    alone = {figure.key: f" (network alone: {figure.text(network)})" for figure in headlines if figure.key in network}
    return facts | {figure.name: figure.text(metrics) + alone.get(figure.key, "") for figure in headlines}


def as_html(facts: Mapping[str, str]) -> str:
    """Return facts as a table."""
    cells = "".join(f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in facts.items())
    return f"<table>{cells}</table>"


def read_summary(path: Path, figures: Collection[str] = ()) -> JsonObject:
    """Read what a training wrote when it ended; an empty dict if there is no file.

    The metrics in ``figures`` are shown as numbers, each with its interval ``NAME_low`` to ``NAME_high``.

    Raises:
        InputError: the file is damaged, or a field has another type than `seriatim train` writes.
    """
    if not path.exists() and not path.is_symlink():
        return {}
    summary = read_json(path, max_bytes=MAX_SUMMARY_BYTES, remedy=REMEDY)
    if not isinstance(summary, dict):
        raise DamagedError(f"{path}: damaged, or not a summary; {REMEDY}")
    try:
        Summary.model_validate(summary)
    except ValidationError as error:
        raise DamagedError(f"{path}: {explain(error, summary)}; {REMEDY}") from None
    for section, values in _metrics_by_section(summary):
        for name, value in values.items():
            if name.removesuffix("_low").removesuffix("_high") in figures and isinstance(value, str | list):
                raise DamagedError(f"{path}: {section}.{name} must be a number or null, got {shown(value)}; {REMEDY}")
    return summary


def _metrics_by_section(summary: JsonObject) -> list[tuple[str, JsonObject]]:
    """Return the sections of a summary that contain metrics, by name."""
    sections = [(section, summary.get(section, {})) for section in METRICS]
    return [*sections, ("baseline.simple", summary.get("baseline", {}).get("simple", {}))]

"""`summary.json` of a run, checked before anything of it is shown."""

import sys
from collections.abc import Callable, Collection, Mapping
from html import escape
from pathlib import Path

from ..core.errors import DamagedError, shown
from ..core.json_object import JsonObject
from ..storage.files import read_json
from ..tasks.task import Task

MAX_SUMMARY_BYTES = 1 << 26  # ten thousand classes have figures of their own
REMEDY = "remove the file to use the run without its summary"
METRICS = ("valid", "baseline", "network")
"""Fields that contain the metrics of a task."""
BY_CLASS = ("classes", "entities")
"""Metrics that contain the figures of each label, or of each type of entity."""
SIMPLE = "simple"
"""The metrics of the simple baseline, among those of the simplest model."""
BY_ORDER = "ngrams"
"""The metric that contains the figures of each order of n-grams."""


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
    for name, value in summary.items():
        fits, expected = FIELDS.get(name, (lambda _: True, "a value"))  # fields of other versions
        if not fits(value):
            raise DamagedError(f"{path}: {shown(name)[1:-1]} must be {expected}, got {shown(value)}; {REMEDY}")
    for section, values in _metrics_by_section(summary):
        for name, value in values.items():
            if name.removesuffix("_low").removesuffix("_high") in figures and not _is_number(value):
                raise DamagedError(f"{path}: {section}.{name} must be a number or null, got {shown(value)}; {REMEDY}")
    return summary


def _metrics_by_section(summary: JsonObject) -> list[tuple[str, JsonObject]]:
    """Return the sections of a summary that contain metrics, by name."""
    sections = [(section, summary.get(section, {})) for section in METRICS]
    return [*sections, (f"baseline.{SIMPLE}", summary.get("baseline", {}).get(SIMPLE, {}))]


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53


def _is_number(value: object) -> bool:
    """Return whether a value is null or a number that a float can represent."""
    if value is None:
        return True
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def _is_time(value: object) -> bool:
    return isinstance(value, int | float) and _is_number(value) and value >= 0


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_texts(value: object) -> bool:
    return isinstance(value, dict) and all(map(_is_text, value.values()))


def _is_metrics(value: object) -> bool:
    """Return whether a value has figures by name; some metrics are texts, lists, or figures of each class."""
    return isinstance(value, dict) and all(_is_metric(name, metric) for name, metric in value.items())


def _is_metric(name: object, value: object) -> bool:
    if name == SIMPLE:
        return isinstance(value, dict) and all(_is_number(one) or _is_text(one) for one in value.values())
    if name == BY_ORDER:
        return isinstance(value, list) and bool(value) and all(map(_is_order, value))
    return _is_number(value) or isinstance(value, dict if name in BY_CLASS else str | list)


def _is_order(row: object) -> bool:
    """Return whether a value has the figures of an order of n-grams, the order included."""
    numbers = isinstance(row, dict) and all(map(_is_number, row.values()))
    return numbers and isinstance(row, dict) and _is_count(row.get("order")) and _is_count(row.get("predicted"))


COUNTS = ("parameters", "vocabulary_size", "steps", "epochs", "tokens", "documents", "skipped_steps", "threads")
FIELDS: dict[str, tuple[Callable[[object], bool], str]] = {
    **dict.fromkeys(("task", "layer", "precision", "device"), (_is_text, "a text")),
    **dict.fromkeys(COUNTS, (_is_count, "a whole number from 0 to 2^53 - 1")),
    **dict.fromkeys(("seconds", "tokens_per_second"), (_is_time, "a number, 0 or more")),
    "best_valid": (_is_number, "a number or null"),
    **dict.fromkeys(METRICS, (_is_metrics, "figures by name")),
    "versions": (_is_texts, "texts by name"),
}
"""A check of each field of a summary, and what it requires, in words."""

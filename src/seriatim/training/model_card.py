"""The model card of a run, `README.md` in its folder."""

import shlex

from torch import nn

from ..config import Config
from ..storage.written_folders import CARD_MARK
from ..tasks.task import Task
from .reporting import SELECTED, Record

KEY = "simple"
"""The key of the metrics of the simple baseline among those of the simplest model in a summary."""


def model_card(task: Task, config: Config, name: str, model: nn.Module, summary: Record) -> str:
    """Return the model card of a run in Markdown: its task, data, metrics and use. ``name`` is that of its folder."""
    rows = [
        ("task", config.task),
        ("tokens", f"{config.tokenizer.kind}, {summary['vocabulary_size']:,} in the vocabulary"),
        ("trained on", f"`{config.data.train}`"),
        *task.builder.card_rows(model, summary),
        *_answers_row(summary),
        ("versions", ", ".join(f"{key} {value}" for key, value in summary["versions"].items())),
    ]
    lines = [f"# {name}", "", CARD_MARK, "", "| | |", "|---|---|"]
    lines += [f"| {key} | {value} |" for key, value in rows]
    lines += ["", "## Held-out text", "", *_figures(task, summary)]
    lines += ["", "## Use", "", "```", task.kind.usage.format(run=shlex.quote(name)), "```", "", task.kind.caution, ""]
    return "\n".join(lines).encode("utf-8", "backslashreplace").decode()  # names of files may be no text


def _answers_row(summary: Record) -> list[tuple[str, str]]:
    """Return the row of the model card on a run that answers together with its simple baseline."""
    weight, network = summary.get("baseline_weight"), summary.get("network", {})
    if not weight:
        return []
    alone = f"; {network['name']} of the network alone: {network['text']}" if "text" in network else ""
    return [("answers", f"of the network and its simple baseline, which has the weight {weight:g}{alone}")]


def _figures(task: Task, summary: Record) -> list[str]:
    if "valid" not in summary:
        return ["None was given; how well the model does is unknown."]
    metrics, baseline = summary["valid"], summary["baseline"]
    network = {**summary["network"], "name": "its network alone"} if summary.get("network") else {}
    others = [one for one in (network, baseline, baseline.get(KEY)) if one]
    counts = ", ".join(f"{metrics[key]:,} {key.replace('_', ' ')}" for key in task.evaluator.counts)
    rows = []
    for figure in task.evaluator.metrics:
        if figure.key in metrics:
            interval = figure.interval(metrics)
            beside = [figure.text(other, metrics) if figure.key in other else "" for other in others]
            cells = [f"{figure.text(metrics)}{f' ({interval})' if interval else ''}", *beside]
            rows.append(f"| {figure.name} | {' | '.join(cells)} |")
    names = ["this model (95 % interval)", *[other["name"] for other in others]]
    head = [f"| | {' | '.join(names)} |", "|---" * (1 + len(names)) + "|"]
    verdicts = [other["verdict"] for other in reversed(others) if "verdict" in other]
    verdict = ["", " ".join([*verdicts, SELECTED])] if verdicts else []
    return [f"`{task.files.validation_name()}`: {counts}.", "", *head, *rows, *verdict]

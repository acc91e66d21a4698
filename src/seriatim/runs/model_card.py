"""The README of a run: what it is, what it was trained on, how well it does, how to use it."""

from typing import Any

from ..training.task import AnyTask


def model_card(name: str, task: AnyTask, summary: dict[str, Any], model: Any) -> str:
    """A model card in Markdown, made of the task, its configuration, the summary and the trained model."""
    config = task.config
    rows = [
        ("task", config.task),
        ("tokens", f"{config.tokenizer.kind}, {summary['vocabulary_size']:,} in the vocabulary"),
        ("trained on", f"`{config.data.train}`"),
        *task.card_rows(model, summary),
        ("versions", ", ".join(f"{key} {value}" for key, value in summary["versions"].items())),
    ]
    lines = [f"# {name}", "", "A sequence model trained with Seriatim.", "", "| | |", "|---|---|"]
    lines += [f"| {key} | {value} |" for key, value in rows]
    lines += ["", "## Held-out text", "", *_figures(task, summary)]
    lines += ["", "## Use", "", "```", task.usage.format(run=name), "```", "", task.caution, ""]
    return "\n".join(lines).encode("utf-8", "backslashreplace").decode()  # names of files may be no text


def _figures(task: AnyTask, summary: dict[str, Any]) -> list[str]:
    if "valid" not in summary:
        return ["None was given; how well the model does is unknown."]
    found, simplest = summary["valid"], summary["baseline"]
    counts = ", ".join(f"{found[key]:,} {key.replace('_', ' ')}" for key in task.counts)
    rows = []
    for figure in task.figures:
        if figure.key in found:
            span = figure.span(found)
            beside = figure.of(simplest) if figure.key in simplest else ""
            rows.append(f"| {figure.name} | {figure.of(found)}{f' ({span})' if span else ''} | {beside} |")
    head = [f"| | this model (95 % interval) | {simplest['name']} |", "|---|---|---|"]
    return [f"`{task.validation_spec()}`: {counts}.", "", *head, *rows]

"""The model card of a run, its README.md: its task, data, metrics and use."""

from torch import nn

from ..evaluation.intervals import Metrics
from ..training.task import AnyTask


def model_card(name: str, task: AnyTask, summary: Metrics, model: nn.Module) -> str:
    """Return a model card in Markdown for a trained model.

    Args:
        name: the name of the run.
        task: the task with its configuration.
        summary: the content of `summary.json`.
        model: the trained model.
    """
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


def _figures(task: AnyTask, summary: Metrics) -> list[str]:
    if "valid" not in summary:
        return ["None was given; how well the model does is unknown."]
    metrics, baseline = summary["valid"], summary["baseline"]
    counts = ", ".join(f"{metrics[key]:,} {key.replace('_', ' ')}" for key in task.counts)
    rows = []
    for figure in task.figures:
        if figure.key in metrics:
            span = figure.span(metrics)
            beside = figure.of(baseline) if figure.key in baseline else ""
            rows.append(f"| {figure.name} | {figure.of(metrics)}{f' ({span})' if span else ''} | {beside} |")
    head = [f"| | this model (95 % interval) | {baseline['name']} |", "|---|---|---|"]
    return [f"`{task.validation_spec()}`: {counts}.", "", *head, *rows]

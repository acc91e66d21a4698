"""The README of a run: what it is, what it was trained on, how well it does, how to use it."""

from typing import Any

from .config import Training
from .training.task import Task


def model_card(name: str, task: Task, summary: dict[str, Any]) -> str:
    """A model card in Markdown, made of the task, its configuration and the summary."""
    config = task.config
    model, training = config.model, config.training
    rows = [
        ("task", config.task),
        ("layer", f"{model.layer}, {model.num_layers} × {model.hidden_size}, embedding {model.embedding_size}"),
        ("tokens", f"{config.tokenizer.kind}, {summary['vocabulary_size']:,} in the vocabulary"),
        ("parameters", f"{summary['parameters']:,}"),
        ("trained on", f"`{config.data.train}`"),
        ("training", f"{summary['tokens']:,} tokens, {_steps(summary)}, {summary['seconds']:.0f} s"),
        *_optimizer(training),
        ("precision", f"{summary['precision']} on {summary['device']}, {summary['threads']} threads"),
        ("seed", str(training.seed)),
        ("versions", ", ".join(f"{key} {value}" for key, value in summary["versions"].items())),
    ]
    lines = [f"# {name}", "", "A sequence model trained with Seriatim.", "", "| | |", "|---|---|"]
    lines += [f"| {key} | {value} |" for key, value in rows]
    lines += ["", "## Held-out text", "", *_figures(task, summary)]
    lines += ["", "## Use", "", "```", task.usage.format(run=name), "```", "", task.caution, ""]
    return "\n".join(lines).encode("utf-8", "backslashreplace").decode()  # names of files may be no text


def _optimizer(training: Training) -> list[tuple[str, str]]:
    """The row on the optimizer; none for a model that was counted, which has no learning rate."""
    if training.learning_rate is None:
        return []
    return [("optimizer", f"{training.optimizer}, learning rate {training.learning_rate:g}, {training.schedule}")]


def _steps(summary: dict[str, Any]) -> str:
    skipped = summary["skipped_steps"]
    return f"{summary['steps']:,} steps" + (f" ({skipped:,} skipped: not finite)" if skipped else "")


def _figures(task: Task, summary: dict[str, Any]) -> list[str]:
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

"""The README of a run: what it is, what it was trained on, how well it does, how to use it."""

from typing import Any

from .config import Config


def model_card(name: str, config: Config, summary: dict[str, Any]) -> str:
    """A model card in Markdown, made of the configuration and the summary."""
    model, training = config.model, config.training
    rows = [
        ("task", config.task),
        ("layer", f"{model.layer}, {model.num_layers} × {model.hidden_size}, embedding {model.embedding_size}"),
        ("tokens", f"{config.tokenizer.kind}, {summary['vocabulary_size']:,} in the vocabulary"),
        ("parameters", f"{summary['parameters']:,}"),
        ("trained on", f"`{config.data.train}`, unit {config.data.unit}"),
        ("training", f"{summary['tokens']:,} tokens, {summary['steps']:,} steps, {summary['seconds']:.0f} s"),
        ("optimizer", f"{training.optimizer}, learning rate {training.learning_rate:g}, {training.schedule}"),
        ("precision", f"{summary['precision']} on {summary['device']}, {summary['threads']} threads"),
        ("seed", str(training.seed)),
        ("versions", ", ".join(f"{key} {value}" for key, value in summary["versions"].items())),
    ]
    lines = [f"# {name}", "", "A sequence model trained with Seriatim.", "", "| | |", "|---|---|"]
    lines += [f"| {key} | {value} |" for key, value in rows]
    lines += ["", "## Held-out text", "", *_figures(config, summary)]
    lines += ["", "## Use", "", "```", f"seriatim generate {name} --max-tokens 200", "```", ""]
    lines += [
        "It predicts text like what it was trained on, and repeats whatever that text holds. It knows nothing else.",
        "",
    ]
    return "\n".join(lines)


def _figures(config: Config, summary: dict[str, Any]) -> list[str]:
    if "valid" not in summary:
        return ["None was given; how well the model does is unknown."]
    found, unigram = summary["valid"], summary["unigram"]

    def interval(key: str, digits: int) -> str:
        low, high = found[f"{key}_low"], found[f"{key}_high"]
        span = f" ({low:,.{digits}f} to {high:,.{digits}f})" if low is not None else ""
        return f"{found[key]:,.{digits}f}{span}"

    return [
        f"`{config.data.valid or config.data.train}`, {found['tokens']:,} tokens, "
        f"{found['unknown_tokens']:,} of them unknown.",
        "",
        "| | this model (95 % interval) | unigram |",
        "|---|---|---|",
        f"| perplexity per token | {interval('perplexity', 2)} | {unigram['perplexity']:,.2f} |",
        f"| perplexity per word | {interval('word_perplexity', 1)} | |",
        f"| bits per byte | {interval('bits_per_byte', 3)} | {unigram['bits_per_byte']:.3f} |",
    ]

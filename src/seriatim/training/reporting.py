"""What a training reports, and the reporters that receive it: none, lines of text, or a notebook's cell."""

import re
import sys
import time
from collections.abc import Sequence
from typing import Literal, Protocol

import torch
from torch import nn

from ..config import Config, Training
from ..core.json_object import JsonObject
from ..evaluation.intervals import written
from ..evaluation.perplexity import safe_exp
from ..tasks.data_files import fraction_of
from .settle import DEFAULT, Settled

SPENT = re.compile("the budget of (.+) is spent")
"""Why most trainings end; the last line names the budget alone."""
UPDATE_SECONDS = 0.5
"""Shortest time between two updates of a notebook's cell."""


# Records


def describe_model(settled: Settled, model: nn.Module, device: torch.device, ranks: int) -> JsonObject:
    """Return what both the first and the last record say; the last one is the summary of the run."""
    return {
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "vocabulary_size": settled.vocabulary.tokenizer.vocabulary_size,
        "precision": settled.config.training.precision,
        "device": str(device),
        "ranks": ranks,
    }


def beginning(settled: Settled, facts: JsonObject, *, step: int, nothing_left: str) -> JsonObject:
    """Return the record before the first step: what is trained on what, from which step on, and why not if so."""
    task, reader, config = settled.task, settled.task.reader, settled.config
    given = "".join(f", {count:,} {name.replace('_', ' ')}" for name, count in settled.counts.items())
    return {
        **facts,
        "train": f"{reader.describe(settled.train)}{given}",
        "tokenizer_sample": reader.tokenizer_sample(settled.train),
        "valid": None if settled.valid is None else reader.describe(settled.valid),
        "held_out_share": task.files.validation_name() if fraction_of(task.files.validation_source()) else "",
        "decisions": settled.decisions,
        "ceiling": _ceiling(config.training),
        "initial": _initial(config),
        "figures": task.evaluator.metrics,
        "step": step,
        "nothing_left": nothing_left,
        "work_unit": "steps" if task.objective is not None else "tokens",
    }


def _ceiling(training: Training) -> str:
    """Return in words when a training ends that has a limit of minutes; an empty string if it is the only budget."""
    if training.minutes is None:
        return ""
    longest = f"for {training.minutes:g} minutes at most"
    if training.patience is not None:
        why = f"until {training.patience} validations in a row bring no improvement"
        return f"trains {why}, {longest} (--patience, --minutes)"
    for unit in ("epochs", "steps", "tokens"):
        if (number := getattr(training, unit)) is not None:
            return f"trains for {number:,} {unit}, {longest} (--{unit}, --minutes)"
    return ""


def _initial(config: Config) -> str:
    """Return in words which run a training starts from; an empty string for new weights."""
    if config.training.init is None:
        return ""
    sees_all = config.model.bidirectional or not config.model.options.get("causal", True)
    one_way = "" if sees_all else ", which reads in one direction"
    weights = f"the tokenizer, the embedding and the layer {config.model.layer}{one_way}"
    return f"starts from {weights}, of {config.training.init}, and from its output layer if its task is the same"


# Reporters


class Reporter:
    """Receives the progress of a training. The methods do nothing; a subclass overrides those that it needs.

    The methods are called in the process and thread that trains. An `OSError` (a closed pipe, a full disk) ends the
    reports and not the training.
    """

    def reading(self, text: str, share: float) -> None:
        """Receive how much of a large text is read, before `begin`, in words and as a share from 0 to 1."""

    def begin(self, record: JsonObject) -> None:
        """Receive the record before the first step; `docs/training.md` lists the keys of all records."""

    def step(self, record: JsonObject) -> None:
        """Receive ``step epoch tokens loss learning_rate tokens_per_second progress seconds_left`` after every step."""

    def validation(self, record: JsonObject) -> None:
        """Receive ``step epoch seconds best`` and the metrics of the held-out data after every validation."""

    def end(self, record: JsonObject) -> None:
        """Receive the content of `summary.json` after the last step, unless the training failed or was interrupted."""

    def close(self) -> None:
        """Release resources. The code that created the reporter calls this; `seriatim.train` does not."""


class SafeReporter:
    """Tells a reporter of a training until it fails to write: the training continues without it."""

    def __init__(self, reporter: Reporter) -> None:
        self.reporter = reporter

    def tell(self, event: Literal["begin", "step", "validation", "end"], record: JsonObject) -> None:
        """Call the method of the reporter that receives an event."""
        try:
            getattr(self.reporter, event)(record)
        except (OSError, ValueError) as error:
            if isinstance(error, ValueError) and "closed file" not in str(error):
                raise
            self.reporter = Reporter()


class LineReporter(Reporter):
    """Describes a training in lines of text. A subclass implements `say` and `show`."""

    may_end_early = False

    def say(self, text: str) -> None:
        """Show a line that stays."""
        raise NotImplementedError

    def show(self, text: str, fraction: float) -> None:
        """Show a line in place of the previous one of this kind; ``fraction`` of the budget, 0 to 1, is spent."""
        raise NotImplementedError

    def reading(self, text: str, share: float) -> None:
        """Show how much of a large text is read."""
        self.show(text, share)

    def begin(self, record: JsonObject) -> None:
        """Show the sizes of the data and of the model."""
        self.headline = [figure for figure in record["figures"] if figure.headline]
        self.work_unit = record["work_unit"]
        self.say(f"{record['train']} to learn from, {record['vocabulary_size']:,} in the vocabulary")
        if record.get("tokenizer_sample"):
            self.say(record["tokenizer_sample"])
        if record["valid"]:
            chosen = f": {record['held_out_share']} (--valid none trains on all)" if record["held_out_share"] else ""
            self.say(f"{record['valid']} held out{chosen}")
        else:
            self.say("nothing is held out, so how well the model does is not measured (--valid FILE or --valid 10%)")

        # The model, where it starts, and what the data decided in place of the user.
        ranks = f", {record['ranks']} ranks" if record["ranks"] > 1 else ""
        self.say(f"{record['parameters']:,} parameters, {record['precision']} on {record['device']}{ranks}")
        if record.get("initial"):
            self.say(record["initial"])
        if decided := _decided(record.get("decisions", ())):
            self.say(decided)
        if record["ceiling"]:
            self.may_end_early = True
            self.say(record["ceiling"])
        if record["nothing_left"]:
            self.say(
                f"nothing is left to do: {record['nothing_left']}; raise the budget or the patience to train further"
            )
        elif record["step"]:
            self.say(f"resuming at step {record['step']:,}")

    def step(self, record: JsonObject) -> None:
        """Show the step, the loss, the speed and the time left."""
        figures = [f"step {record['step']:,}", f"loss {record['loss']:.3f}"]
        if any(figure.key == "perplexity" for figure in self.headline):
            figures.append(f"perplexity {written(safe_exp(record['loss']), 1)}")
        left = "?" if record["seconds_left"] is None else duration(record["seconds_left"])
        at_most = "at most " if self.may_end_early else ""
        figures += [f"{record['tokens_per_second']:,.0f} tokens/s", f"{at_most}{left} left"]
        self.show("  ".join(figures), record["progress"])

    def validation(self, record: JsonObject) -> None:
        """Show the metrics of the held-out data."""
        note = "  best so far" if record["best"] else ""
        figures = "".join(f"  {figure.name} {figure.text(record)}" for figure in self.headline if figure.key in record)
        moment = f"step {record['step']:,}, {duration(record['seconds'])}"
        loss = f"held-out loss {record['loss']:.4f}" if "loss" in record else "held-out data"  # rules have no loss
        self.say(f"{moment}: {loss}{figures}{note}")

    def end(self, record: JsonObject) -> None:
        """Show the final metrics beside those of the simplest models, what the training cost, and why it ended."""
        if "valid" in record:
            metrics, baseline, compared = record["valid"], record["baseline"], []
            others = [baseline, *([baseline["simple"]] if "simple" in baseline else [])]
            network = {**record["network"], "name": "the network alone"} if record.get("network") else {}
            for figure in self.headline:
                if figure.key in metrics:
                    beside = [one for one in (network, *others) if one.get(figure.key) is not None]
                    known = [f"{one['name']}: {figure.text(one, metrics)}" for one in beside]
                    compared.append(
                        f"{figure.name} {figure.text(metrics)}" + (f" ({'; '.join(known)})" if known else "")
                    )
            selected = f"; selected by {record['selected_by']}" if "selected_by" in record else ""
            self.say(f"held-out {', '.join(compared)}{selected}")
        if weight := record.get("baseline_weight"):
            self.say(f"answers: those of the network and its simple baseline, which has the weight {weight:g}")

        # The rest of the time went into validations and into saving what they selected.
        training = record["tokens"] / max(record["tokens_per_second"], 1e-9)
        rest = record["seconds"] - training
        purpose = "validation and saving" if "valid" in record else "saving"
        more = f" + {duration(rest)} of {purpose}" if round(rest) > 0 else ""
        budget = SPENT.fullmatch(record["ended"])
        why = f"budget {budget[1]}" if budget else record["ended"]
        self.say(f"done: {record[self.work_unit]:,} {self.work_unit}, {duration(training)} of training{more} ({why})")


def _decided(decisions: Sequence[tuple[str, object, str]]) -> str:
    """Return in words which values the data decided, and why; each reason comes after its values."""
    by_reason: dict[str, list[str]] = {}
    for name, value, reason in decisions:
        if name.startswith(("training.", "model.")) and value is not None and reason != DEFAULT:
            by_reason.setdefault(reason, []).append(f"{name.rpartition('.')[2]} {value}")
    chosen = "; ".join(f"{', '.join(values)} ({reason})" for reason, values in by_reason.items())
    return f"chosen: {chosen}" if chosen else ""


class Display(Protocol):
    """The handle of a notebook's output."""

    def update(self, data: dict[str, str], *, raw: bool) -> None: ...  # noqa: D102


class NotebookReporter(LineReporter):
    """Shows a training in the output of a notebook's cell; the last line changes in place."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.last = ""
        self.updated = 0.0
        self.display: Display | None = None

    def say(self, text: str) -> None:
        """Add a line that stays."""
        self.lines.append(text)
        self._update()

    def show(self, text: str, fraction: float) -> None:
        """Replace the last line, at most once in `UPDATE_SECONDS`."""
        self.last = f"{text}  ({fraction:.0%})"
        if time.monotonic() - self.updated >= UPDATE_SECONDS:
            self._update()

    def end(self, record: JsonObject) -> None:
        """Show the final metrics in place of the changing line."""
        self.last = ""
        super().end(record)

    def close(self) -> None:
        """Remove the changing line."""
        self.last = ""
        if self.display is not None:
            self._update()

    def _update(self) -> None:
        self.updated = time.monotonic()
        text = {"text/plain": "\n".join([*self.lines, *([self.last] if self.last else [])])}
        if self.display is None:
            from IPython.display import display

            self.display = display(text, raw=True, display_id=True)
        else:
            self.display.update(text, raw=True)


def default_reporter() -> Reporter:
    """Return the reporter of a training that is given none: it shows progress in a notebook, and nothing elsewhere."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    in_notebook = getattr(shell, "kernel", None) is not None  # Jupyter and its relatives
    return NotebookReporter() if in_notebook else Reporter()


def duration(seconds: float) -> str:
    """Return a time in minutes and seconds, in words."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"

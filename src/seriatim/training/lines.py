"""A training in lines of text: what consoles and notebooks show of it."""

from ..evaluation.intervals import written
from ..evaluation.perplexity import safe_exp
from .reporting import Record, Reporter


class LineReporter(Reporter):
    """Puts what a training tells into lines; a subclass shows them.

    A subclass writes `say` and `show`.
    """

    def say(self, text: str) -> None:
        """Shows one line that stays."""
        raise NotImplementedError

    def show(self, text: str, share: float) -> None:
        """Shows how far the training has come, in place of what was shown before.

        Args:
            text: one line.
            share: of the budget that is spent, 0 to 1.
        """
        raise NotImplementedError

    def begin(self, record: Record) -> None:
        """One line on the model and one on the data."""
        self.headline = [figure for figure in record["figures"] if figure.headline]
        self.say(f"{record['train']} to learn from, {record['vocabulary_size']:,} in the vocabulary")
        if record["valid"]:
            self.say(f"{record['valid']} held out")
        self.say(f"{record['parameters']:,} parameters, {record['precision']} on {record['device']}")
        if record["nothing_left"]:
            self.say(
                f"nothing is left to do: {record['nothing_left']}; raise the budget or the patience to train further"
            )
        elif record["step"]:
            self.say(f"resuming at step {record['step']:,}")

    def step(self, record: Record) -> None:
        """Step, loss, speed and time left."""
        left = duration(record["seconds_left"]) if record["seconds_left"] is not None else "?"
        text = (
            f"step {record['step']:,}  loss {record['loss']:.3f}{self.perplexity(record['loss'])}  "
            f"{record['tokens_per_second']:,.0f} tokens/s  {left} left"
        )
        self.show(text, record["progress"])

    def validation(self, record: Record) -> None:
        """One line a validation."""
        note = "  best so far" if record["best"] else ""
        found = "  ".join(
            [
                f"loss {record['loss']:.4f}",
                *(f"{figure.name} {figure.of(record)}" for figure in self.headline if figure.key in record),
            ]
        )
        self.say(f"step {record['step']:,}, {duration(record['seconds'])}: held-out {found}{note}")

    def perplexity(self, loss: float) -> str:
        """That of a step's loss, where the task counts in it."""
        counted = any(figure.key == "perplexity" for figure in self.headline)
        return f"  perplexity {written(safe_exp(loss), 1)}" if counted else ""

    def end(self, record: Record) -> None:
        """How it came out, beside the simplest model."""
        if "valid" in record:
            parts = []
            for figure in (figure for figure in self.headline if figure.key in record["valid"]):
                simplest = record["baseline"].get(figure.key)
                beside = "" if simplest is None else f" ({record['baseline']['name']}: {figure.of(record['baseline'])})"
                parts.append(f"{figure.name} {figure.of(record['valid'])}{beside}")
            self.say(f"held-out {', '.join(parts)}")
        self.say(f"training ended: {record['ended']}")
        self.say(
            f"{record['steps']:,} steps in {duration(record['seconds'])}, {record['tokens_per_second']:,.0f} tokens/s"
        )


def duration(seconds: float) -> str:
    """Minutes and seconds, in words."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"

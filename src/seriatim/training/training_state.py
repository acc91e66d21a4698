"""The progress of a training: everything a checkpoint records beside tensors."""

from dataclasses import dataclass, field
from typing import Any

from ..config import Training


@dataclass
class Progress:
    """The progress of a training.

    Attributes:
        step: optimizer steps done, skipped ones included.
        epoch: epochs completed.
        window: batches read of the current epoch; their order follows from the seed.
        tokens: tokens read.
        seconds: time since the training began.
        training_seconds: time spent in optimizer steps.
        best_valid: best value of the metric that selects weights.
        best_loss: lowest held-out loss, in nats.
        previous_loss: held-out loss of the last validation, in nats.
        failures: consecutive validations without improvement, for early stopping.
        annealed: number of times that the schedule ``plateau`` lowered the learning rate.
        loss_sum: training loss that `metrics.jsonl` does not contain yet, in nats.
        loss_terms: number of terms of ``loss_sum``.
        evaluated_at: step of the last validation; -1 before the first.
        last: record of the last step.
        records: lines of `metrics.jsonl`; None in checkpoints of version 0.1.
        skipped: steps skipped because the loss or a gradient was not finite.
        skipped_in_a_row: consecutive skipped steps.
        data: key of the training data.
        held_out: key of the held-out data.
        environment: what else the last bits depend on; see `environment`.
    """

    step: int = 0
    epoch: int = 0
    window: int = 0
    tokens: int = 0
    seconds: float = 0.0
    training_seconds: float = 0.0
    best_valid: float | None = None
    best_loss: float | None = None
    previous_loss: float | None = None
    failures: int = 0
    annealed: int = 0
    loss_sum: float = 0.0
    loss_terms: int = 0
    evaluated_at: int = -1
    last: dict[str, Any] = field(default_factory=dict)
    records: int | None = None
    skipped: int = 0
    skipped_in_a_row: int = 0
    data: str = ""
    held_out: str | None = None
    environment: dict[str, str] = field(default_factory=dict)

    def spent(self, config: Training, *, windows: int, seconds: float) -> float:
        """Return the largest of `shares`. The arguments are the same."""
        return max(self.shares(config, windows=windows, seconds=seconds).values())

    def shares(self, config: Training, *, windows: int, seconds: float) -> dict[str, float]:
        """Return the share that is spent of each budget in the configuration: epochs, steps, tokens, minutes.

        Args:
            config: the budgets.
            windows: number of batches in an epoch.
            seconds: time since the training began.
        """
        shares = {}
        if config.epochs is not None:
            of_epoch = min(self.window / max(windows, 1), 0.999_999) if self.window else 0.0
            shares["epochs"] = (self.epoch + of_epoch) / config.epochs
        if config.steps is not None:
            shares["steps"] = self.step / config.steps
        if config.tokens is not None:
            shares["tokens"] = self.tokens / config.tokens
        if config.minutes is not None:
            shares["minutes"] = seconds / (60 * config.minutes)
        return shares

    def impatient(self, config: Training) -> bool:
        """Return whether early stopping ends the training."""
        stopping = config.tolerance is not None or config.patience is not None
        return stopping and self.failures >= (config.patience or 1)

    def ended(self, config: Training, *, windows: int, seconds: float) -> str:
        """Return why the training has ended, or an empty string while it has not. The arguments are as in `shares`."""
        for name, share in self.shares(config, windows=windows, seconds=seconds).items():
            if share >= 1:
                count = getattr(config, name)
                return f"the budget of {count:,} {name if count != 1 else name[:-1]} is spent"
        if self.impatient(config):
            least = f"by {config.tolerance:g} nats" if config.tolerance else "at all"
            count = "1 validation" if self.failures == 1 else f"{self.failures} validations in a row"
            return f"the held-out loss did not improve {least} in {count}"
        return ""

    def record_validation(self, metric: float, loss: float, config: Training, *, more_is_better: bool) -> bool:
        """Record a validation, for early stopping and for the schedule ``plateau``, which both look at the loss.

        Args:
            metric: value of the metric that selects weights.
            loss: held-out loss, in nats.
            config: tolerance and schedule.
            more_is_better: whether a larger metric is better.

        Returns:
            Whether the metric is the best so far.
        """
        sign = 1 if more_is_better else -1
        best = self.best_valid is None or sign * metric > sign * self.best_valid
        improved = self.previous_loss is None or self.previous_loss - loss >= (config.tolerance or 0.0)
        lowest = self.best_loss is None or loss < self.best_loss
        self.failures = 0 if improved else self.failures + 1
        self.annealed += int(not lowest and config.schedule == "plateau")
        self.previous_loss = loss
        self.best_loss = loss if lowest else self.best_loss
        self.best_valid = metric if best else self.best_valid
        return best

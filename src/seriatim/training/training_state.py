"""The progress of a training: everything a checkpoint records beside tensors."""

from dataclasses import dataclass, field
from typing import Any

from ..config import Training


@dataclass
class Progress:
    """The progress of a training. Losses are in nats; times are in seconds."""

    step: int = 0  # optimizer steps done, skipped ones included
    epoch: int = 0  # epochs completed
    window: int = 0  # batches read of the current epoch; their order follows from the seed
    tokens: int = 0  # tokens read
    seconds: float = 0.0  # time since the training began, after the last step or validation
    training_seconds: float = 0.0  # time spent in optimizer steps
    best_valid: float | None = None  # best value of the metric that selects weights
    loss_of_best: float | None = None  # held-out loss of the weights that are selected
    best_loss: float | None = None  # lowest held-out loss
    previous_loss: float | None = None  # held-out loss of the last validation
    failures: int = 0  # consecutive validations without improvement, for early stopping
    stalled: int = 0  # consecutive validations without a new lowest loss
    averaged_from: int = -1  # step after which ``average_after`` averages the weights; -1 before that
    annealed: int = 0  # how often the schedule ``plateau`` lowered the learning rate
    loss_sum: float = 0.0  # training loss that `metrics.jsonl` does not contain yet
    loss_terms: int = 0  # number of terms of ``loss_sum``
    evaluated_at: int = -1  # step of the last validation; -1 before the first
    last: dict[str, Any] = field(default_factory=dict)  # record of the last step
    records: int = 0  # lines of `metrics.jsonl`
    skipped: int = 0  # steps skipped because the loss or a gradient was not finite
    skipped_in_a_row: int = 0
    data: str = ""  # key of the training data
    held_out: str | None = None  # key of the held-out data
    environment: dict[str, str] = field(default_factory=dict)  # what else the last bits depend on; see `environment`

    def shares(self, config: Training, windows: int) -> dict[str, float]:
        """Return the share that is spent of each budget: epochs of ``windows`` batches, steps, tokens, minutes."""
        part_of_epoch = min(self.window / max(windows, 1), 0.999_999)
        done = {
            "epochs": self.epoch + part_of_epoch,
            "steps": self.step,
            "tokens": self.tokens,
            "minutes": self.seconds / 60,
        }
        budgets = {name: getattr(config, name) for name in done}
        return {name: done[name] / budget for name, budget in budgets.items() if budget is not None}

    def spent(self, config: Training, windows: int) -> float:
        """Return the largest of `shares`."""
        return max(self.shares(config, windows).values())

    def ended(self, config: Training, windows: int) -> str:
        """Return why the training has ended, or an empty string while it has not."""
        for name, share in self.shares(config, windows).items():
            if share >= 1:
                count = getattr(config, name)
                return f"the budget of {count:,} {name if count != 1 else name[:-1]} is spent"
        stopping = config.tolerance is not None or config.patience is not None
        if stopping and self.failures >= (config.patience or 1):
            count = "1 validation" if self.failures == 1 else f"{self.failures} validations in a row"
            if config.tolerance is None:
                return f"the held-out metric had no new best value in {count}"
            least = f"by {config.tolerance:g} nats" if config.tolerance else "at all"
            return f"the held-out loss did not improve {least} in {count}"
        return ""

    def begins_averaging(self, config: Training) -> bool:
        """Record and return whether the uniform average of ``average_after`` begins; early stopping counts anew."""
        if config.average_after is None or self.averaged_from >= 0 or self.stalled < config.average_after:
            return False
        self.averaged_from, self.failures = self.step, 0
        return True

    def record_validation(self, metric: float, loss: float, config: Training, *, more_is_better: bool) -> bool:
        """Record a validation, and return whether its metric, which selects the weights, is the best so far.

        Of several validations with the best metric, the one with the lowest loss counts, as exact answers or the
        accuracy of few texts often have the same value; early stopping waits for a better metric all the same.

        Early stopping looks at the metric too, or at the loss, in nats, if there is a tolerance; the schedule
        ``plateau`` looks at the loss, and so does ``average_after``, which gives early stopping a new start.
        """
        sign = 1 if more_is_better else -1
        best = self.best_valid is None or sign * metric > sign * self.best_valid
        improved = best
        tied = self.best_valid == metric and self.loss_of_best is not None and loss < self.loss_of_best
        if config.tolerance is not None:
            improved = self.previous_loss is None or self.previous_loss - loss >= config.tolerance
        lowest = self.best_loss is None or loss < self.best_loss
        self.failures = 0 if improved else self.failures + 1
        self.stalled = 0 if lowest else self.stalled + 1
        self.annealed += int(not lowest and config.schedule == "plateau")
        self.previous_loss = loss
        self.best_loss = loss if lowest else self.best_loss
        if best or tied:
            self.best_valid, self.loss_of_best = metric, loss
        return best or tied

"""How far a training has come: what its checkpoints keep beside tensors."""

from dataclasses import dataclass, field
from typing import Any

from ..config import Training


@dataclass
class Progress:
    """How far a training has come. ``window`` counts what was read of the epoch; the order follows from the seed.

    ``last`` is what there is to tell of the last step; ``loss_sum`` and ``loss_terms`` hold what is not yet in
    `metrics.jsonl`, which has ``records`` lines. ``data`` and ``held_out`` are the keys of the texts, ``environment``
    is what else the last bits hang on.
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
        """The share of the budget that is spent: the largest of `shares`, whose arguments it takes."""
        return max(self.shares(config, windows=windows, seconds=seconds).values())

    def shares(self, config: Training, *, windows: int, seconds: float) -> dict[str, float]:
        """The share that is spent of each budget that is given (epochs, steps, tokens, minutes).

        Args:
            config: the budget.
            windows: of an epoch.
            seconds: since the training began.
        """
        found = {}
        if config.epochs is not None:
            of_epoch = min(self.window / max(windows, 1), 0.999_999) if self.window else 0.0
            found["epochs"] = (self.epoch + of_epoch) / config.epochs
        if config.steps is not None:
            found["steps"] = self.step / config.steps
        if config.tokens is not None:
            found["tokens"] = self.tokens / config.tokens
        if config.minutes is not None:
            found["minutes"] = seconds / (60 * config.minutes)
        return found

    def impatient(self, config: Training) -> bool:
        """Whether as many validations in a row did not improve as ``patience`` allows."""
        stopping = config.tolerance is not None or config.patience is not None
        return stopping and self.failures >= (config.patience or 1)

    def ended(self, config: Training, *, windows: int, seconds: float) -> str:
        """Why a training has ended, in words; empty while it has not. Arguments as of `shares`."""
        shares = self.shares(config, windows=windows, seconds=seconds)
        for name, share in shares.items():
            if share >= 1:
                count = getattr(config, name)
                return f"the budget of {count:,} {name if count != 1 else name[:-1]} is spent"
        if self.impatient(config):
            least = f"by {config.tolerance:g} nats" if config.tolerance else "at all"
            count = "1 validation" if self.failures == 1 else f"{self.failures} validations in a row"
            return f"the held-out loss did not improve {least} in {count}"
        return ""

    def judge(self, metric: float, loss: float, config: Training, *, more_is_better: bool) -> bool:
        """Records a validation, for the schedule and for early stopping.

        Weights are selected by the metric of the task. Early stopping and the schedule ``plateau`` look at the
        held-out loss, whose unit (nats) is that of ``tolerance``.

        Args:
            metric: which selects the weights.
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

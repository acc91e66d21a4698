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
    previous_valid: float | None = None
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
        """The share of the budget spent: whichever of epochs, steps, tokens and minutes has gone furthest.

        Args:
            config: the budget.
            windows: of an epoch.
            seconds: since the training began.
        """
        shares = []
        if config.epochs is not None:
            of_epoch = min(self.window / max(windows, 1), 0.999_999) if self.window else 0.0
            shares.append((self.epoch + of_epoch) / config.epochs)
        if config.steps is not None:
            shares.append(self.step / config.steps)
        if config.tokens is not None:
            shares.append(self.tokens / config.tokens)
        if config.minutes is not None:
            shares.append(seconds / (60 * config.minutes))
        return max(shares)

    def judge(self, found: float, config: Training, *, more_is_better: bool) -> bool:
        """Takes note of a validation, for schedule and patience; says whether it is the best so far."""
        sign = 1 if more_is_better else -1
        best = self.best_valid is None or sign * found > sign * self.best_valid
        improved = self.previous_valid is None or sign * (found - self.previous_valid) >= (config.tolerance or 0.0)
        self.failures = 0 if improved else self.failures + 1
        self.annealed += int(not best and config.schedule == "plateau")
        self.previous_valid = found
        self.best_valid = found if best else self.best_valid
        return best

"""From the budget of a comparison to the number of steps of a training."""

import math

from ..config import Config
from ..core.errors import InputError
from ..training.pace import Pace
from .plan import Budget

VALIDATIONS = (8, 4, 2, 1)
"""Possible numbers of validations. The largest is chosen that takes at most `VALIDATING` of the training time."""
VALIDATING = 0.25
DEVIATION = 0.15
"""Relative deviation from the budget in minutes above which a row says so."""
TOO_FAST = 0.7
"""Where the ratio of the training's time per step to the measured one is outside 0.7..1/0.7, the cache is corrected.

Below 0.7, the training had far too few steps, and it is repeated.
"""


def settle_budget(
    config: Config, budget: Budget, pace: Pace, *, share: float, automatic: list[str]
) -> dict[str, int | float | None]:
    """Return the fields of a training's configuration, by dotted name, that follow from its share of the budget.

    Args:
        config: of the training.
        budget: of the layer.
        pace: speed of the layer.
        share: of the budget for this training, 0 to 1.
        automatic: fields of the configuration that the user did not set.

    Raises:
        InputError: the budget is shorter than one step.
    """
    fields: dict[str, int | float | None] = {"training.epochs": None, "training.steps": None, "training.tokens": None}
    if budget.minutes is not None:
        steps = int(60 * budget.minutes * share / pace.step_seconds)
        fields["training.steps"] = steps
        if steps < 1:
            needed = math.ceil(1000 * pace.step_seconds / 60 / share) / 1000
            raise InputError(
                f"--minutes: {budget.minutes:g} is too little, one step takes {pace.step_seconds:.2g} s; "
                f"give {needed:g} or more"
            )
    elif budget.tokens is not None:
        tokens = max(1, int(budget.tokens * share))
        fields["training.tokens"] = tokens
        steps = max(1, math.ceil(tokens / pace.step_tokens))
    else:
        assert budget.steps is not None
        steps = fields["training.steps"] = max(1, int(budget.steps * share))
    if "evaluate_every" in automatic:
        fields["training.evaluate_every"] = evaluate_every(steps, pace)
    return fields


def evaluate_every(steps: int, pace: Pace) -> int:
    """Return the number of steps between validations, of which one always follows the last step."""
    affordable = VALIDATING * steps * pace.step_seconds / max(pace.validation_seconds, 1e-9)
    count = next((count for count in VALIDATIONS if count <= affordable), VALIDATIONS[-1])
    return max(1, math.ceil(steps / count))

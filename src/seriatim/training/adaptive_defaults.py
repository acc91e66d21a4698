"""Defaults of a training that depend on the amount of data; docs/defaults.md says how they were chosen.

Without a budget, a training takes steps at a constant rate and validates an exponential moving average of the weights,
until that stops improving: the average stands in for a falling learning rate, whose length would have to be known
(B. Polyak and A. Juditsky, "Acceleration of stochastic approximation by averaging", 1992).
"""

import math
from operator import attrgetter
from typing import Any, TypeVar

from ..config import BATCH_SIZE, Config, Fields, Training, set_fields
from .optimizers import default_rate
from .task import Task
from .task_data import TaskData

USUAL: Fields = {"training.batch_size": BATCH_SIZE, "model.dropout": 0.0}
"""Defaults where the recipe of a task has none."""
MINUTES = 20.0
"""Longest time of a training without a budget."""
PATIENCE, PATIENT_STEPS = 5, 1000
"""Validations and steps without improvement that end a training without a budget: the larger of both."""
STEPS_BETWEEN = (50, 1000)
"""Smallest and largest number of steps between two validations of a training without a budget."""
AVERAGE = 0.998
"""Decay of the average of the weights, in a training without a budget."""
WARMUP_STEPS = 100
"""Steps in which the learning rate rises, in a training without a budget."""
NO_DROPOUT, DROPOUT_GROWTH, MOST_DROPOUT = 0.4, 0.3, 0.5
"""Number of parameters of a language model for each token of its text up to which it has no dropout; what ten times as
many add to the dropout; and the largest dropout."""
FEW_PASSES = 3
"""A text that is read less often is not learned by heart, so that its model has no dropout."""
BLIND_STEPS, BLIND_EPOCHS = 2000, (5, 50)
"""Steps of a training with neither a budget nor held-out data, and the bounds of its epochs."""


Data = TypeVar("Data", bound=TaskData)


def choose_defaults(task: Task[Data, Any, Any], train: Data, *, held_out: bool) -> None:
    """Fill in every field of a task's configuration that depends on the training data and is None, in place.

    ``held_out`` says whether there is held-out data, which tells when to stop.
    """
    if not task.uses_learning_rate:
        return
    config, training = task.config, task.config.training
    _fill(config, {**USUAL, **task.recipe(train)})
    if training.learning_rate is None:
        training.learning_rate = default_rate(config)
    batches = task.batches(train)
    windows = batches.windows(batches.shuffled(training.seed, 0))
    _fill(config, default_budget(training, -(-windows // training.accumulate), held_out=held_out))


def _fill(config: Config, fields: Fields) -> None:
    """Set those fields that are None, by dotted name, in place."""
    set_fields(config, {name: value for name, value in fields.items() if attrgetter(name)(config) is None})


def default_budget(training: Training, steps_per_epoch: int, *, held_out: bool) -> Fields:
    """Return the budget and the schedule of a training, by dotted name, for the fields that are None."""
    given = has_budget(training)
    falling: Fields = {"schedule": "cosine", "average": 0.0}
    if given or (not held_out and training.minutes is not None):
        fields = falling
    elif not held_out:
        least, most = BLIND_EPOCHS
        epochs = min(most, max(least, -(-BLIND_STEPS // steps_per_epoch)))
        fields = {**falling, "minutes": MINUTES, "epochs": epochs}
    else:
        least, most = STEPS_BETWEEN
        between = min(most, max(least, steps_per_epoch))
        patience = max(PATIENCE, -(-PATIENT_STEPS // between))
        average = AVERAGE if training.average_after is None else 0.0
        fields = {"schedule": "constant", "average": average, "warmup_steps": WARMUP_STEPS}
        fields |= {"minutes": MINUTES, "patience": patience}
        if between != steps_per_epoch:
            fields["evaluate_every"] = between
    return {f"training.{name}": value for name, value in fields.items()}


def has_budget(training: Training) -> bool:
    """Return whether a number of epochs, steps or tokens is given; minutes alone only limit a training."""
    return {training.epochs, training.steps, training.tokens} != {None}


def small_batches(items: int) -> int:
    """Return a batch size for ``items`` training sequences: a power of two, 8 for 1,600 or fewer and 32 for many.

    Little data is read more often, so that it needs more steps for each reading.
    """
    return next((size for size in (8, 16) if items <= 200 * size), BATCH_SIZE)


def text_dropout(parameters: int, tokens: int, passes: float | None) -> float:
    """Return the dropout of a language model with so many parameters on a text with so many tokens.

    ``passes`` is how often the budget lets it read the text; None if it reads until that no longer helps.
    """
    if passes is not None and passes < FEW_PASSES:
        return 0.0
    grown = DROPOUT_GROWTH * math.log10(max(1, parameters) / max(1, tokens) / NO_DROPOUT)
    return round(min(max(grown, 0.0), MOST_DROPOUT), 1)


def planned_passes(training: Training, tokens: int, step_tokens: int) -> float | None:
    """Return how often a budget lets a training read its text; None if no number of epochs, steps or tokens is given.

    ``step_tokens`` is the number of tokens of a step.
    """
    steps = None if training.steps is None else training.steps * step_tokens / max(1, tokens)
    read = None if training.tokens is None else training.tokens / max(1, tokens)
    return min((one for one in (training.epochs, steps, read) if one is not None), default=None)

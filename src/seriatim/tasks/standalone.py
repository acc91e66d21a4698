"""What tasks share whose model is not built from layers: `counting`, `bag_of_ngrams`, `feature_tagging` and `rules`."""

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

from torch import Tensor

from ..config import Config, Section
from ..core.errors import InputError, nearest
from ..layers.declared_options import resolve_options, task_options
from ..layers.describe import DISTANCES, TOKENS, WIDTH
from ..storage.weights import load_tensors, refuse_nonfinite
from ..training.task import AnyTask
from .base_tasks import with_kind, with_model

Options = TypeVar("Options", bound=Section)

STEPS_ONLY = {
    *(f"training.{name}" for name in ("epochs", "steps", "tokens", "batch_size", "optimizer", "learning_rate")),
    *(f"training.{name}" for name in ("schedule", "warmup_steps", "weight_decay", "clip", "patience", "accumulate")),
    *(f"model.{name}" for name in ("embedding_size", "hidden_size", "num_layers", "dropout", "bidirectional")),
}
"""Fields that mean nothing for models that take no steps."""


def read_options(section: type[Options], config: Config) -> Options:
    """Read ``model.options`` of a standalone model, and refuse one that does not exist or does not fit."""
    options, rest = resolve_options(section, (), config.model.options)
    for key in rest:
        raise InputError(f"model.options.{key}: no such option; {nearest(key, list(section.model_fields))}")
    return options


def with_defaults(section: type[Section], config: Config, kind: str | None) -> Config:
    """Fill in the defaults: tokens of a kind (None: chosen from the data), all options, and the precision float32."""
    config = with_model(with_kind(config, kind), options=read_options(section, config).model_dump())
    return config.model_copy(update={"training": config.training.model_copy(update={"precision": "float32"})})


def load_finite(weights: Path) -> Mapping[str, Tensor]:
    """Read named tensors, and refuse NaN and infinity."""
    tensors = load_tensors(weights)
    refuse_nonfinite(tensors, weights)
    return tensors


def describe_linear(name: str, keeps: str, paper: str, section: type[Section]) -> dict[str, object]:
    """Return what `seriatim.layers.describe` returns of layers, for a linear model of whole sequences."""
    return {
        "name": name,
        "keeps": keeps,
        "parallel": True,
        "paper": paper,
        "hidden_size": WIDTH,
        "state_bytes": {str(count): None for count in TOKENS},
        "path_lengths": {str(distance): None for distance in DISTANCES},
        "options": section().model_dump(),
        "option_details": {key: option.describe() for key, option in task_options(section).items()},
    }


def warn_of_ignored(task: AnyTask, given: Mapping[str, object]) -> None:
    """Warn of given fields that mean nothing for a model that takes no steps."""
    ignored = [name for name in given if name in STEPS_ONLY]
    if ignored and not task.uses_learning_rate:
        layer = task.config.model.layer
        warnings.warn(f"{', '.join(ignored)}: no effect on {layer}, which takes no steps; leave it out", stacklevel=3)

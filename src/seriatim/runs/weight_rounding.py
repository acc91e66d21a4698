"""Opens a run with its weights rounded to fewer bytes, and measures what that costs and gains."""

import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from ..compiler.reasons import UnsupportedError
from ..compiler.weight_formats import FORMATS, WeightFormat
from ..core.errors import InputError, shown
from ..core.state import State
from ..evaluation.intervals import Metrics, Paired
from ..recurrence.round_weights import round_weights

TIMED_TOKENS = 32
TURNS = 5


def check_format(weights: str) -> None:
    """Raise InputError if a format of weights is unknown."""
    if weights not in FORMATS:
        raise InputError(f"weights: must be one of {', '.join(FORMATS)}, got {shown(weights)}")


def round_model(model: nn.Module, weights: WeightFormat, path: Path) -> None:
    """Round the weights of a model in place, as `round_weights` does.

    Raises:
        InputError: the model has no step that multiplies with its weights, or its step cannot be traced.
    """
    problem = "its model does not multiply with matrices step by step"
    steps = callable(getattr(model, "step", None)) and callable(getattr(model, "initial_state", None))
    if steps and any(weight.dim() > 1 for weight in model.parameters()):
        try:
            if round_weights(model, weights).rounded:
                return
        except UnsupportedError as error:
            problem = f"the step of its model cannot be compiled: {error.reasons[0].problem}"
    raise InputError(f"{path}: weights {weights} are not supported, because {problem}; leave them out")


class Decodes(Protocol):
    """A language model, or a decoder with its encoder."""

    def initial_state(self, batch_size: int) -> State: ...  # noqa: D102

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State]: ...  # noqa: D102

    def parameters(self) -> Iterator[nn.Parameter]: ...  # noqa: D102


class Cost(NamedTuple):
    """What rounded weights cost and gain, beside the same run with its weights as they are."""

    weights: str
    metrics: Metrics  # of the run with its weights as they are
    differences: dict[str, Paired]  # of metrics, rounded minus not rounded
    tokens_per_second: float  # one text, greedy
    tokens_per_second_float32: float
    turns: int = TURNS

    def as_json(self) -> dict[str, object]:
        """Return the fields as JSON holds them."""
        differences = {name: difference._asdict() for name, difference in self.differences.items()}
        return {**self._asdict(), "differences": differences}


def measure_speeds(models: Sequence[Decodes]) -> list[float]:
    """Return how many tokens per second models write, one token after another: medians of turns that alternate."""
    seconds: list[list[float]] = [[] for _ in models]
    for turn in range(TURNS + 1):  # the first one compiles
        for model, times in zip(models, seconds, strict=True):
            token, state = (
                torch.zeros(1, dtype=torch.long, device=next(model.parameters()).device),
                model.initial_state(1),
            )
            began = time.perf_counter()
            with torch.inference_mode():
                for _ in range(TIMED_TOKENS):
                    logits, state = model.step(token, state)
                    token = logits.argmax(1)
            if turn:
                times.append(time.perf_counter() - began)
    return [TIMED_TOKENS / statistics.median(times) for times in seconds]

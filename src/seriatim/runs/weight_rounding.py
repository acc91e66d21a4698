"""Rounds the weights of a run to fewer bytes, and measures what that costs and gains."""

import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Protocol, cast

import torch
from torch import Tensor, nn

from ..compiler.fallback_reasons import UnsupportedError
from ..core.errors import NotSupportedError
from ..core.json_object import JsonObject
from ..core.state import State
from ..evaluation.intervals import Paired
from ..layers.positions import learned_positions
from ..recurrence.round_weights import round_weights
from ..recurrence.weight_formats import WeightFormat

TURNS = 7
TURN_SECONDS, MAX_TURN_TOKENS = 0.1, 2048
"""How long the slower of two models writes in a turn, and the largest number of tokens."""
SOURCE_TOKENS = 16


def round_model(model: nn.Module, weights: WeightFormat, path: Path, task: str) -> None:
    """Round the weights of a model in place, as `round_weights` does; if its step cannot be traced, of its decoder.

    Raises:
        InputError: the model has no step that multiplies with its weights, or its step cannot be traced.
    """
    problem = f"a model that was trained to {task} does not write token by token"
    for module in (model, getattr(model, "decoder", None)):
        if not callable(getattr(module, "step", None)) or not isinstance(module, nn.Module):
            continue
        if not any(weight.dim() > 1 for weight in module.parameters()):
            problem = "its model has no matrices"
            continue
        try:
            if round_weights(module, weights).rounded:
                return
        except UnsupportedError as error:
            problem = f"the step of its model cannot be compiled: {error.reasons[0].problem}"
    raise NotSupportedError(f"{path}: {weights} weights are not supported, because {problem}; leave out --weights")


class Decodes(Protocol):
    """A language model, or a decoder with its encoder."""

    def initial_state(self, batch_size: int) -> State: ...  # noqa: D102

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State]: ...  # noqa: D102

    def parameters(self) -> Iterator[nn.Parameter]: ...  # noqa: D102


class Speeds(NamedTuple):
    """How many tokens per second two models write, and the ratio of the first to the second."""

    first: float  # medians of turns
    second: float
    ratio: float
    ratio_low: float  # of one turn
    ratio_high: float


class RoundingCost(NamedTuple):
    """What rounded weights cost and gain, beside the same run with its weights as they are."""

    weights: str
    metrics: JsonObject  # of the run with its weights as they are
    differences: dict[str, Paired]  # of metrics, rounded minus not rounded
    speeds: Speeds  # of writing one text greedily with the rounded weights, and with the weights as they are

    def as_json(self) -> dict[str, object]:
        """Return the fields as JSON holds them."""
        differences = {name: difference._asdict() for name, difference in self.differences.items()}
        return {**self._asdict(), "differences": differences, "speeds": self.speeds._asdict()}


@torch.inference_mode()
def measure_speeds(first: Decodes | nn.Module, second: Decodes | nn.Module) -> Speeds:
    """Let two models write in turns that are long enough for the clock, and in changing order."""
    models, tokens = (cast(Decodes, first), cast(Decodes, second)), 1
    starts = [_start(model) for model in models]
    for model, start in zip(models, starts, strict=True):
        _seconds(model, start, tokens)  # the first step compiles, which takes longer than a turn
    positions = learned_positions(first) if isinstance(first, nn.Module) else None
    longest = min(MAX_TURN_TOKENS, positions or MAX_TURN_TOKENS)
    while 2 * tokens <= longest and max(map(_seconds, models, starts, [tokens] * 2)) < TURN_SECONDS:
        tokens *= 2
    turns = []
    for turn in range(TURNS):
        times = {i: _seconds(models[i], starts[i], tokens) for i in ((0, 1) if turn % 2 else (1, 0))}
        turns.append((times[0], times[1]))
    one, other = (tokens / statistics.median(times) for times in zip(*turns, strict=True))
    ratios = [slow / fast for fast, slow in turns]
    return Speeds(one, other, statistics.median(ratios), min(ratios), max(ratios))


def _start(model: Decodes) -> State:
    """Return the state before the first token, of a decoder after a source of some tokens."""
    encode = getattr(model, "encode", None)
    if encode is None:
        return model.initial_state(1)
    state: State = encode(torch.zeros(1, SOURCE_TOKENS, dtype=torch.long, device=next(model.parameters()).device))
    return state


def _seconds(model: Decodes, state: State, tokens: int) -> float:
    token = torch.zeros(1, dtype=torch.long, device=next(model.parameters()).device)
    began = time.perf_counter()
    for _ in range(tokens):
        logits, state = model.step(token, state)
        token = logits.argmax(1)
    return time.perf_counter() - began

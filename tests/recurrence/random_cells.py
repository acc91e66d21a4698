"""Cells made at random: a step is a list of instructions, each of which makes one more value of those before it."""

from typing import Any, NamedTuple

import torch
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

import seriatim
from seriatim.core.state import State

POINTWISE = {
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "relu": torch.relu,
    "sin": torch.sin,
    "softplus": F.softplus,
    "gelu": F.gelu,
    "elu": F.elu,
    "exp": lambda x: torch.exp(-x * x),
    "log": lambda x: torch.log1p(x * x),
    "sqrt": lambda x: torch.sqrt(x * x + 0.1),
    "clamp": lambda x: x.clamp(-0.7, 0.9),
    "power": lambda x: (1 + x * x) ** -1.5,
    "detach": lambda x: 0.3 * x.detach() - 0.5 * x,
    "abs": torch.abs,
}
OVER_FEATURES = {
    "sum": lambda x: x.sum(-1, keepdim=True),
    "mean": lambda x: x.mean(1, keepdim=True),
    "amax": lambda x: x.amax(-1, keepdim=True),
    "norm": lambda x: (x + 0.01).norm(dim=-1, keepdim=True),
    "var": lambda x: x.var(1, keepdim=True, unbiased=False),
    "logsumexp": lambda x: x.logsumexp(-1, keepdim=True),
    "softmax": lambda x: torch.softmax(x, -1),
    "log_softmax": lambda x: torch.log_softmax(x, -1),
    "layer_norm": lambda x: F.layer_norm(x, x.shape[1:], eps=0.1),
    "rms_norm": lambda x: F.rms_norm(x, x.shape[1:], eps=0.1),
}
COMBINED = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": lambda a, b: a / (1 + b * b),
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "where": lambda a, b: torch.where(a > b, torch.sin(a), b),
    "lerp": lambda a, b: torch.lerp(a, b, torch.sigmoid(a)),
}
STRUCTURE = ("linear", "slice", "chunk", "cat", "scale", "shift", "scalar")
OPERATIONS = (*POINTWISE, *OVER_FEATURES, *COMBINED, *STRUCTURE, "linear", "linear", "mul", "add", "slice", "cat")


class Instruction(NamedTuple):
    """What to do to the values at two places; ``number`` is a width or a place where that is wanted."""

    operation: str
    first: int
    second: int
    number: int


class Plan(NamedTuple):
    size: int
    widths: tuple[int, ...]
    instructions: tuple[Instruction, ...]
    output: int
    results: tuple[int, ...]


WIDTHS = st.sampled_from((1, 2, 3, 4, 7, 16, 17))
PLACES = st.integers(0, 30)


@st.composite
def plans(draw: Any) -> Plan:
    """A random step."""
    widths = tuple(draw(st.lists(WIDTHS, min_size=1, max_size=3)))
    instruction = st.builds(Instruction, st.sampled_from(OPERATIONS), PLACES, PLACES, st.integers(1, 9))
    instructions = tuple(draw(st.lists(instruction, min_size=2, max_size=14)))
    results = tuple(draw(PLACES) for _ in widths)
    return Plan(draw(WIDTHS), widths, instructions, draw(PLACES), results)


class Planned(seriatim.RecurrentCell):
    """A cell that follows a plan. Places count back from the newest value, so that long chains are common."""

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        self.plan, self.input_size = plan, plan.size
        self.tensors = nn.ParameterDict()
        self.output_size = plan.size  # so that a first step can run, which makes the parameters
        zeros = torch.zeros(2, plan.size), tuple(torch.zeros(2, width) for width in plan.widths)
        self.output_size = self(*zeros)[0].shape[1]

    def initial_state(self, batch_size: int) -> State:
        return tuple(self.zeros(batch_size, width) for width in self.plan.widths)

    def parameter(self, name: str, *shape: int) -> Tensor:
        if name not in self.tensors:
            self.tensors[name] = nn.Parameter(torch.randn(shape) / shape[0] ** 0.5)
        return self.tensors[name]

    def forward(self, inputs: Tensor, state: Any) -> tuple[Tensor, State]:
        values = [inputs, *state]
        for i, (operation, first, second, number) in enumerate(self.plan.instructions):
            a, b = (values[-1 - place % len(values)] for place in (first, second))
            values.append(self.apply(str(i), operation, a, b, number))
        new = []
        for i, (place, width) in enumerate(zip(self.plan.results, self.plan.widths, strict=True)):
            value = values[-1 - place % len(values)]
            if value.shape[1] < width:
                value = value @ self.parameter(f"result{i}", value.shape[1], width)
            new.append(torch.tanh(value[:, -width:] + 0.5 * state[i]))  # so that every part has a past
        return values[-1 - self.plan.output % len(values)] * 1.5, tuple(new)

    def apply(self, name: str, operation: str, a: Tensor, b: Tensor, number: int) -> Tensor:
        width = a.shape[1]
        if operation in POINTWISE:
            return POINTWISE[operation](a)
        if operation in OVER_FEATURES:
            return OVER_FEATURES[operation](a)
        if operation in COMBINED:
            least = min(width, b.shape[1])
            a, b = (v if least == 1 else v[:, v.shape[1] - least :] for v in (a, b))
            return COMBINED[operation](a, b)
        if operation == "linear":
            bias = self.parameter(f"{name}b", number) if number % 2 else None
            return F.linear(a, self.parameter(name, number, width), bias)
        if operation == "slice":
            start = number % width
            return a[:, start : start + max(1, (width - start) // 2)]
        if operation == "chunk":
            return torch.chunk(a, 2, dim=1)[number % min(2, width)]
        if operation == "cat":
            return torch.cat([a, b], dim=1)[:, :24]
        if operation == "scale":
            return a * self.parameter(name, width)
        return a + (self.parameter(name, width) if operation == "shift" else self.parameter(name, 1))

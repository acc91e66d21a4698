"""Every operator that compiled code knows is torch's own, in values and gradients, kinks and ties included."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import Tensor

from seriatim.compiler.expressions import Node, node
from seriatim.compiler.operators import OPERATORS, evaluate
from seriatim.recurrence import explain

from ..quick_compiler import quickly
from ..recurrence.own_cells import Own, close, compiled, looped, results

_quickly = pytest.fixture(autouse=True, scope="module")(quickly)

WIDTH = 6
Example = Callable[..., Any]
"""From an operator, any numbers x and y, positive ones p, truth values c and d, to what it gives."""

ANY = "abs alias clone contiguous cos detach erf exp expm1 hardsigmoid hardswish hardtanh leaky_relu lift_fresh"
ANY += " lift_fresh_copy mish neg positive relu sgn sigmoid sign silu sin softplus square tanh elu gelu"
POSITIVE = "log log1p reciprocal rsqrt sqrt"
TWO = "add sub rsub mul maximum minimum eq ne gt ge lt le"
LIKE = "zeros_like ones_like empty_like"

EXAMPLES: dict[str, list[Example]] = {
    **{name: [lambda f, x, **_: f(x)] for name in ANY.split()},
    **{name: [lambda f, p, **_: f(p)] for name in POSITIVE.split()},
    **{name: [lambda f, x, y, **_: f(x, y), lambda f, x, **_: f(x, 0.5)] for name in TWO.split()},
    **{name: [lambda f, x, **_: f(x)] for name in LIKE.split()},
    "maximum": [lambda f, x, y, **_: f(x, y)],
    "minimum": [lambda f, x, y, **_: f(x, y)],
    "div": [lambda f, x, p, **_: f(x, p), lambda f, x, **_: f(x, 3.0)],
    "pow": [
        *(lambda f, x, n=n, **_: f(x, n) for n in (1, 2, 3, 4)),
        *(lambda f, p, n=n, **_: f(p, n) for n in (0.5, -1, 1.7, -2)),
    ],
    "addcmul": [lambda f, x, y, p, **_: f(x, y, p), lambda f, x, y, p, **_: f(x, y, p, value=0.3)],
    "addcdiv": [lambda f, x, y, p, **_: f(x, y, p), lambda f, x, y, p, **_: f(x, y, p, value=0.3)],
    "lerp": [lambda f, x, y, p, **_: f(x, y, p), lambda f, x, y, **_: f(x, y, 0.3)],
    "clamp": [lambda f, x, **_: f(x, -1, 1), lambda f, x, **_: f(x, None, 0.5), lambda f, x, y, p, **_: f(x, y, p)],
    "clamp_min": [lambda f, x, **_: f(x, 0.5)],
    "clamp_max": [lambda f, x, **_: f(x, 0.5)],
    "gelu": [lambda f, x, **_: f(x), lambda f, x, **_: f(x, approximate="tanh")],
    "elu": [lambda f, x, **_: f(x), lambda f, x, **_: f(x, 1.7, 1.1, 0.5)],
    "softplus": [lambda f, x, **_: f(x), lambda f, x, **_: f(x, 2.0, 1.5)],
    "hardtanh": [lambda f, x, **_: f(x), lambda f, x, **_: f(x, -0.5, 2.0)],
    "leaky_relu": [lambda f, x, **_: f(x), lambda f, x, **_: f(x, 0.2)],
    "log_sigmoid_forward": [lambda f, x, **_: f(x)[0]],
    "where": [lambda f, x, y, c, **_: f(c, x, y)],
    **{f"{kind}_{name}": [lambda f, c, d, **_: f(c, d)] for kind in ("logical", "bitwise") for name in ("and", "or")},
    "logical_not": [lambda f, c, **_: f(c)],
    "bitwise_not": [lambda f, c, **_: f(c)],
    "sum": [lambda f, x, **_: f(x, [1], True), lambda f, x, **_: f(x, [-1], True)],
    "mean": [lambda f, x, **_: f(x, [1], True)],
    "amax": [lambda f, x, **_: f(x, [1], True)],
    "var": [lambda f, x, n=n, **_: f(x, [1], correction=n, keepdim=True) for n in (0, 1)],
    "linalg_vector_norm": [lambda f, p, **_: f(p, 2, [1], True)],
    "native_layer_norm": [lambda f, x, **_: f(x, [WIDTH], None, None, 1e-3)[0]],
    "_fused_rms_norm": [lambda f, x, **_: f(x, [WIDTH], None, 1e-3)[0]],
    "_softmax": [lambda f, x, **_: f(x, 1, False)],
    "_log_softmax": [lambda f, x, **_: f(x, -1, False)],
    "logsumexp": [lambda f, x, **_: f(x, [1], True)],
    "slice": [lambda f, x, **_: f(x, 1, 2, 5), lambda f, x, **_: f(x, -1, -2, 2**63 - 1)],
    "split": [lambda f, x, n=n, **_: f(x, 4, 1)[n] for n in (0, 1)],
    "unsafe_split": [lambda f, x, **_: f(x, 4, 1)[0]],
    "split_with_sizes": [lambda f, x, **_: f(x, [1, 3, 2], 1)[1]],
    "cat": [lambda f, x, y, **_: f([y, x], 1)],
    "glu": [lambda f, x, **_: f(x, 1)],
    "slice_scatter": [lambda f, x, y, **_: f(x, y, 1, 0, WIDTH)],
    "full_like": [lambda f, x, **_: f(x, 0.7)],
}
MOVED = "alias cat clone contiguous glu lift_fresh lift_fresh_copy positive slice slice_scatter split split_with_sizes"
MOVED += " unsafe_split"
"""Operators that the recorder turns into views, with examples that cells run."""


def test_every_operator_has_an_example() -> None:
    assert set(EXAMPLES) == set(OPERATORS) - {"copy"} | set(MOVED.split())


def numbers(rows: int = 14) -> tuple[Tensor, Tensor]:
    """Two tensors with kinks (0, ±0.5, ±1, ±2), ties within a row, and places where both are equal."""
    torch.manual_seed(0)
    x, y = torch.randn(rows, WIDTH).double(), torch.randn(rows, WIDTH).double()
    kinks = torch.tensor([-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0, 1.0, 1.0, 0.5, 2.0, 2.0]).double()
    x[:2], x[2, :2], y[3] = kinks.view(2, WIDTH), 1.5, x[3]
    return x, y


def operands(x: Any, y: Any, call: Callable[..., Any]) -> dict[str, Any]:
    zero = call("mul", x, 0.0)
    positive = call("add", call("mul", y, y), 0.5)
    return {"x": x, "y": y, "p": positive, "c": call("gt", x, y), "d": call("gt", x, zero)}


def torchs(name: str, *args: Any, **options: Any) -> Any:
    return getattr(torch.ops.aten, name)(*args, **options)


@pytest.mark.parametrize("name", [name for name in EXAMPLES if name in OPERATORS])
def test_an_operator_as_expressions(name: str) -> None:
    given = numbers()
    leaves = [node("state", width=WIDTH, attribute=i) for i in range(2)]
    ours = operands(*leaves, lambda name, *args: OPERATORS[name](*args))
    theirs = operands(*given, torchs)
    for i, example in enumerate(EXAMPLES[name]):
        if name == "empty_like":
            continue
        expected = example(getattr(torch.ops.aten, name), **theirs).double()
        result = example(OPERATORS[name], **ours)
        assert isinstance(result, Node)
        (found,) = evaluate([result], dict(zip(leaves, given, strict=True)), (), given[0])
        torch.testing.assert_close(
            found.expand_as(expected), expected, rtol=1e-12, atol=1e-12, msg=lambda m, i=i: f"{i}: {m}"
        )


def everything(cell: Any, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    given = operands(h, x, torchs)
    parts = [example(getattr(torch.ops.aten, name), **given) for name in cell.names for example in EXAMPLES[name]]
    return torch.cat([part.to(x.dtype) for part in parts], dim=1), torch.tanh(x + h)


UNFIT = {"empty_like", "lift_fresh", "lift_fresh_copy", "contiguous", "hardsigmoid"}
"""What holds no numbers, or is no operation of a step; torch's own slope of hardsigmoid, 1/6, is rounded to float32."""


@pytest.mark.parametrize("names", [MOVED.split(), pytest.param(EXAMPLES, marks=pytest.mark.exhaustive)], ids=len)
def test_operators_in_a_compiled_cell(names: Iterable[str]) -> None:
    names = [name for name in names if name not in UNFIT]
    output = sum(
        example(getattr(torch.ops.aten, name), **operands(*numbers(), torchs)).shape[1]
        for name in names
        for example in EXAMPLES[name]
    )
    cell = Own(everything, WIDTH, size=WIDTH, output=output).double()
    cell.names = tuple(names)
    assert "runs in compiled code" in explain(cell)
    x, y = numbers()
    inputs = torch.stack([y, x], dim=1).requires_grad_()
    state = x.clone().requires_grad_()
    for found, expected in zip(*(results(run, cell, inputs, state) for run in (compiled, looped)), strict=True):
        close(found, expected, 1e-12)

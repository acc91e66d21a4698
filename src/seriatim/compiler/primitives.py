"""The operations of expressions: what each computes in PyTorch and in C++, its derivative, and their evaluation."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from .expressions import Matrix, Node, node, number, walk
from .memory_attention import attend

Cotangents = tuple[Node | None, ...]
Slope = Callable[[Node, Node], Node]  # from the value y = f(x) and x to f'(x)


class Primitive(NamedTuple):
    """One operation."""

    compute: Callable[..., Tensor]  # the operation on tensors
    code: str  # the C++ expression, in which {0}, {1}, ... stand for the arguments
    derivative: Callable[..., Cotangents]
    """From the value, its cotangent and the arguments to the cotangents of the arguments; None without derivative."""


def _no_derivative(y: Node, g: Node, *args: Node) -> Cotangents:
    return (None,) * len(args)


def _function(name: str, compute: Callable[..., Tensor], slope: Slope) -> Primitive:
    return Primitive(compute, f"f_{name}({{0}})", lambda y, g, x: (g * slope(y, x),))


def _comparison(compute: Callable[[Tensor, Tensor], Tensor], sign: str) -> Primitive:
    code = f"({{0}} {sign} {{1}} ? real(1) : real(0))"
    return Primitive(lambda a, b: compute(a, b).to(a.dtype), code, _no_derivative)


def _extreme(name: str, compute: Callable[..., Tensor], comparison: str) -> Primitive:
    """Return the maximum or minimum; equal arguments share the cotangent, as in PyTorch."""

    def derivative(y: Node, g: Node, a: Node, b: Node) -> Cotangents:
        half = node("eq", a, b) * 0.5
        return g * (node(comparison, a, b) + half), g * (node(comparison, b, a) + half)

    return Primitive(compute, f"f_{name}({{0}}, {{1}})", derivative)


FUNCTIONS: dict[str, tuple[Callable[..., Tensor], Slope]] = {
    "sigmoid": (torch.sigmoid, lambda y, x: y * (1 - y)),
    "tanh": (torch.tanh, lambda y, x: 1 - y * y),
    "exp": (torch.exp, lambda y, x: y),
    "expm1": (torch.expm1, lambda y, x: y + 1),
    "log": (torch.log, lambda y, x: 1 / x),
    "log1p": (torch.log1p, lambda y, x: 1 / (1 + x)),
    "softplus": (F.softplus, lambda y, x: node("sigmoid", x)),
    "sqrt": (torch.sqrt, lambda y, x: 0.5 / y),
    "abs": (torch.abs, lambda y, x: node("sign", x)),
    "sin": (torch.sin, lambda y, x: node("cos", x)),
    "cos": (torch.cos, lambda y, x: -node("sin", x)),
    "erf": (torch.erf, lambda y, x: 2 / math.sqrt(math.pi) * node("exp", -(x * x))),
}
"""Functions of one argument; the C++ functions are named ``f_NAME``."""
COMPARISONS: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], str]] = {
    "gt": (torch.gt, ">"),
    "ge": (torch.ge, ">="),
    "lt": (torch.lt, "<"),
    "le": (torch.le, "<="),
    "eq": (torch.eq, "=="),
    "ne": (torch.ne, "!="),
}

PRIMITIVES: dict[str, Primitive] = {
    **{name: _function(name, *row) for name, row in FUNCTIONS.items()},
    **{name: _comparison(*row) for name, row in COMPARISONS.items()},
    "add": Primitive(torch.add, "({0} + {1})", lambda y, g, a, b: (g, g)),
    "sub": Primitive(torch.sub, "({0} - {1})", lambda y, g, a, b: (g, -g)),
    "mul": Primitive(torch.mul, "({0} * {1})", lambda y, g, a, b: (g * b, g * a)),
    "div": Primitive(torch.div, "({0} / {1})", lambda y, g, a, b: (g / b, -(g / b * y))),
    "neg": Primitive(torch.neg, "(-{0})", lambda y, g, a: (-g,)),
    "power": Primitive(  # the exponent b is a number
        torch.pow, "f_power({0}, {1})", lambda y, g, a, b: (g * (b * node("power", a, number(b.note - 1))), None)
    ),
    "sign": Primitive(torch.sign, "f_sign({0})", _no_derivative),
    "maximum": _extreme("maximum", torch.maximum, "gt"),
    "minimum": _extreme("minimum", torch.minimum, "lt"),
    "where": Primitive(
        lambda condition, a, b: torch.where(condition != 0, a, b),
        "({0} != real(0) ? {1} : {2})",
        lambda y, g, condition, *_: (
            None,
            node("where", condition, g, number(0)),
            node("where", condition, number(0), g),
        ),
    ),
    "detach": Primitive(Tensor.detach, "{0}", _no_derivative),
}


def evaluate(
    roots: Sequence[Node], values: dict[Node, Tensor], constants: Sequence[Tensor], like: Tensor
) -> list[Tensor]:
    """Return the values of expressions; differentiable.

    Args:
        roots: the expressions.
        values: the inputs, states and noise ``(rows, width)``, and memories; computed values are added.
        constants: what vectors and matrices refer to.
        like: ``(rows, ...)``; numbers take its type, device and rows.
    """
    for value in walk(roots):
        if value.op == "attend":
            values[value], values[node("attended", value)] = attend([values[arg] for arg in value.args], value.note)
        elif value not in values:
            values[value] = _evaluate(value, [values[arg] for arg in value.args], constants, like)
    return [values[root] for root in roots]


def columns(matrix: Matrix, constants: Sequence[Tensor]) -> Tensor:
    """Return the values of a part of a constant matrix ``(rows, columns)``."""
    return constants[matrix.constant][:, matrix.start : matrix.stop]


def _evaluate(value: Node, args: list[Tensor], constants: Sequence[Tensor], like: Tensor) -> Tensor:
    if value.op == "number":
        return like.new_full((value.width,), value.note)
    if value.op == "vector":
        return constants[int(value.note)].reshape(-1)
    if value.op == "slice":
        return args[0][..., value.note : value.note + value.width]
    if value.op == "cat":
        return torch.cat([arg.expand(like.shape[0], -1) for arg in args], dim=-1)
    if value.op == "sum":
        return args[0].sum(-1, keepdim=True)
    if value.op == "amax":
        return args[0].amax(-1, keepdim=True)
    if value.op == "product":
        return args[0] @ columns(value.note, constants)
    return PRIMITIVES[value.op].compute(*args)

"""The operations of expressions: what each computes in PyTorch and in C++, its derivative, and their evaluation."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from .expressions import Matrix, Node, node, number, walk

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


def _where_derivative(y: Node, g: Node, condition: Node, a: Node, b: Node) -> Cotangents:
    return None, node("where", condition, g, number(0)), node("where", condition, number(0), g)


def _div_derivative(y: Node, g: Node, a: Node, b: Node) -> Cotangents:
    return g / b, -(g / b * y)


def _power_derivative(y: Node, g: Node, a: Node, exponent: Node) -> Cotangents:
    assert exponent.op == "number"
    return g * (exponent * node("power", a, number(exponent.note - 1))), None


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
    "div": Primitive(torch.div, "({0} / {1})", _div_derivative),
    "neg": Primitive(torch.neg, "(-{0})", lambda y, g, a: (-g,)),
    "power": Primitive(torch.pow, "f_power({0}, {1})", _power_derivative),
    "sign": Primitive(torch.sign, "f_sign({0})", _no_derivative),
    "maximum": _extreme("maximum", torch.maximum, "gt"),
    "minimum": _extreme("minimum", torch.minimum, "lt"),
    "where": Primitive(
        lambda condition, a, b: torch.where(condition != 0, a, b), "({0} != real(0) ? {1} : {2})", _where_derivative
    ),
    "detach": Primitive(Tensor.detach, "{0}", _no_derivative),
}


def evaluate(
    roots: Sequence[Node],
    leaf: Callable[[Node], Tensor],
    matrix: Callable[[Matrix], Tensor],
    like: Tensor,
    cache: dict[Node, Tensor] | None = None,
) -> list[Tensor]:
    """Return the values of expressions; differentiable.

    Args:
        roots: the expressions.
        leaf: returns the tensor ``(rows, width)``, ``(width,)`` or ``()`` of each leaf that is not a number.
        matrix: returns the value of each matrix ``(rows, columns)``.
        like: ``(rows, ...)``; numbers take its type, device and rows.
        cache: values that are already computed; new ones are added.
    """
    values = {} if cache is None else cache
    for value in walk(roots):
        if value not in values:
            args = [values[arg] for arg in value.args]
            values[value] = _evaluate(value, args, matrix, like) if args or value.op == "number" else leaf(value)
    return [values[root] for root in roots]


def _evaluate(value: Node, args: list[Tensor], matrix: Callable[[Matrix], Tensor], like: Tensor) -> Tensor:
    if value.op == "number":
        return like.new_full((value.width,), value.note)
    if value.op == "slice":
        return args[0][..., value.note : value.note + value.width]
    if value.op == "cat":
        return torch.cat([arg.expand(like.shape[0], -1) for arg in args], dim=-1)
    if value.op == "sum":
        return args[0].sum(-1, keepdim=True)
    if value.op == "amax":
        return args[0].amax(-1, keepdim=True)
    if value.op == "product":
        return args[0] @ matrix(value.note)
    if value.op == "affine":
        return sum((rows @ matrix(part) for rows, part in zip(args[1:], value.note, strict=True)), start=args[0])
    return PRIMITIVES[value.op].compute(*args)

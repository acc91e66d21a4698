"""The operations of expressions: what each computes in PyTorch and in C++, and its derivative."""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from .expressions import Node, node, number

Derivative = Callable[[Node, Node], tuple[Node | None, ...]]
"""From a value and its cotangent to the cotangents of its arguments, None for an argument without derivative."""
Slope = Callable[[Node, Node], Node]
"""From the value y = f(x) and x to f'(x)."""


class Primitive(NamedTuple):
    """One operation; in the C++ expression ``code``, ``{0}``, ``{1}``, ... stand for the arguments."""

    compute: Callable[..., Tensor]
    code: str
    derivative: Derivative


def add(a: Node, b: Node) -> Node:
    """Return a + b, without a term that is 0."""
    if is_number(a, 0):
        return b
    return a if is_number(b, 0) else node("add", a, b)


def sub(a: Node, b: Node) -> Node:
    """Return a − b, or a if b is 0."""
    return a if is_number(b, 0) else node("sub", a, b)


def mul(a: Node, b: Node) -> Node:
    """Return a · b, without a factor that is 1."""
    if is_number(a, 1):
        return b
    return a if is_number(b, 1) else node("mul", a, b)


def div(a: Node, b: Node) -> Node:
    """Return a / b, or a if b is 1."""
    return a if is_number(b, 1) else node("div", a, b)


def neg(a: Node) -> Node:
    """Return −a."""
    return node("neg", a)


def is_number(value: Node, expected: float) -> bool:
    """Return whether a value is this constant, of width 1."""
    return value.op == "number" and value.width == 1 and bool(value.note == expected)


def _zero_derivative(value: Node, cotangent: Node) -> tuple[Node | None, ...]:
    return (None,) * len(value.args)


def _chain(slope: Slope) -> Derivative:
    """Return the derivative of a function of one argument by the chain rule."""
    return lambda value, cotangent: (mul(cotangent, slope(value, value.args[0])),)


def _extreme_derivative(comparison: str) -> Derivative:
    """Return the derivative of the maximum or minimum; equal arguments share the cotangent, as in PyTorch."""

    def derivative(value: Node, cotangent: Node) -> tuple[Node | None, ...]:
        a, b = value.args
        half = mul(node("eq", a, b), number(0.5))
        return mul(cotangent, add(node(comparison, a, b), half)), mul(cotangent, add(node(comparison, b, a), half))

    return derivative


def _where_derivative(value: Node, cotangent: Node) -> tuple[Node | None, ...]:
    condition, zero = value.args[0], number(0)
    return None, node("where", condition, cotangent, zero), node("where", condition, zero, cotangent)


def _mul_derivative(value: Node, cotangent: Node) -> tuple[Node | None, ...]:
    a, b = value.args
    return mul(cotangent, b), mul(cotangent, a)


def _div_derivative(value: Node, cotangent: Node) -> tuple[Node | None, ...]:
    first = div(cotangent, value.args[1])
    return first, neg(mul(first, value))


def _power_derivative(value: Node, cotangent: Node) -> tuple[Node | None, ...]:
    a, exponent = value.args
    assert exponent.op == "number"
    return mul(cotangent, mul(exponent, node("power", a, number(exponent.note - 1)))), None


ONE, HALF = number(1), number(0.5)
FUNCTIONS: dict[str, tuple[Callable[..., Tensor], Slope]] = {
    "sigmoid": (torch.sigmoid, lambda y, x: mul(y, sub(ONE, y))),
    "tanh": (torch.tanh, lambda y, x: sub(ONE, mul(y, y))),
    "exp": (torch.exp, lambda y, x: y),
    "expm1": (torch.expm1, lambda y, x: add(y, ONE)),
    "log": (torch.log, lambda y, x: div(ONE, x)),
    "log1p": (torch.log1p, lambda y, x: div(ONE, add(ONE, x))),
    "softplus": (F.softplus, lambda y, x: node("sigmoid", x)),
    "sqrt": (torch.sqrt, lambda y, x: div(HALF, y)),
    "abs": (torch.abs, lambda y, x: node("sign", x)),
    "sin": (torch.sin, lambda y, x: node("cos", x)),
    "cos": (torch.cos, lambda y, x: neg(node("sin", x))),
    "erf": (torch.erf, lambda y, x: mul(number(2 / math.sqrt(math.pi)), node("exp", neg(mul(x, x))))),
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


def _compare(operator: Callable[[Tensor, Tensor], Tensor], sign: str) -> Primitive:
    code = f"({{0}} {sign} {{1}} ? real(1) : real(0))"
    return Primitive(lambda a, b: operator(a, b).to(a.dtype), code, _zero_derivative)


PRIMITIVES: dict[str, Primitive] = {
    **{name: Primitive(f, f"f_{name}({{0}})", _chain(slope)) for name, (f, slope) in FUNCTIONS.items()},
    **{name: _compare(operator, sign) for name, (operator, sign) in COMPARISONS.items()},
    "add": Primitive(torch.add, "({0} + {1})", lambda value, g: (g, g)),
    "sub": Primitive(torch.sub, "({0} - {1})", lambda value, g: (g, neg(g))),
    "mul": Primitive(torch.mul, "({0} * {1})", _mul_derivative),
    "div": Primitive(torch.div, "({0} / {1})", _div_derivative),
    "neg": Primitive(torch.neg, "(-{0})", lambda value, g: (neg(g),)),
    "power": Primitive(torch.pow, "f_power({0}, {1})", _power_derivative),
    "sign": Primitive(torch.sign, "f_sign({0})", _zero_derivative),
    "maximum": Primitive(torch.maximum, "f_maximum({0}, {1})", _extreme_derivative("gt")),
    "minimum": Primitive(torch.minimum, "f_minimum({0}, {1})", _extreme_derivative("lt")),
    "where": Primitive(
        lambda condition, a, b: torch.where(condition != 0, a, b), "({0} != real(0) ? {1} : {2})", _where_derivative
    ),
    "detach": Primitive(Tensor.detach, "{0}", _zero_derivative),
}

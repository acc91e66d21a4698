"""The operations of expressions: what each computes in torch and in C++, and its derivative."""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from .expressions import Node, node, number

Derivative = Callable[[Node, Node], tuple[Node | None, ...]]
"""From a value and its cotangent to its arguments' cotangents; None for those that have none."""


class Primitive(NamedTuple):
    """``code`` is a C++ expression in which ``{0}``, ``{1}``, ... stand for the arguments."""

    compute: Callable[..., Tensor]
    code: str
    derivative: Derivative


def add(a: Node, b: Node) -> Node:
    """The sum; a term that is 0 is left out."""
    if is_number(a, 0):
        return b
    return a if is_number(b, 0) else node("add", a, b)


def sub(a: Node, b: Node) -> Node:
    """The difference; 0 is not taken away."""
    return a if is_number(b, 0) else node("sub", a, b)


def mul(a: Node, b: Node) -> Node:
    """The product; a factor of 1 is left out."""
    if is_number(a, 1):
        return b
    return a if is_number(b, 1) else node("mul", a, b)


def div(a: Node, b: Node) -> Node:
    """The quotient; nothing is divided by 1."""
    return a if is_number(b, 1) else node("div", a, b)


def is_number(value: Node, wanted: float) -> bool:
    """Whether a value is that constant, of any width that goes with every other."""
    return value.op == "number" and value.width == 1 and bool(value.note == wanted)


def _where(condition: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return torch.where(condition != 0, a, b)


def _compare(operator: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda a, b: operator(a, b).to(a.dtype)


def _flat(value: Node, cotangent: Node) -> tuple[Node | None, ...]:
    return (None,) * len(value.args)


def _times(slope: Callable[[Node, Node], Node]) -> Derivative:
    """The derivative of a function of one value, from its slope at (value, argument)."""
    return lambda value, cotangent: (mul(cotangent, slope(value, value.args[0])),)


def _extreme(sign: str) -> Derivative:
    """Equal arguments share the cotangent, as in torch."""

    def derivative(value: Node, cotangent: Node) -> tuple[Node | None, ...]:
        a, b = value.args
        half = mul(node("eq", a, b), number(0.5))
        return (
            mul(cotangent, add(node(sign, a, b), half)),
            mul(cotangent, add(node(sign, b, a), half)),
        )

    return derivative


def _where_derivative(value: Node, cotangent: Node) -> tuple[Node | None, ...]:
    condition, zero = value.args[0], number(0)
    return None, node("where", condition, cotangent, zero), node("where", condition, zero, cotangent)


def _mul_derivative(value: Node, cotangent: Node) -> tuple[Node | None, ...]:
    a, b = value.args
    return mul(cotangent, b), mul(cotangent, a)


def _div_derivative(value: Node, cotangent: Node) -> tuple[Node | None, ...]:
    b = value.args[1]
    first = div(cotangent, b)
    return first, node("neg", mul(first, value))


def _power_derivative(value: Node, cotangent: Node) -> tuple[Node | None, ...]:
    a, exponent = value.args
    assert exponent.op == "number"
    return mul(cotangent, mul(exponent, node("power", a, number(exponent.note - 1)))), None


ONE, HALF = number(1), number(0.5)

PRIMITIVES: dict[str, Primitive] = {
    "add": Primitive(torch.add, "({0} + {1})", lambda _, g: (g, g)),
    "sub": Primitive(torch.sub, "({0} - {1})", lambda _, g: (g, node("neg", g))),
    "mul": Primitive(torch.mul, "({0} * {1})", _mul_derivative),
    "div": Primitive(torch.div, "({0} / {1})", _div_derivative),
    "neg": Primitive(torch.neg, "(-{0})", lambda _, g: (node("neg", g),)),
    "sigmoid": Primitive(torch.sigmoid, "f_sigmoid({0})", _times(lambda y, _: mul(y, sub(ONE, y)))),
    "tanh": Primitive(torch.tanh, "f_tanh({0})", _times(lambda y, _: sub(ONE, mul(y, y)))),
    "exp": Primitive(torch.exp, "f_exp({0})", _times(lambda y, _: y)),
    "expm1": Primitive(torch.expm1, "f_expm1({0})", _times(lambda y, _: add(y, ONE))),
    "log": Primitive(torch.log, "f_log({0})", _times(lambda _, x: div(ONE, x))),
    "log1p": Primitive(torch.log1p, "f_log1p({0})", _times(lambda _, x: div(ONE, add(ONE, x)))),
    "softplus": Primitive(F.softplus, "f_softplus({0})", _times(lambda _, x: node("sigmoid", x))),
    "sqrt": Primitive(torch.sqrt, "f_sqrt({0})", _times(lambda y, _: div(HALF, y))),
    "abs": Primitive(torch.abs, "f_abs({0})", _times(lambda _, x: node("sign", x))),
    "sin": Primitive(torch.sin, "f_sin({0})", _times(lambda _, x: node("cos", x))),
    "cos": Primitive(torch.cos, "f_cos({0})", _times(lambda _, x: node("neg", node("sin", x)))),
    "erf": Primitive(
        torch.erf,
        "f_erf({0})",
        _times(lambda _, x: mul(number(2 / math.sqrt(math.pi)), node("exp", node("neg", mul(x, x))))),
    ),
    "power": Primitive(torch.pow, "f_power({0}, {1})", _power_derivative),
    "sign": Primitive(torch.sign, "f_sign({0})", _flat),
    "maximum": Primitive(torch.maximum, "f_maximum({0}, {1})", _extreme("gt")),
    "minimum": Primitive(torch.minimum, "f_minimum({0}, {1})", _extreme("lt")),
    "where": Primitive(_where, "({0} != real(0) ? {1} : {2})", _where_derivative),
    "detach": Primitive(Tensor.detach, "{0}", _flat),
    **{
        name: Primitive(_compare(operator), f"({{0}} {sign} {{1}} ? real(1) : real(0))", _flat)
        for name, operator, sign in (
            ("gt", torch.gt, ">"),
            ("ge", torch.ge, ">="),
            ("lt", torch.lt, "<"),
            ("le", torch.le, "<="),
            ("eq", torch.eq, "=="),
            ("ne", torch.ne, "!="),
        )
    },
}

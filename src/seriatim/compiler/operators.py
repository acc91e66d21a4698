"""PyTorch's operators as expressions.

Each function takes the arguments of the operator, with expressions in place of tensors that depend on inputs or state,
and returns expressions. Dimension 0 is the batch, rows are never mixed, and all other dimensions are flattened into one
width.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from .expressions import Node, cat, cut, node, number
from .primitives import add, div, mul, sub

Value = Node | float
Dimensions = int | Sequence[int] | None
Operator: TypeAlias = Callable[..., Any]
"""Returns an expression, or a tuple or list of them."""


class NotCompiledError(Exception):
    """An operator cannot be compiled; the message continues a sentence that begins with its name."""


def value(argument: Value) -> Node:
    """Return a Python number as an expression."""
    return argument if isinstance(argument, Node) else number(argument)


def _primitive(name: str) -> Operator:
    return lambda *args: node(name, *map(value, args))


def _scaled(combine: Callable[[Node, Node], Node]) -> Operator:
    return lambda a, b, alpha=1: combine(value(a), mul(value(alpha), value(b)))


def _relu(x: Node) -> Node:
    return node("where", node("le", x, number(0)), number(0), x)


def _leaky_relu(x: Node, slope: float = 0.01) -> Node:
    return node("where", node("gt", x, number(0)), x, mul(x, number(slope)))


def _clamp(x: Node, low: Value | None = None, high: Value | None = None) -> Node:
    bounded = x
    for bound, beyond in ((high, "gt"), (low, "lt")):
        if bound is not None:
            bounded = node("where", node(beyond, x, value(bound)), value(bound), bounded)
    return bounded


def _hardtanh(x: Node, low: float = -1.0, high: float = 1.0) -> Node:
    below, above = node("le", x, number(low)), node("ge", x, number(high))
    return node("where", below, number(low), node("where", above, number(high), x))


def _hardsigmoid(x: Node) -> Node:
    return div(_hardtanh(add(x, number(3)), 0.0, 6.0), number(6))


def _gelu(x: Node, approximate: str = "none") -> Node:
    if approximate == "tanh":
        cubic = add(x, mul(number(0.044715), mul(x, mul(x, x))))
        gate = node("tanh", mul(number(math.sqrt(2 / math.pi)), cubic))
    else:
        gate = node("erf", mul(x, number(math.sqrt(0.5))))
    return mul(mul(number(0.5), x), add(number(1), gate))


def _elu(x: Node, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Node:
    positive = node("gt", x, number(0))
    # exp of the negative part alone: exp of a large x would be infinite, and its gradient NaN
    negative = mul(number(alpha), node("expm1", mul(number(input_scale), node("where", positive, number(0), x))))
    return mul(number(scale), node("where", positive, x, negative))


def _softplus(x: Node, beta: float = 1.0, threshold: float = 20.0) -> Node:
    scaled = mul(x, number(beta))
    return node("where", node("gt", scaled, number(threshold)), x, div(node("softplus", scaled), number(beta)))


def _log_sigmoid(x: Node) -> tuple[Node, None]:
    return node("neg", node("softplus", node("neg", x))), None


def _power(x: Value, exponent: Value) -> Node:
    if isinstance(exponent, Node):
        raise NotCompiledError("takes an exponent that is not a number")
    if exponent in (2, 3):
        base = value(x)
        return mul(base, base) if exponent == 2 else mul(base, mul(base, base))
    if exponent == 0.5:
        return node("sqrt", value(x))
    return node("power", value(x), number(exponent))


def _over_features(x: Node, dim: Dimensions) -> None:
    dims = [dim] if isinstance(dim, int) else dim
    if not dims or any(d not in (1, -1) for d in dims):
        raise NotCompiledError("works along something other than the features of a row")


def _sum(x: Node, dim: Dimensions = None, keepdim: bool = False, dtype: object = None) -> Node:
    _over_features(x, dim)
    return total(x)


def _amax(x: Node, dim: Dimensions = None, keepdim: bool = False) -> Node:
    _over_features(x, dim)
    return node("amax", x, width=1)


def total(x: Node) -> Node:
    """Return the sum over the features of a row."""
    return node("sum", x, width=1)


def _mean(x: Node, dim: Dimensions = None, keepdim: bool = False, dtype: object = None) -> Node:
    return div(_sum(x, dim), number(x.width))


def _variance(x: Node, dim: Dimensions = None, correction: float | None = None, keepdim: bool = False) -> Node:
    deviation = sub(x, _mean(x, dim))
    return div(total(mul(deviation, deviation)), number(x.width - (1 if correction is None else correction)))


def _norm(x: Node, ord: float = 2, dim: Dimensions = None, keepdim: bool = False, dtype: object = None) -> Node:  # noqa: A002
    if ord != 2:
        raise NotCompiledError(f"computes a norm of order {ord}; only order 2 is compiled")
    square = _sum(mul(x, x), dim)
    is_zero = node("eq", square, number(0))  # where the gradient of the root is infinite; PyTorch's norm has 0 there
    return node("where", is_zero, number(0), node("sqrt", node("where", is_zero, number(1), square)))


def _layer_norm(
    x: Node, shape: Sequence[int], gain: Node | None, shift: Node | None, epsilon: float
) -> tuple[Node, None, None]:
    deviation = sub(x, div(total(x), number(x.width)))
    variance = div(total(mul(deviation, deviation)), number(x.width))
    normal = div(deviation, node("sqrt", add(variance, number(epsilon))))
    return _affine(normal, gain, shift), None, None


def _rms_norm(x: Node, shape: Sequence[int], gain: Node | None, epsilon: float | None) -> tuple[Node, None]:
    square = div(total(mul(x, x)), number(x.width))
    bounded = add(square, number(1.1920928955078125e-07 if epsilon is None else epsilon))
    return _affine(div(x, node("sqrt", bounded)), gain, None), None


def _affine(x: Node, gain: Node | None, shift: Node | None) -> Node:
    scaled = x if gain is None else mul(x, gain)
    return scaled if shift is None else add(scaled, shift)


def _softmax(x: Node, dim: int, half: bool) -> Node:
    _over_features(x, dim)
    exponential = node("exp", sub(x, node("detach", _amax(x, dim))))
    return div(exponential, total(exponential))


def _log_softmax(x: Node, dim: int, half: bool) -> Node:
    return sub(x, _log_sum_exp(x, dim))


def _log_sum_exp(x: Node, dim: Dimensions, keepdim: bool = False) -> Node:
    largest = node("detach", _amax(x, dim))
    return add(largest, node("log", total(node("exp", sub(x, largest)))))


def _slice(x: Node, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Node:
    if dim not in (1, -1) or step != 1:
        raise NotCompiledError("takes something other than neighbouring features of every row")
    low, high, _ = slice(start, end).indices(x.width)
    return cut(x, low, high - low)


def _split(x: Node, size: int | Sequence[int], dim: int = 0) -> list[Node]:
    if dim not in (1, -1):
        raise NotCompiledError("splits something other than the features of a row")
    sizes = [min(size, x.width - low) for low in range(0, x.width, size)] if isinstance(size, int) else list(size)
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    return [cut(x, start, width) for start, width in zip(starts, sizes, strict=True)]


def _slice_scatter(
    x: Value, part: Value, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Node:
    whole, new = value(x), value(part)
    if dim not in (1, -1) or step != 1:
        raise NotCompiledError("assigns to something other than neighbouring features of every row")
    low, high, _ = slice(start, end).indices(whole.width)
    return cat([piece for piece in (cut(whole, 0, low), new, cut(whole, high, whole.width - high)) if piece.width])


def _copy(x: Value, source: Value, non_blocking: bool = False) -> Node:
    width, new = value(x).width, value(source)
    return mul(new, number(1, width)) if new.width < width else new


def _cat(parts: Sequence[Value], dim: int = 0) -> Node:
    if dim not in (1, -1):
        raise NotCompiledError("joins something other than the features of a row")
    return cat([value(part) for part in parts])


def _lerp(a: Value, b: Value, weight: Value) -> Node:
    return add(value(a), mul(value(weight), sub(value(b), value(a))))


def _expand(x: Value, shape: Sequence[int], *args: object, **options: object) -> Node:
    row, width = value(x), math.prod(shape[1:])
    return mul(row, number(1, width)) if row.width == 1 < width else row


def _same(x: Value, *args: object, **options: object) -> Node:
    return value(x)


def _number(x: Value, fill: float = 0.0, *args: object, **options: object) -> Node:
    return number(fill, value(x).width)


def _mish(x: Node) -> Node:
    return mul(x, node("tanh", _softplus(x)))


UNARY = ("sigmoid", "tanh", "exp", "expm1", "log", "log1p", "sqrt", "abs", "sin", "cos", "erf", "neg", "sign", "detach")
COMPARISONS = ("gt", "ge", "lt", "le", "eq", "ne", "maximum", "minimum", "where")
IDENTITIES = ("alias", "clone", "contiguous", "lift_fresh_copy", "lift_fresh", "positive", "view", "_unsafe_view")
RESHAPES = ("reshape", "unsqueeze", "squeeze", "flatten", "_to_copy")

OPERATORS: dict[str, Operator] = {
    **{name: _primitive(name) for name in (*UNARY, *COMPARISONS)},
    **dict.fromkeys((*IDENTITIES, *RESHAPES), _same),
    "sgn": _primitive("sign"),
    "add": _scaled(add),
    "sub": _scaled(sub),
    "rsub": lambda a, b, alpha=1: sub(value(b), mul(value(alpha), value(a))),
    "mul": lambda a, b: mul(value(a), value(b)),
    "div": lambda a, b: div(value(a), value(b)),
    "reciprocal": lambda x: div(number(1), x),
    "rsqrt": lambda x: div(number(1), node("sqrt", x)),
    "square": lambda x: mul(x, x),
    "pow": _power,
    "addcmul": lambda a, b, c, value_=1, **k: add(
        value(a), mul(number(k.get("value", value_)), mul(value(b), value(c)))
    ),
    "addcdiv": lambda a, b, c, value_=1, **k: add(
        value(a), mul(number(k.get("value", value_)), div(value(b), value(c)))
    ),
    "lerp": _lerp,
    "relu": _relu,
    "leaky_relu": _leaky_relu,
    "clamp": _clamp,
    "clamp_min": lambda x, low: _clamp(x, low),
    "clamp_max": lambda x, high: _clamp(x, None, high),
    "hardtanh": _hardtanh,
    "hardsigmoid": _hardsigmoid,
    "hardswish": lambda x: mul(x, _hardsigmoid(x)),
    "gelu": _gelu,
    "elu": _elu,
    "silu": lambda x: mul(x, node("sigmoid", x)),
    "mish": _mish,
    "softplus": _softplus,
    "log_sigmoid_forward": _log_sigmoid,
    "logical_not": lambda x: sub(number(1), x),
    "bitwise_not": lambda x: sub(number(1), x),
    "logical_and": lambda a, b: mul(value(a), value(b)),
    "bitwise_and": lambda a, b: mul(value(a), value(b)),
    "logical_or": _primitive("maximum"),
    "bitwise_or": _primitive("maximum"),
    "sum": _sum,
    "mean": _mean,
    "amax": _amax,
    "var": _variance,
    "linalg_vector_norm": _norm,
    "native_layer_norm": _layer_norm,
    "_fused_rms_norm": _rms_norm,
    "_softmax": _softmax,
    "_log_softmax": _log_softmax,
    "logsumexp": _log_sum_exp,
    "expand": _expand,
    "copy": _copy,
    "slice": _slice,
    "slice_scatter": _slice_scatter,
    "split": _split,
    "unsafe_split": _split,
    "split_with_sizes": _split,
    "cat": _cat,
    "zeros_like": lambda x, **_: _number(x),
    "ones_like": lambda x, **_: _number(x, 1.0),
    "full_like": _number,
    "empty_like": lambda x, **_: _number(x),
}

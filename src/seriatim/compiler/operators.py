"""PyTorch's operators as expressions.

Each function takes the arguments of the operator, with expressions in place of tensors that depend on inputs or state,
and returns expressions. Dimension 0 is the batch, rows are never mixed, and all other dimensions are flattened into one
width.
"""

import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch._ops import OpOverload

from .expressions import Node, Value, as_node, cat, cut, node, number, widened
from .primitives import PRIMITIVES

Dimensions = int | Sequence[int] | None
Operator: TypeAlias = Callable[..., Any]  # returns an expression, or a tuple or list of them


class NotCompiledError(Exception):
    """An operator cannot be compiled; the message continues a sentence that begins with its name."""


def _primitive(name: str) -> Operator:
    return lambda *args: node(name, *map(as_node, args))


def _relu(x: Node) -> Node:
    return node("where", node("le", x, number(0)), number(0), x)


def _leaky_relu(x: Node, slope: float = 0.01) -> Node:
    return node("where", node("gt", x, number(0)), x, x * slope)


def _clamp(x: Node, low: Value | None = None, high: Value | None = None) -> Node:
    bounded = x
    for bound, beyond in ((high, "gt"), (low, "lt")):
        if bound is not None:
            bounded = node("where", node(beyond, x, as_node(bound)), as_node(bound), bounded)
    return bounded


def _hardtanh(x: Node, low: float = -1.0, high: float = 1.0) -> Node:
    below, above = node("le", x, number(low)), node("ge", x, number(high))
    return node("where", below, number(low), node("where", above, number(high), x))


def _hardsigmoid(x: Node) -> Node:
    return _hardtanh(x + 3, 0.0, 6.0) / 6


def _gelu(x: Node, approximate: str = "none") -> Node:
    if approximate == "tanh":
        gate = node("tanh", math.sqrt(2 / math.pi) * (x + 0.044715 * (x * (x * x))))
    else:
        gate = node("erf", x * math.sqrt(0.5))
    return 0.5 * x * (1 + gate)


def _elu(x: Node, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Node:
    positive = node("gt", x, number(0))
    # exp of the negative part alone: exp of a large x would be infinite, and its gradient NaN
    negative = alpha * node("expm1", input_scale * node("where", positive, number(0), x))
    return scale * node("where", positive, x, negative)


def _softplus(x: Node, beta: float = 1.0, threshold: float = 20.0) -> Node:
    scaled = x * beta
    return node("where", node("gt", scaled, number(threshold)), x, node("softplus", scaled) / beta)


def _log_sigmoid(x: Node) -> tuple[Node, None]:
    return -node("softplus", -x), None


def _power(x: Value, exponent: Value) -> Node:
    if isinstance(exponent, Node):
        raise NotCompiledError("takes an exponent that is not a number")
    base = as_node(x)
    if exponent == 2:
        return base * base
    if exponent == 3:
        return base * (base * base)
    return node("sqrt", base) if exponent == 0.5 else node("power", base, number(exponent))


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
    return _sum(x, dim) / x.width


def _variance(x: Node, dim: Dimensions = None, correction: float | None = None, keepdim: bool = False) -> Node:
    deviation = x - _mean(x, dim)
    return total(deviation * deviation) / (x.width - (1 if correction is None else correction))


def _norm(x: Node, ord: float = 2, dim: Dimensions = None, keepdim: bool = False, dtype: object = None) -> Node:  # noqa: A002
    if ord != 2:
        raise NotCompiledError(f"computes a norm of order {ord}; only order 2 is compiled")
    square = _sum(x * x, dim)
    is_zero = node("eq", square, number(0))  # where the gradient of the root is infinite; PyTorch's norm has 0 there
    return node("where", is_zero, number(0), node("sqrt", node("where", is_zero, number(1), square)))


def _layer_norm(
    x: Node, shape: Sequence[int], gain: Node | None, shift: Node | None, epsilon: float
) -> tuple[Node, None, None]:
    deviation, variance = x - _mean(x, 1), _variance(x, 1, 0)
    return _affine(deviation / node("sqrt", variance + epsilon), gain, shift), None, None


def _rms_norm(x: Node, shape: Sequence[int], gain: Node | None, epsilon: float | None) -> tuple[Node, None]:
    square = total(x * x) / x.width
    bounded = square + (1.1920928955078125e-07 if epsilon is None else epsilon)
    return _affine(x / node("sqrt", bounded), gain, None), None


def _affine(x: Node, gain: Node | None, shift: Node | None) -> Node:
    return x * (1 if gain is None else gain) + (0 if shift is None else shift)


def _softmax(x: Node, dim: int, half: bool) -> Node:
    exponential = node("exp", x - node("detach", _amax(x, dim)))
    return exponential / total(exponential)


def _log_softmax(x: Node, dim: int, half: bool) -> Node:
    return x - _log_sum_exp(x, dim)


def _log_sum_exp(x: Node, dim: Dimensions, keepdim: bool = False) -> Node:
    largest = node("detach", _amax(x, dim))
    return largest + node("log", total(node("exp", x - largest)))


def _slice(x: Node, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Node:
    if dim not in (1, -1) or step != 1:
        raise NotCompiledError("takes something other than neighbouring features of every row")
    low, high, _ = slice(start, end).indices(x.width)
    return cut(x, low, high - low)


def _split(x: Node, size: int | Sequence[int], dim: int = 0) -> list[Node]:
    if dim not in (1, -1):
        raise NotCompiledError("splits something other than the features of a row")
    ends = range(size, x.width + size, size) if isinstance(size, int) else itertools.accumulate(size)
    bounds = itertools.pairwise([0, *(min(end, x.width) for end in ends)])
    return [cut(x, low, high - low) for low, high in bounds]


def _glu(x: Node, dim: int = -1) -> Node:
    content, gate = _split(x, x.width // 2, dim)
    return gated(content, gate)


def gated(content: Node, gate: Node) -> Node:
    """Return the gated linear unit."""
    return content * node("sigmoid", gate)


def _slice_scatter(
    x: Value, part: Value, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Node:
    whole = as_node(x)
    if dim not in (1, -1) or step != 1:
        raise NotCompiledError("assigns to something other than neighbouring features of every row")
    low, high, _ = slice(start, end).indices(whole.width)
    parts = (cut(whole, 0, low), as_node(part), cut(whole, high, whole.width - high))
    return cat([piece for piece in parts if piece.width])


def _copy(x: Value, source: Value, non_blocking: bool = False) -> Node:
    return widened(as_node(source), as_node(x).width)


def _expand(x: Value, shape: Sequence[int], *args: object, **options: object) -> Node:
    row, width = as_node(x), math.prod(shape[1:])
    return widened(row, width) if row.width == 1 else row


def _cat(parts: Sequence[Value], dim: int = 0) -> Node:
    if dim not in (1, -1):
        raise NotCompiledError("joins something other than the features of a row")
    return cat([as_node(part) for part in parts])


def _filled(x: Value, fill: float, **options: object) -> Node:
    return number(fill, as_node(x).width)


IDENTITIES = ("alias", "clone", "contiguous", "lift_fresh_copy", "lift_fresh", "positive", "view", "_unsafe_view")
RESHAPES = ("reshape", "unsqueeze", "squeeze", "flatten", "_to_copy")

OVER_FEATURES: dict[str, Operator] = {
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
    "slice": _slice,
    "slice_scatter": _slice_scatter,
    **dict.fromkeys(("split", "unsafe_split", "split_with_sizes"), _split),
    "cat": _cat,
    "glu": _glu,
}
"""Operators along the features of a row, which must be one dimension."""
OPERATORS: dict[str, Operator] = {
    **{name: _primitive(name) for name in PRIMITIVES if name != "power"},
    **dict.fromkeys((*IDENTITIES, *RESHAPES), lambda x, *_, **__: as_node(x)),
    "sgn": _primitive("sign"),
    "add": lambda a, b, alpha=1: a + alpha * as_node(b),
    "sub": lambda a, b, alpha=1: a - alpha * as_node(b),
    "rsub": lambda a, b, alpha=1: as_node(b) - alpha * a,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "reciprocal": lambda x: 1 / x,
    "rsqrt": lambda x: 1 / node("sqrt", x),
    "square": lambda x: x * x,
    "pow": _power,
    "addcmul": lambda a, b, c, value=1: a + value * (b * c),
    "addcdiv": lambda a, b, c, value=1: a + value * (b / c),
    "lerp": lambda a, b, weight: a + weight * (b - a),
    "relu": _relu,
    "leaky_relu": _leaky_relu,
    "clamp": _clamp,
    "clamp_min": _clamp,
    "clamp_max": lambda x, high: _clamp(x, None, high),
    "hardtanh": _hardtanh,
    "hardsigmoid": _hardsigmoid,
    "hardswish": lambda x: x * _hardsigmoid(x),
    "gelu": _gelu,
    "elu": _elu,
    "silu": lambda x: x * node("sigmoid", x),
    "mish": lambda x: x * node("tanh", _softplus(x)),
    "softplus": _softplus,
    "log_sigmoid_forward": _log_sigmoid,
    **dict.fromkeys(("logical_not", "bitwise_not"), lambda x: 1 - x),
    **dict.fromkeys(("logical_and", "bitwise_and"), lambda a, b: a * b),
    **dict.fromkeys(("logical_or", "bitwise_or"), _primitive("maximum")),
    **OVER_FEATURES,
    "expand": _expand,
    "copy": _copy,
    **dict.fromkeys(("zeros_like", "empty_like"), functools.partial(_filled, fill=0.0)),
    "ones_like": functools.partial(_filled, fill=1.0),
    "full_like": _filled,
}


def operator_name(func: OpOverload) -> str:
    """Return the name of an operator; of two that differ in whether they work in place, the other one."""
    name: str = func.overloadpacket.__name__
    return name if name in OPERATORS else name.rstrip("_")


def check_type(args: Sequence[Any], options: Mapping[str, Any]) -> None:
    """Raise NotCompiledError if an operator changes the type of a value, which only booleans may."""
    if "dtype" in options and options["dtype"] not in (None, args[0].dtype):
        before, after = args[0].dtype, options["dtype"]
        if before != torch.bool or not after.is_floating_point:
            raise NotCompiledError(f"changes the type of a value from {before} to {after}")

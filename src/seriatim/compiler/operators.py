"""The operations of expressions, and PyTorch's operators as expressions.

A primitive says what it computes in PyTorch and in C++, and has a derivative. An operator of PyTorch is a function of
its arguments, with expressions in place of tensors that depend on inputs or state. It returns expressions of
primitives, so its derivative follows. Operators that only move elements are not here: the recorder turns them into
views.
"""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.nn import functional as F

from .expressions import (
    AttentionKind,
    AttentionOperands,
    Matrix,
    Node,
    StridedView,
    Value,
    as_node,
    common,
    contiguous,
    merged,
    node,
    number,
    refined,
    walk,
    widened,
)

Cotangents = tuple[Node | None, ...]
Slope = Callable[[Node, Node], Node]  # from the value y = f(x) and x to f'(x)


EPSILON = 1.1920928955078125e-07
"""What PyTorch adds in a norm in float32 if it is not told; in other types it is another number."""

# ---- primitives


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
        torch.pow, "f_power({0}, {1})", lambda y, g, a, b: (g * (b * node("power", a, number(b.attribute - 1))), None)
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
        values: the inputs, states and noise ``(rows, width)``, memories, and whatever else is known; what is computed
            is added.
        constants: what vectors and matrices refer to.
        like: ``(rows, ...)``; numbers take its type, device and rows.
    """
    order = walk(roots, lambda value: value in values)
    inside_products = _inside_products(order, roots)
    for value in order:
        if value.op == "attend":
            contexts, weights = attend([values[arg] for arg in value.args], value.attribute)
            values[value], values[node("attended", value)] = contexts, weights
        elif value in values or value in inside_products:
            continue
        elif value.args and value.args[0] in inside_products:
            values[value] = _product_of_views(value, values, constants, like)
        else:
            values[value] = _evaluate(value, [values[arg] for arg in value.args], constants, like)
    return [values[root] for root in roots]


def columns(matrix: Matrix, constants: Sequence[Tensor]) -> Tensor:
    """Return the values of columns of a constant matrix ``(rows, columns)``."""
    return constants[matrix.constant][:, matrix.start : matrix.stop]


def _evaluate(value: Node, args: list[Tensor], constants: Sequence[Tensor], like: Tensor) -> Tensor:
    if value.op == "number":
        return like.new_full((value.width,), value.attribute)
    if value.op == "vector":
        return constants[int(value.attribute)].reshape(-1)
    if value.op == "slice":
        return args[0][..., value.attribute : value.attribute + value.width]
    if value.op == "cat":
        return torch.cat([arg.expand(like.shape[0], -1) for arg in args], dim=-1)
    if value.op == "view":
        return shown(args[0], value.attribute).reshape(*args[0].shape[:-1], value.width)
    if value.op == "join":
        return _joined(args, value.attribute, value.width, like)
    if value.op in ("sum", "amax") and value.attribute:
        sizes, strides, _ = value.attribute
        reduced = [i - len(sizes) for i, stride in enumerate(strides) if not stride]
        elements = args[0].expand(*args[0].shape[:-1], math.prod(sizes)).reshape(*args[0].shape[:-1], *sizes)
        result = elements.sum(reduced) if value.op == "sum" else elements.amax(reduced)
        return result.reshape(*args[0].shape[:-1], value.width)
    if value.op == "sum":
        return args[0].sum(-1, keepdim=True)
    if value.op == "amax":
        return args[0].amax(-1, keepdim=True)
    if value.op == "product":
        return args[0] @ columns(value.attribute, constants)
    return PRIMITIVES[value.op].compute(*args)


def shown(source: Tensor, view: StridedView) -> Tensor:
    """Return the elements ``(rows, *sizes)`` of rows ``(rows, width)`` that a view shows; differentiable."""
    # the dimensions that move, the farthest apart first, are usually those of neighbouring features
    moving = sorted((i for i, stride in enumerate(view.strides) if stride), key=lambda i: -view.strides[i])
    sizes = [view.sizes[i] for i in moving]
    if tuple(view.strides[i] for i in moving) != contiguous(sizes):
        source = source.contiguous()
        strides = (*source.stride()[:-1], *view.strides)
        return source.as_strided((*source.shape[:-1], *view.sizes), strides, source.storage_offset() + view.offset)
    first = source.dim() - 1
    features = source.narrow(-1, view.offset, math.prod(sizes)).reshape(*source.shape[:-1], *(sizes or (1,)))
    features = features.permute(*range(first), *(first + moving.index(i) for i in sorted(moving)), *[-1] * (not moving))
    for i, stride in enumerate(view.strides):
        if not stride and (moving or i):
            features = features.unsqueeze(first + i)
    return features.expand(*source.shape[:-1], *view.sizes)


def _joined(args: Sequence[Tensor], views: Sequence[StridedView], width: int, like: Tensor) -> Tensor:
    """Return values that are stored one after another, each at the positions of its view."""
    dtype = functools.reduce(torch.promote_types, (arg.dtype for arg in args))  # they differ under autocast
    result = args[0].new_zeros(like.shape[0], width, dtype=dtype)
    for arg, view in zip(args, views, strict=True):
        positions = shown(torch.arange(width), view).reshape(-1)
        result = result.index_copy(1, positions, arg.to(dtype).expand(like.shape[0], len(positions)))
    return result


def _inside_products(order: Sequence[Node], roots: Sequence[Node]) -> set[Node]:
    """Return products of elements that are only summed, and their factors' views: one operator computes these sums."""
    users: dict[Node, list[Node]] = {}
    for value in order:
        for arg in value.args:
            users.setdefault(arg, []).append(value)
    inside = set()
    for total in order:
        value = total.args[0] if total.op == "sum" and total.attribute else total
        if value.op != "mul" or value in roots or users.get(value) != [total]:
            continue
        views = [arg.attribute for arg in value.args if arg.op == "view"]
        shapes = [merged(view.sizes, view.strides) for view in (*views, total.attribute)]
        repeats = any(0 in strides for _, strides in shapes[:-1])
        if repeats and common([sizes for sizes, _ in shapes]) is not None:
            inside.add(value)
    for value in order:
        if value.op == "view" and value not in roots and all(user in inside for user in users.get(value, [])):
            inside.add(value)
    return inside


def _product_of_views(value: Node, values: Mapping[Node, Tensor], constants: Sequence[Tensor], like: Tensor) -> Tensor:
    """Return a sum over some dimensions of a product of two values, none of whose elements is stored."""
    factors = value.args[0].args
    views = [factor.attribute for factor in factors if factor.op == "view"]
    sizes = common([merged(view.sizes, view.strides)[0] for view in (*views, value.attribute)])
    assert sizes is not None, "the dimensions of the factors fit together"
    letters = "abcdefghij"[: len(sizes)]
    operands, terms = [], []
    for factor in factors:
        view = factor.attribute if factor.op == "view" and factor not in values else StridedView((factor.width,), (1,))
        source = values[factor] if factor in values else values[factor.args[0]]
        strides = refined(view, sizes)
        kept = [i for i, stride in enumerate(strides) if stride]
        shown_view = StridedView(tuple(sizes[i] for i in kept), tuple(strides[i] for i in kept), view.offset)
        operands.append(shown(source, shown_view) if kept else source[..., view.offset])
        terms.append("z" * (source.dim() - 1) + "".join(letters[i] for i in kept))
    target = refined(value.attribute, sizes)
    result = "z" * any(term.startswith("z") for term in terms)
    result += "".join(letter for letter, stride in zip(letters, target, strict=True) if stride)
    product = torch.einsum(f"{','.join(terms)}->{result}", *operands)
    return product.reshape(*product.shape[: result.count("z")], value.width)


def attend(arguments: Sequence[Tensor], kind: AttentionKind) -> tuple[Tensor, Tensor]:
    """Return contexts ``(batch, size)`` and weights ``(batch, time)``; differentiable."""
    query, values, keys, lengths, vector, before, taps = AttentionOperands.of(arguments, kind)
    if vector is None:
        scores = kind.scale * (keys @ query.unsqueeze(2)).squeeze(2)
    else:
        scores = torch.tanh(query.unsqueeze(1) + keys) @ vector.reshape(-1)
    if before is not None and taps is not None:
        reach = taps.numel() // 2
        scores = scores + F.pad(before, (reach, reach)).unfold(1, taps.numel(), 1) @ taps.reshape(-1)
    padding = torch.arange(values.shape[1], device=values.device) >= lengths.unsqueeze(1)
    scores = scores.masked_fill(padding, torch.finfo(scores.dtype).min)
    weights = torch.softmax(scores, dim=1).masked_fill(padding, 0)
    return (weights.unsqueeze(1) @ values).squeeze(1), weights


Dimensions = int | Sequence[int] | None
Operator: TypeAlias = Callable[..., Any]  # returns an expression, or a tuple or list of them


# ---- PyTorch's operators


class NotCompiledError(Exception):
    """An operator cannot be compiled; the message continues a sentence that begins with its name."""


def _primitive(name: str) -> Operator:
    return lambda *args: node(name, *map(as_node, args))


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


def _power(x: Value, exponent: Value) -> Node:
    if isinstance(exponent, Node):
        raise NotCompiledError("takes an exponent that is not a number")
    base = as_node(x)
    if exponent == 2:
        return base * base
    if exponent == 3:
        return base * (base * base)
    return node("sqrt", base) if exponent == 0.5 else node("power", base, number(exponent))


def total(x: Node, size: int | None = None) -> Node:
    """Return the sum over the features of a row, or over each group of ``size`` neighbouring features."""
    return _reduced("sum", x, size)


def _reduced(op: str, x: Node, size: int | None) -> Node:
    if size in (None, x.width):
        return node(op, x, width=1)
    groups = x.width // size
    return node(op, x, width=groups, attribute=StridedView((groups, size), (1, 0)))


def spread(value: Node, width: int) -> Node:
    """Repeat each feature for every member of its group; a single feature stays a single one."""
    if value.width in (1, width):
        return value
    return node("view", value, width=width, attribute=StridedView((value.width, width // value.width), (1, 0)))


def _mean(x: Node, size: int | None = None) -> Node:
    return total(x, size) / (size or x.width)


def _largest(x: Node, size: int | None = None) -> Node:
    return _reduced("amax", x, size)


def _variance(
    x: Node, dim: Dimensions = None, correction: float | None = None, keepdim: bool = False, size: int | None = None
) -> Node:
    deviation = x - spread(_mean(x, size), x.width)
    return total(deviation * deviation, size) / ((size or x.width) - (1 if correction is None else correction))


def _norm(
    x: Node,
    ord: float = 2,  # noqa: A002
    dim: Dimensions = None,
    keepdim: bool = False,
    dtype: object = None,
    size: int | None = None,
) -> Node:
    if ord != 2:
        raise NotCompiledError(f"computes a norm of order {ord}; only order 2 is compiled")
    square = total(x * x, size)
    is_zero = node("eq", square, number(0))  # where the gradient of the root is infinite; PyTorch's norm has 0 there
    return node("where", is_zero, number(0), node("sqrt", node("where", is_zero, number(1), square)))


def _layer_norm(
    x: Node, shape: Sequence[int], gain: Node | None, shift: Node | None, epsilon: float, size: int | None = None
) -> tuple[Node, None, None]:
    deviation, variance = x - spread(_mean(x, size), x.width), _variance(x, correction=0, size=size)
    return _affine(deviation / spread(node("sqrt", variance + epsilon), x.width), gain, shift), None, None


def _rms_norm(
    x: Node, shape: Sequence[int], gain: Node | None, epsilon: float | None, size: int | None = None
) -> tuple[Node, None]:
    square = total(x * x, size) / (size or x.width)
    bounded = square + (EPSILON if epsilon is None else epsilon)
    return _affine(x / spread(node("sqrt", bounded), x.width), gain, None), None


def _affine(x: Node, gain: Node | None, shift: Node | None) -> Node:
    scaled = x if gain is None else x * _for_every_group(gain, x.width)
    return scaled if shift is None else scaled + _for_every_group(shift, x.width)


def _for_every_group(value: Node, width: int) -> Node:
    """Repeat a row of parameters for each group of features."""
    if value.width in (1, width):
        return value
    return node("view", value, width=width, attribute=StridedView((width // value.width, value.width), (0, 1)))


def _softmax(x: Node, dim: int, half: bool, size: int | None = None) -> Node:
    exponential = node("exp", x - spread(node("detach", _largest(x, size)), x.width))
    return exponential / spread(total(exponential, size), x.width)


def _log_softmax(x: Node, dim: int, half: bool, size: int | None = None) -> Node:
    return x - spread(_log_sum_exp(x, size=size), x.width)


def _log_sum_exp(x: Node, dim: Dimensions = None, keepdim: bool = False, size: int | None = None) -> Node:
    largest = node("detach", _largest(x, size))
    return largest + node("log", total(node("exp", x - spread(largest, x.width)), size))


def gated(content: Node, gate: Node) -> Node:
    """Return the gated linear unit."""
    return content * node("sigmoid", gate)


def _copy(x: Value, source: Value, non_blocking: bool = False) -> Node:
    return widened(as_node(source), as_node(x).width)


def _filled(x: Value, fill: float, **options: object) -> Node:
    return number(fill, as_node(x).width)


OVER_FEATURES: dict[str, Operator] = {
    "sum": lambda x, *_, size=None, **__: total(x, size),
    "mean": lambda x, *_, size=None, **__: _mean(x, size),
    "amax": lambda x, *_, size=None, **__: _largest(x, size),
    "var": _variance,
    "linalg_vector_norm": _norm,
    "native_layer_norm": _layer_norm,
    "_fused_rms_norm": _rms_norm,
    "_softmax": _softmax,
    "_log_softmax": _log_softmax,
    "logsumexp": _log_sum_exp,
}
"""Operators along the last dimension; ``size`` is the number of its features where it is one of several."""
OPERATORS: dict[str, Operator] = {
    **{name: _primitive(name) for name in PRIMITIVES if name != "power"},
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
    "relu": lambda x: node("where", node("le", x, number(0)), number(0), x),
    "leaky_relu": lambda x, slope=0.01: node("where", node("gt", x, number(0)), x, x * slope),
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
    "log_sigmoid_forward": lambda x: (-node("softplus", -x), None),
    **dict.fromkeys(("logical_not", "bitwise_not"), lambda x: 1 - x),
    **dict.fromkeys(("logical_and", "bitwise_and"), lambda a, b: a * b),
    **dict.fromkeys(("logical_or", "bitwise_or"), _primitive("maximum")),
    **OVER_FEATURES,
    "copy": _copy,
    **dict.fromkeys(("zeros_like", "empty_like"), functools.partial(_filled, fill=0.0)),
    "ones_like": functools.partial(_filled, fill=1.0),
    "full_like": _filled,
}


def operator_name(func: OpOverload) -> str:
    """Return the name of an operator; of two that differ in whether they work in place, the other one."""
    name: str = func.overloadpacket.__name__
    return name.rstrip("_")


def check_type(args: Sequence[Any], options: Mapping[str, Any]) -> None:
    """Raise NotCompiledError if an operator changes the type of a value, which only booleans may."""
    if "dtype" in options and options["dtype"] not in (None, args[0].dtype):
        before, after = args[0].dtype, options["dtype"]
        if before != torch.bool or not after.is_floating_point:
            raise NotCompiledError(f"changes the type of a value from {before} to {after}")

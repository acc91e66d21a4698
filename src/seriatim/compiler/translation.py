"""Translates the operators that a step calls into expressions, one function for each kind of operator.

Tensors may have any number of dimensions. The first one is the batch; the features of a row are all others, in the
order of memory. Indices and counts ``(batch,)`` are recorded, too, such as token ids and numbers of inputs read.

An operator that only moves elements, such as ``transpose``, becomes one `StridedView`: it is applied to a tensor
without memory, whose strides then say where each element of the result lies. So the translation need not know these
operators.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._pytree import tree_map

from ..core.step_operators import OPERATORS as STEP_OPERATORS
from .expressions import Matrix, Node, StridedView, contiguous, node, number
from .operators import OPERATORS, OVER_FEATURES, NotCompiledError, check_type, gated, total

Tree: TypeAlias = Any  # nested lists, tuples and dictionaries of arguments or results of an operator
UNKNOWN = object()  # the result of an operator that is not compiled; tracing goes on and may find more reasons


class ConstantId(int):
    """A constant, by its number among all that are computed."""


class OperatorCall(NamedTuple):
    """One call of an operator."""

    func: OpOverload
    name: str  # of two operators that differ in whether they work in place, that of the other one
    args: Tree
    options: Tree
    result: Tree


class TracedValues:
    """What the tensors of a step stand for: an expression, the number of a constant, or `UNKNOWN`."""

    def __init__(self, batch: int) -> None:
        self.batch = batch
        self.of: dict[int, Tree] = {}  # by the ids of tensors
        self.alive: list[object] = []  # keeps every id unique
        self.outputs: dict[ConstantId, int] = {}
        """The number of each constant among all that expressions refer to."""

    def value(self, tensor: Tensor) -> Tree:
        """Return what a tensor stands for."""
        if id(tensor) not in self.of:
            self.of[id(tensor)] = UNKNOWN
            self.alive.append(tensor)
            raise NotCompiledError("reads a tensor that is neither a parameter nor a buffer")
        return self.of[id(tensor)]

    def is_row(self, tensor: Tensor) -> bool:
        """Return whether a tensor has a row for each row of the batch."""
        return isinstance(self.of.get(id(tensor)), Node)

    def is_index(self, tensor: Tensor) -> bool:
        """Return whether a tensor holds indices or counts, which are integers in compiled code, too."""
        value = self.of.get(id(tensor))
        return is_integer(tensor) and isinstance(value, Node) and value.op in ("inputs", "state", "count")

    def constant(self, constant: ConstantId) -> int:
        """Return the number of a constant among all that expressions refer to."""
        return self.outputs.setdefault(constant, len(self.outputs))

    def argument(self, argument: Tree) -> Tree:
        """Return what an argument of an operator on numbers stands for."""
        if not isinstance(argument, Tensor):
            return argument
        if self.is_index(argument):
            raise NotCompiledError("computes with integers; only token ids and counts of inputs are compiled")
        value = self.value(argument)
        if isinstance(value, Node):
            return value
        return node("vector", width=argument.numel(), attribute=self.constant(value))

    def fitted(self, tensor: Tensor, shape: Sequence[int]) -> Node:
        """Return a tensor that is broadcast to a shape ``(batch, …)``; a single feature stays a single feature."""
        value: Node = self.argument(tensor)
        features = tuple(shape[1:])
        if value.width == 1:
            return value
        tensor_features = tuple(tensor.shape[1:]) if self.is_row(tensor) else _without_batch(tensor, len(features))
        if tensor_features == features:
            return value
        try:
            expanded = self.strided(value, tensor_features).expand(self.batch, *features)
        except RuntimeError:
            raise NotCompiledError("broadcasts in a way that is not compiled") from None
        return self.elements(value, expanded)

    # ---- where elements lie

    def strided(self, value: Node, shape: Sequence[int]) -> Tensor:
        """Return a tensor without memory ``(batch, *shape)`` laid out as a value's elements lie in its source."""
        if value.op == "view" and value.attribute.sizes == tuple(shape):
            view, width = value.attribute, value.args[0].width
        else:
            view, width = StridedView(tuple(shape), contiguous(shape)), value.width
        source = torch.empty(self.batch * width, device="meta")
        return source.as_strided((self.batch, *view.sizes), (width, *view.strides), view.offset)

    def elements(self, value: Node, layout: Tensor) -> Node:
        """Return the elements of a value, or of its source, in some layout (see `strided`)."""
        source = value
        if value.op == "view" and value.args[0].width == layout.untyped_storage().nbytes() // 4 // self.batch:
            source = value.args[0]
        view = view_of(layout)
        width = math.prod(view.sizes)
        if value.op == "number":
            return number(value.attribute, width)
        if layout.shape[0] != self.batch or (layout.stride(0) != source.width and self.batch > 1):
            raise NotCompiledError("moves the batch")
        if view.is_contiguous and view.offset == 0 and width == source.width:
            return source
        return node("view", source, width=width, attribute=view)


def translate(values: TracedValues, call: OperatorCall) -> Tree:
    """Return what an operator on values that depend on inputs or state computes, as an expression or several."""
    first = call.args[0] if call.args else None
    if call.func.namespace == "seriatim":
        return _step_operator(values, call)
    if isinstance(first, Tensor) and values.is_index(first):
        return _index(values, call)
    by_kind = _viewed if _is_view(call.func) else _elementwise
    return TRANSLATIONS.get(call.name, by_kind)(values, call)


# ---- operators that compute with numbers


def _elementwise(values: TracedValues, call: OperatorCall) -> Tree:
    """Record an operator on single elements."""
    if call.name not in OPERATORS:
        raise NotCompiledError("is not among the operations that are compiled")
    check_type(call.args, call.options)
    like = call.result if isinstance(call.result, Tensor) else call.args[0]

    def fitted(argument: Tree) -> Tree:
        return values.fitted(argument, like.shape) if isinstance(argument, Tensor) else argument

    return _applied(call.name, tree_map(fitted, call.args), tree_map(fitted, call.options))


def _over_features(values: TracedValues, call: OperatorCall) -> Tree:
    """Record an operator along the last dimension."""
    rows, *others = call.args
    if call.name not in ("native_layer_norm", "_fused_rms_norm"):  # which always work along the last dimensions
        index = 1 if call.name == "linalg_vector_norm" else 0
        dim = others[index] if len(others) > index else call.options.get("dim")
        if dim not in (-1, rows.dim() - 1, [-1], [rows.dim() - 1]):
            raise NotCompiledError("works along something other than the features of a row")
    check_type(call.args, call.options)
    options = tree_map(values.argument, call.options)
    if values.is_row(rows) and math.prod(rows.shape[1:-1]) != 1:
        is_norm = call.name in ("native_layer_norm", "_fused_rms_norm")
        options["size"] = math.prod(call.args[1]) if is_norm else rows.shape[-1]
    return _applied(call.name, tree_map(values.argument, call.args), options)


def _applied(name: str, args: Tree, options: Tree) -> Tree:
    """Record an operator whose arguments are expressions."""
    plain = {key: value for key, value in options.items() if key not in ("dtype", "layout", "device", "pin_memory")}
    try:
        return OPERATORS[name](*args, **plain)
    except (TypeError, AttributeError, KeyError):
        raise NotCompiledError("is not compiled in this form") from None


def _product(values: TracedValues, call: OperatorCall) -> Node:
    """Record rows times a constant matrix or a constant vector."""
    bias, rows, matrix = call.args if call.name == "addmm" else (None, *call.args)
    value, factor = values.value(rows), values.value(matrix)
    if not isinstance(value, Node) or isinstance(factor, Node):
        raise NotCompiledError("multiplies something other than rows by a constant matrix")
    if call.name == "mv":
        return total(value * values.argument(matrix))
    columns = matrix.shape[1]
    result = node("product", value, width=columns, attribute=Matrix(values.constant(factor), 0, columns))
    shift: Node = number(0) if bias is None else values.argument(bias)
    alpha, beta = (float(call.options.get(name, 1)) for name in ("alpha", "beta"))
    return result * alpha + shift * beta


def _reduced(values: TracedValues, call: OperatorCall) -> Tree:
    """Record a sum, mean or maximum along some dimensions other than the batch."""
    tensor, args, options = call.args[0], call.args, call.options
    if tensor.dim() <= 2:
        return _over_features(values, call)
    check_type(args, options)
    dims = args[1] if len(args) > 1 else options.get("dim")
    dims = [dims] if isinstance(dims, int) else dims
    if not dims or any(dim % tensor.dim() == 0 for dim in dims):
        raise NotCompiledError("works along the batch")

    # what is summed to one element has the position of this element, along all of the dimensions that are reduced
    reduced = {dim % tensor.dim() - 1 for dim in dims}
    sizes = tuple(tensor.shape[1:])
    kept = [1 if i in reduced else size for i, size in enumerate(sizes)]
    strides = tuple(0 if i in reduced else s for i, s in enumerate(contiguous(kept)))
    op = "amax" if call.name == "amax" else "sum"
    value = node(op, values.argument(tensor), width=math.prod(kept), attribute=StridedView(sizes, strides))
    return value / math.prod(sizes[i] for i in reduced) if call.name == "mean" else value


# ---- operators that move elements


def _unchanged(values: TracedValues, call: OperatorCall) -> Tree:
    """Record an operator that changes neither values nor shapes."""
    check_type(call.args, call.options)
    return values.argument(call.args[0])


def _viewed(values: TracedValues, call: OperatorCall) -> Tree:
    """Record an operator whose result shows elements of its argument."""
    return _shown(values, WITHOUT_COPY.get(call.name, call.func), call.args, call.options)


def _shown(values: TracedValues, operator: OpOverload, args: Tree, options: Tree) -> Tree:
    value = values.argument(args[0])
    for source in (value, node("mul", value, number(1))):  # the second is a copy, in which every shape is possible
        layout = values.strided(source, args[0].shape[1:])
        try:
            result = operator(layout, *args[1:], **options)
        except (RuntimeError, IndexError, ValueError):
            continue
        if isinstance(result, Tensor):
            return values.elements(source, result)
        return [values.elements(source, output) for output in result]
    raise NotCompiledError("is not compiled in this form")


def _gated_unit(values: TracedValues, call: OperatorCall) -> Node:
    """Record the product of the first half of the features with the sigmoid of the second."""
    tensor, dim = call.args[0], call.args[1] if len(call.args) > 1 else -1
    return gated(*_shown(values, torch.ops.aten.split.Tensor, (tensor, tensor.shape[dim] // 2, dim), {}))


def _joined(values: TracedValues, call: OperatorCall) -> Node:
    """Record values that are stored side by side, or one over a part of another."""
    name, args, options, result = call.name, call.args, call.options, call.result
    shape = tuple(result.shape[1:])
    joined = torch.empty(values.batch, *shape, device="meta")
    if name in ("cat", "stack"):
        tensors, dim = args[0], (args[1] if len(args) > 1 else options.get("dim", 0)) % result.dim()
        if dim == 0:
            raise NotCompiledError("joins rows of the batch")
        sizes = [tensor.shape[dim] for tensor in tensors] if name == "cat" else []
        layouts = list(torch.split(joined, sizes, dim) if name == "cat" else joined.unbind(dim))
    else:
        base, source, *rest = args
        operator = torch.ops.aten.slice.Tensor if name == "slice_scatter" else torch.ops.aten.select.int
        tensors, layouts = (base, source), [joined, operator(joined, *rest, **options)]
    pairs = [(tensor, layout) for tensor, layout in zip(tensors, layouts, strict=True) if layout.numel()]
    operands = [values.fitted(tensor, layout.shape) for tensor, layout in pairs]
    return node("join", *operands, width=math.prod(shape), attribute=tuple(view_of(layout) for _, layout in pairs))


# ---- indices, counts and operators that the compiler knows as a whole


def _gathered(values: TracedValues, call: OperatorCall) -> Node:
    """Record rows of a constant table."""
    rows, index = values.value(call.args[0]), values.value(call.args[1])
    if isinstance(rows, Node) or not isinstance(index, Node) or index.width != 1:
        raise NotCompiledError("looks up something other than one index a row in a constant table")
    return node("gather", index, width=call.args[0].shape[1], attribute=values.constant(rows))


def _index(values: TracedValues, call: OperatorCall) -> Node:
    """Record an operator on indices or counts."""
    check_type(call.args, call.options)
    value: Node = values.value(call.args[0])
    if value.width != 1:
        raise NotCompiledError("works on integers other than one count for each row")
    if call.name in ("view", "unsqueeze", "squeeze", "reshape", "expand", "detach", *SAME):
        return value
    if call.name == "add" and isinstance(call.args[1], int) and not call.options:
        return node("count", value, width=1, attribute=call.args[1])
    raise NotCompiledError("works on integers; only counts of inputs are compiled")


def _step_operator(values: TracedValues, call: OperatorCall) -> Node:
    """Record an operator of `seriatim.core.step_operators`, with its settings and the shapes of its arguments."""
    if call.name not in STEP_OPERATORS:
        raise NotCompiledError("is not among the operations that are compiled")
    operands, settings = [], []
    for argument in call.args:
        if isinstance(argument, Tensor):
            operands.append(values.value(argument) if is_integer(argument) else values.argument(argument))
            settings.append(tuple(argument.shape[1:]) if values.is_row(argument) else None)
        else:
            settings.append(argument)
    return node(call.name, *operands, width=math.prod(call.result.shape[1:]), attribute=tuple(settings))


SAME = ("alias", "clone", "contiguous", "lift_fresh_copy", "lift_fresh", "positive", "_to_copy")
"""Operators that change neither values nor shapes."""
WITHOUT_COPY = {
    **dict.fromkeys(("_unsafe_view", "reshape"), torch.ops.aten.view.default),
    "unsafe_split": torch.ops.aten.split.Tensor,
}
"""Operators whose result may be a copy, and the operator that gives the same elements without one."""
TRANSLATIONS: dict[str, Callable[[TracedValues, OperatorCall], Tree]] = {
    **dict.fromkeys(("mm", "addmm", "mv"), _product),
    "embedding": _gathered,
    "detach": lambda values, call: node("detach", values.argument(call.args[0])),
    **dict.fromkeys(SAME, _unchanged),
    **dict.fromkeys(("cat", "stack", "slice_scatter", "select_scatter"), _joined),
    **dict.fromkeys(WITHOUT_COPY, _viewed),
    "glu": _gated_unit,
    **dict.fromkeys(OVER_FEATURES, _over_features),
    **dict.fromkeys(("sum", "mean", "amax"), _reduced),
}
"""How operators are translated; all others are views of elements, or compute with single ones."""


def is_integer(tensor: Tensor) -> bool:
    """Return whether the numbers of a tensor are integers; truth values are not."""
    return not tensor.is_floating_point() and not tensor.is_complex() and tensor.dtype != torch.bool


def _is_view(func: OpOverload) -> bool:
    arguments = func._schema.arguments
    alias = arguments[0].alias_info if arguments else None
    return alias is not None and not alias.is_write


def _without_batch(tensor: Tensor, count: int) -> tuple[int, ...]:
    """Return the shape of a constant as ``count`` features' dimensions; a first dimension of 1 is the batch."""
    shape = tuple(tensor.shape)
    if len(shape) == count + 1 and shape[0] == 1:
        shape = shape[1:]
    if len(shape) > count:
        raise NotCompiledError("combines rows of features with a constant of more dimensions")
    return (*[1] * (count - len(shape)), *shape)


def view_of(tensor: Tensor) -> StridedView:
    """Return where the elements of a tensor ``(batch, ...)`` lie in the row."""
    return StridedView(tuple(tensor.shape[1:]), tuple(tensor.stride()[1:]), int(tensor.storage_offset()))

"""Traces a whole step of a model, with tensors of any number of dimensions, and with indices and counts.

Beside the expressions of `seriatim.compiler.expressions` there are, with the features of a row in the order of memory:
    ``view``       elements of another value, at the places that the `View` in ``note`` gives
    ``join``       several values, each stored at the places that its `View` in ``note`` gives, one after another
    ``sum``, ``amax``  where ``note`` is a `View`: adds the elements to those places of the result
    ``gather``     a row of the table ``note``, at the index in its argument
    ``count``      a count plus the number in ``note``
    an operator of `seriatim.core.step_operators`, its settings in ``note``
"""

import math
from collections.abc import Collection, Sequence

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._pytree import tree_map

from ..core.step_operators import OPERATORS as STEP_OPERATORS
from .constants import Tree, items_in
from .expressions import Node, node, number
from .operators import OPERATORS, OVER_FEATURES, NotCompiledError, check_type, gated, operator_name
from .recorder import Recorder, Traced
from .step_layout import View, contiguous

VIEWS = dict.fromkeys(("_unsafe_view", "reshape", "flatten"), "view")
SAME = {"alias", "clone", "contiguous", "lift_fresh_copy", "lift_fresh", "positive", "detach", "_to_copy"}
"""Operators that change neither values nor shapes."""
REDUCTIONS = {"sum": "sum", "mean": "sum", "amax": "amax"}


class StepRecorder(Recorder):  # type: ignore[no-untyped-call]
    """Records a step whose inputs may be token ids ``(batch,)`` and whose state may hold counts ``(batch,)``."""

    def __init__(
        self, weights: Sequence[Tensor], inputs: Tensor, leaves: Sequence[Tensor], *, memories: Collection[int] = ()
    ) -> None:
        super().__init__(weights, inputs, leaves, memories=memories)
        numbers = [tensor.dtype for tensor in (inputs, *leaves, *weights) if tensor.is_floating_point()]
        self.dtype = numbers[0] if numbers else torch.get_default_dtype()

    def expression(self, func: OpOverload, args: Tree, options: Tree, result: Tree) -> Tree:
        """Record an operator on values that depend on inputs or state."""
        name = operator_name(func)
        first = args[0] if args and isinstance(args[0], Tensor) else None
        if func.namespace == "seriatim":
            return self.step_operator(name, args, result)
        if name in ("mm", "addmm", "mv"):
            return self.product(name, args, **options)
        if name == "embedding":
            return self.gather(args[0], args[1])
        if first is not None and _is_integer(first):
            return self.integers(name, args, options)
        shaped = self.shaped(name, func, args, options, result)
        return self.elementwise(name, args, options, result) if shaped is None else shaped

    def shaped(self, name: str, func: OpOverload, args: Tree, options: Tree, result: Tree) -> Tree | None:
        """Record an operator that moves elements or reduces dimensions; return None for any other one."""
        if name in SAME:
            check_type(args, options)
            return self.argument(args[0])
        if name in ("cat", "stack", "slice_scatter", "select_scatter"):
            return self.joined(name, func, args, options, result)
        if _is_view(func) or name in VIEWS:
            return self.viewed(VIEWS.get(name), func, args, options)
        if name == "glu":
            dim = args[1] if len(args) > 1 else -1
            size = args[0].shape[dim] // 2
            return gated(*self.viewed(None, torch.ops.aten.split.Tensor, (args[0], size, dim), {}))
        if name in REDUCTIONS and args[0].dim() > 2:
            return self.reduced(name, args, options)
        return self.over_features(name, args, options) if name in OVER_FEATURES else None

    def elementwise(self, name: str, args: Tree, options: Tree, result: Tree) -> Tree:
        """Record an operator on single elements."""
        if name not in OPERATORS:
            raise NotCompiledError("is not among the operations that are compiled")
        check_type(args, options)
        first = args[0] if args and isinstance(args[0], Tensor) else None
        like = result if isinstance(result, Tensor) else first
        shape = like.shape if like is not None else torch.Size()

        def fitted(argument: Tree) -> Tree:
            return self.fitted(argument, shape) if isinstance(argument, Tensor) else argument

        return self.apply(name, tree_map(fitted, args), tree_map(fitted, options))

    def random(self, name: str, args: Tree, result: Tensor) -> Node:
        """Refuse random numbers: a loop draws those of all steps before it, a single step has no such time."""
        raise NotCompiledError("draws random numbers, which is not compiled in a single step")

    def argument(self, argument: Tree) -> Tree:
        """Return what an argument of an operator on numbers stands for."""
        if isinstance(argument, Tensor) and _is_integer(argument):
            raise NotCompiledError("computes with integers; only token ids and counts of inputs are compiled")
        return super().argument(argument)

    def check(self, name: str, args: Tree, shape: tuple[int, ...], value: Node) -> None:
        """Raise NotCompiledError if the first dimension of a result is not the batch."""
        is_row = bool(shape) and shape[0] == self.batch and value.width in (1, math.prod(shape[1:]))
        if not is_row and value.op != "number":
            raise NotCompiledError(f"gives the shape {shape}, whose first dimension is not the batch")

    def vector(self, tensor: Tensor, slot: Tree) -> Node:
        """Return a constant that is the same for every row."""
        return node("vector", width=tensor.numel(), note=self.constant(slot))

    def repeated(self, name: str, args: Tree, shape: tuple[int, ...]) -> Node:
        """Record a constant that is expanded to every row."""
        if name != "expand" or not shape or shape[0] != self.batch:
            raise NotCompiledError("makes a tensor with a row for each row of the batch")
        return self.fitted(args[0], torch.Size(shape))

    def fitted(self, tensor: Tensor, shape: torch.Size) -> Node:
        """Return a tensor that is broadcast to a shape ``(batch, …)``; a single feature stays a single feature."""
        value, features = self.argument(tensor), shape[1:]
        if not isinstance(value, Node):
            raise NotCompiledError("uses an unknown value")
        if value.width == 1 or value.width == math.prod(features):
            own = tensor.shape[1:] if self.is_row(tensor) else _without_batch(tensor, len(features))
            if value.width == 1 or tuple(own) == tuple(features) or tensor.numel() == 1:
                return value
        own = tensor.shape[1:] if self.is_row(tensor) else _without_batch(tensor, len(features))
        whole = self.strided(value, tuple(own))
        try:
            wide = whole.expand(self.batch, *features)
        except RuntimeError:
            raise NotCompiledError("broadcasts in a way that is not compiled") from None
        return self.view_of(value, wide)

    def strided(self, value: Node, shape: tuple[int, ...]) -> Tensor:
        """Return a tensor without memory ``(batch, *shape)`` with the places of a value's elements in its source."""
        if value.op == "view" and value.note.sizes == shape:
            view, width = value.note, value.args[0].width
        else:
            view, width = View(shape, contiguous(shape)), value.width
        whole = torch.empty(self.batch * width, device="meta")
        return whole.as_strided((self.batch, *view.sizes), (width, *view.strides), view.offset)

    def view_of(self, value: Node, places: Tensor) -> Node:
        """Return the elements of a value, or of its source, at some places (see `strided`)."""
        source = value
        if value.op == "view" and value.args[0].width == places.untyped_storage().nbytes() // 4 // self.batch:
            source = value.args[0]
        shape = tuple(places.shape)
        if value.op == "number":
            return number(value.note, math.prod(shape[1:]))
        if shape[0] != self.batch or (places.stride(0) != source.width and self.batch > 1):
            raise NotCompiledError("moves the batch")
        view = _places(places)
        if view.offset == 0 and _is_contiguous(view) and math.prod(view.sizes) == source.width:
            return source
        return node("view", source, width=math.prod(view.sizes), note=view)

    def viewed(self, name: str | None, func: OpOverload, args: Tree, options: Tree) -> Tree:
        """Record an operator whose result shows elements of its argument."""
        value = self.argument(args[0])
        shape = tuple(args[0].shape[1:])
        operator = getattr(torch.ops.aten, name).default if name else func
        for source in (value, node("detach", value)):  # the second is a copy, in which every shape is possible
            places = self.strided(source, shape)
            try:
                result = operator(places, *args[1:], **options)
            except (RuntimeError, IndexError, ValueError):
                continue
            if isinstance(result, Tensor):
                return self.view_of(source, result)
            return [self.view_of(source, part) for part in result]
        raise NotCompiledError("is not compiled in this form")

    def joined(self, name: str, func: OpOverload, args: Tree, options: Tree, result: Tensor) -> Node:
        """Record values that are stored side by side."""
        shape = tuple(result.shape[1:])
        whole = torch.empty(self.batch, *shape, device="meta")
        if name in ("cat", "stack"):
            tensors, dim = args[0], (args[1] if len(args) > 1 else options.get("dim", 0)) % result.dim()
            if name == "stack":
                places = list(whole.unbind(dim))
            else:
                places = list(torch.split(whole, [tensor.shape[dim] for tensor in tensors], dim))
            if dim == 0:
                raise NotCompiledError("joins rows of the batch")
            pieces = list(zip(tensors, places, strict=True))
        else:
            base, source, *rest = args
            view = torch.ops.aten.slice.Tensor if name == "slice_scatter" else torch.ops.aten.select.int
            pieces = [(base, whole), (source, view(whole, *rest, **options))]
        values, views = [], []
        for tensor, place in pieces:
            if place.numel():
                values.append(self.fitted(tensor, place.shape))
                views.append(_places(place))
        return node("join", *values, width=math.prod(shape), note=tuple(views))

    def reduced(self, name: str, args: Tree, options: Tree) -> Node:
        """Record a sum, mean or maximum along some dimensions other than the batch."""
        check_type(args, options)
        tensor, dims = args[0], args[1] if len(args) > 1 else options.get("dim")
        dims = [dims] if isinstance(dims, int) else dims
        if not dims or any(dim % tensor.dim() == 0 for dim in dims):
            raise NotCompiledError("works along the batch")
        reduced = {dim % tensor.dim() - 1 for dim in dims}
        sizes = tuple(tensor.shape[1:])
        kept = [1 if i in reduced else size for i, size in enumerate(sizes)]
        strides = tuple(0 if i in reduced else s for i, s in enumerate(contiguous(kept)))
        value = node(REDUCTIONS[name], self.argument(tensor), width=math.prod(kept), note=View(sizes, strides))
        return value / math.prod(sizes[i] for i in reduced) if name == "mean" else value

    def over_features(self, name: str, args: Tree, options: Tree) -> Tree:
        """Record an operator along the last dimension, where all between it and the batch have size 1."""
        for tensor in items_in(args, Tensor):
            if self.is_row(tensor) and math.prod(tensor.shape[1:-1]) != 1:
                raise NotCompiledError("works along the last of several dimensions")
        dims = [-1 if isinstance(arg, int) and i == 1 else arg for i, arg in enumerate(args)]
        if name in ("native_layer_norm", "_fused_rms_norm"):
            dims = list(args)
        elif len(args) > 1 and args[1] not in (-1, args[0].dim() - 1, [-1], [args[0].dim() - 1]):
            raise NotCompiledError("works along something other than the features of a row")
        elif len(args) > 1 and isinstance(args[1], list | tuple):
            dims = [args[0], [-1], *args[2:]]
        check_type(args, options)
        return self.apply(name, tree_map(self.argument, dims), tree_map(self.argument, options))

    def gather(self, table: Tensor, index: Tensor) -> Node:
        """Record rows of a constant table."""
        slot, value = self.value(table), self.value(index)
        if isinstance(slot, Node) or not isinstance(value, Node) or value.width != 1:
            raise NotCompiledError("looks up something other than one index a row in a constant table")
        return node("gather", value, width=table.shape[1], note=self.constant(slot))

    def integers(self, name: str, args: Tree, options: Tree) -> Node:
        """Record an operator on counts."""
        check_type(args, options)
        value = self.value(args[0])
        if not isinstance(value, Node) or value.width != 1:
            raise NotCompiledError("works on integers other than one count for each row")
        if name in ("view", "unsqueeze", "squeeze", "reshape", "expand", *SAME):
            return value
        if name == "add" and isinstance(args[1], int) and not options:
            return node("count", value, width=1, note=args[1])
        raise NotCompiledError("works on integers; only counts of inputs are compiled")

    def step_operator(self, name: str, args: Tree, result: Tensor) -> Node:
        """Record an operator of `seriatim.core.step_operators`."""
        if name not in STEP_OPERATORS:
            raise NotCompiledError("is not among the operations that are compiled")
        values, settings = [], []
        for argument in args:
            if isinstance(argument, Tensor):
                value = self.value(argument) if _is_integer(argument) else self.argument(argument)
                settings.append(tuple(argument.shape[1:]) if self.is_row(argument) else None)
                values.append(value)
            else:
                settings.append(argument)
        return node(name, *values, width=math.prod(result.shape[1:]), note=tuple(settings))

    def finish(self, results: Sequence[Tensor], leaves: Sequence[Tensor]) -> Traced:
        """Return the whole step after it has run; raise NotCompiledError for a result of another form."""
        if isinstance(results[0], Tensor) and results[0].dtype != self.dtype:
            raise NotCompiledError(f"the step returns outputs of type {results[0].dtype}")
        traced = super().finish(results, leaves)
        seen: set[Node] = set()
        states = []
        for i, (leaf, value) in enumerate(zip(leaves, traced.states, strict=True)):
            is_same = value.op == "state" and value.note == i
            while _is_integer(leaf) and not is_same and (value in seen or value.op != "count"):
                value = node("count", value, width=1, note=0)  # a value of its own can be stored
            seen.add(value)
            states.append(value)
        return traced._replace(states=tuple(states))

    def result(self, result: Tensor) -> Node:
        """Return what a result of the step stands for."""
        if not isinstance(result, Tensor):
            raise NotCompiledError(f"the step returns {type(result).__name__} where a tensor is expected")
        inner = torch._from_functional_tensor(result) if torch._is_functional_tensor(result) else result
        value = self.value(inner)
        if not isinstance(value, Node):
            raise NotCompiledError("the step returns a value that does not depend on its inputs or its state")
        width = math.prod(inner.shape[1:])
        if inner.shape[:1] != (self.batch,):
            raise NotCompiledError("the step returns a value whose first dimension is not the batch")
        return value if value.width == width else value * number(1, width)


def _is_integer(tensor: Tensor) -> bool:
    return not tensor.is_floating_point() and not tensor.is_complex() and tensor.dtype != torch.bool


def _places(tensor: Tensor) -> View:
    return View(tuple(tensor.shape[1:]), tuple(tensor.stride()[1:]), int(tensor.storage_offset()))


def _is_view(func: OpOverload) -> bool:
    arguments = func._schema.arguments
    alias = arguments[0].alias_info if arguments else None
    return alias is not None and not alias.is_write


def _is_contiguous(view: View) -> bool:
    expected = contiguous(view.sizes)
    return all(size == 1 or a == b for size, a, b in zip(view.sizes, view.strides, expected, strict=True))


def _without_batch(tensor: Tensor, count: int) -> tuple[int, ...]:
    """Return the shape of a constant as ``count`` features' dimensions; a first dimension of 1 is the batch."""
    shape = tuple(tensor.shape)
    if len(shape) == count + 1 and shape[0] == 1:
        shape = shape[1:]
    if len(shape) > count:
        raise NotCompiledError("combines rows of features with a constant of more dimensions")
    return (*[1] * (count - len(shape)), *shape)

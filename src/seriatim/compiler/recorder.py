"""Records the operators that a step calls as expressions.

Tensors may have any number of dimensions. The first one is the batch; the features of a row are all others, in the
order of memory. Indices and counts ``(batch,)`` are recorded, too, such as token ids and numbers of inputs read.

An operator that only moves elements, such as ``transpose``, becomes one `StridedView`: it is applied to a tensor
without memory, whose strides then say where each element of the result lies. So the recorder need not know these
operators.
"""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only

from ..core.random_masks import dropout_mask
from ..core.step_operators import OPERATORS as STEP_OPERATORS
from .expressions import Matrix, Node, StridedView, contiguous, node, number, widened
from .fallback_reasons import CallsInStep, CallSite, Reason
from .operators import OPERATORS, OVER_FEATURES, NotCompiledError, check_type, gated, operator_name, total

Tree: TypeAlias = Any  # nested lists, tuples and dictionaries of arguments or results of an operator
Item = TypeVar("Item")


# ---- what tracing gives: a step as expressions, and what it computes from its weights alone as PyTorch's operators


class ConstantId(int):
    """A constant, by its number among all that are computed."""


class Call(NamedTuple):
    """One operator on constants."""

    operator: OpOverload
    args: Tree
    options: Tree
    results: Tree


class Constants(NamedTuple):
    """Computes everything that depends on weights alone."""

    calls: list[Call]  # the operators, in order
    outputs: list[ConstantId]  # the constants that expressions refer to
    unused: ConstantId  # the next number

    def __call__(self, weights: Sequence[Tensor]) -> list[Tensor]:
        """Return the constants that ``vector`` leaves and matrices refer to; differentiable."""
        values: dict[int, Tensor] = dict(enumerate(weights))
        for call in self.calls:
            options = _fill(call.options, values)
            if weights and options.get("device") is not None:  # the step was traced on the CPU
                options["device"] = weights[0].device
            results = call.operator(*_fill(call.args, values), **options)
            pairs = zip(tree_leaves(call.results), tree_leaves(results), strict=True)
            values.update((constant, value) for constant, value in pairs if isinstance(constant, ConstantId))
        return [values[constant] for constant in self.outputs]

    def with_rows(self, number: int, start: int, stop: int) -> "Constants":
        """Return these constants and, as the last one, some rows of the matrix with a number."""
        call = Call(torch.ops.aten.slice.Tensor, (self.outputs[number], 0, start, stop), {}, self.unused)
        return Constants([*self.calls, call], [*self.outputs, self.unused], ConstantId(self.unused + 1))


class Noise(NamedTuple):
    """Random numbers: how many draws came before in the step; the probability of a 1, or None for uniform numbers.

    For a dropout mask it is the rate instead, and the ones are scaled.
    """

    order: int
    probability: float | None
    is_mask: bool = False

    def draw(self, rows: int, width: int, like: Tensor) -> Tensor:
        """Draw numbers ``(rows, width)`` of the type and on the device of ``like``."""
        if self.is_mask and self.probability is not None:
            return dropout_mask((rows, width), self.probability, like)
        numbers = like.new_empty(rows, width)
        return numbers.uniform_() if self.probability is None else numbers.bernoulli_(self.probability)


class Traced(NamedTuple):
    """One step as expressions."""

    outputs: Node  # the outputs
    states: tuple[Node, ...]  # the state after the step, part by part; for a loop without memories
    constants: Constants  # what depends on weights alone
    leaves: tuple[Node, ...]  # the inputs and the state before the step, part by part, with memories
    noise: tuple[Node, ...]  # all random numbers that a step draws, in order
    untraced: tuple[Reason, ...]  # calls that change gradients without an operator
    call_sites: Mapping[Node, CallSite]  # the call that each value is the result of


def items_in(tree: Tree, kind: type[Item]) -> list[Item]:
    """Return the items of one type in nested lists, tuples and dictionaries."""
    return [item for item in tree_leaves(tree) if isinstance(item, kind)]


def _fill(tree: Tree, values: Mapping[int, Tensor]) -> Tree:
    """Return a tree with tensors for the numbers of constants; `tree_map` of PyTorch takes ten times as long."""
    if isinstance(tree, ConstantId):
        return values[tree]
    if isinstance(tree, dict):
        return {key: _fill(value, values) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)(_fill(part, values) for part in tree)
    return tree


FACTORIES = {
    **dict.fromkeys(("zeros", "new_zeros", "empty", "new_empty"), 0.0),
    **dict.fromkeys(("ones", "new_ones"), 1.0),
    **dict.fromkeys(("full", "new_full", "scalar_tensor"), None),
}
"""Operators that make a tensor of one number: this number, or None if it is their last argument."""
OPERATOR_NAMES = {
    "dropout_mask": "dropout",
    "append_and_attend": "attention",
    "attend_to_memory": "attention to a memory",
    "attend_to_rows": "attention to a memory",
    "rotate": "rotary positions",
    "sinusoids": "sinusoidal positions",
}
"""What operators of `seriatim.core.step_operators` are called in messages."""
SAME = {"alias", "clone", "contiguous", "lift_fresh_copy", "lift_fresh", "positive", "_to_copy"}
"""Operators that change neither values nor shapes."""
VIEWS = {
    **dict.fromkeys(("_unsafe_view", "reshape"), torch.ops.aten.view.default),
    "unsafe_split": torch.ops.aten.split.Tensor,
}
"""Operators whose result may be a copy, and the operator that gives the same elements without one."""
REDUCTIONS = {"sum": "sum", "mean": "sum", "amax": "amax"}
UNKNOWN = object()  # the result of an operator that is not compiled; tracing goes on and may find more reasons


# ---- the recorder


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Turns the operators that a step calls into expressions, one after another."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # otherwise PyTorch imports its compiler, which takes a second

    def __init__(self, weights: Sequence[Tensor], inputs: Tensor, leaves: Sequence[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.batch = inputs.shape[0]
        self.dtype = next(
            (tensor.dtype for tensor in (inputs, *leaves, *weights) if tensor.is_floating_point()),
            torch.get_default_dtype(),
        )
        self.alive: list[object] = [weights, inputs, leaves]  # keeps every id unique
        self.arguments = set(map(id, (*weights, inputs, *leaves)))
        self.calls: list[Call] = []
        self.constant_ids = map(ConstantId, itertools.count(len(weights)))
        self.outputs: dict[ConstantId, int] = {}
        self.noise: list[Node] = []
        self.reasons: list[Reason] = []
        self.call_sites: dict[Node, CallSite] = {}
        self.calls_in_step = CallsInStep()
        self.leaves = (
            node("inputs", width=math.prod(inputs.shape[1:])),
            *(node("state", width=math.prod(leaf.shape[1:]), attribute=i) for i, leaf in enumerate(leaves)),
        )
        self.values: dict[int, Tree] = {id(weight): ConstantId(i) for i, weight in enumerate(weights)}
        self.values |= {id(leaf): value for leaf, value in zip((inputs, *leaves), self.leaves, strict=True)}

    # ---- what happens at every call

    def __torch_dispatch__(self, func: OpOverload, types: Iterable[type], args: Tree = (), kwargs: Tree = None) -> Tree:
        options, name = kwargs or {}, func.overloadpacket.__name__
        if name == "_local_scalar_dense":
            self.refuse("makes the next operations depend on the value of a tensor", name)
        elif func._schema.is_mutable and args and id(args[0]) in self.arguments:
            changes = self.calls_in_step.in_place
            self.reasons += changes or [Reason("it changes its inputs, its state or its parameters in place")]
            args = (args[0].clone(), *args[1:])  # tracing itself must change nothing
        result = func(*args, **options)
        self.alive.append((args, options, result))
        try:
            recorded = self.record(func, args, options, result)
        except NotCompiledError as error:
            self.refuse(str(error), name)
            recorded = tree_map_only(Tensor, lambda _: UNKNOWN, result)
        # later operators look these values up by the ids of the tensors, in-place ones those of their argument
        for part, value in zip(tree_leaves(result), tree_leaves(recorded), strict=True):
            if isinstance(part, Tensor):
                self.values[id(part)] = value
                new = [value] if isinstance(value, Node) else []
                while new:
                    inner = new.pop()
                    if inner not in self.call_sites:
                        self.call_sites[inner] = self.call_site(name)
                        new += inner.args
        if func._schema.is_mutable and isinstance(args[0], Tensor):
            self.values[id(args[0])] = recorded
        return result

    def refuse(self, problem: str, operator: str) -> None:
        """Add a reason: the function that the step called, and the problem with it."""
        self.reasons.append(self.call_site(operator).reason(problem))

    def call_site(self, operator: str) -> CallSite:
        """Return the function of PyTorch that the step called, and where."""
        function = OPERATOR_NAMES.get(operator) or self.calls_in_step.function or f"the operator {operator}"
        return CallSite(function, self.calls_in_step.location)

    def record(self, func: OpOverload, args: Tree, options: Tree, result: Tree) -> Tree:
        """Return what the result of an operator stands for; operators on weights alone are kept as they are."""
        name = func.overloadpacket.__name__
        operands = [self.value(tensor) for tensor in items_in((args, options), Tensor)]
        shape = tuple(result.shape) if isinstance(result, Tensor) else ()
        if UNKNOWN in operands or name == "_local_scalar_dense":
            return tree_map_only(Tensor, lambda _: UNKNOWN, result)
        if torch.Tag.nondeterministic_seeded in func.tags or name == "dropout_mask":
            return self.random(name, args, result)
        if name == "scalar_tensor" or (self.batch in shape and name in FACTORIES):
            return self.filled(FACTORIES[name], args, shape)
        if any(isinstance(value, Node) for value in operands):
            value = self.expression(func, args, options, result)
        elif self.batch in shape:
            value = self.repeated(name, args, shape)
        else:
            results = tree_map_only(Tensor, lambda _: next(self.constant_ids), result)
            inputs, named = (tree_map_only(Tensor, self.value, arguments) for arguments in (args, options))
            self.calls.append(Call(func, inputs, named, results))
            return results
        if isinstance(value, Node) and isinstance(result, Tensor):
            is_row = shape[:1] == (self.batch,) and value.width in (1, math.prod(shape[1:]))
            if not is_row and value.op != "number":
                raise NotCompiledError(f"gives the shape {shape}, whose first dimension is not the batch")
        return value

    def expression(self, func: OpOverload, args: Tree, options: Tree, result: Tree) -> Tree:
        """Record an operator on values that depend on inputs or state."""
        name = operator_name(func)
        if func.namespace == "seriatim":
            return self.step_operator(name, args, result)
        if name in ("mm", "addmm", "mv"):
            return self.product(name, args, **options)
        if name == "embedding":
            return self.gather(args[0], args[1])
        if args and isinstance(args[0], Tensor) and self.is_index(args[0]):
            return self.index(name, args, options)
        if name == "detach":
            return node("detach", self.argument(args[0]))
        if name in SAME:
            check_type(args, options)
            return self.argument(args[0])
        if name in ("cat", "stack", "slice_scatter", "select_scatter"):
            return self.joined(name, args, options, result)
        if _is_view(func) or name in VIEWS:
            return self.viewed(func, args, options)
        if name == "glu":
            dim = args[1] if len(args) > 1 else -1
            return gated(*self.viewed(torch.ops.aten.split.Tensor, (args[0], args[0].shape[dim] // 2, dim), {}))
        if name in REDUCTIONS and args[0].dim() > 2:
            return self.reduced(name, args, options)
        if name in OVER_FEATURES:
            return self.over_features(name, args, options)
        return self.elementwise(name, args, options, result)

    # ---- what tensors stand for

    def value(self, tensor: Tensor) -> Tree:
        """Return what a tensor stands for."""
        if id(tensor) not in self.values:
            self.values[id(tensor)] = UNKNOWN
            self.alive.append(tensor)
            raise NotCompiledError("reads a tensor that is neither a parameter nor a buffer")
        return self.values[id(tensor)]

    def is_row(self, tensor: Tensor) -> bool:
        """Return whether a tensor has a row for each row of the batch."""
        return isinstance(self.values.get(id(tensor)), Node)

    def is_index(self, tensor: Tensor) -> bool:
        """Return whether a tensor holds indices or counts, which are integers in compiled code, too."""
        value = self.values.get(id(tensor))
        return is_integer(tensor) and isinstance(value, Node) and value.op in ("inputs", "state", "count")

    def argument(self, argument: Tree) -> Tree:
        """Return what an argument of an operator on numbers stands for."""
        if not isinstance(argument, Tensor):
            return argument
        if self.is_index(argument):
            raise NotCompiledError("computes with integers; only token ids and counts of inputs are compiled")
        value = self.value(argument)
        return (
            value if isinstance(value, Node) else node("vector", width=argument.numel(), attribute=self.constant(value))
        )

    def constant(self, constant: ConstantId) -> int:
        """Return the number of a constant among all that expressions refer to."""
        return self.outputs.setdefault(constant, len(self.outputs))

    def fitted(self, tensor: Tensor, shape: Sequence[int]) -> Node:
        """Return a tensor that is broadcast to a shape ``(batch, …)``; a single feature stays a single feature."""
        value: Node = self.argument(tensor)
        features = tuple(shape[1:])
        if value.width == 1:
            return value
        own = tuple(tensor.shape[1:]) if self.is_row(tensor) else _without_batch(tensor, len(features))
        if own == features:
            return value
        try:
            wide = self.strided(value, own).expand(self.batch, *features)
        except RuntimeError:
            raise NotCompiledError("broadcasts in a way that is not compiled") from None
        return self.elements(value, wide)

    # ---- operators that make rows from nothing

    def random(self, name: str, args: Tree, result: Tensor) -> Node:
        """Record random numbers, which can be drawn for all steps before a loop: uniform ones, or 0 and 1."""
        is_mask = name == "dropout_mask"
        is_known = is_mask or (name in ("rand_like", "rand", "bernoulli") and result.dim() == 2)
        if not is_known or len(result) != self.batch or result.dtype != self.dtype:
            raise NotCompiledError("draws random numbers; only torch.rand_like and dropout are compiled")
        probability = args[2] if is_mask else args[1] if name == "bernoulli" and len(args) > 1 else None
        if name == "bernoulli" and not isinstance(probability, float | int):
            raise NotCompiledError("draws random numbers whose probabilities are not constant")
        draw = Noise(len(self.noise), probability, is_mask)
        self.noise.append(node("noise", width=math.prod(result.shape[1:]), attribute=draw))
        return self.noise[-1]

    def filled(self, fill: float | None, args: Tree, shape: tuple[int, ...]) -> Node:
        """Record a tensor of one number, with a row for each row of the batch."""
        if fill is None:
            fill = next((arg for arg in args[::-1] if isinstance(arg, int | float)), 0.0)
        return number(fill, math.prod(shape[1:]))

    def repeated(self, name: str, args: Tree, shape: tuple[int, ...]) -> Node:
        """Record a constant that is expanded to every row."""
        if name != "expand" or shape[0] != self.batch:
            raise NotCompiledError("makes a tensor with a row for each row of the batch")
        return widened(self.fitted(args[0], shape), math.prod(shape[1:]))

    # ---- operators that compute with numbers

    def elementwise(self, name: str, args: Tree, options: Tree, result: Tree) -> Tree:
        """Record an operator on single elements."""
        if name not in OPERATORS:
            raise NotCompiledError("is not among the operations that are compiled")
        check_type(args, options)
        like = result if isinstance(result, Tensor) else args[0]

        def fitted(argument: Tree) -> Tree:
            return self.fitted(argument, like.shape) if isinstance(argument, Tensor) else argument

        return self.apply(name, tree_map(fitted, args), tree_map(fitted, options))

    def over_features(self, name: str, args: Tree, options: Tree) -> Tree:
        """Record an operator along the last dimension, where all between it and the batch have size 1."""
        rows, *others = args
        if self.is_row(rows) and math.prod(rows.shape[1:-1]) != 1:
            raise NotCompiledError("works along the last of several dimensions")
        if name not in ("native_layer_norm", "_fused_rms_norm"):  # which always work along the last dimensions
            place = 1 if name == "linalg_vector_norm" else 0
            dim = others[place] if len(others) > place else options.get("dim")
            if dim not in (-1, rows.dim() - 1, [-1], [rows.dim() - 1]):
                raise NotCompiledError("works along something other than the features of a row")
        check_type(args, options)
        return self.apply(name, tree_map(self.argument, args), tree_map(self.argument, options))

    def apply(self, name: str, args: Tree, options: Tree) -> Tree:
        """Record an operator whose arguments are expressions."""
        plain = {key: value for key, value in options.items() if key not in ("dtype", "layout", "device", "pin_memory")}
        try:
            return OPERATORS[name](*args, **plain)
        except (TypeError, AttributeError, KeyError):
            raise NotCompiledError("is not compiled in this form") from None

    def product(self, name: str, args: Sequence[Tree], *, alpha: float = 1, beta: float = 1) -> Node:
        """Record rows times a constant matrix or a constant vector."""
        bias, rows, matrix = args if name == "addmm" else (None, *args)
        value, factor = self.value(rows), self.value(matrix)
        if not isinstance(value, Node) or isinstance(factor, Node):
            raise NotCompiledError("multiplies something other than rows by a constant matrix")
        if name == "mv":
            return total(value * self.argument(matrix))
        columns = matrix.shape[1]
        result = node("product", value, width=columns, attribute=Matrix(self.constant(factor), 0, columns))
        shift: Node = number(0) if bias is None else self.argument(bias)
        return result * alpha + shift * beta

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
        value = node(
            REDUCTIONS[name], self.argument(tensor), width=math.prod(kept), attribute=StridedView(sizes, strides)
        )
        return value / math.prod(sizes[i] for i in reduced) if name == "mean" else value

    # ---- operators that move elements

    def strided(self, value: Node, shape: Sequence[int]) -> Tensor:
        """Return a tensor without memory ``(batch, *shape)`` with the places of a value's elements in its source."""
        if value.op == "view" and value.attribute.sizes == tuple(shape):
            view, width = value.attribute, value.args[0].width
        else:
            view, width = StridedView(tuple(shape), contiguous(shape)), value.width
        whole = torch.empty(self.batch * width, device="meta")
        return whole.as_strided((self.batch, *view.sizes), (width, *view.strides), view.offset)

    def elements(self, value: Node, places: Tensor) -> Node:
        """Return the elements of a value, or of its source, at some places (see `strided`)."""
        source = value
        if value.op == "view" and value.args[0].width == places.untyped_storage().nbytes() // 4 // self.batch:
            source = value.args[0]
        view = view_of(places)
        width = math.prod(view.sizes)
        if value.op == "number":
            return number(value.attribute, width)
        if places.shape[0] != self.batch or (places.stride(0) != source.width and self.batch > 1):
            raise NotCompiledError("moves the batch")
        if view.is_contiguous and view.offset == 0 and width == source.width:
            return source
        return node("view", source, width=width, attribute=view)

    def viewed(self, func: OpOverload, args: Tree, options: Tree) -> Tree:
        """Record an operator whose result shows elements of its argument."""
        value, operator = self.argument(args[0]), VIEWS.get(operator_name(func), func)
        for source in (value, node("detach", value)):  # the second is a copy, in which every shape is possible
            places = self.strided(source, args[0].shape[1:])
            try:
                result = operator(places, *args[1:], **options)
            except (RuntimeError, IndexError, ValueError):
                continue
            if isinstance(result, Tensor):
                return self.elements(source, result)
            return [self.elements(source, part) for part in result]
        raise NotCompiledError("is not compiled in this form")

    def joined(self, name: str, args: Tree, options: Tree, result: Tensor) -> Node:
        """Record values that are stored side by side, or one over a part of another."""
        shape = tuple(result.shape[1:])
        whole = torch.empty(self.batch, *shape, device="meta")
        if name in ("cat", "stack"):
            tensors, dim = args[0], (args[1] if len(args) > 1 else options.get("dim", 0)) % result.dim()
            if dim == 0:
                raise NotCompiledError("joins rows of the batch")
            sizes = [tensor.shape[dim] for tensor in tensors] if name == "cat" else []
            places = list(torch.split(whole, sizes, dim) if name == "cat" else whole.unbind(dim))
        else:
            base, source, *rest = args
            operator = torch.ops.aten.slice.Tensor if name == "slice_scatter" else torch.ops.aten.select.int
            tensors, places = (base, source), [whole, operator(whole, *rest, **options)]
        parts = [(tensor, place) for tensor, place in zip(tensors, places, strict=True) if place.numel()]
        values = [self.fitted(tensor, place.shape) for tensor, place in parts]
        return node("join", *values, width=math.prod(shape), attribute=tuple(view_of(place) for _, place in parts))

    # ---- indices, counts and operators that the compiler knows as a whole

    def gather(self, table: Tensor, index: Tensor) -> Node:
        """Record rows of a constant table."""
        rows, value = self.value(table), self.value(index)
        if isinstance(rows, Node) or not isinstance(value, Node) or value.width != 1:
            raise NotCompiledError("looks up something other than one index a row in a constant table")
        return node("gather", value, width=table.shape[1], attribute=self.constant(rows))

    def index(self, name: str, args: Tree, options: Tree) -> Node:
        """Record an operator on indices or counts."""
        check_type(args, options)
        value: Node = self.value(args[0])
        if value.width != 1:
            raise NotCompiledError("works on integers other than one count for each row")
        if name in ("view", "unsqueeze", "squeeze", "reshape", "expand", "detach", *SAME):
            return value
        if name == "add" and isinstance(args[1], int) and not options:
            return node("count", value, width=1, attribute=args[1])
        raise NotCompiledError("works on integers; only counts of inputs are compiled")

    def step_operator(self, name: str, args: Tree, result: Tensor) -> Node:
        """Record an operator of `seriatim.core.step_operators`, with its settings and the shapes of its arguments."""
        if name not in STEP_OPERATORS:
            raise NotCompiledError("is not among the operations that are compiled")
        values, settings = [], []
        for argument in args:
            if isinstance(argument, Tensor):
                values.append(self.value(argument) if is_integer(argument) else self.argument(argument))
                settings.append(tuple(argument.shape[1:]) if self.is_row(argument) else None)
            else:
                settings.append(argument)
        return node(name, *values, width=math.prod(result.shape[1:]), attribute=tuple(settings))

    # ---- the end of the step

    def finish(self, results: Sequence[Tensor], leaves: Sequence[Tensor]) -> Traced:
        """Return the whole step after it has run; raise NotCompiledError for a result of another form."""
        outputs, *states = map(self.result, results)
        if results[0].dtype != self.dtype:
            raise NotCompiledError(f"the step returns outputs of type {results[0].dtype}")
        if results[0].dim() != 2:
            raise NotCompiledError("the step returns outputs that are not (batch, features)")
        for leaf, result in zip(leaves, results[1:], strict=True):
            if (result.shape, result.dtype) != (leaf.shape, leaf.dtype):
                before, after = (f"{tuple(value.shape[1:])} {value.dtype}" for value in (leaf, result))
                raise NotCompiledError(f"the step changes the state of a row from {before} to {after}")
        # a count that stands for two parts of the state, or moves to another one, needs a value of its own to be stored
        seen: set[Node] = set()
        for i, (leaf, value) in enumerate(zip(leaves, states, strict=True)):
            while is_integer(leaf) and value is not self.leaves[1 + i] and (value in seen or value.op != "count"):
                value = node("count", value, width=1, attribute=0)
            seen.add(value)
            states[i] = value
        constants = Constants(self.needed_calls(), list(self.outputs), next(self.constant_ids))
        untraced = tuple(self.calls_in_step.untraced)
        return Traced(outputs, tuple(states), constants, self.leaves, tuple(self.noise), untraced, self.call_sites)

    def result(self, result: Tensor) -> Node:
        """Return what a result of the step stands for, with all its features."""
        if not isinstance(result, Tensor):
            raise NotCompiledError(f"the step returns {type(result).__name__} where a tensor is expected")
        inner = torch._from_functional_tensor(result) if torch._is_functional_tensor(result) else result
        value = self.value(inner)
        if not isinstance(value, Node):
            raise NotCompiledError("the step returns a value that does not depend on its inputs or its state")
        if inner.shape[:1] != (self.batch,):
            raise NotCompiledError("the step returns a value whose first dimension is not the batch")
        return widened(value, math.prod(inner.shape[1:]))

    def needed_calls(self) -> list[Call]:
        """Return the calls that compute the constants used in expressions."""
        needed = set(self.outputs)
        calls = []
        for call in reversed(self.calls):
            changed = (call.results, call.args[:1] if call.operator._schema.is_mutable else ())
            if needed.intersection(items_in(changed, ConstantId)):
                needed.update(items_in((call.args, call.options), ConstantId))
                calls.append(call)
        return calls[::-1]


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

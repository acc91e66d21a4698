"""Records the operators that a step calls as expressions."""

import itertools
import math
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only

from ..core.random_masks import dropout_mask
from .constants import Call, Constants, Slot, Tree, items_in
from .expressions import Matrix, Node, cat, cut, depends, is_elementwise, node, number, placed, widened
from .memory_attention import recorded
from .operators import OPERATORS, OVER_FEATURES, NotCompiledError, check_type, operator_name, total
from .reasons import CallsInStep, Reason

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
UNKNOWN = object()  # the result of an operator that is not compiled; tracing goes on and may find more reasons


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
    states: tuple[Node, ...]  # the state after the step, part by part, without memories
    constants: Constants  # what depends on weights alone
    leaves: tuple[Node, ...]  # the inputs and the state before the step, part by part, with memories
    noise: tuple[Node, ...] = ()  # all random numbers that a step draws, in order
    untraced: tuple[Reason, ...] = ()  # calls that change gradients without an operator


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Turns the operators that a step calls into expressions, one after another."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # otherwise PyTorch imports its compiler, which takes a second

    def __init__(
        self, weights: Sequence[Tensor], inputs: Tensor, leaves: Sequence[Tensor], *, memories: Collection[int] = ()
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.batch = inputs.shape[0]
        self.alive: list[object] = [weights, inputs, leaves]  # keeps every id unique
        self.arguments = set(map(id, (*weights, inputs, *leaves)))
        self.calls: list[Call] = []
        self.new_slots = map(Slot, itertools.count(len(weights)))
        self.outputs: dict[Slot, int] = {}
        self.noise: list[Node] = []
        self.dtype = inputs.dtype
        self.reasons: list[Reason] = []
        self.calls_in_step = CallsInStep()
        self.slices: dict[tuple[Slot, int, int], Slot] = {}  # rows of constant matrices
        numbers = itertools.count()  # of the parts of the state other than memories
        parts = (
            node("memory", width=leaf.shape[2] if leaf.dim() > 2 else 1, note=i)
            if i in memories
            else node("state", width=math.prod(leaf.shape[1:]), note=next(numbers))
            for i, leaf in enumerate(leaves)
        )
        self.leaves = (node("inputs", width=math.prod(inputs.shape[1:])), *parts)
        self.values: dict[int, Tree] = {id(weight): Slot(i) for i, weight in enumerate(weights)}
        self.values |= {id(leaf): value for leaf, value in zip((inputs, *leaves), self.leaves, strict=True)}

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
        for part, value in zip(tree_leaves(result), tree_leaves(recorded), strict=True):
            if isinstance(part, Tensor):
                self.values[id(part)] = value
        if func._schema.is_mutable and isinstance(args[0], Tensor):
            self.values[id(args[0])] = recorded
        return result

    def refuse(self, problem: str, operator: str) -> None:
        """Add a reason: the function that the step called, and the problem with it."""
        function = OPERATOR_NAMES.get(operator) or self.calls_in_step.function or f"the operator {operator}"
        self.reasons.append(Reason(f"{function} {problem}", self.calls_in_step.location))

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
            slots = tree_map_only(Tensor, lambda _: next(self.new_slots), result)
            inputs, named = (tree_map_only(Tensor, self.value, arguments) for arguments in (args, options))
            self.calls.append(Call(func, inputs, named, slots))
            return slots
        if isinstance(value, Node) and isinstance(result, Tensor):
            self.check(name, args, shape, value)
        return value

    def value(self, tensor: Tensor) -> Tree:
        """Return what a tensor stands for."""
        if id(tensor) not in self.values:
            self.values[id(tensor)] = UNKNOWN
            self.alive.append(tensor)
            raise NotCompiledError("reads a tensor that is neither a parameter nor a buffer")
        return self.values[id(tensor)]

    def random(self, name: str, args: Tree, result: Tensor) -> Node:
        """Record random numbers, which can be drawn for all steps before the loop: uniform ones, or 0 and 1."""
        if name == "dropout_mask" and len(result) == self.batch and result.dtype == self.dtype:
            note = Noise(len(self.noise), args[2], is_mask=True)
            self.noise.append(node("noise", width=math.prod(result.shape[1:]), note=note))
            return self.noise[-1]
        is_known = name in ("rand_like", "rand", "bernoulli") and result.dim() == 2 and len(result) == self.batch
        if not is_known or result.dtype != self.dtype:
            raise NotCompiledError("draws random numbers; only torch.rand_like and dropout are compiled")
        probability = args[1] if name == "bernoulli" and len(args) > 1 else None
        if name == "bernoulli" and not isinstance(probability, float | int):
            raise NotCompiledError("draws random numbers whose probabilities are not constant")
        self.noise.append(node("noise", width=result.shape[1], note=Noise(len(self.noise), probability)))
        return self.noise[-1]

    def filled(self, fill: float | None, args: Tree, shape: tuple[int, ...]) -> Node:
        """Record a tensor of one number, with a row for each row of the batch."""
        if fill is None:
            fill = next((arg for arg in args[::-1] if isinstance(arg, int | float)), 0.0)
        return number(fill, math.prod(shape[1:]))

    def repeated(self, name: str, args: Tree, shape: tuple[int, ...]) -> Node:
        """Record a constant that is expanded to every row."""
        if name != "expand" or len(shape) != 2 or shape[0] != self.batch:
            raise NotCompiledError("makes a tensor with a row for each row of the batch")
        return widened(self.vector(args[0], self.value(args[0])), shape[1])

    def expression(self, func: OpOverload, args: Tree, options: Tree, result: Tree) -> Tree:
        """Record an operator on values that depend on inputs or state."""
        name = operator_name(func)
        if name == "attend_to_rows":
            attention = recorded(self.argument, *args)
            if attention is None:
                raise NotCompiledError("attends to something other than a memory that is a part of the state")
            return attention
        if any(
            self.value(tensor).op == "memory" for tensor in items_in((args, options), Tensor) if self.is_row(tensor)
        ):
            raise NotCompiledError("reads a memory; only attention to it is compiled")
        if name in ("mm", "addmm", "mv"):
            return self.product(name, args, **options)
        if name in ("select", "unbind"):
            return self.second_dimension(name, args)
        if name not in OPERATORS:
            raise NotCompiledError("is not among the operations that are compiled")
        if name in OVER_FEATURES and any(tensor.dim() > 2 for tensor in items_in(args, Tensor)):
            raise NotCompiledError("works on more dimensions than (batch, features)")
        check_type(args, options)
        return self.apply(name, tree_map(self.argument, args), tree_map(self.argument, options))

    def apply(self, name: str, args: Tree, options: Tree) -> Tree:
        """Record an operator whose arguments are expressions."""
        plain = {key: value for key, value in options.items() if key not in ("dtype", "layout", "device", "pin_memory")}
        try:
            return OPERATORS[name](*args, **plain)
        except (TypeError, AttributeError, KeyError):
            raise NotCompiledError("is not compiled in this form") from None

    def check(self, name: str, args: Tree, shape: tuple[int, ...], value: Node) -> None:
        """Raise NotCompiledError if an operator mixes rows, or broadcasts a dimension that is not flat."""
        if (not shape and value.op == "number") or name == "expand":
            return
        if not shape or shape[0] != self.batch or math.prod(shape[1:]) != value.width:
            if value.op == "number" and self.batch not in shape:
                return
            raise NotCompiledError(f"gives the shape {('batch', *shape[1:])}; only rows of features are compiled")
        if len(shape) > 2 and is_elementwise(value):
            for tensor in items_in(args, Tensor):
                if isinstance(self.value(tensor), Node) and tensor.shape != shape and math.prod(tensor.shape[1:]) != 1:
                    raise NotCompiledError(
                        "works on tensors of more than two dimensions; write a product with a matrix as x @ W"
                    )

    def argument(self, argument: Tree) -> Tree:
        """Return what an argument of an operator stands for."""
        if not isinstance(argument, Tensor):
            return argument
        value = self.value(argument)
        return value if isinstance(value, Node) else self.vector(argument, value)

    def is_row(self, tensor: Tensor) -> bool:
        """Return whether a tensor has a row for each row of the batch."""
        return isinstance(self.values.get(id(tensor)), Node)

    def vector(self, tensor: Tensor, slot: Slot) -> Node:
        """Return a constant that is the same for every row."""
        shape = tuple(tensor.shape)
        if any(size != 1 for size in shape[:-1]):
            problem = f"combines rows of features with a constant of shape {shape}"
            raise NotCompiledError(f"{problem}; {shape[-1:]} would fit")
        return node("vector", width=shape[-1] if shape else 1, note=self.constant(slot))

    def constant(self, slot: Slot) -> int:
        """Return the number of a constant among all that expressions refer to."""
        return self.outputs.setdefault(slot, len(self.outputs))

    def product(self, name: str, args: Sequence[Tree], *, alpha: float = 1, beta: float = 1) -> Node:
        """Record rows times a constant matrix or a constant vector."""
        bias, rows, matrix = args if name == "addmm" else (None, *args)
        value, factor = self.value(rows), self.value(matrix)
        if not isinstance(value, Node) or isinstance(factor, Node):
            raise NotCompiledError("multiplies something other than rows by a constant matrix")
        if name == "mv":
            return total(value * self.vector(matrix, factor))
        columns = matrix.shape[1]
        result: Node = number(0)
        for start, part in placed(_by_time(value)):  # what depends on the inputs alone is multiplied before the loop
            rows_of_matrix = self.rows(factor, start, start + part.width) if part is not value else factor
            result = result + node(
                "product", part, width=columns, note=Matrix(self.constant(rows_of_matrix), 0, columns)
            )
        shift: Node = number(0) if bias is None else self.argument(bias)
        return result * alpha + shift * beta

    def rows(self, matrix: Slot, start: int, stop: int) -> Slot:
        """Return some rows of a constant matrix."""
        key = (matrix, start, stop)
        if key not in self.slices:
            self.slices[key] = next(self.new_slots)
            self.calls.append(Call(torch.ops.aten.slice.Tensor, (matrix, 0, start, stop), {}, self.slices[key]))
        return self.slices[key]

    def second_dimension(self, name: str, args: Tree) -> Tree:
        """Record ``select`` or ``unbind`` along the second dimension of ``(batch, n, ...)``."""
        rows, dim = args[0], args[1] if len(args) > 1 else 0
        value = self.value(rows)
        if dim % rows.dim() != 1:
            raise NotCompiledError("takes elements of something other than the second dimension")
        width = value.width // rows.shape[1]
        if name == "select":
            return cut(value, args[2] % rows.shape[1] * width, width)
        return [cut(value, i * width, width) for i in range(rows.shape[1])]

    def finish(self, results: Sequence[Tensor], leaves: Sequence[Tensor]) -> Traced:
        """Return the whole step after it has run; raise NotCompiledError for a result of another form."""
        parts = list(zip(self.leaves[1:], leaves, results[1:], strict=True))
        if any(value.op == "memory" and self.returned(result) is not value for value, _, result in parts):
            raise NotCompiledError("the step changes a memory")
        parts = [part for part in parts if part[0].op != "memory"]
        outputs, *states = [self.result(result) for result in (results[0], *(result for _, _, result in parts))]
        if results[0].dim() != 2:
            raise NotCompiledError("the step returns outputs that are not (batch, features)")
        for _, leaf, result in parts:
            if (result.shape, result.dtype) != (leaf.shape, leaf.dtype):
                before, after = (f"{tuple(value.shape[1:])} {value.dtype}" for value in (leaf, result))
                raise NotCompiledError(f"the step changes the state of a row from {before} to {after}")
        constants = Constants(self.needed_calls(), list(self.outputs))
        untraced = tuple(self.calls_in_step.untraced)
        return Traced(outputs, tuple(states), constants, self.leaves, tuple(self.noise), untraced)

    def result(self, result: Tensor) -> Node:
        """Return what a result of the step stands for."""
        value = self.returned(result)
        if not isinstance(value, Node):
            raise NotCompiledError("the step returns a value that does not depend on its inputs or its state")
        if tuple(result.shape[:1]) != (self.batch,) or result.dim() < 2 or result.dtype != self.dtype:
            raise NotCompiledError("the step returns a value that is not (batch, features) of the inputs' type")
        return value

    def returned(self, result: Tensor) -> Tree:
        """Return what a tensor that the step returns stands for."""
        if not isinstance(result, Tensor):
            raise NotCompiledError(f"the step returns {type(result).__name__} where a tensor is expected")
        return self.value(torch._from_functional_tensor(result) if torch._is_functional_tensor(result) else result)

    def needed_calls(self) -> list[Call]:
        """Return the calls that compute the constants used in expressions."""
        needed = set(self.outputs)
        calls = []
        for call in reversed(self.calls):
            changed = (call.results, call.args[:1] if call.operator._schema.is_mutable else ())
            if needed.intersection(items_in(changed, Slot)):
                needed.update(items_in((call.args, call.options), Slot))
                calls.append(call)
        return calls[::-1]


def _by_time(value: Node) -> list[Node]:
    """Split the rows of a product into neighbouring features that depend on the inputs alone, and others."""
    if value.op != "cat":
        return [value]
    is_inside = depends([value], lambda leaf: leaf.op in ("state", "memory"))
    has_inputs = depends([value], lambda leaf: leaf.op in ("inputs", "noise"))
    groups = itertools.groupby(value.args, lambda part: has_inputs[part] and not is_inside[part])
    return [cat(list(parts)) for _, parts in groups]

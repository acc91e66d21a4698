"""Records the operators that a step calls: those on inputs and state as expressions, those on weights as they are.

`Recorder` sees every operator of PyTorch that a step calls, and keeps what each tensor stands for. Operators on values
that depend on inputs or state become expressions (`seriatim.compiler.translation`); those on weights alone are called
again whenever the weights have changed.
"""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from ..core.random_masks import dropout_mask
from .expressions import Node, node, number, widened
from .fallback_reasons import CallsInStep, CallSite, Reason
from .operators import NotCompiledError, operator_name
from .translation import UNKNOWN, ConstantId, OperatorCall, TracedValues, Tree, is_integer, translate

Item = TypeVar("Item")


# ---- what tracing gives: a step as expressions, and what it computes from its weights alone as PyTorch's operators


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
    states: tuple[Node, ...]  # the state after the step, leaf by leaf; for a loop without memories
    constants: Constants  # what depends on weights alone
    leaves: tuple[Node, ...]  # the inputs and the state before the step, leaf by leaf, with memories
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
        return type(tree)(_fill(item, values) for item in tree)
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

# ---- the recorder


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Keeps what the operators that a step calls compute, one after another."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # otherwise PyTorch imports its compiler, which takes a second

    def __init__(self, weights: Sequence[Tensor], inputs: Tensor, leaves: Sequence[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.batch = inputs.shape[0]
        floats = (tensor.dtype for tensor in (inputs, *leaves, *weights) if tensor.is_floating_point())
        self.dtype = next(floats, torch.get_default_dtype())
        self.arguments = set(map(id, (*weights, inputs, *leaves)))
        self.calls: list[Call] = []
        self.constant_ids = map(ConstantId, itertools.count(len(weights)))
        self.noise: list[Node] = []
        self.reasons: list[Reason] = []
        self.call_sites: dict[Node, CallSite] = {}
        self.calls_in_step = CallsInStep(self.batch)
        self.leaves = (
            node("inputs", width=math.prod(inputs.shape[1:])),
            *(node("state", width=math.prod(leaf.shape[1:]), attribute=i) for i, leaf in enumerate(leaves)),
        )
        self.values = TracedValues(self.batch)
        self.values.alive += [weights, inputs, leaves]
        self.values.of |= {id(weight): ConstantId(i) for i, weight in enumerate(weights)}
        self.values.of |= {id(leaf): value for leaf, value in zip((inputs, *leaves), self.leaves, strict=True)}

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
        self.values.alive.append((args, options, result))
        try:
            recorded = self.record(func, args, options, result)
        except NotCompiledError as error:
            self.refuse(str(error), name)
            recorded = tree_map_only(Tensor, lambda _: UNKNOWN, result)
        # later operators look these values up by the ids of the tensors, in-place ones those of their argument
        for leaf, value in zip(tree_leaves(result), tree_leaves(recorded), strict=True):
            if isinstance(leaf, Tensor):
                self.values.of[id(leaf)] = value
                new = [value] if isinstance(value, Node) else []
                while new:
                    inner = new.pop()
                    if inner not in self.call_sites:
                        self.call_sites[inner] = self.call_site(name)
                        new += inner.args
        if func._schema.is_mutable and isinstance(args[0], Tensor):
            self.values.of[id(args[0])] = recorded
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
        operands = [self.values.value(tensor) for tensor in items_in((args, options), Tensor)]
        shape = tuple(result.shape) if isinstance(result, Tensor) else ()
        if UNKNOWN in operands or name == "_local_scalar_dense":
            return tree_map_only(Tensor, lambda _: UNKNOWN, result)

        # what gives a row for each row of the batch without reading one
        if torch.Tag.nondeterministic_seeded in func.tags or name == "dropout_mask":
            return self.random(name, args, result)
        if name == "scalar_tensor" or (self.batch in shape and name in FACTORIES):
            return self.filled(FACTORIES[name], args, shape)

        # what depends on weights alone is not translated: it is computed once for all steps, by the operator itself
        if any(isinstance(value, Node) for value in operands):
            value = translate(self.values, OperatorCall(func, operator_name(func), args, options, result))
        elif self.batch in shape:
            value = self.repeated(name, args, shape)
        else:
            results = tree_map_only(Tensor, lambda _: next(self.constant_ids), result)
            inputs, named = (tree_map_only(Tensor, self.values.value, arguments) for arguments in (args, options))
            self.calls.append(Call(func, inputs, named, results))
            return results

        # a batch in another dimension than the first would be recognized as features
        if isinstance(value, Node) and isinstance(result, Tensor):
            is_row = shape[:1] == (self.batch,) and value.width in (1, math.prod(shape[1:]))
            if not is_row and value.op != "number":
                raise NotCompiledError(f"gives the shape {shape}, whose first dimension is not the batch")
        return value

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
        return widened(self.values.fitted(args[0], shape), math.prod(shape[1:]))

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
        # a count that stands for two leaves of the state, or moves to another one, is stored as a value of its own
        seen: set[Node] = set()
        for i, (leaf, value) in enumerate(zip(leaves, states, strict=True)):
            while is_integer(leaf) and value is not self.leaves[1 + i] and (value in seen or value.op != "count"):
                value = node("count", value, width=1, attribute=0)
            seen.add(value)
            states[i] = value
        constants = Constants(self.needed_calls(), list(self.values.outputs), next(self.constant_ids))
        untraced = tuple(self.calls_in_step.untraced)
        return Traced(outputs, tuple(states), constants, self.leaves, tuple(self.noise), untraced, self.call_sites)

    def result(self, result: Tensor) -> Node:
        """Return what a result of the step stands for, with all its features."""
        if not isinstance(result, Tensor):
            raise NotCompiledError(f"the step returns {type(result).__name__} where a tensor is expected")
        inner = torch._from_functional_tensor(result) if torch._is_functional_tensor(result) else result
        value = self.values.value(inner)
        if not isinstance(value, Node):
            raise NotCompiledError("the step returns a value that does not depend on its inputs or its state")
        if inner.shape[:1] != (self.batch,):
            raise NotCompiledError("the step returns a value whose first dimension is not the batch")
        return widened(value, math.prod(inner.shape[1:]))

    def needed_calls(self) -> list[Call]:
        """Return the calls that compute the constants used in expressions."""
        needed = set(self.values.outputs)
        calls = []
        for call in reversed(self.calls):
            changed = (call.results, call.args[:1] if call.operator._schema.is_mutable else ())
            if needed.intersection(items_in(changed, ConstantId)):
                needed.update(items_in((call.args, call.options), ConstantId))
                calls.append(call)
        return calls[::-1]

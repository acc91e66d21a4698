"""From a step written in torch to expressions: it is run on a few rows of zeros, and what it calls is written down."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.func import functionalize
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map, tree_map_only

from ..core.state import State, map_state, state_leaves
from .constants import Call, Constants, Slot, slots, tensors
from .expressions import Matrix, Node, cut, elementwise, node, number
from .operators import OPERATORS, UnsupportedError, total
from .primitives import add, mul

Step = Callable[[Sequence[Tensor], Tensor, State], tuple[Tensor, State]]
"""(weights, inputs (batch, input_size), state) to outputs (batch, output_size) and the next state."""

FACTORIES = {"zeros": 0.0, "ones": 1.0, "new_zeros": 0.0, "new_ones": 1.0, "empty": 0.0, "new_empty": 0.0}
OVER_FEATURES = frozenset(
    {
        *("sum", "mean", "amax", "var", "logsumexp", "linalg_vector_norm", "native_layer_norm", "_fused_rms_norm"),
        *("_softmax", "_log_softmax", "slice", "split", "unsafe_split", "split_with_sizes", "cat", "slice_scatter"),
    }
)
"""Operators that work along the features of a row, of which there must be one dimension."""
FILLED = ("full", "new_full", "scalar_tensor")
LIKELY_PRIMES = (7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71, 73, 79, 83)


class Noise(NamedTuple):
    """Random numbers: how many were drawn before in a step; the probability of a 1, or None where they are uniform."""

    order: int
    probability: float | None


class Traced(NamedTuple):
    """One step as expressions."""

    outputs: Node
    states: tuple[Node, ...]
    """The state after the step, part by part."""
    constants: Constants
    input_size: int
    noise: tuple[Node, ...] = ()
    """All random numbers that a step draws, in order."""


def trace(step: Step, weights: Sequence[Tensor], inputs: Tensor, state: State) -> Traced:
    """Writes one step down as expressions.

    Args:
        step: what to trace.
        weights: its parameters and constants.
        inputs: ``(batch, input_size)``; only width and type matter.
        state: of one batch; likewise.

    Raises:
        UnsupportedError: the step does what expressions cannot say.
    """
    sizes = {size for tensor in (*weights, inputs, *state_leaves(state)) for size in tensor.shape[1:]}
    sizes |= {tensor.shape[0] for tensor in weights if tensor.dim()}
    first, second = [prime for prime in LIKELY_PRIMES if prime not in sizes][:2]
    traced = _trace_batch(step, weights, inputs, state, first)
    other = _trace_batch(step, weights, inputs, state, second)
    if (traced.outputs, traced.states) != (other.outputs, other.states):
        raise UnsupportedError("what it computes for a row depends on how many rows there are")
    return traced


def _trace_batch(step: Step, weights: Sequence[Tensor], inputs: Tensor, state: State, batch: int) -> Traced:
    with torch.no_grad():
        leaves = [leaf.new_zeros(batch, *leaf.shape[1:]) for leaf in state_leaves(state)]
        row = inputs.new_zeros(batch, *inputs.shape[1:])
        values = [weight.detach() for weight in weights]
        recorder = _Recorder(values, row, leaves)

        def flat(weights: Sequence[Tensor], inputs: Tensor, leaves: list[Tensor]) -> list[Tensor]:
            remaining = iter(leaves)
            outputs, new = step(weights, inputs, map_state(lambda _: next(remaining), state))
            map_state(lambda old, new: old, state, new)  # raises where the structure has changed
            return [outputs, *state_leaves(new)]

        try:
            with torch.random.fork_rng(devices=[]), recorder:
                results = functionalize(flat)(values, row, leaves)
        except UnsupportedError:
            raise
        except Exception as error:  # whatever a user's step raises, it raises again in the reference loop
            first = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise UnsupportedError(f"it cannot be traced: {first}") from None
        return recorder.finish(results, leaves)


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Turns what a step calls into expressions, one operator after another."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else torch imports its compiler, which takes a second

    def __init__(self, weights: Sequence[Tensor], inputs: Tensor, leaves: Sequence[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.batch = inputs.shape[0]
        self.values: dict[int, Any] = {}
        self.alive: list[Any] = [weights, inputs, leaves]  # so that no identity is given twice
        self.given = {id(tensor) for tensor in (*weights, inputs, *leaves)}
        self.calls: list[Call] = []
        self.slots = len(weights)
        self.outputs: dict[Slot, int] = {}
        self.noise: list[Node] = []
        self.dtype = inputs.dtype
        for i, weight in enumerate(weights):
            self.values[id(weight)] = Slot(i)
        self.values[id(inputs)] = node("inputs", width=math.prod(inputs.shape[1:]))
        self.input_size = inputs.shape[1]
        for i, leaf in enumerate(leaves):
            self.values[id(leaf)] = node("state", width=math.prod(leaf.shape[1:]), note=i)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs an operator and writes it down."""
        options = kwargs or {}
        name = func.overloadpacket.__name__
        if name == "_local_scalar_dense":
            raise UnsupportedError("what it does next depends on the values of tensors")
        if func._schema.is_mutable and args and id(args[0]) in self.given:
            raise UnsupportedError("it changes its inputs, its state or its parameters in place")
        result = func(*args, **options)
        self.alive.append((args, options, result))
        self.record(func, args, options, result)
        return result

    def record(self, func: OpOverload, args: Any, options: Any, result: Any) -> None:
        """One operator: of weights alone it is kept as it is, else it becomes an expression."""
        name = func.overloadpacket.__name__
        known = [self.value(tensor) for tensor in tensors((args, options))]
        shape = tuple(result.shape) if isinstance(result, Tensor) else ()
        if torch.Tag.nondeterministic_seeded in func.tags:
            found: Any = self.random(name, args, result)
        elif name == "scalar_tensor" or (self.batch in shape and (name in FACTORIES or name in FILLED)):
            found = self.filled(name, args, shape)
        elif any(isinstance(value, Node) for value in known):
            found = self.expression(name, args, options)
        elif self.batch in shape:
            found = self.repeated(name, args, shape)
        else:
            found = tree_map_only(Tensor, lambda _: self.slot(), result)
            taken, named = (tree_map_only(Tensor, self.value, given) for given in (args, options))
            self.calls.append(Call(func, taken, named, found))
        self.remember(result, found)
        if func._schema.is_mutable:
            self.values[id(args[0])] = found
        if isinstance(found, Node) and isinstance(result, Tensor):
            self.check(name, args, shape, found)

    def slot(self) -> Slot:
        self.slots += 1
        return Slot(self.slots - 1)

    def value(self, tensor: Tensor) -> Any:
        """What a tensor stands for."""
        if id(tensor) not in self.values:
            raise UnsupportedError("it reads a tensor that is neither a parameter nor a buffer")
        return self.values[id(tensor)]

    def remember(self, result: Any, found: Any) -> None:
        """What the tensors of a result stand for."""
        if isinstance(result, Tensor):
            self.values[id(result)] = found
        elif isinstance(result, list | tuple):
            for part, value in zip(result, found, strict=True):
                self.remember(part, value)

    def random(self, name: str, args: Any, result: Tensor) -> Node:
        """Random numbers, which may be drawn for all steps before the loop: uniform ones, or 1 with a probability."""
        known = name in ("rand_like", "rand", "bernoulli") and result.dim() == 2 and len(result) == self.batch
        if not known or result.dtype != self.dtype:
            raise UnsupportedError(f"it draws random numbers by {name}; rand_like and dropout are known to it")
        probability = args[1] if name == "bernoulli" and len(args) > 1 else None
        if name == "bernoulli" and not isinstance(probability, float | int):
            raise UnsupportedError("it draws random numbers whose probabilities are no constants")
        self.noise.append(node("noise", width=result.shape[1], note=Noise(len(self.noise), probability)))
        return self.noise[-1]

    def filled(self, name: str, args: Any, shape: tuple[int, ...]) -> Node:
        """A tensor of one number, with a row for each of the batch."""
        fill = FACTORIES.get(name, next((arg for arg in args[::-1] if isinstance(arg, int | float)), 0.0))
        return number(float(fill), math.prod(shape[1:]))

    def repeated(self, name: str, args: Any, shape: tuple[int, ...]) -> Node:
        """A constant given to every row."""
        if name != "expand" or len(shape) != 2 or shape[0] != self.batch:
            raise UnsupportedError(f"it makes a tensor with a row for each of the batch by {name}")
        vector = self.vector(args[0], self.value(args[0]))
        return vector if vector.width == shape[1] else mul(vector, number(1, shape[1]))

    def expression(self, name: str, args: Any, options: Any) -> Any:
        """An operator on what depends on inputs or state."""
        name = name if name in OPERATORS else name.rstrip("_")
        if name in ("mm", "addmm", "mv"):
            return self.product(name, args, **options)
        if name in ("select", "unbind"):
            return self.taken_apart(name, args)
        if name not in OPERATORS:
            raise UnsupportedError(f"{name} is not among the operations it knows")
        if name in OVER_FEATURES and any(tensor.dim() > 2 for tensor in tensors(args)):
            raise UnsupportedError(f"{name} on more than (batch, features)")
        if "dtype" in options and options["dtype"] not in (None, args[0].dtype):
            self.check_type(args[0].dtype, options["dtype"])
        plain = {key: value for key, value in options.items() if key not in ("dtype", "layout", "device", "pin_memory")}
        try:
            return OPERATORS[name](*tree_map(self.argument, args), **tree_map(self.argument, plain))
        except (TypeError, AttributeError, KeyError):
            raise UnsupportedError(f"{name} in this form is not among the operations it knows") from None

    def check_type(self, before: torch.dtype, after: torch.dtype) -> None:
        """Numbers stay in the state's type; truth values may become numbers."""
        if before != torch.bool or not after.is_floating_point:
            raise UnsupportedError(f"it changes the type of a value from {before} to {after}")

    def check(self, name: str, args: Any, shape: tuple[int, ...], found: Node) -> None:
        """Whether torch's shape is what flat rows have: no rows mixed, no dimension broadcast that is not flat."""
        if (not shape and found.op == "number") or name == "expand":
            return
        if not shape or shape[0] != self.batch or math.prod(shape[1:]) != found.width:
            if found.op == "number" and self.batch not in shape:
                return
            raise UnsupportedError(
                f"{name} gives the shape {('batch', *shape[1:])}; only rows of features are known to it"
            )
        if len(shape) > 2 and elementwise(found):
            for tensor in tensors(args):
                if isinstance(self.value(tensor), Node) and tensor.shape != shape and math.prod(tensor.shape[1:]) != 1:
                    raise UnsupportedError(f"{name} broadcasts over more than the features of a row")

    def argument(self, given: Any) -> Any:
        """An argument of an operator: an expression where it is a tensor."""
        if not isinstance(given, Tensor):
            return given
        value = self.value(given)
        return value if isinstance(value, Node) else self.vector(given, value)

    def vector(self, tensor: Tensor, slot: Slot) -> Node:
        """A constant that is the same for every row."""
        shape = tuple(tensor.shape)
        if any(size != 1 for size in shape[:-1]):
            raise UnsupportedError(f"a constant of shape {shape} meets rows of features; {shape[-1:]} would fit")
        return node("vector", width=shape[-1] if shape else 1, note=self.constant(slot))

    def constant(self, slot: Slot) -> int:
        """Where in the list of constants a value stands."""
        return self.outputs.setdefault(slot, len(self.outputs))

    def product(self, name: str, args: Sequence[Any], *, alpha: float = 1, beta: float = 1) -> Node:
        """Rows times a constant matrix, or times a constant vector."""
        bias, rows, matrix = args if name == "addmm" else (None, *args)
        value, factor = self.value(rows), self.value(matrix)
        if not isinstance(value, Node) or isinstance(factor, Node):
            raise UnsupportedError("a product of something other than rows with a constant matrix")
        if name == "mv":
            return total(mul(value, self.vector(matrix, factor)))
        columns = matrix.shape[1]
        result = node("product", value, width=columns, note=Matrix(self.constant(factor), 0, columns))
        if bias is None:
            return result
        return add(mul(result, number(alpha)), mul(self.argument(bias), number(beta)))

    def taken_apart(self, name: str, args: Sequence[Any]) -> Any:
        """``(batch, n, ...)`` along its second dimension."""
        rows, dim = args[0], args[1] if len(args) > 1 else 0
        value = self.value(rows)
        if dim % rows.dim() != 1:
            raise UnsupportedError(f"{name} along something other than the second dimension")
        width = value.width // rows.shape[1]
        if name == "select":
            return cut(value, args[2] % rows.shape[1] * width, width)
        return [cut(value, i * width, width) for i in range(rows.shape[1])]

    def finish(self, results: Sequence[Tensor], leaves: Sequence[Tensor]) -> Traced:
        """The whole step, once it has run."""
        outputs, *states = [self.row(result) for result in results]
        if results[0].dim() != 2:
            raise UnsupportedError("its outputs are not (batch, features)")
        for leaf, result in zip(leaves, results[1:], strict=True):
            if result.shape != leaf.shape or result.dtype != leaf.dtype:
                before, after = tuple(leaf.shape[1:]), tuple(result.shape[1:])
                raise UnsupportedError(f"its state changes from {before} {leaf.dtype} to {after} {result.dtype} a row")
        constants = Constants(self.needed(), list(self.outputs))
        return Traced(outputs, tuple(states), constants, self.input_size, tuple(self.noise))

    def row(self, result: Tensor) -> Node:
        """A result of the step, which must have the batch first."""
        if not isinstance(result, Tensor):
            raise UnsupportedError("it returns something else than tensors")
        value = self.value(torch._from_functional_tensor(result) if torch._is_functional_tensor(result) else result)
        if not isinstance(value, Node):
            raise UnsupportedError("an output or a part of the new state does not depend on inputs or state")
        if tuple(result.shape[:1]) != (self.batch,) or result.dim() < 2 or result.dtype != self.dtype:
            raise UnsupportedError("an output or a part of the new state is not (batch, features) of the inputs' type")
        return value

    def needed(self) -> list[Call]:
        """The calls behind the constants that expressions use."""
        wanted = set(self.outputs)
        calls = []
        for call in reversed(self.calls):
            mutated = set(slots(call.args[:1])) if call.operator._schema.is_mutable else set()
            if wanted & (set(slots(call.results)) | mutated):
                wanted.update(slots((call.args, call.options)))
                calls.append(call)
        return calls[::-1]

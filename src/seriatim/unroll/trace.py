"""From a step written in torch to expressions."""

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx
from torch.func import functionalize
from torch.fx.experimental.proxy_tensor import make_fx

from ..state import State, map_state, state_leaves
from .expressions import Matrix, Node, cut, elementwise, node, number
from .operators import OPERATORS, Unsupported, total
from .primitives import add, mul

Step = Callable[[Sequence[Tensor], Tensor, State], tuple[Tensor, State]]
"""(weights, inputs (batch, input_size), state) to outputs (batch, output_size) and the next state."""

FACTORIES = {"zeros": 0.0, "ones": 1.0, "new_zeros": 0.0, "new_ones": 1.0}
LIKELY_PRIMES = (7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71, 73, 79, 83)


class Traced(NamedTuple):
    """One step as expressions."""

    outputs: Node
    states: tuple[Node, ...]
    """The state after the step, part by part."""
    constants: fx.GraphModule
    """Computes what depends on weights alone: all weights to the list that ``vector`` and `Matrix` point into."""
    input_size: int


def trace(step: Step, weights: Sequence[Tensor], inputs: Tensor, state: State) -> Traced:
    """Writes one step down as expressions, by running it on tensors without values.

    Args:
        step: what to trace.
        weights: its parameters and constants.
        inputs: ``(batch, input_size)``; only width, type and device matter.
        state: of one batch; likewise.

    Raises:
        Unsupported: the step does what expressions cannot say.
    """
    sizes = {size for tensor in (*weights, inputs, *state_leaves(state)) for size in tensor.shape[1:]}
    sizes |= {tensor.shape[0] for tensor in weights if tensor.dim()}
    first, second = [prime for prime in LIKELY_PRIMES if prime not in sizes][:2]
    traced = _trace_batch(step, weights, inputs, state, first)
    other = _trace_batch(step, weights, inputs, state, second)
    if (traced.outputs, traced.states) != (other.outputs, other.states):
        raise Unsupported("what it computes for a row depends on how many rows there are")
    return traced


def _trace_batch(step: Step, weights: Sequence[Tensor], inputs: Tensor, state: State, batch: int) -> Traced:
    def resized(tensor: Tensor) -> Tensor:
        return tensor.new_zeros(batch, *tensor.shape[1:])

    def flat(weights: Sequence[Tensor], inputs: Tensor, leaves: list[Tensor]) -> list[Tensor]:
        remaining = iter(leaves)
        outputs, new = step(weights, inputs, map_state(lambda _: next(remaining), state))
        map_state(lambda old, new: old, state, new)  # raises where the structure has changed
        return [outputs, *state_leaves(new)]

    leaves = [resized(leaf) for leaf in state_leaves(state)]
    given = ([weight.detach() for weight in weights], resized(inputs), leaves)
    try:
        with torch.no_grad():
            graph = make_fx(functionalize(flat), tracing_mode="fake")(*given).graph
    except Unsupported:
        raise
    except Exception as error:  # whatever a user's step raises, it raises again in the reference loop
        raise Unsupported(
            f"it cannot be traced: {str(error).strip().splitlines()[0] or type(error).__name__}"
        ) from None
    return _Converter(graph, len(weights), batch, leaves).run()


class _Converter:
    """Turns torch's graph of a step into expressions, one operator after another."""

    def __init__(self, graph: fx.Graph, num_weights: int, batch: int, leaves: Sequence[Tensor]) -> None:
        self.graph, self.batch, self.leaves = graph, batch, leaves
        self.num_weights = num_weights
        self.values: dict[fx.Node, Any] = {}
        self.outputs: dict[fx.Node, int] = {}

    def run(self) -> Traced:
        """Converts everything."""
        placeholders = [found for found in self.graph.nodes if found.op == "placeholder"]
        weights, (inputs, *leaves) = placeholders[: self.num_weights], placeholders[self.num_weights :]
        input_size = inputs.meta["val"].shape[1]
        self.values[inputs] = node("inputs", width=input_size)
        for i, (leaf, tensor) in enumerate(zip(leaves, self.leaves, strict=True)):
            self.values[leaf] = node("state", width=math.prod(tensor.shape[1:]), note=i)
        for found in self.graph.nodes:
            if found.op == "get_attr":
                raise Unsupported("it reads a tensor that is neither a parameter nor a buffer")
            if found.op == "call_function":
                self.convert(found)
        results = next(found for found in self.graph.nodes if found.op == "output").args[0]
        outputs, *states = [self.row(result) for result in results]
        for state, tensor, result in zip(states, self.leaves, results[1:], strict=True):
            found = result.meta["val"]
            if found.shape != tensor.shape or found.dtype != tensor.dtype or state.width == 0:
                raise Unsupported(f"its state changes from {tuple(tensor.shape[1:])} to {tuple(found.shape[1:])} a row")
        return Traced(outputs, tuple(states), self.constant_graph(weights), input_size)

    def row(self, found: fx.Node) -> Node:
        """A result of the step, which must have the batch first."""
        value = self.values.get(found)
        if not isinstance(value, Node):
            raise Unsupported("an output or a part of the new state does not depend on inputs or state")
        if tuple(found.meta["val"].shape[:1]) != (self.batch,):
            raise Unsupported("an output or a part of the new state has not the batch as its first dimension")
        return value

    def convert(self, found: fx.Node) -> None:
        """One operator: of weights alone it stays torch's, else it becomes expressions."""
        target = found.target
        if target is operator.getitem:
            source, index = found.args
            if source in self.values:
                self.values[found] = self.values[source][index]
            return
        assert isinstance(target, torch._ops.OpOverload)
        name = target.overloadpacket.__name__
        if torch.Tag.nondeterministic_seeded in target.tags:
            self.values[found] = self.random(found, name)
        elif any(source in self.values for source in found.all_input_nodes):
            self.convert_call(found, name)
        elif self.batch in _shape(found):
            if name not in FACTORIES and name not in ("full", "new_full", "scalar_tensor"):
                raise Unsupported(f"it makes a tensor of {self.batch} rows by {name}")
            fill = FACTORIES.get(name, next((a for a in found.args[::-1] if isinstance(a, int | float)), 0.0))
            self.values[found] = number(float(fill), math.prod(_shape(found)[1:]))
        elif name == "scalar_tensor":
            self.values[found] = number(float(found.args[0]))

    def random(self, found: fx.Node, name: str) -> Node:
        """Random numbers, which may be drawn for all steps before the loop: uniform ones, or 1 with a probability."""
        shape = _shape(found)
        if name not in ("rand_like", "rand", "bernoulli") or len(shape) != 2 or shape[0] != self.batch:
            raise Unsupported(f"it draws random numbers by {name}; rand_like and dropout are known to it")
        noise = node("noise", width=shape[1], note=len(self.values))
        if name != "bernoulli":
            return noise
        if len(found.args) < 2 or not isinstance(found.args[1], float | int):
            raise Unsupported("it draws random numbers whose probabilities are no constants")
        return node("lt", noise, number(found.args[1]))

    def convert_call(self, found: fx.Node, name: str) -> None:
        """An operator on what depends on inputs or state."""
        if name == "copy_" or (name.endswith("_") and found.args[0].op == "placeholder"):
            raise Unsupported("it changes its inputs or its state in place")
        name = name.rstrip("_") if name not in OPERATORS else name
        if name in ("mm", "addmm", "mv"):
            result = self.product(name, found.args)
        elif name in ("select", "unbind"):
            result = self.taken_apart(name, found.args)
        elif name in OPERATORS:
            result = self.call(name, found)
        else:
            raise Unsupported(f"{name} is not among the operations it knows")
        self.values[found] = result
        if found.args and isinstance(found.target, torch._ops.OpOverload) and found.target._schema.is_mutable:
            self.values[found.args[0]] = result
        if isinstance(result, Node):
            self.check(found, name, result)

    def call(self, name: str, found: fx.Node) -> Any:
        """An operator from the table."""
        args = [self.argument(arg) for arg in found.args]
        options = {key: self.argument(arg) for key, arg in found.kwargs.items()}
        if name in ("_to_copy", "clone", "zeros_like", "ones_like", "full_like", "contiguous"):
            self.check_type(found)
            options = {}
        try:
            return OPERATORS[name](*args, **options)
        except (TypeError, AttributeError, KeyError):
            raise Unsupported(f"{name} in this form is not among the operations it knows") from None

    def check_type(self, found: fx.Node) -> None:
        """Numbers stay in the state's type; truth values may become numbers."""
        before = found.args[0].meta["val"].dtype
        after = found.meta["val"].dtype
        if after != before and not (before == torch.bool and after.is_floating_point):
            raise Unsupported(f"it changes the type of a value from {before} to {after}")

    def check(self, found: fx.Node, name: str, result: Node) -> None:
        """Whether torch's shape is what flat rows have: no rows mixed, no dimension broadcast that is not flat."""
        shape = _shape(found)
        if not shape or shape[0] != self.batch or math.prod(shape[1:]) != result.width:
            raise Unsupported(f"{name} gives the shape {('batch', *shape[1:])}; only rows of features are known to it")
        if len(shape) > 2 and elementwise(result):
            for source in found.all_input_nodes:
                if source in self.values and _shape(source) != shape and math.prod(_shape(source)[1:]) != 1:
                    raise Unsupported(f"{name} broadcasts over more than the features of a row")

    def argument(self, given: Any) -> Any:
        """An argument of an operator as an expression, a number, or a list of these."""
        if isinstance(given, list | tuple):
            return [self.argument(item) for item in given]
        if not isinstance(given, fx.Node):
            return given
        return self.values[given] if given in self.values else self.vector(given)

    def vector(self, given: fx.Node) -> Node:
        """A constant that is the same for every row."""
        shape = _shape(given)
        if any(size != 1 for size in shape[:-1]):
            raise Unsupported(
                f"a constant of shape {shape} meets rows of features; one of shape {shape[-1:]} would fit"
            )
        return node("vector", width=shape[-1] if shape else 1, note=self.constant(given))

    def constant(self, given: fx.Node) -> int:
        """Where in the list of constants a value stands."""
        return self.outputs.setdefault(given, len(self.outputs))

    def product(self, name: str, args: Sequence[Any]) -> Node:
        """Rows times a constant matrix, or times a constant vector."""
        bias, rows, matrix = args if name == "addmm" else (None, *args)
        if rows not in self.values or matrix in self.values:
            raise Unsupported("a product of something other than rows with a constant matrix")
        if name == "mv":
            return total(mul(self.values[rows], self.vector(matrix)))
        columns = _shape(matrix)[1]
        factor = Matrix(self.constant(matrix), 0, columns)
        result = node("product", self.values[rows], width=columns, note=factor)
        return result if bias is None else add(result, self.argument(bias))

    def taken_apart(self, name: str, args: Sequence[Any]) -> Any:
        """``(batch, n, ...)`` along its second dimension."""
        rows, dim = args[0], args[1] if len(args) > 1 else 0
        shape, value = _shape(rows), self.values[rows]
        if dim % len(shape) != 1:
            raise Unsupported(f"{name} along something other than the second dimension")
        width = value.width // shape[1]
        if name == "select":
            return cut(value, args[2] % shape[1] * width, width)
        return [cut(value, i * width, width) for i in range(shape[1])]

    def constant_graph(self, weights: Sequence[fx.Node]) -> fx.GraphModule:
        """What depends on weights alone, as a function of them."""
        graph = fx.Graph()
        copies: dict[fx.Node, fx.Node] = {}
        wanted = list(self.outputs)
        needed, stack = set(weights), list(wanted)
        while stack:
            found = stack.pop()
            if found not in needed:
                needed.add(found)
                stack.extend(found.all_input_nodes)
        for found in self.graph.nodes:
            if found in needed:
                copies[found] = graph.node_copy(found, copies.__getitem__)
        graph.output([copies[found] for found in wanted])
        return fx.GraphModule({}, graph)


def _shape(found: fx.Node) -> tuple[int, ...]:
    value = found.meta.get("val")
    return tuple(value.shape) if isinstance(value, Tensor) else ()

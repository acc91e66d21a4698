"""Watching a model from outside: its leaves taken step by step, every state kept.

Nothing in a model knows of this. Hooks replace what a leaf's `forward` gives by the same computed one step after
another (the second law says that it is the same), so that the state after every step can be looked at and
differentiated; where a model calls `step` itself, for which torch has no hooks, a function of ours stands in its place
for as long as the recording lasts. Afterwards nothing of either is left.
"""

import inspect
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ..core.contract import SequenceLayer
from ..core.lengths import run_by_length
from ..core.state import State, map_state
from ..recurrence.obstacles import uncompiled
from .leaves import Leaf, keeps_numbers, leaves

Watch = Callable[[], AbstractContextManager[Any]]
"""Entered around every step; what it gives is kept beside the state."""


@dataclass
class Steps:
    """What one leaf did. Where rows differ in length, those that have ended are missing, the longest comes first.

    Attributes:
        leaf: which.
        before: the state given to the first step; None where there was none.
        states: the state after every step. What a leaf hands on as it was given it is the same tensor.
        noted: what ``watch`` gave at every step.
        inputs: of a leaf that is not causal, and has no steps: what it read ``(batch, time, input_size)``.
    """

    leaf: Leaf
    before: State | None = None
    states: list[State] = field(default_factory=list)
    noted: list[Any] = field(default_factory=list)
    inputs: Tensor | None = None


@contextmanager
def unrolled(model: nn.Module, *, watch: Watch = nullcontext) -> Iterator[list[Steps]]:
    """Within it every leaf that keeps something of its inputs is run one step after another, and recorded.

    Outputs are the same, to rounding; all is plain PyTorch. Every state is a tensor of its own, handed to the next step
    and to nothing else: the gradient with respect to it says what the loss owes to what was *kept*, not to what was
    given out meanwhile.

    Args:
        model: any module; its sequence layers are looked for.
        watch: entered around every step.

    Returns:
        What each leaf has done, filled while the model runs, in the order of `leaves`.
    """
    unrollers = [_Unroller(leaf, watch) for leaf in leaves(model) if keeps_numbers(leaf.layer)]
    with ExitStack() as stack:
        stack.enter_context(uncompiled())
        for unroller in unrollers:
            stack.enter_context(unroller.standing())
        yield [unroller.steps for unroller in unrollers]


class _Unroller:
    """Takes one leaf step by step."""

    def __init__(self, leaf: Leaf, watch: Watch) -> None:
        self.layer, self.watch, self.steps = leaf.layer, watch, Steps(leaf)
        self.once = leaf.layer.step
        self.signature = inspect.signature(leaf.layer.forward)
        self.stepping = False
        self.withheld: tuple[Tensor, State, Tensor | None]

    @contextmanager
    def standing(self) -> Iterator[None]:
        """Within it the leaf is watched."""
        if self.layer.causal:
            hooks = [
                self.layer.register_forward_pre_hook(self.withhold, with_kwargs=True),
                self.layer.register_forward_hook(self.replace),
            ]
            vars(self.layer)["step"] = self.step
        else:
            hooks = [self.layer.register_forward_pre_hook(self.keep_inputs, with_kwargs=True)]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()
            vars(self.layer).pop("step", None)

    def withhold(self, layer: SequenceLayer, args: Any, kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Gives `forward` no inputs, so that nothing is computed twice."""
        if self.stepping:  # a leaf whose step is a forward of one input
            return None
        inputs, state, lengths = self.given(args, kwargs)
        state, lengths = layer.admit(inputs, state, lengths)
        self.withheld = inputs, state, lengths
        return (inputs[:, :0], state), {}

    def replace(self, _layer: SequenceLayer, _args: Any, output: Any) -> tuple[Tensor, State]:
        """What `forward` would have given, step by step."""
        if self.stepping or 0 in self.withheld[0].shape[:2]:
            return output  # type: ignore[no-any-return]
        inputs, state, lengths = self.withheld
        if lengths is None:
            return self.run(inputs, state)
        return run_by_length(self.run, inputs, state, lengths)

    def keep_inputs(self, _layer: SequenceLayer, args: Any, kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Gives the leaf inputs that are a tensor of its own."""
        inputs, state, lengths = self.given(args, kwargs)
        self.steps.inputs = _by_itself(inputs)
        return (self.steps.inputs, state), {"lengths": lengths}

    def given(self, args: Any, kwargs: Any) -> tuple[Tensor, State | None, Tensor | None]:
        """Inputs, state and lengths of a call."""
        found = self.signature.bind(*args, **kwargs).arguments
        return found["inputs"], found.get("state"), found.get("lengths")

    def run(self, inputs: Tensor, state: State) -> tuple[Tensor, State]:
        """Over a batch without padding."""
        outputs = []
        for x_t in inputs.unbind(1):
            output, state = self.step(x_t, state)
            outputs.append(output)
        return torch.stack(outputs, dim=1), state

    def step(self, inputs: Tensor, state: State) -> tuple[Tensor, State]:
        """One step, recorded."""
        if self.stepping:
            return self.once(inputs, state)
        self.stepping = True
        try:
            with self.watch() as noted:
                outputs, after = self.once(inputs, state)
        finally:
            self.stepping = False
        after = map_state(lambda new, old: new if new is old else _by_itself(new), after, state)
        if self.steps.before is None:
            self.steps.before = state
        self.steps.states.append(after)
        self.steps.noted.append(noted)
        return outputs, after


def _by_itself(tensor: Tensor) -> Tensor:
    """The same numbers as a tensor of its own, by which a loss can be differentiated."""
    view = tensor.view_as(tensor)
    return view.requires_grad_() if torch.is_grad_enabled() and tensor.is_floating_point() else view

"""Run a model over tokens whose values do not matter, to measure the size of its state and its speed."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..core.contract import MemoryLayer, SequenceLayer
from ..core.state import State
from .base_models import NeuralModel, TextModel, input_layer
from .encoder_decoder import EncoderDecoder

PIECE = 256  # tokens read at once on the way to a state


@dataclass(frozen=True)
class Stepper:
    """A model that reads one sequence token by token.

    ``begin`` maps the number of source tokens, which only a decoder uses, to the state before the first token.
    ``reads_source`` says whether the model decodes a source, so that its state depends on the length of the source.
    """

    model: TextModel | EncoderDecoder | SequenceLayer
    begin: Callable[[int], State]
    reads_source: bool = False

    def read(self, count: int, state: State) -> State:
        """Return the state after ``count`` tokens more."""
        for start in range(0, count, PIECE):
            _, state = self.model(any_inputs(self.model, min(PIECE, count - start)), state)
        return state

    def step(self, state: State) -> None:
        """Compute one step from a state, which stays as it is."""
        self.model.step(any_inputs(self.model, 1)[:, 0], state)


def stepper_of(model: nn.Module) -> Stepper | None:
    """Return a stepper over a language model, a decoder, or the layer that reads the input of another model.

    None is returned where that layer needs later inputs or a memory, and where a target is predicted at once.
    """
    if isinstance(model, TextModel):
        return Stepper(model, lambda _: model.initial_state(1))
    if isinstance(model, EncoderDecoder):
        return Stepper(model, lambda tokens: model.encode(any_ids(model, tokens)), reads_source=True)
    layer = getattr(model, "layer", None) if isinstance(model, NeuralModel) else None
    if not isinstance(layer, SequenceLayer) or isinstance(layer, MemoryLayer) or not layer.causal:
        return None
    return Stepper(layer, lambda _: layer.initial_state(1))


def reading_module(model: nn.Module) -> nn.Module | None:
    """Return the part of a model that reads a text: all of a language model, or the layer that reads the input."""
    return model if isinstance(model, TextModel) else input_layer(model)


def read_at_once(module: nn.Module, count: int) -> None:
    """Read a text of ``count`` tokens with a layer or a language model."""
    if isinstance(module, TextModel):
        module(any_ids(module, count), module.initial_state(1))
    else:
        module(any_inputs(module, count))


def any_inputs(module: nn.Module, count: int) -> Tensor:
    """Return inputs of a module: embeddings ``(1, count, input_size)`` for a layer, else ids ``(1, count)``."""
    if not isinstance(module, SequenceLayer):
        return any_ids(module, count)
    return torch.sin(torch.arange(count * module.input_size, device=_device(module))).view(1, count, -1)


def any_ids(module: nn.Module, count: int) -> Tensor:
    """Return ids of tokens ``(1, count)`` other than the boundary."""
    return (torch.arange(count, device=_device(module)) % 2 + 1).unsqueeze(0)


def _device(module: nn.Module) -> torch.device | None:
    return next((parameter.device for parameter in module.parameters()), None)  # a layer may have no parameters

"""Computes the initial state of a decoder from its encoder.

I. Sutskever, O. Vinyals and Q. Le, "Sequence to sequence learning with neural networks", NeurIPS 2014 (the encoder's
last state); K. Cho et al., "Learning phrase representations using RNN encoder-decoder", EMNLP 2014 (a map of it).

    map    every vector of the state is tanh(W c + b), each with its own W and b; c summarizes the memory
    copy   the last state of the encoder, whose layer has the same structure and widths
    none   the initial state of the decoder's layer
"""

import torch
from torch import Tensor, nn

from ..core.contract import SequenceLayer
from ..core.errors import InputError, nearest
from ..core.state import State, fits, map_state, state_leaves

BRIDGES = ("map", "copy", "none")
SUMMARIES = ("last", "ends", "mean")


def summarise(memory: Tensor, lengths: Tensor, summary: str) -> Tensor:
    """Reduce each row of a memory to one vector; rows of length 0 become zeros.

    Args:
        memory: an encoder's outputs ``(batch, memory_time, memory_size)``, zero on padding.
        lengths: ``(batch,)``.
        summary: `last`, the last valid output; `ends`, for a bidirectional encoder the last output of each direction:
            the first half of the features at the last position, the second half at the first position; `mean`.

    Returns:
        ``(batch, memory_size)``.
    """
    batch_size, time, size = memory.shape
    if time == 0:
        return memory.new_zeros(batch_size, size)
    if summary == "mean":
        return memory.sum(1) / lengths.clamp(min=1).unsqueeze(1)
    last = memory[torch.arange(batch_size, device=memory.device), (lengths - 1).clamp(min=0)]
    if summary == "ends":
        half = size // 2
        return torch.cat([last[:, :half], memory[:, 0, half:]], dim=1)
    return last


class Bridge(nn.Module):
    """Computes the initial state of a decoder's layer.

    Args:
        layer: the decoder's layer.
        memory_size: width of the summary.
        kind: one of `BRIDGES`. Only vectors ``(batch, size)`` in a state are mapped.

    Raises:
        InputError: the kind is unknown.
    """

    def __init__(self, layer: SequenceLayer, memory_size: int, *, kind: str) -> None:
        super().__init__()
        if kind not in BRIDGES:
            raise InputError(f"unknown bridge {kind!r}; {nearest(kind, list(BRIDGES))}")
        self.kind = kind
        leaves = state_leaves(layer.initial_state(1))
        self.shapes = [leaf.shape for leaf in leaves]
        widths = [leaf.shape[1] for leaf in leaves if _is_vector(leaf)]
        self.maps = nn.ModuleList(linear(memory_size, width) for width in widths if kind == "map")

    def forward(self, start: State, summary: Tensor, encoder_state: State | None) -> State:
        """Return the initial state.

        Args:
            start: the initial state of the layer.
            summary: ``(batch, memory_size)``.
            encoder_state: the state after the encoder's last input, for `copy`.

        Raises:
            ValueError: the encoder's state is missing or has another structure.
        """
        if self.kind == "none":
            return start
        if self.kind == "map":
            maps = iter(self.maps)
            return map_state(lambda leaf: torch.tanh(next(maps)(summary)) if _is_vector(leaf) else leaf, start)
        if encoder_state is None:
            raise ValueError("bridge copy needs the encoder's last state; give initial_state(..., encoder_state=state)")
        self.check(encoder_state)
        leaves = iter(state_leaves(encoder_state))
        return map_state(lambda _: next(leaves), start)

    def check(self, encoder_state: State) -> None:
        """Raise InputError if an encoder's state differs from the decoder's state in structure."""
        shapes = [leaf.shape for leaf in state_leaves(encoder_state)]
        if len(shapes) != len(self.shapes) or not all(map(fits, shapes, self.shapes)):
            source, target = ([tuple(shape[1:]) for shape in part] for part in (shapes, self.shapes))
            raise InputError(
                f"bridge copy: the encoder keeps {source}, the decoder {target}; give both layers of one kind and "
                "size, or take the bridge map"
            )


def _is_vector(leaf: Tensor) -> bool:
    return leaf.dim() == 2 and leaf.shape[1] > 0 and leaf.is_floating_point()


def linear(input_size: int, output_size: int, *, bias: bool = True) -> nn.Linear:
    """Return a linear map with Glorot-uniform weights and a bias of zero."""
    layer = nn.Linear(input_size, output_size, bias=bias)
    nn.init.xavier_uniform_(layer.weight)
    if bias:
        nn.init.zeros_(layer.bias)
    return layer

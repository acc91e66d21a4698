"""Attention to a memory, such as an encoder's outputs.

D. Bahdanau, K. Cho and Y. Bengio, "Neural machine translation by jointly learning to align and translate", ICLR 2015;
with heads: A. Vaswani et al., "Attention is all you need", NeurIPS 2017.

    head_i = softmax(score(x W_i^Q, m W_i^K)) m W_i^V,    y = [head_1; …; head_H] W^O

x inputs · m memory · W^Q ``q_proj`` · W^K, W^V ``kv_proj``, one below another · W^O ``o_proj``. The memory enters
through `initial_state`, is mapped once, and lives in the state.
"""

from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from ..core.contract import MemoryLayer
from ..core.errors import InputError
from ..core.lengths import check_lengths, valid_mask, zero_padding
from ..core.state import State
from .attention import heads
from .option_types import Size
from .path_lengths import direct_paths
from .scoring import Score, attend, scoring


class Memory(NamedTuple):
    """What is attended to: heads of keys, then of values ``(batch, 2 · heads, time, size)``; how many ``(batch,)``."""

    kept: Tensor
    lengths: Tensor


class CrossAttention(MemoryLayer):
    """Multi-head attention to the memory given to `initial_state`.

    Args:
        input_size: width of an input.
        hidden_size: width of an output, shared out among the heads.
        memory_size: width of the memory; None for ``hidden_size``.
        num_heads: None for as many as leave each at least `attention.HEAD_SIZE` features.
        score: `dot`, `scaled-dot`, `bilinear` or `additive`.
        bias: whether the maps have biases.

    Raises:
        ValueError: heads that do not divide the width, or an unknown score.
    """

    keeps = "keys and values of the memory"
    paper = "Bahdanau et al. 2015; Vaswani et al. 2017"
    parallel = True

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        memory_size: Size | None = None,
        num_heads: Size | None = None,
        score: Score = "scaled-dot",
        bias: bool = False,
    ) -> None:
        super().__init__()
        self.input_size, self.output_size = input_size, hidden_size
        self.memory_size = hidden_size if memory_size is None else memory_size
        if self.memory_size < 1:
            raise InputError(f"memory_size must be at least 1; got {memory_size}")
        self.num_heads = heads(hidden_size, num_heads)
        head_size = hidden_size // self.num_heads
        self.q_proj = nn.Linear(input_size, hidden_size, bias=bias)
        self.kv_proj = nn.Linear(self.memory_size, 2 * hidden_size, bias=bias)
        self.o_proj = nn.Linear(hidden_size, hidden_size, bias=bias)
        self.score = scoring(score, head_size, head_size, num_heads=self.num_heads)

    def initial_state(
        self,
        batch_size: int,
        memory: Tensor | None = None,
        memory_lengths: Tensor | None = None,
        *,
        encoder_state: State | None = None,
    ) -> State:
        """The memory ``(batch, memory_time, memory_size)``, mapped to keys and values.

        Raises:
            ValueError: none is given, or it does not fit.
        """
        if memory is None:
            raise ValueError(
                "cross-attention needs a memory to attend to; give initial_state(batch_size, memory, memory_lengths)"
            )
        if memory.dim() != 3 or (memory.shape[0], memory.shape[2]) != (batch_size, self.memory_size):
            raise ValueError(
                f"memory must have shape ({batch_size}, memory_time, {self.memory_size}); got {tuple(memory.shape)}"
            )
        lengths = check_lengths(memory_lengths, batch_size, memory.shape[1])
        memory = zero_padding(memory, lengths)
        if lengths is None:
            lengths = torch.full((batch_size,), memory.shape[1])
        kept = self.kv_proj(memory).unflatten(2, (2 * self.num_heads, -1)).transpose(1, 2)  # (B, 2H, S, D)
        return Memory(kept.contiguous(), lengths.to(memory.device, copy=True))

    def forward(
        self, inputs: Tensor, state: State | None = None, *, lengths: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """Attends from ``(batch, time, input_size)`` to the memory in the state, which does not change.

        Raises:
            ValueError: no state, and so no memory.
        """
        inputs, state, lengths = self.begin(inputs, state, lengths)
        kept, memory_lengths = cast(Memory, state)
        if 0 in inputs.shape[:2]:
            return inputs.new_zeros(*inputs.shape[:2], self.output_size), state
        queries = self.q_proj(inputs).unflatten(2, (self.num_heads, -1)).transpose(1, 2)  # (B, H, T, D)
        attended = self.look(queries, kept, memory_lengths) if kept.shape[2] else torch.zeros_like(queries)
        return zero_padding(self.o_proj(attended.transpose(1, 2).flatten(2)), lengths), state

    def path_lengths(self, distance: int) -> Tensor:
        """Only the present input is seen; all else comes from the memory."""
        return direct_paths(distance, 0)

    def look(self, queries: Tensor, kept: Tensor, memory_lengths: Tensor) -> Tensor:
        """What queries ``(B, H, T, D)`` find in the memory: ``(B, H, T, D)``, zero where a row has none."""
        keys, values = kept.chunk(2, dim=1)
        if int(memory_lengths.min()) == kept.shape[2]:
            return attend(self.score, queries, keys, values)
        seen = memory_lengths.clamp(min=1)  # a row without memory looks at padding, and what it finds is dropped
        mask = valid_mask(seen, kept.shape[2]).view(len(seen), 1, 1, -1)
        attended = attend(self.score, queries, keys, values, mask=mask)
        return attended.masked_fill((memory_lengths == 0).view(-1, 1, 1, 1), 0)

"""Attention to a memory, such as an encoder's outputs.

D. Bahdanau, K. Cho and Y. Bengio, "Neural machine translation by jointly learning to align and translate", ICLR 2015;
with heads: A. Vaswani et al., "Attention is all you need", NeurIPS 2017.

    head_i = softmax(score(x W_i^Q, m W_i^K)) m W_i^V,    y = [head_1; …; head_H] W^O

x inputs · m memory · W^Q ``q_proj`` · W^K, W^V ``kv_proj``, stacked · W^O ``o_proj``. `initial_state` receives the
memory and maps it once; the state holds its keys and values. Simplified: there is no dropout on the attention weights.
"""

from typing import cast

import torch
from torch import Tensor, nn

from ..core.contract import MemoryLayer
from ..core.exporting import exporting
from ..core.key_value_cache import KeyValueMemory
from ..core.lengths import valid_mask, zero_padding
from ..core.state import OutputsAndState, State
from ..core.step_operators import NotTraceableError, tracing_step
from .attention import heads
from .option_types import Size, check_sizes
from .path_lengths import direct_paths
from .scoring import Dot, Score, attend, scoring


class CrossAttention(MemoryLayer):
    """Multi-head attention to the memory given to `initial_state`.

    Args:
        hidden_size: width of an output, divided among the heads.
        memory_size: width of the memory; None for ``hidden_size``.
        num_heads: None for as many as leave each at least `attention.HEAD_SIZE` features.
        score: `dot`, `scaled-dot`, `bilinear` or `additive`.
        bias: whether the maps have biases.
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
        check_sizes(memory_size=self.memory_size)
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
        """Map the memory ``(batch, memory_time, memory_size)`` to keys and values; see `MemoryLayer.initial_state`."""
        memory, lengths = self.check_memory(batch_size, memory, memory_lengths, self.memory_size)
        entries = self.kv_proj(memory).unflatten(2, (2 * self.num_heads, -1)).transpose(1, 2)  # (B, 2H, S, D)
        return KeyValueMemory(entries.contiguous(), lengths)

    def forward(self, inputs: Tensor, state: State | None = None, *, lengths: Tensor | None = None) -> OutputsAndState:
        """Attend from ``(batch, time, input_size)`` to the memory in the state, which must be given."""
        inputs, state, lengths = self.begin(inputs, state, lengths)
        entries, memory_lengths = cast(KeyValueMemory, state)
        if 0 in inputs.shape[:2]:
            return inputs.new_zeros(*inputs.shape[:2], self.output_size), state
        queries = self.q_proj(inputs).unflatten(2, (self.num_heads, -1)).transpose(1, 2)  # (B, H, T, D)
        if tracing_step():
            if not isinstance(self.score, Dot):
                raise NotTraceableError("attention is compiled if its scores are dot products")
            of_rows = queries.squeeze(2), entries, memory_lengths, self.score.scale
            attended = torch.ops.seriatim.attend_to_memory(*of_rows).unsqueeze(2)  # see `seriatim.core.step_operators`
        else:
            attended = self.attend(queries, entries, memory_lengths) if entries.shape[2] else torch.zeros_like(queries)
        return zero_padding(self.o_proj(attended.transpose(1, 2).flatten(2)), lengths), state

    def path_lengths(self, distance: int) -> Tensor:
        """Return the path lengths: of the inputs only the present one is seen."""
        return direct_paths(distance, 0)

    def attend(self, queries: Tensor, entries: Tensor, memory_lengths: Tensor) -> Tensor:
        """Return the attention of queries ``(B, H, T, D)`` to the memory; it is zero where a row has no memory."""
        keys, values = entries.chunk(2, dim=1)
        if not exporting() and int(memory_lengths.min()) == entries.shape[2]:
            return attend(self.score, queries, keys, values)
        seen = memory_lengths.clamp(min=1)  # a row without memory attends to padding; its output is set to zero below
        mask = valid_mask(seen, entries.shape[2]).view(-1, 1, 1, entries.shape[2])
        attended = attend(self.score, queries, keys, values, mask=mask)
        return attended.masked_fill((memory_lengths == 0).view(-1, 1, 1, 1), 0)

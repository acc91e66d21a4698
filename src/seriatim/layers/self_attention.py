"""Self-attention in its bare textbook form, without parameters, for teaching.

A. Vaswani et al., "Attention is all you need", NeurIPS 2017, without the maps of queries, keys and values:

    α_ij = softmax over j ≤ i of x_i·x_j,    y_i = Σ_{j≤i} α_ij x_j

x ``inputs`` · y ``outputs``. Without the causal mask, permuted inputs give permuted outputs: unlike a recurrence, this
layer does not know the order of its inputs unless ``position`` is given.
"""

import torch
from torch import Tensor

from ..core.errors import MismatchError
from ..core.key_value_cache import KeyValueCache
from .attention_base import AttentionBase
from .option_types import Size
from .positions import Position, positions
from .scoring import Dot


class SelfAttentionCache(KeyValueCache):
    """The state of a `SelfAttention`."""


class SelfAttention(AttentionBase):
    """Attention whose queries, keys and values are the inputs; both widths are the same.

    Args:
        causal: whether the future is hidden.
        window: the number of inputs that are seen, including the present one; None for all.
        scaled: divide the scores by the square root of the width.
        position: `none`, `rotary` or `alibi`, by which scores depend on positions (`seriatim.layer` also takes
            `sinusoidal` and `learned`, which are added to the inputs).
    """

    keeps = "all inputs, or a window of them"
    state_type = SelfAttentionCache
    paper = "Vaswani et al. 2017, without its maps"
    square = True

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        causal: bool = True,
        window: Size | None = None,
        scaled: bool = False,
        position: Position = "none",
    ) -> None:
        super().__init__(causal=causal, window=window, position=position, num_heads=1, head_size=input_size)
        if input_size != hidden_size:
            raise MismatchError(
                f"hidden_size: {hidden_size} is not input_size, which bare self-attention keeps; give {input_size}"
            )
        self.input_size = self.output_size = self.cache_size = input_size
        self.cache_heads = 1 if self.rotary is None else 2  # rotated keys differ from the values
        self.score = Dot(input_size**-0.5 if scaled else 1.0)
        self.register_buffer("like", torch.zeros(()), persistent=False)

    def project(self, inputs: Tensor, count: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the inputs, and a copy for the state, which must not change when the caller changes the tensor.

        With rotary positions, queries and keys are rotated and values are not.
        """
        values = inputs.unsqueeze(1)  # (B, 1, T, D)
        if self.rotary is None:
            return values, values, values, values.clone()
        rotated = self.rotary(values, positions(count, inputs.shape[1]), 1)
        return rotated, rotated, values, torch.cat([rotated, values], dim=1)

    def keys_values(self, entries: Tensor) -> tuple[Tensor, Tensor]:
        """Return the inputs as keys and as values; rotated keys have a head of their own."""
        return entries[:, :1], entries[:, -1:]

    def merge(self, attended: Tensor, inputs: Tensor) -> Tensor:
        """Return the output of the single head."""
        return attended.squeeze(1)

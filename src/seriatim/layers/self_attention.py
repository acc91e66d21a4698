"""Self-attention in its bare textbook form, for teaching: no parameters.

The form that A. Vaswani et al., "Attention is all you need", NeurIPS 2017 start from, without its maps:

    α_ij = softmax over j ≤ i of x_i·x_j,    y_i = Σ_{j≤i} α_ij x_j

x ``inputs`` · y ``outputs``. Without the causal mask, permuted inputs give permuted outputs: it does not know their
order, which a recurrence does, unless ``position`` says where each stands.
"""

import torch
from torch import Tensor

from ..core.errors import InputError, nearest
from .attending import Attending
from .option_types import Size
from .positions import RELATIVE, Position, Rotary, positions, slopes
from .scoring import Dot


class SelfAttention(Attending):
    """Attention whose queries, keys and values are the inputs themselves.

    Args:
        input_size: width of an input.
        hidden_size: the same width.
        causal: whether the future is hidden.
        window: inputs that are seen, the present one included; None for all.
        scaled: divides the scores by the square root of the width.
        position: `none`, `rotary` or `alibi`: what the scores know of positions (`seriatim.layer` also takes
            `sinusoidal` and `learned`, which are added to the inputs).

    Raises:
        ValueError: two widths, or a window of 0.
    """

    keeps = "all inputs, or a window of them"
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
        if position not in RELATIVE:
            raise InputError(f"unknown position {position!r}; {nearest(position, list(RELATIVE))}")
        super().__init__(causal=causal, window=window, slopes=slopes(1) if position == "alibi" else None)
        if input_size != hidden_size:
            raise InputError(
                f"bare self-attention gives what it takes: hidden_size must be {input_size}; got {hidden_size}"
            )
        self.input_size = self.output_size = self.kept_size = input_size
        self.rotary = Rotary(input_size) if position == "rotary" else None
        self.kept_heads = 1 if self.rotary is None else 2  # turned keys are not the values
        self.score = Dot(input_size**-0.5 if scaled else 1.0)
        self.register_buffer("like", torch.zeros(()), persistent=False)

    def project(self, inputs: Tensor, count: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The inputs themselves, and a copy: the state must not change when the caller changes the tensor.

        With rotary positions queries and keys are turned, and values are not.
        """
        values = inputs.unsqueeze(1)  # (B, 1, T, D)
        if self.rotary is None:
            return values, values, values, values.clone()
        turned = self.rotary(values, positions(count, inputs.shape[1]), 1)
        return turned, turned, values, torch.cat([turned, values], dim=1)

    def keys_values(self, kept: Tensor) -> tuple[Tensor, Tensor]:
        """The inputs themselves, twice, unless keys are turned."""
        return kept[:, :1], kept[:, -1:]

    def merge(self, attended: Tensor) -> Tensor:
        """The one head."""
        return attended.squeeze(1)

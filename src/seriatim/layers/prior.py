"""No context: the same output at every position, whatever the inputs.

C. Shannon, "A mathematical theory of communication", Bell System Technical Journal 27, 1948 (the first-order
approximation to English).

    h_t = c,    P(w_1 … w_T) = Π_t softmax(W c + b)_{w_t} = Π_t P(w_t)

A language model with this layer learns the frequency of each token; a classifier or a tagger learns the frequency of
each label and never reads the text. The layer was called ``unigram``; this name still works.

c ``constant``, learned · h ``outputs``. Nothing is simplified. In a block the residual connection passes on the present
input, and the model learns pairs of tokens.
"""

import torch
from torch import Tensor, nn

from ..core.contract import SequenceLayer
from ..core.lengths import zero_padding
from ..core.state import OutputsAndState, State


class Prior(SequenceLayer):
    """The same output at every step, whatever the inputs. The state is empty."""

    keeps = "nothing"
    parallel = True
    grows = False
    paper = "Shannon 1948"

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__()
        self.input_size, self.output_size = input_size, hidden_size
        self.constant = nn.Parameter(torch.randn(hidden_size))

    def initial_state(self, batch_size: int) -> State:
        """Return an empty tensor ``(batch, 0)``."""
        return self.zeros(batch_size, 0)

    def forward(self, inputs: Tensor, state: State | None = None, *, lengths: Tensor | None = None) -> OutputsAndState:
        """Return the constant for each of ``(batch, time, input_size)``; see `SequenceLayer.forward`."""
        inputs, state, lengths = self.begin(inputs, state, lengths)
        outputs = self.constant.expand(*inputs.shape[:2], self.output_size)
        return zero_padding(outputs, lengths), state

    def path_lengths(self, distance: int) -> Tensor:
        """Return infinity everywhere: no output depends on an input."""
        return torch.full((distance + 1,), torch.inf, dtype=torch.float64)

"""The feed-forward network over a window: the neural n-gram model.

Y. Bengio, R. Ducharme, P. Vincent and C. Jauvin, "A neural probabilistic language model", JMLR 3, 2003.

    x = [e_{t−n+2}; …; e_t],  h_t = g(W_h x + b)

A language model predicts from the last n − 1 words. e ``inputs``, embeddings, zero before the first ·
n − 1 ``context`` · W_h, b ``hidden`` · g ``activation`` · h ``outputs``. Simplified: there are no direct connections
from x to the softmax, as in the authors' best models.
"""

from torch import Tensor, nn

from ..core.state import State
from .option_types import Size, check_sizes
from .path_lengths import direct_paths
from .pointwise import Activation, activation_named
from .unpadded_layer import UnpaddedLayer, remember


class Window(UnpaddedLayer):
    """A feed-forward network over the last inputs. The state is the inputs before the present one.

    Args:
        context: the number of inputs that are seen, including the present one.
        activation: the name of g.
        bias: whether there is a bias.
    """

    keeps = "the last inputs of its context"
    parallel = True
    grows = False
    paper = "Bengio et al. 2003"

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        context: Size = 5,
        activation: Activation = "tanh",
        bias: bool = True,
    ) -> None:
        super().__init__()
        check_sizes(context=context)
        self.input_size, self.output_size, self.context = input_size, hidden_size, context
        self.g = activation_named(activation)
        self.hidden = nn.Linear(context * input_size, hidden_size, bias=bias)

    def initial_state(self, batch_size: int) -> State:
        """Return zeros ``(batch, context − 1, input_size)``."""
        return self.zeros(batch_size, self.context - 1, self.input_size)

    def forward_unpadded(self, inputs: Tensor, state: State) -> tuple[Tensor, State]:
        """Run over a batch without padding; see `UnpaddedLayer`."""
        assert isinstance(state, Tensor)
        extended, state = remember(inputs, state)
        windows = extended.unfold(1, self.context, 1).transpose(2, 3).flatten(2)  # (B, T, context · input_size)
        return self.g(self.hidden(windows)), state

    def path_lengths(self, distance: int) -> Tensor:
        """Return the path lengths: every input of the window is seen directly."""
        return direct_paths(distance, self.context - 1)

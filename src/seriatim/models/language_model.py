"""A neural language model: P(w₁…w_T) = Π P(w_t | w_<t), with any causal sequence layer.

    x_t = E[w_{t−1}],  h_t = layer(x_t, state),  P(w_t | w_<t) = softmax(W h_t + b)

With tied weights W is E (O. Press and L. Wolf 2017; H. Inan et al. 2017).
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from ..config import Model
from ..core.contract import MemoryLayer, SequenceLayer
from ..core.errors import InputError
from ..core.lengths import check_lengths
from ..core.state import State
from ..layers.pointwise import dropout as make_dropout
from .base_models import LayerModel, TextModel, layer_from_config, on_positions, valid_positions
from .scheduled_sampling import sampled_features
from .softmax import summed_loss, token_losses


class LanguageModel(TextModel, LayerModel):
    """Token ids ``(batch, time)`` to logits ``(batch, time, vocabulary)``, with the contract of a sequence layer.

    Args:
        layer: any causal sequence layer.
        vocabulary_size: number of token ids.
        tie_weights: use the embedding as the weight of the output layer.
        dropout: dropout rate of the embeddings and before the output layer.
        variational: use one dropout mask per sequence instead of one per step.
        output_bias: whether the output layer has the bias b.

    Raises:
        InputError: the layer is not causal or needs a memory, or weights of different widths are tied.
    """

    def __init__(
        self,
        layer: SequenceLayer,
        vocabulary_size: int,
        *,
        tie_weights: bool = False,
        dropout: float = 0.0,
        variational: bool = False,
        output_bias: bool = True,
    ) -> None:
        super().__init__()
        if not layer.causal:
            raise InputError(
                "model.bidirectional: a language model must not see what it predicts; set it to false, "
                "and model.options.causal, if given, to true"
            )
        if isinstance(layer, MemoryLayer):
            raise InputError("model.options.memory_size: a language model has no memory to attend to; leave it out")
        if tie_weights and layer.input_size != layer.output_size:
            raise InputError(
                f"model.tie_weights: needs equal widths; embedding_size is {layer.input_size}, "
                f"the layer gives {layer.output_size}"
            )
        self.vocabulary_size = vocabulary_size
        self.embedding = nn.Embedding(vocabulary_size, layer.input_size)
        self.layer = layer
        self.output = nn.Linear(layer.output_size, vocabulary_size, bias=output_bias)
        self.dropout = make_dropout(dropout, variational=variational)
        nn.init.normal_(self.embedding.weight)  # the initialization of the layers expects inputs of unit variance
        nn.init.uniform_(self.output.weight, -0.1, 0.1)
        if output_bias:
            nn.init.zeros_(self.output.bias)
        if tie_weights:
            self.embedding.weight = self.output.weight

    @classmethod
    def from_config(cls, config: Model, vocabulary_size: int, options: Mapping[str, object]) -> "LanguageModel":
        """Build the model that a configuration describes; ``options`` are the options of the layer."""
        return cls(
            layer_from_config(config, options),
            vocabulary_size,
            tie_weights=config.tie_weights,
            dropout=config.dropout,
            variational=config.variational_dropout,
            output_bias=config.output_bias,
        )

    def initial_state(self, batch_size: int) -> State:
        """Return the state before the first token."""
        return self.layer.initial_state(batch_size)

    def forward(
        self, tokens: Tensor, state: State | None = None, *, lengths: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """Return the logits of the next tokens and the state; see `TextModel.forward`."""
        hidden, state = self.features(tokens, state, lengths)
        return self.output(hidden), state

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """Read one token per row: ids ``(batch,)`` to logits ``(batch, vocabulary)``."""
        hidden, state = self.layer.step(self.dropout(self.embedding(tokens)), state)
        return self.output(self.dropout(hidden)), state

    def advance(self, tokens: Tensor, state: State, *, lengths: Tensor | None = None) -> State:
        """Return the state after ids ``(batch, time)``; the output layer is not computed."""
        return self.features(tokens, state, lengths)[1]

    def features(self, tokens: Tensor, state: State | None, lengths: Tensor | None) -> tuple[Tensor, State]:
        """Return the inputs of the output layer ``(batch, time, size)`` and the state."""
        hidden, state = self.layer(self.dropout(self.embedding(tokens)), state, lengths=lengths)
        return self.dropout(hidden), state

    def loss(
        self,
        tokens: Tensor,
        targets: Tensor,
        state: State | None = None,
        *,
        lengths: Tensor | None = None,
        own_predictions: float = 0.0,
    ) -> tuple[Tensor, State]:
        """Return the sum of −log P(target) over the valid positions, in nats, with its gradient; and the state.

        Args:
            tokens: ids ``(batch, time)``.
            targets: the token after each of ``tokens``, ids ``(batch, time)``.
            state: the state to continue from; None for the initial state.
            lengths: ``(batch,)``, or None if all rows are full.
            own_predictions: the probability that a step after the first reads the model's most probable token instead
                of the true one (scheduled sampling); 0 is teacher forcing, which runs all steps at once.
        """
        lengths = check_lengths(lengths, *tokens.shape)
        if own_predictions and tokens.numel():
            first = self.initial_state(len(tokens)) if state is None else state
            hidden, state = sampled_features(self.features, self.output, tokens, first, own_predictions, lengths)
        else:
            hidden, state = self.features(tokens, state, lengths)
        hidden, targets = valid_positions(hidden, lengths), valid_positions(targets, lengths)
        return summed_loss(hidden, self.output.weight, self.output.bias, targets), state

    @torch.no_grad()
    def token_losses(
        self, tokens: Tensor, targets: Tensor, state: State | None = None, *, lengths: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """Return −log P(target) of every position ``(batch, time)``, in nats, zero on padding; and the state."""
        lengths = check_lengths(lengths, *tokens.shape)
        hidden, state = self.features(tokens, state, lengths)
        hidden, valid_targets = valid_positions(hidden, lengths), valid_positions(targets, lengths)
        losses = token_losses(hidden, self.output.weight, self.output.bias, valid_targets)
        return on_positions(losses, tokens.shape, lengths), state

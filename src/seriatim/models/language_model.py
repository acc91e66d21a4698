"""A language model: P(w₁…w_T) = Π P(w_t | w_<t), by any causal sequence layer.

    x_t = E[w_{t−1}],  h_t = layer(x_t, state),  P(w_t | w_<t) = softmax(W h_t + b)

With tied weights W is E (Press & Wolf 2017; Inan et al. 2017).
"""

from typing import Any

import torch
from torch import Tensor, nn

from ..config import Model
from ..core.contract import SequenceLayer
from ..core.errors import InputError
from ..core.lengths import check_lengths, valid_mask
from ..core.state import State
from ..layers.dropout import dropout as make_dropout
from .build import layer_from_config
from .scheduled_sampling import sampled_features
from .softmax import summed_loss, token_losses
from .text_model import TextModel


class LanguageModel(TextModel):
    """Token ids ``(batch, time)`` to logits ``(batch, time, vocabulary)``, with the contract of a sequence layer.

    Args:
        layer: any causal sequence layer.
        vocabulary_size: number of token ids.
        tie_weights: share the embedding with the output layer.
        dropout: rate on embeddings and before the output layer.
        variational: one dropout mask a sequence instead of one a step.
        output_bias: whether there is b.

    Raises:
        InputError: a layer that sees the future, or tied weights of different widths.
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
        if layer.takes_memory:
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
        nn.init.normal_(self.embedding.weight)  # the unit variance that the layers' initialisation counts on
        nn.init.uniform_(self.output.weight, -0.1, 0.1)
        if output_bias:
            nn.init.zeros_(self.output.bias)
        if tie_weights:
            self.embedding.weight = self.output.weight

    @classmethod
    def from_config(cls, config: Model, vocabulary_size: int, options: dict[str, Any]) -> "LanguageModel":
        """Builds the model that a configuration describes; ``options`` are those of the layer."""
        return cls(
            layer_from_config(config, options),
            vocabulary_size,
            tie_weights=config.tie_weights,
            dropout=config.dropout,
            variational=config.variational_dropout,
            output_bias=config.output_bias,
        )

    def initial_state(self, batch_size: int) -> State:
        """The state before the first token."""
        return self.layer.initial_state(batch_size)

    def forward(
        self, tokens: Tensor, state: State | None = None, *, lengths: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """As of every `TextModel`; padded logits are those of a zero vector."""
        hidden, state = self.features(tokens, state, lengths)
        return self.output(hidden), state

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """One token a row: ids ``(batch,)`` to logits ``(batch, vocabulary)``."""
        hidden, state = self.layer.step(self.dropout(self.embedding(tokens)), state)
        return self.output(self.dropout(hidden)), state

    def features(self, tokens: Tensor, state: State | None, lengths: Tensor | None) -> tuple[Tensor, State]:
        """What the output layer reads: ``(batch, time, size)``, and the state."""
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
        """The sum of −log P(target) over valid positions, in nats, with its gradient; and the state.

        Args:
            tokens: ids ``(batch, time)``.
            targets: the token after each, ids ``(batch, time)``.
            state: to go on from.
            lengths: ``(batch,)``.
            own_predictions: probability that a step after the first reads the model's likeliest token instead of the
                true one (scheduled sampling); 0 is teacher forcing, which runs all steps at once.
        """
        lengths = check_lengths(lengths, *tokens.shape)
        if own_predictions and tokens.numel():
            begun = self.initial_state(len(tokens)) if state is None else state
            hidden, state = sampled_features(self.features, self.output, tokens, begun, own_predictions, lengths)
        else:
            hidden, state = self.features(tokens, state, lengths)
        hidden, targets = _valid(hidden, lengths), _valid(targets, lengths)
        return summed_loss(hidden, self.output.weight, self.output.bias, targets), state

    @torch.no_grad()
    def token_losses(
        self, tokens: Tensor, targets: Tensor, state: State | None = None, *, lengths: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """−log P(target) of every position ``(batch, time)``, in nats, zero on padding; and the state."""
        lengths = check_lengths(lengths, *tokens.shape)
        hidden, state = self.features(tokens, state, lengths)
        valid = token_losses(_valid(hidden, lengths), self.output.weight, self.output.bias, _valid(targets, lengths))
        if lengths is None:
            return valid.view(tokens.shape), state
        losses = valid.new_zeros(tokens.shape)
        losses[valid_mask(lengths, tokens.shape[1])] = valid
        return losses, state


def _valid(values: Tensor, lengths: Tensor | None) -> Tensor:
    """Valid positions only: ``(batch, time, ...)`` to ``(positions, ...)``."""
    return values.flatten(0, 1) if lengths is None else values[valid_mask(lengths, values.shape[1])]

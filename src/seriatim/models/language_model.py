"""A neural language model: P(w₁…w_T) = Π P(w_t | w_<t), with any causal sequence layer.

    x_t = E[w_{t−1}],  h_t = layer(x_t, state),  P(w_t | w_<t) = softmax(W h_t + b)

With tied weights W is E (O. Press and L. Wolf 2017; H. Inan et al. 2017).

In training, whole words may be dropped, and the outputs of the layer may be penalized: S. Merity, N. S. Keskar and R.
Socher, "Regularizing and optimizing LSTM language models", ICLR 2018; penalties: S. Merity, B. McCann and R. Socher,
"Revisiting activation regularization for language RNNs", 2017; word dropout: Y. Gal and Z. Ghahramani, "A theoretically
grounded application of dropout in recurrent neural networks", NeurIPS 2016.

    α mean(d(h_t)²) + β mean((h_t − h_{t−1})²)

d(h_t) after dropout · α ``activation_regularization`` · β ``temporal_activation_regularization``. The means are taken
over features and valid positions.
"""

import torch
from torch import Tensor, nn

from ..config import NonNegative, Rate, Section
from ..core.auxiliary_losses import contribute
from ..core.errors import MismatchError, NotSupportedError
from ..core.lengths import check_lengths, valid_mask
from ..core.random_masks import dropout_mask
from ..core.state import OutputsAndState, State
from ..recurrence.fast_path import run_step
from .base_models import TextModel, TokenPredictor, on_positions, valid_positions
from .cross_entropy import CappedLinear, summed_loss, token_losses
from .sampled_softmax import TokenSampler, sampled_loss
from .scheduled_sampling import sampled_features


class Regularization(Section):
    """Options of a language model that regularize its training; see this module."""

    embedding_dropout: Rate = 0.0
    """Rate at which words are dropped: a word's embedding is zero wherever it occurs in a batch."""
    activation_regularization: NonNegative = 0.0
    """Weight α of the mean squared output of the layer, after dropout, in the loss."""
    temporal_activation_regularization: NonNegative = 0.0
    """Weight β of the mean squared difference of successive outputs of the layer in the loss."""

    def drop_words(self, embedded: Tensor, tokens: Tensor, vocabulary_size: int) -> Tensor:
        """Drop the embeddings ``(batch, time, size)`` of some tokens of ``(batch, time)``, at all their positions."""
        if not self.embedding_dropout:
            return embedded
        mask = dropout_mask((vocabulary_size,), self.embedding_dropout, embedded)
        return embedded * mask[tokens].unsqueeze(-1)

    def penalize(self, outputs: Tensor, dropped: Tensor, lengths: Tensor | None) -> None:
        """Contribute both penalties to the loss; outputs of the layer ``(batch, time, size)`` before and after dropout.

        ``lengths`` ``(batch,)`` describes the padding, None for none.
        """
        valid = None if lengths is None else valid_mask(lengths, outputs.shape[1])
        if self.activation_regularization:
            contribute(self.activation_regularization * _mean_square(dropped, valid))
        if self.temporal_activation_regularization and outputs.shape[1] > 1:
            differences = outputs[:, 1:] - outputs[:, :-1]
            second = None if valid is None else valid[:, 1:]
            contribute(self.temporal_activation_regularization * _mean_square(differences, second))


def _mean_square(values: Tensor, valid: Tensor | None) -> Tensor:
    """Return the mean square of ``(batch, time, size)`` over the valid positions ``(batch, time)``; 0 for none."""
    if valid is None:
        return values.float().square().mean()
    chosen = values[valid].float()
    return chosen.square().sum() / max(1, chosen.numel())


class LanguageModel(TextModel, TokenPredictor):
    """Token ids ``(batch, time)`` to logits ``(batch, time, vocabulary)``, with the contract of a sequence layer.

    The arguments are those of `TokenPredictor`. InputError is raised if the layer is not causal or needs a memory, or
    if weights of different widths are tied. ``regularization`` applies to training only.
    """

    regularization = Regularization()

    def make_output(self, *, tie_weights: bool, bias: bool) -> None:
        """Create W and b, and initialize all parameters outside the layer."""
        layer = self.layer
        if not layer.causal:
            raise NotSupportedError(
                "model.bidirectional: a language model must not read the token that it predicts; set it to "
                "false, and model.options.causal, if given, to true"
            )
        if tie_weights and layer.input_size != layer.output_size:
            raise MismatchError(
                f"model.tie_weights: needs equal widths; embedding_size is {layer.input_size}, "
                f"the layer gives {layer.output_size}"
            )
        self.output = CappedLinear(layer.output_size, self.vocabulary_size, bias=bias)
        nn.init.normal_(self.embedding.weight)  # the initialization of the layers expects inputs of unit variance
        nn.init.uniform_(self.output.weight, -0.1, 0.1)
        if bias:
            nn.init.zeros_(self.output.bias)

        # tied last, so that the shared table has the small values of the output layer
        if tie_weights:
            self.embedding.weight = self.output.weight

    def output_tables(self) -> list[Tensor]:
        """Return W and b."""
        return list(self.output.parameters())

    def initial_state(self, batch_size: int) -> State:
        """Return the state of the layer before the first token."""
        return self.layer.initial_state(batch_size)

    def forward(self, tokens: Tensor, state: State | None = None, *, lengths: Tensor | None = None) -> OutputsAndState:
        """Return the logits of the next tokens and the state; see `TextModel.forward`."""
        hidden, state = self.features(tokens, state, lengths)
        return self.output(hidden), state

    def step(self, tokens: Tensor, state: State) -> OutputsAndState:
        """Read one token per row: ids ``(batch,)`` to logits ``(batch, vocabulary)``."""
        result = run_step(self, tokens, state)
        if result is not None:
            return result
        hidden, state = self.layer.step(self.dropout(self.embedding(tokens)), state)
        return self.output(self.dropout(hidden)), state

    def advance(self, tokens: Tensor, state: State, *, lengths: Tensor | None = None) -> State:
        """Return the state after ids ``(batch, time)``; the output layer is not computed."""
        return self.features(tokens, state, lengths)[1]

    def read(self, tokens: Tensor, state: State) -> OutputsAndState:
        """Return the logits after the last token ``(batch, vocabulary)`` and the state; see `TextModel.read`."""
        if tokens.shape[1] == 1:
            return self.step(tokens[:, 0], state)
        hidden, state = self.features(tokens, state, None)
        return self.output(hidden[:, -1]), state

    def features(self, tokens: Tensor, state: State | None, lengths: Tensor | None) -> OutputsAndState:
        """Return the inputs of the output layer ``(batch, time, size)`` and the state."""
        outputs, state = self._outputs(tokens, state, lengths)
        return self.dropout(outputs), state

    def _outputs(self, tokens: Tensor, state: State | None, lengths: Tensor | None) -> OutputsAndState:
        """Return the outputs of the layer ``(batch, time, size)`` and the state."""
        embedded = self.embedding(tokens)
        if self.training:
            embedded = self.regularization.drop_words(embedded, tokens, self.vocabulary_size)
        outputs, state = self.layer(self.dropout(embedded), state, lengths=lengths)
        return outputs, state

    def loss(
        self,
        tokens: Tensor,
        targets: Tensor,
        state: State | None = None,
        *,
        lengths: Tensor | None = None,
        own_predictions: float = 0.0,
        sampler: TokenSampler | None = None,
    ) -> OutputsAndState:
        """Return the sum of −log P(target) over the valid positions, in nats, with its gradient; and the state.

        ``targets`` are the tokens after ``tokens``, both ids ``(batch, time)``; other arguments as in `forward`.
        ``own_predictions`` is the probability that a step after the first reads the model's most probable token instead
        of the true one (scheduled sampling); 0 is teacher forcing, which runs all steps at once. The penalties of
        ``regularization`` are contributed to the loss of training (see `seriatim.core.auxiliary_losses`), in which
        ``sampler``, if given, estimates the softmax.
        """
        lengths = check_lengths(lengths, *tokens.shape)
        if own_predictions and tokens.numel():
            first = self.initial_state(len(tokens)) if state is None else state
            hidden, state = sampled_features(self.features, self.output, tokens, first, own_predictions, lengths)
        else:
            outputs, state = self._outputs(tokens, state, lengths)
            hidden = self.dropout(outputs)
            if self.training:
                self.regularization.penalize(outputs, hidden, lengths)
        hidden, targets = valid_positions(hidden, lengths), valid_positions(targets, lengths)
        if self.training and sampler is not None:
            return sampled_loss(
                hidden, self.output.weight, self.output.bias, targets, sampler, cap=self.output.cap
            ), state
        return summed_loss(hidden, self.output.weight, self.output.bias, targets, cap=self.output.cap), state

    @torch.no_grad()
    def token_losses(
        self, tokens: Tensor, targets: Tensor, state: State | None = None, *, lengths: Tensor | None = None
    ) -> OutputsAndState:
        """Return −log P(target) of every position ``(batch, time)``, in nats, zero on padding; and the state."""
        lengths = check_lengths(lengths, *tokens.shape)
        hidden, state = self.features(tokens, state, lengths)
        hidden, valid_targets = valid_positions(hidden, lengths), valid_positions(targets, lengths)
        losses = token_losses(hidden, self.output.weight, self.output.bias, valid_targets, cap=self.output.cap)
        return on_positions(losses, tokens.shape, lengths), state

"""One sequence from another: P(Y | X) = Π P(y_i | X, y_<i), by any encoder and any decoder that takes a memory.

    m = encoder(E_x[x]),  h_i = decoder(E_y[y_{i−1}], state begun with m),  P(y_i | X, y_<i) = softmax(W h_i + b)

Scheduled sampling: see `scheduled_sampling`. Tied weights, W = E_y: O. Press and L. Wolf, EACL 2017. Token 0
begins and ends a target.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..core.contract import SequenceLayer
from ..core.errors import InputError
from ..core.lengths import check_lengths, valid_mask
from ..core.state import State
from ..layers.dropout import dropout as make_dropout
from .scheduled_sampling import sampled_features
from .softmax import summed_loss, token_losses


class TiedEmbedding(nn.Embedding):
    """An embedding that is an output layer too: √size times its weights.

    Small weights for the one use have unit variance for the other (A. Vaswani et al. 2017), beside positions and all
    that residual connections add.
    """

    def forward(self, tokens: Tensor) -> Tensor:
        """Ids ``(...,)`` to ``(..., embedding_size)``."""
        scaled: Tensor = super().forward(tokens) * self.embedding_dim**0.5
        return scaled


class EncoderDecoder(nn.Module):
    """An encoder, a decoder, and what is around them.

    Once a source is encoded, the rest has the shape of a language model: target tokens ``(batch, time)`` and a state to
    logits ``(batch, time, target_vocabulary)`` and a state.

    Args:
        encoder: any sequence layer that takes no memory; one that sees the whole sequence may be best.
        decoder: a causal layer that takes a memory as wide as the encoder's outputs.
        source_vocabulary: number of token ids of sources.
        target_vocabulary: number of token ids of targets.
        embedding_size: width of the embeddings, which both layers read.
        shared_embedding: one embedding for sources and targets.
        tie_weights: share the targets' embedding with the output layer.
        dropout: rate on embeddings and before the output layer.
        label_smoothing: share of every target spread over the whole vocabulary in training.
        output_bias: whether the output layer has a bias.
        bounded_logits: logits are tanh(W h + b), between −1 and 1, instead of W h + b.

    Raises:
        InputError: layers, widths or vocabularies that do not meet.
    """

    def __init__(
        self,
        encoder: SequenceLayer,
        decoder: SequenceLayer,
        source_vocabulary: int,
        target_vocabulary: int,
        embedding_size: int,
        *,
        shared_embedding: bool = False,
        tie_weights: bool = False,
        dropout: float = 0.0,
        label_smoothing: float = 0.0,
        output_bias: bool = True,
        bounded_logits: bool = False,
    ) -> None:
        super().__init__()
        _check_layers(encoder, decoder, embedding_size)
        if shared_embedding and source_vocabulary != target_vocabulary:
            raise InputError(
                f"model.shared_embedding: needs one vocabulary; sources have {source_vocabulary} tokens, targets "
                f"{target_vocabulary}"
            )
        if tie_weights and decoder.output_size != embedding_size:
            raise InputError(
                f"model.tie_weights: needs equal widths; embedding_size is {embedding_size}, the decoder gives "
                f"{decoder.output_size}"
            )
        if not 0 <= label_smoothing < 1:
            raise InputError(f"label_smoothing must lie in [0, 1); got {label_smoothing}")
        self.target_vocabulary, self.label_smoothing = target_vocabulary, label_smoothing
        self.bounded_logits = bounded_logits
        self.encoder, self.decoder = encoder, decoder
        make = TiedEmbedding if tie_weights else nn.Embedding
        self.target_embedding = make(target_vocabulary, embedding_size)
        shared = self.target_embedding if shared_embedding else None
        self.source_embedding = shared or nn.Embedding(source_vocabulary, embedding_size)
        self.dropout = make_dropout(dropout)
        self.output = nn.Linear(decoder.output_size, target_vocabulary, bias=output_bias)
        for embedding in (self.source_embedding, self.target_embedding):
            nn.init.normal_(embedding.weight)  # the unit variance that the layers' initialisation counts on
        nn.init.uniform_(self.output.weight, -0.1, 0.1)
        if output_bias:
            nn.init.zeros_(self.output.bias)
        if tie_weights:
            nn.init.normal_(self.output.weight, std=embedding_size**-0.5)
            self.target_embedding.weight = self.output.weight

    def initial_state(self, batch_size: int) -> State:
        """The state before the first token where sources are empty; `encode` gives that of others."""
        return self.encode(self.output.weight.new_zeros(batch_size, 0).long())

    def encode(self, source: Tensor, source_lengths: Tensor | None = None) -> State:
        """The decoder's state after reading sources.

        Args:
            source: ids ``(batch, source_time)``.
            source_lengths: ``(batch,)``, 0 allowed; None where every row is full.
        """
        memory, end = self.encoder(self.dropout(self.source_embedding(source)), lengths=source_lengths)
        last = {"encoder_state": end} if self.decoder.takes_encoder_state else {}
        return self.decoder.initial_state(len(source), memory, source_lengths, **last)

    def forward(self, tokens: Tensor, state: State, *, lengths: Tensor | None = None) -> tuple[Tensor, State]:
        """Logits of the next token after each of ``tokens``.

        Args:
            tokens: target ids ``(batch, time)``.
            state: from `encode`, or to go on from.
            lengths: ``(batch,)``; padded logits are those of a zero vector.

        Returns:
            Logits ``(batch, time, target_vocabulary)`` and the state after each row's last token.
        """
        hidden, state = self.features(tokens, state, lengths)
        return self.logits(hidden), state

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """One token a row: ids ``(batch,)`` to logits ``(batch, target_vocabulary)``."""
        hidden, state = self.decoder.step(self.dropout(self.target_embedding(tokens)), state)
        return self.logits(self.dropout(hidden)), state

    def logits(self, hidden: Tensor) -> Tensor:
        """What the softmax reads ``(..., target_vocabulary)``, of the decoder's outputs ``(..., size)``."""
        scores: Tensor = self.output(hidden)
        return torch.tanh(scores) if self.bounded_logits else scores

    def features(self, tokens: Tensor, state: State, lengths: Tensor | None) -> tuple[Tensor, State]:
        """What the output layer reads: ``(batch, time, size)``, and the state."""
        hidden, state = self.decoder(self.dropout(self.target_embedding(tokens)), state, lengths=lengths)
        return self.dropout(hidden), state

    def loss(
        self,
        source: Tensor,
        source_lengths: Tensor | None,
        target_inputs: Tensor,
        targets: Tensor,
        target_lengths: Tensor | None = None,
        *,
        own_predictions: float = 0.0,
    ) -> Tensor:
        """The sum of −log P(target | source, targets before) over valid positions, in nats, with its gradient.

        Args:
            source: ids ``(batch, source_time)``.
            source_lengths: ``(batch,)`` or None.
            target_inputs: the targets before each, ids ``(batch, time)``; the first is 0.
            targets: ids ``(batch, time)``, ending with 0.
            target_lengths: ``(batch,)`` or None.
            own_predictions: probability that a step reads what the model held likeliest at the one before instead of
                the true token (scheduled sampling); 0 is teacher forcing, which runs all steps at once where the
                decoder can.
        """
        state, lengths = self.encode(source, source_lengths), check_lengths(target_lengths, *targets.shape)
        if own_predictions:
            hidden, _ = sampled_features(self.features, self.output, target_inputs, state, own_predictions)
        else:
            hidden, _ = self.features(target_inputs, state, lengths)
        hidden, targets = _valid(hidden, lengths), _valid(targets, lengths)
        if self.bounded_logits:
            smoothing = self.label_smoothing
            return F.cross_entropy(_wide(self.logits(hidden)), targets, reduction="sum", label_smoothing=smoothing)
        weight, bias = self.output.weight, self.output.bias
        return summed_loss(hidden, weight, bias, targets, label_smoothing=self.label_smoothing)

    @torch.no_grad()
    def token_losses(
        self,
        source: Tensor,
        source_lengths: Tensor | None,
        target_inputs: Tensor,
        targets: Tensor,
        target_lengths: Tensor | None = None,
    ) -> Tensor:
        """−log P(target) of every position ``(batch, time)``, in nats, zero on padding, without label smoothing."""
        state, lengths = self.encode(source, source_lengths), check_lengths(target_lengths, *targets.shape)
        hidden, _ = self.features(target_inputs, state, lengths)
        hidden, wanted = _valid(hidden, lengths), _valid(targets, lengths)
        if self.bounded_logits:
            valid = F.cross_entropy(_wide(self.logits(hidden)), wanted, reduction="none")
        else:
            valid = token_losses(hidden, self.output.weight, self.output.bias, wanted)
        if lengths is None:
            return valid.view(targets.shape)
        losses = valid.new_zeros(targets.shape)
        losses[valid_mask(lengths, targets.shape[1])] = valid
        return losses

    @torch.no_grad()
    def attention(
        self,
        source: Tensor,
        source_lengths: Tensor | None,
        target_inputs: Tensor,
        target_lengths: Tensor | None = None,
    ) -> Tensor:
        """Where each step looks: weights ``(batch, time, source_time)``, zero on padding.

        Raises:
            InputError: the decoder is not one with a single head of attention.
        """
        look = getattr(self.decoder, "attention", None)
        if look is None:
            raise InputError(f"{type(self.decoder).__name__} has no single attention to show; take a Luong or Bahdanau")
        state = self.encode(source, source_lengths)
        weights: Tensor = look(self.dropout(self.target_embedding(target_inputs)), state, lengths=target_lengths)
        return weights


def _check_layers(encoder: SequenceLayer, decoder: SequenceLayer, embedding_size: int) -> None:
    """Raises InputError where they cannot be an encoder and its decoder."""
    if encoder.takes_memory:
        raise InputError("an encoder has no memory to attend to; leave memory_size out of its options")
    if not decoder.takes_memory:
        raise InputError("a decoder needs a memory: give its layer the option memory_size, or take a recurrent decoder")
    if not decoder.causal:
        raise InputError("a decoder must not see what it predicts; its layer must be causal")
    for name, layer in (("encoder", encoder), ("decoder", decoder)):
        if layer.input_size != embedding_size:
            raise InputError(
                f"embedding_size is {embedding_size}, the {name} takes {layer.input_size}; make them equal"
            )
    if decoder.takes_encoder_state:
        decoder.check_encoder(encoder)


def _valid(values: Tensor, lengths: Tensor | None) -> Tensor:
    """Valid positions only: ``(batch, time, ...)`` to ``(positions, ...)``."""
    return values.flatten(0, 1) if lengths is None else values[valid_mask(lengths, values.shape[1])]


def _wide(logits: Tensor) -> Tensor:
    """In float32 or wider."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))

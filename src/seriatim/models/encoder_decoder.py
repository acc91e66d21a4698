"""Encoder-decoder: P(Y | X) = Π P(y_i | X, y_<i), with any encoder and any decoder that takes a memory.

    m = encoder(E_x[x]),  h_i = decoder(E_y[y_{i−1}], initial state from m),  P(y_i | X, y_<i) = softmax(W h_i + b)

Scheduled sampling: see `scheduled_sampling`. Copies of the source: see `copying`. Tied weights, W = E_y: O. Press and
L. Wolf, EACL 2017. Token 0 is the first input of the decoder and ends a target.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..core.contract import MemoryLayer, SequenceLayer
from ..core.errors import ConflictError, MismatchError, NotSupportedError, RangeError, RequiredError
from ..core.lengths import check_lengths
from ..core.state import OutputsAndState, State
from ..layers.pointwise import make_dropout
from ..recurrence.fast_path import run_step
from .attention_decoder import AttentionDecoder
from .base_models import NeuralModel, on_positions, valid_positions
from .copying import Copying, CopyState
from .cross_entropy import summed_loss, token_losses
from .probabilities import checked_losses
from .scheduled_sampling import sampled_features


class TiedEmbedding(nn.Embedding):
    """An embedding that shares its weights with the output layer; it returns √size times its weights.

    The output layer needs small weights, the layers need inputs of unit variance (A. Vaswani et al. 2017).
    """

    def forward(self, tokens: Tensor) -> Tensor:
        """Embed ids ``(...,)`` as ``(..., embedding_size)``."""
        scaled: Tensor = super().forward(tokens) * self.embedding_dim**0.5
        return scaled


class EncoderDecoder(NeuralModel):
    """An encoder, a decoder, their embeddings and the output layer.

    After `encode` the model has the shape of a language model: target tokens ``(batch, time)`` and a state to logits
    ``(batch, time, target_vocabulary)`` and a state.

    The encoder is any sequence layer that takes no memory; one that reads in both directions usually works best. The
    decoder is a causal layer that takes a memory as wide as the encoder's outputs. Both read embeddings.
    ``shared_embedding`` uses one embedding for sources and targets, ``tie_weights`` that of the targets as the weight
    of the output layer. Dropout applies to the embeddings and before the output layer. ``label_smoothing`` is the share
    of every target that is spread over the vocabulary in training. ``bounded_logits`` uses the logits tanh(W h + b),
    between −1 and 1. ``copied`` is the target id of every source id, if the model also copies tokens of the source (see
    `copying`); logits are then log probabilities. Layers, widths or vocabularies that do not fit together raise
    InputError.
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
        copied: Tensor | None = None,
    ) -> None:
        super().__init__()
        decoder = _check_layers(encoder, decoder, embedding_size)

        # Widths and vocabularies are compared before anything is built, so that messages name options instead of
        # shapes.
        if shared_embedding and source_vocabulary != target_vocabulary:
            raise MismatchError(
                f"model.shared_embedding: sources have {source_vocabulary} tokens, targets {target_vocabulary}; "
                "set model.options.shared_vocabulary to true, or leave it out"
            )
        if tie_weights and decoder.output_size != embedding_size:
            raise MismatchError(
                f"model.tie_weights: embedding_size is {embedding_size}, the decoder gives "
                f"{decoder.output_size}; make them equal, or leave it out"
            )
        if bounded_logits and copied is not None:
            raise ConflictError("copying: not supported with bounded logits; leave one of them out")
        if not 0 <= label_smoothing < 1:
            raise RangeError(f"label_smoothing: {label_smoothing} is out of range; give a number from 0 and below 1")
        self.target_vocabulary, self.label_smoothing = target_vocabulary, label_smoothing
        self.bounded_logits = bounded_logits

        # The order of creation is that of the random numbers and of the names in a file; it must not change.
        self.encoder = encoder
        self.decoder: MemoryLayer = decoder
        make_embedding = TiedEmbedding if tie_weights else nn.Embedding
        self.target_embedding = make_embedding(target_vocabulary, embedding_size)
        shared = self.target_embedding if shared_embedding else None
        self.source_embedding = shared or nn.Embedding(source_vocabulary, embedding_size)
        self.dropout = make_dropout(dropout)
        self.output = nn.Linear(decoder.output_size, target_vocabulary, bias=output_bias)
        self.copying: Copying | None = None
        if copied is not None:
            memory_size = None if isinstance(decoder, AttentionDecoder) else encoder.output_size
            self.copying = Copying(decoder.output_size, copied, memory_size)

        # A tied embedding has the small weights of an output layer, and scales what it returns (`TiedEmbedding`).
        for embedding in (self.source_embedding, self.target_embedding):
            nn.init.normal_(embedding.weight)  # the initialization of the layers expects inputs of unit variance
        nn.init.uniform_(self.output.weight, -0.1, 0.1)
        if output_bias:
            nn.init.zeros_(self.output.bias)
        if tie_weights:
            nn.init.normal_(self.output.weight, std=embedding_size**-0.5)
            self.target_embedding.weight = self.output.weight

    @property
    def is_mixture(self) -> bool:
        """Whether P is a sum of terms, so that its logarithm is not that of one softmax."""
        return self.copying is not None

    def initial_state(self, batch_size: int) -> State:
        """Return the decoder's state after empty sources; `encode` reads other sources."""
        return self.encode(self.output.weight.new_zeros(batch_size, 0).long())

    def encode(self, source: Tensor, source_lengths: Tensor | None = None) -> State:
        """Return the decoder's initial state for ids ``(batch, source_time)`` of lengths ``(batch,)``, 0 allowed."""
        memory, end = self.encoder(self.dropout(self.source_embedding(source)), lengths=source_lengths)
        copied = {"encoder_state": end} if self.decoder.reads_encoder_state else {}
        state = self.decoder.initial_state(source.shape[0], memory, source_lengths, **copied)
        return state if self.copying is None else self.copying.begin(state, source, memory, source_lengths)

    def forward(self, tokens: Tensor, state: State, *, lengths: Tensor | None = None) -> OutputsAndState:
        """Return the logits ``(batch, time, target_vocabulary)`` after each target token ``(batch, time)``.

        The state before the first token is that of `encode`; the state after each row's last token is also returned.
        The logits on padding, given ``lengths`` ``(batch,)``, are those of a zero vector.
        """
        hidden, weights, state = self.decode(tokens, state, lengths)
        return self.predict(hidden, weights, state), state

    def step(self, tokens: Tensor, state: State) -> OutputsAndState:
        """Read one token per row: ids ``(batch,)`` to logits ``(batch, target_vocabulary)``."""
        if self.is_mixture:
            logits, state = self(tokens.unsqueeze(1), state)
            return logits.squeeze(1), state
        result = run_step(self, tokens, state)
        if result is not None:
            return result
        hidden, state = self.decoder.step(self.dropout(self.target_embedding(tokens)), state)
        return self.logits(self.dropout(hidden)), state

    def logits(self, hidden: Tensor) -> Tensor:
        """Return the logits ``(..., target_vocabulary)`` for outputs of the decoder ``(..., size)``."""
        scores: Tensor = self.output(hidden)
        return torch.tanh(scores) if self.bounded_logits else scores

    def features(self, tokens: Tensor, state: State, lengths: Tensor | None) -> OutputsAndState:
        """Return the inputs of the output layer ``(batch, time, size)`` and the state."""
        hidden, inner = self.decoder(self.dropout(self.target_embedding(tokens)), decoder_state(state), lengths=lengths)
        return self.dropout(hidden), with_decoder_state(state, inner)

    def decode(self, tokens: Tensor, state: State, lengths: Tensor | None) -> tuple[Tensor, Tensor | None, State]:
        """Return the result of `features`, with the attention weights of the decoder between, if copying needs them.

        The weights are ``(batch, time, source_time)``.
        """
        if self.copying is None or not isinstance(self.decoder, AttentionDecoder):
            hidden, state = self.features(tokens, state, lengths)
            return hidden, None, state
        embedded = self.dropout(self.target_embedding(tokens))
        hidden, weights, inner = self.decoder.decode(embedded, decoder_state(state), lengths)
        return self.dropout(hidden), weights, with_decoder_state(state, inner)

    def predict(self, hidden: Tensor, weights: Tensor | None, state: State) -> Tensor:
        """Return logits ``(batch, time, target_vocabulary)`` for the results of `decode`; log P with copying."""
        logits = self.logits(hidden)
        if self.copying is None:
            return logits
        return self.copying.mix(hidden, weights, state).log_probabilities(logits)

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
        """Return the sum of −log P(target | source, targets before) over valid positions, in nats, with its gradient.

        Args:
            source: ids ``(batch, source_time)``.
            source_lengths: ``(batch,)``, 0 allowed; None if every row is full, as for ``target_lengths``.
            target_inputs: the token before each target, ids ``(batch, time)``; the first is 0.
            targets: ids ``(batch, time)``; each target ends with 0.
            target_lengths: ``(batch,)``.
            own_predictions: the probability that a step reads the model's most probable token of the step before
                instead of the true one (scheduled sampling); 0 is teacher forcing, which runs all steps at once if the
                decoder can.
        """
        state, lengths = self.encode(source, source_lengths), check_lengths(target_lengths, *targets.shape)
        if own_predictions:
            hidden, _ = sampled_features(self.features, self.output, target_inputs, state, own_predictions)
        elif self.is_mixture:
            losses = self.mixture_losses(target_inputs, targets, state, lengths, self.label_smoothing)
            return valid_positions(losses, lengths).sum()
        else:
            hidden, _ = self.features(target_inputs, state, lengths)
        hidden, targets = valid_positions(hidden, lengths), valid_positions(targets, lengths)
        if self.bounded_logits:
            return self._bounded_loss(hidden, targets, "sum", self.label_smoothing)
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
        """Return −log P(target) of every position ``(batch, time)``, in nats, zero on padding, without smoothing."""
        state, lengths = self.encode(source, source_lengths), check_lengths(target_lengths, *targets.shape)
        if self.is_mixture:
            losses = self.mixture_losses(target_inputs, targets, state, lengths)
            return on_positions(checked_losses(valid_positions(losses, lengths)), targets.shape, lengths)
        hidden, _ = self.features(target_inputs, state, lengths)
        hidden, valid_targets = valid_positions(hidden, lengths), valid_positions(targets, lengths)
        if self.bounded_logits:
            losses = self._bounded_loss(hidden, valid_targets, "none")
        else:
            losses = token_losses(hidden, self.output.weight, self.output.bias, valid_targets)
        return on_positions(checked_losses(losses), targets.shape, lengths)

    def mixture_losses(
        self, inputs: Tensor, targets: Tensor, state: State, lengths: Tensor | None, label_smoothing: float = 0.0
    ) -> Tensor:
        """Return −log P of every target ``(batch, time)``, with any number on padding."""
        assert self.copying is not None
        hidden, weights, _ = self.decode(inputs, state, lengths)
        return self.copying.mix(hidden, weights, state).token_losses(self.logits(hidden), targets, label_smoothing)

    def _bounded_loss(self, hidden: Tensor, targets: Tensor, reduction: str, label_smoothing: float = 0.0) -> Tensor:
        logits = self.logits(hidden)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        return F.cross_entropy(logits, targets, reduction=reduction, label_smoothing=label_smoothing)

    @torch.no_grad()
    def attention(
        self, source: Tensor, source_lengths: Tensor | None, target_inputs: Tensor, target_lengths: Tensor | None = None
    ) -> Tensor:
        """Return the attention weights of each step ``(batch, time, source_time)``, zero on padding.

        Raises:
            InputError: the decoder has no attention, or more than one head.
        """
        return self.attended(target_inputs, self.encode(source, source_lengths), target_lengths)

    def attended(self, tokens: Tensor, state: State, lengths: Tensor | None) -> Tensor:
        """Return the result of `attention`, given the state after the source."""
        if not isinstance(self.decoder, AttentionDecoder):
            raise NotSupportedError(
                f"{type(self.decoder).__name__} has no single attention to show; choose a decoder of Luong or Bahdanau"
            )
        embedded = self.dropout(self.target_embedding(tokens))
        return self.decoder.attention(embedded, decoder_state(state), lengths=lengths)


def decoder_state(state: State) -> State:
    """Return the decoder's part of the state of an `EncoderDecoder`."""
    return state.decoder if isinstance(state, CopyState) else state


def with_decoder_state(state: State, decoder: State) -> State:
    """Return the state of an `EncoderDecoder` with another state of its decoder."""
    return state._replace(decoder=decoder) if isinstance(state, CopyState) else decoder


def _check_layers(encoder: SequenceLayer, decoder: SequenceLayer, embedding_size: int) -> MemoryLayer:
    """Return the decoder; raise InputError if two layers cannot be an encoder and its decoder."""
    if isinstance(encoder, MemoryLayer):
        raise NotSupportedError("an encoder has no memory to attend to; leave memory_size out of its options")
    if not isinstance(decoder, MemoryLayer):
        raise RequiredError(
            "decoder: it has no memory; give its layer the option memory_size, or take a recurrent decoder"
        )
    if not decoder.causal:
        raise NotSupportedError("decoder: its layer reads what it must predict; give a causal layer")
    for name, layer in (("encoder", encoder), ("decoder", decoder)):
        if layer.input_size != embedding_size:
            raise MismatchError(
                f"embedding_size is {embedding_size}, the {name} takes {layer.input_size}; make them equal"
            )
    decoder.check_encoder(encoder)
    return decoder

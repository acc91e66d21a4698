"""Builds the sequence-to-sequence model that a configuration describes."""

from collections.abc import Mapping
from typing import Literal, TypeAlias

from ..config import Count, Model, Rate
from ..core.contract import SequenceLayer
from ..core.errors import InputError
from ..layers import check_options, layer, options_of, split_names
from .attentional import BahdanauDecoder, LuongDecoder
from .ctc_translator import CTCTranslator
from .encoder_decoder import EncoderDecoder
from .recurrent_decoder import ContextDecoder
from .scheduled_sampling import ScheduledSampling


class Options(ScheduledSampling):
    """Options of an encoder-decoder, beside those of its layers."""

    factorisation: Literal["autoregressive", "ctc"] = "autoregressive"
    """Predict each token given those before it (autoregressive), or all tokens at once and independently (ctc), without
    a decoder."""
    upsample: Count = 3
    """Places for tokens of the target per token of the source, with ctc."""
    decoder: str | None = None
    """Layer of the decoder; by default that of the encoder."""
    attention: Literal["none", "dot", "scaled-dot", "bilinear", "additive", "multi-head"] | None = None
    """How the decoder attends to the source: not at all, with one head and a scoring function, or inside its blocks
    (multi-head); by default multi-head where the decoder has blocks, otherwise dot."""
    form: Literal["luong", "bahdanau"] = "luong"
    """Attend after the recurrence (luong) or before it (bahdanau)."""
    input_feeding: bool = False
    """Give the decoder the attentional output of the previous step as an input."""
    readout: Literal["tanh", "direct", "tanh-logits"] = "tanh"
    """Logits from the context c and the decoder's output h: V tanh(W[c; h]) + b (tanh), W[c; h] + b (direct), or
    tanh(W[c; h] + b) (tanh-logits), with which no probability can be near 1."""
    context: str = "initial"
    """Where the source enters a decoder without attention."""
    bridge: Literal["map", "copy", "none"] = "map"
    """How the final state of the encoder becomes the first state of the decoder."""
    encoder_size: Count | None = None
    """Width of one direction of the encoder; by default hidden_size, halved where there are two directions."""
    shared_vocabulary: bool = False
    """Use one tokenizer and one embedding for source and target."""
    target_kind: Literal["byte", "char", "word", "bpe", "unigram"] | None = None
    """Kind of the target tokens; by default that of the source tokens."""
    label_smoothing: Rate = 0.0
    """Share of the probability of the right token that is given to all tokens in the training loss."""
    max_target_length: Count = 256
    """Tokens of a target at most."""


LayerOptions: TypeAlias = Mapping[str, object]
ONE_HEAD = {"form", "input_feeding", "readout"}
"""Options of attention with one head."""


def settled(options: Options, config: Model, rest: LayerOptions) -> Options:
    """Return the options with their implied values filled in.

    Raises:
        InputError: values contradict each other.
    """
    if options.shared_vocabulary and options.target_kind is not None:
        raise InputError(
            "model.options.target_kind: with shared_vocabulary both sides have one tokenizer; leave one out"
        )
    decoder = options.decoder or config.layer
    blocks = all("memory_size" in options_of(one, rest) for one in split_names(decoder))
    attention = options.attention or ("multi-head" if blocks else "dot")
    if attention == "multi-head" and not blocks:
        raise InputError(
            f"model.options.attention: multi-head needs blocks, which {decoder!r} has not; add --model.options.block "
            "true, or take dot, scaled-dot, bilinear, additive or none"
        )
    known = [key for name in (config.layer, decoder) for key in _known(name, rest)]
    for key in rest:
        if key not in known:
            check_options(config.layer, {key: rest[key]})
    half = -(-config.hidden_size // 2) if config.bidirectional else config.hidden_size
    update = {"decoder": decoder, "attention": attention, "encoder_size": options.encoder_size or half}
    complete = options.model_copy(update=update)
    _refuse_unused(complete)
    return complete


def _refuse_unused(options: Options) -> None:
    """Raise InputError for an option that has no effect beside the others."""
    if options.factorisation == "ctc":
        unused = {*ONE_HEAD, "context", "bridge", *ScheduledSampling.model_fields, "label_smoothing"}
        cause = "factorisation ctc"
    elif options.attention in ("none", "multi-head"):
        unused, cause = {*ONE_HEAD, "upsample"}, f"attention {options.attention}"
    else:
        unused, cause = {"context", "upsample"}, "attention of one head"
        if options.form == "bahdanau":
            unused, cause = unused | {"input_feeding"}, "form bahdanau"
    if options.attention == "multi-head":
        unused |= {"context", "bridge"}
    for name in sorted(unused):
        if getattr(options, name) != Options.model_fields[name].default:
            raise InputError(f"model.options.{name}: has no meaning with {cause}; leave one of them out")


def translator(
    options: Options, config: Model, rest: LayerOptions, source: int, target: int
) -> EncoderDecoder | CTCTranslator:
    """Build an encoder-decoder, or an encoder that predicts all of a target at once.

    Args:
        options: the result of `settled`.
        config: names, sizes and rates.
        rest: the options of the layers; each layer takes those that it has.
        source: number of token ids of the sources.
        target: number of token ids of the targets.

    Raises:
        ValueError: values contradict each other.
    """
    encoder = _layer(config, config.layer, config.embedding_size, int(options.encoder_size or 0), rest, encodes=True)
    if options.factorisation == "ctc":
        dropout, bias = config.dropout, config.output_bias
        return CTCTranslator(encoder, source, target, upsample=options.upsample, dropout=dropout, output_bias=bias)
    return EncoderDecoder(
        encoder,
        _decoder(options, config, rest, encoder.output_size),
        source,
        target,
        config.embedding_size,
        shared_embedding=options.shared_vocabulary,
        tie_weights=config.tie_weights,
        dropout=config.dropout,
        label_smoothing=options.label_smoothing,
        output_bias=config.output_bias,
        bounded_logits=options.readout == "tanh-logits",
    )


def _decoder(options: Options, config: Model, rest: LayerOptions, memory_size: int) -> SequenceLayer:
    name = str(options.decoder)
    causal = {key: value for key, value in rest.items() if key != "causal"}
    if options.attention == "multi-head":
        with_memory = {**causal, "memory_size": memory_size}
        return _layer(config, name, config.embedding_size, config.hidden_size, with_memory, encodes=False)

    def recurrence(width: int) -> SequenceLayer:
        return _layer(config, name, width, config.hidden_size, causal, encodes=False)

    summary = "ends" if config.bidirectional else "last"
    if options.attention == "none":
        form = {"context": options.context, "bridge": options.bridge, "summary": summary}
        return ContextDecoder(recurrence, config.embedding_size, memory_size, **form)
    shared = {
        "score": str(options.attention),
        "readout": "direct" if options.readout == "tanh-logits" else options.readout,
        "bridge": options.bridge,
        "summary": summary,
    }
    if options.form == "bahdanau":
        return BahdanauDecoder(recurrence, config.embedding_size, memory_size, **shared)
    feeding = options.input_feeding
    return LuongDecoder(recurrence, config.embedding_size, memory_size, input_feeding=feeding, **shared)


def _known(name: str, rest: LayerOptions) -> set[str]:
    """Return the options of a layer, or of any layer of a stack."""
    return {key for one in split_names(name) for key in options_of(one, rest)}


def _layer(config: Model, name: str, width: int, size: int, rest: LayerOptions, *, encodes: bool) -> SequenceLayer:
    """Build a layer with those of the options that it has."""
    own_options = {key: value for key, value in rest.items() if key in _known(name, rest)}
    check_options(name, own_options)
    return layer(
        ",".join(split_names(name)),
        width,
        size,
        num_layers=config.num_layers,
        bidirectional=bool(config.bidirectional) and encodes,
        dropout=config.dropout,
        variational_dropout=config.variational_dropout,
        residual=config.residual,
        **own_options,
    )

"""Builds the sequence-to-sequence model that a configuration describes."""

from collections.abc import Mapping
from typing import Annotated, Literal, TypeAlias

from pydantic import Field
from torch import Tensor

from ..config import MAX_BEAM, Count, Model, Rate
from ..core.contract import SequenceLayer
from ..core.errors import ConflictError
from ..layers import check_options, options_of, split_names
from .aligned import AlignedEncoderDecoder
from .attention_decoder import bahdanau_decoder, luong_decoder
from .base_models import layer_from_config
from .ctc_translator import CTCTranslator
from .encoder_decoder import EncoderDecoder
from .recurrent_decoder import ContextDecoder
from .scheduled_sampling import ScheduledSampling

BEAM, LENGTH_PENALTY = 5, 1.0
"""Usual width of beam search, and its usual length penalty."""


class Options(ScheduledSampling):
    """Options of an encoder-decoder, beside those of its layers."""

    factorisation: Literal["autoregressive", "ctc"] = "autoregressive"
    """Predict each token given those before it (autoregressive), or all tokens at once and independently, without a
    decoder (ctc: Graves et al. 2006; Libovický & Helcl 2018)."""
    upsample: Count = 3
    """Output positions per source token, with ctc."""
    decoder: str | None = None
    """Layer of the decoder; by default that of the encoder."""
    attention: Literal["none", "dot", "scaled-dot", "bilinear", "additive", "multi-head"] | None = None
    """How the decoder attends to the source: not at all, with one head and a scoring function, or inside its blocks
    (multi-head); by default multi-head if the decoder has blocks, otherwise dot."""
    form: Literal["luong", "bahdanau"] = "luong"
    """Attend after the recurrence (luong), or before it, so that the context enters the update (bahdanau)."""
    location: bool | None = None
    """Let attention with one head also depend on where the step before looked, so that it can learn to advance from
    token to token (Chorowski et al. 2015); by default if the targets are no running text."""
    copying: bool | None = None
    """Copy tokens of the source that are also in the target vocabulary, with a learned probability at each step (See et
    al. 2017); by default if many target tokens occur in their source."""
    aligned: bool | None = None
    """Sum over the positions of the source that a token may come from, each of which depends on that before, instead of
    attending to their mean (Wu & Cotterell 2019); by default, where possible, if the targets are no running text."""
    input_feeding: bool = False
    """Use the attentional output of a step as an input of the next step, with luong."""
    readout: Literal["tanh", "direct", "tanh-logits"] = "tanh"
    """Logits from the context c and the decoder's output h: V tanh(W[c; h]) + b (tanh), W[c; h] + b (direct), or
    tanh(W[c; h] + b) (tanh-logits), which allows no probability near 1; `model.output_bias` false removes b."""
    context: str = "initial"
    """Where the vector of the source enters a decoder without attention: `initial`, `updates`, `outputs`, or several of
    them joined by +."""
    bridge: Literal["map", "copy", "none"] = "map"
    """The initial state of the decoder: a map of the source's vector, a copy of the encoder's last state, or none."""
    encoder_size: Count | None = None
    """Width of one direction of the encoder; by default `hidden_size`, or half of it if there are two directions."""
    shared_vocabulary: bool | None = None
    """Use one tokenizer and one embedding for source and target; by default if both consist of the same symbols."""
    target_kind: Literal["byte", "char", "word", "bpe", "unigram"] | None = None
    """Kind of the target tokenizer; by default `tokenizer.kind`, or chosen from the targets if that is not given."""
    label_smoothing: Rate | None = None
    """Share of the probability of a target that is spread over all tokens in the training loss; by default 0.1."""
    hallucination: Rate | None = None
    """Share of the training pairs in which the longest part that source and target share gets other tokens, on both
    sides and again at every step (Anastasopoulos & Neubig 2019); by default for few pairs that share much."""
    beam: Annotated[int, Field(ge=1, le=MAX_BEAM)] | None = None
    """Width of beam search where a command names none; by default 5, or 1 with ctc."""
    length_penalty: Annotated[float, Field(ge=0, le=10)] | None = None
    """Length penalty of beam search where a command names none; by default 1, or 0 with ctc."""
    max_target_length: Count = 256
    """Largest number of tokens of a target; longer targets are refused with their line, longer answers are cut."""


LayerOptions: TypeAlias = Mapping[str, object]
ONE_HEAD = {"form", "input_feeding", "readout", "location", "aligned"}
"""Options of attention with one head."""
STEPWISE = {"copying", "label_smoothing", "hallucination", *ScheduledSampling.model_fields}
"""Options of models that write token by token."""
UNUSED = {
    "factorisation ctc": {*ONE_HEAD, *STEPWISE, "context", "bridge"},
    "attention none": {*ONE_HEAD, "upsample"},
    "attention multi-head": {*ONE_HEAD, "upsample", "context", "bridge"},
    "attention of one head": {"upsample", "context"},
    "form bahdanau": {"upsample", "context", "input_feeding", "aligned"},
    "aligned": {"upsample", "context", "input_feeding", "readout", *ScheduledSampling.model_fields},
}
"""Options that have no effect, by the choice that makes them so."""


def with_implied_options(options: Options, config: Model, rest: LayerOptions) -> Options:
    """Return the options with their implied values filled in; raise InputError if values contradict each other."""
    if options.shared_vocabulary and options.target_kind is not None:
        raise ConflictError(
            "model.options.target_kind: with shared_vocabulary both sides have one tokenizer; leave one out"
        )

    # Blocks bring their own attention of several heads; any other decoder gets one head around it.
    decoder = options.decoder or config.layer
    blocks = all("memory_size" in options_of(one, rest) for one in split_names(decoder))
    attention = options.attention or ("multi-head" if blocks else "dot")
    if attention == "multi-head" and not blocks:
        raise ConflictError(
            f"model.options.attention: multi-head needs a decoder of blocks, not {decoder!r}; set model.options.block "
            "to true, or choose dot, scaled-dot, bilinear, additive or none"
        )

    # An option may belong to either layer, so each takes those that it has; one that neither has is refused here.
    known = _known(config.layer, rest) | _known(decoder, rest)
    for key in rest:
        if key not in known:
            check_options(config.layer, {key: rest[key]})
    half = -(-config.hidden_size // 2) if config.bidirectional else config.hidden_size
    beam, penalty = (1, 0.0) if options.factorisation == "ctc" else (BEAM, LENGTH_PENALTY)
    update = {
        "decoder": decoder,
        "attention": attention,
        "encoder_size": options.encoder_size or half,
        "beam": beam if options.beam is None else options.beam,
        "length_penalty": penalty if options.length_penalty is None else options.length_penalty,
    }
    complete = options.model_copy(update=update)
    _refuse_unused(complete)
    return complete


def _refuse_unused(options: Options) -> None:
    """Raise InputError for an option that has no effect beside the others."""
    if options.copying and options.factorisation != "ctc":
        unsupported = {"readout": options.readout == "tanh-logits", "scheduled_sampling": options.scheduled_sampling}
        for name in (name for name, is_chosen in unsupported.items() if is_chosen):
            raise ConflictError(f"model.options.{name}: not supported with copying; leave one of them out")

    # What is left at its default is not meant to have an effect.
    cause = "aligned" if options.aligned else "attention of one head"
    cause = "form bahdanau" if options.form == "bahdanau" else cause
    if options.factorisation == "ctc":
        cause = "factorisation ctc"
    elif options.attention in ("none", "multi-head"):
        cause = f"attention {options.attention}"
    for name in sorted(UNUSED[cause]):
        if getattr(options, name) not in (Options.model_fields[name].default, False):
            raise ConflictError(f"model.options.{name}: cannot be used with {cause}; leave one of them out")


def translator(
    options: Options, config: Model, rest: LayerOptions, source: int, target: int, copied: Tensor | None = None
) -> EncoderDecoder | CTCTranslator:
    """Build an encoder-decoder, or an encoder that predicts all of a target at once.

    The options are those of `with_implied_options`; ``rest`` are options of the layers, each of which takes its own.
    ``source`` and ``target`` are numbers of token ids; ``copied`` is the table for `copying`.
    """
    encoder = layer_from_config(config, _select(config.layer, rest), hidden_size=options.encoder_size)
    if options.factorisation == "ctc":
        dropout, bias = config.dropout or 0.0, config.output_bias
        return CTCTranslator(encoder, source, target, upsample=options.upsample, dropout=dropout, output_bias=bias)
    make = AlignedEncoderDecoder if options.aligned else EncoderDecoder
    return make(
        encoder,
        _decoder(options, config, rest, encoder.output_size),
        source,
        target,
        config.embedding_size,
        shared_embedding=bool(options.shared_vocabulary),
        tie_weights=config.tie_weights,
        dropout=config.dropout or 0.0,
        label_smoothing=options.label_smoothing or 0.0,
        output_bias=config.output_bias,
        bounded_logits=options.readout == "tanh-logits",
        copied=copied,
    )


def _decoder(options: Options, config: Model, rest: LayerOptions, memory_size: int) -> SequenceLayer:
    """Build the decoder."""
    name, rest = str(options.decoder), {key: value for key, value in rest.items() if key != "causal"}
    if options.attention == "multi-head":
        with_memory = _select(name, {**rest, "memory_size": memory_size})
        return layer_from_config(config, with_memory, name=name, bidirectional=False)

    def recurrence(width: int) -> SequenceLayer:
        return layer_from_config(config, _select(name, rest), name=name, input_size=width, bidirectional=False)

    form = {"bridge": options.bridge, "summary": "ends" if config.bidirectional else "last"}
    if options.attention == "none":
        return ContextDecoder(recurrence, config.embedding_size, memory_size, context=options.context, **form)
    form["score"] = str(options.attention)
    form["readout"] = "direct" if options.readout == "tanh-logits" else options.readout
    width, location, feeding = config.embedding_size, bool(options.location or options.aligned), options.input_feeding
    if options.form == "bahdanau":
        return bahdanau_decoder(recurrence, width, memory_size, location=location, **form)
    return luong_decoder(recurrence, width, memory_size, input_feeding=feeding, location=location, **form)


def _known(name: str, rest: LayerOptions) -> set[str]:
    """Return the options of a layer, or of any layer of a stack."""
    return {key for one in split_names(name) for key in options_of(one, rest)}


def _select(name: str, rest: LayerOptions) -> LayerOptions:
    """Return and check those options that a layer has."""
    known = _known(name, rest)
    selected = {key: value for key, value in rest.items() if key in known}
    check_options(name, selected)
    return selected

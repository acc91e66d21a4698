"""Sequence to sequence: a text for every text."""

import contextlib
from collections.abc import Sequence

from torch import Tensor

from ..config import BATCH_SIZE, Config, read_settings
from ..core.device_copies import to_device
from ..core.errors import InputError, NotSupportedError, RangeError, check_integer, shown
from ..core.json_object import JsonObject
from ..core.state import State
from ..data.batches import Buckets
from ..data.pairs import PairBatch, Pairs, encode_side
from ..data.text_kinds import has_marks, kind_of
from ..data.vocabulary import Vocabulary
from ..decoding.ensemble import EncoderDecoders
from ..evaluation.intervals import Measure, Measurement, mean
from ..layers.positions import learned_positions
from ..models.copying import copied_tokens
from ..models.ctc_translator import CTCTranslator
from ..models.encoder_decoder import EncoderDecoder
from ..models.translator import Options, translator, with_implied_options
from .answering import (
    PairEvaluator,
    PairPredictor,
    TranslationSettings,
    Translator,
    alignment_losses,
    answer_all,
    exact_fraction,
    likelihood,
    measure_answers,
    pair_losses,
)
from .data_files import read_lengths, warn_of_long
from .defaults import default_rate, has_budget, seeing_everything, split_options, with_kind, with_model, with_options
from .explainer import ExplainedModel, Explainer
from .names import TASK_SUMMARIES
from .paired import SMOOTHING, PairLimits, PairReader, choose_for_pairs, data_dependent_defaults, default_model
from .task import ModelBuilder, Objective, Predictor, Reader, Task, TaskKind
from .translation_explainer import TranslatedData, explain_ctc, explain_encoder_decoder

LEARNING_RATE = 1e-2
"""The default learning rate, for layers that declare no other."""


def options_for(config: Config) -> Options:
    """Return the options of the task."""
    return split_options(Options, config)[0]


# The configuration


def defaults(config: Config) -> Config:
    """Fill in the defaults that need no data: an encoder that reads in both directions, and all options."""
    config = with_kind(config, None)
    options, rest = split_options(Options, config)
    config = seeing_everything(with_model(config, options=rest))
    implied = with_implied_options(options, config.model, config.model.options)
    return with_model(config, options={**config.model.options, **implied.model_dump()})


def choose(given: Config, config: Config, reader: Reader[Pairs]) -> Config:
    """Choose the model, the tokens, and the options that are open, by the texts of the training pairs."""
    assert isinstance(reader, PairReader)
    sources, targets = reader.training_texts()

    # A layer that the user names, or an initial run has, stays. Otherwise the pairs suggest another model, unless the
    # options that the user gives do not fit it.
    if "layer" not in given.model.model_fields_set and config.training.init is None:
        suggested = default_model(sources, targets)
        fields = {name: value for name, value in suggested.items() if name not in given.model.model_fields_set}
        model = given.model.model_copy(update=fields)
        if model.embedding_size != model.hidden_size:  # weights of different widths cannot be tied
            model = model.model_copy(update={"tie_weights": given.model.tie_weights})
        with contextlib.suppress(InputError):
            config = config.model_copy(update={"model": defaults(config.model_copy(update={"model": model})).model})

    options = options_for(config)
    chosen, config = choose_for_pairs(config, options.target_kind, sources, targets)
    at_once = options.factorisation == "ctc"
    samples = bool(options.scheduled_sampling) or options.readout == "tanh-logits"
    has_one_head = not at_once and options.attention not in ("none", "multi-head")
    usual = options.form == "luong" and options.readout == "tanh" and not options.input_feeding
    can_align = has_one_head and usual and not samples and options.location is not False
    return with_options(
        config,
        copying=chosen.copying and not at_once and not samples,
        location=chosen.location and has_one_head,
        aligned=chosen.aligned and can_align,
        hallucination=0.0 if at_once else chosen.hallucination,
        label_smoothing=0.0 if at_once else SMOOTHING,
    )


def data_defaults(config: Config, train: Pairs) -> JsonObject:
    """Return defaults for these pairs; see `paired.data_dependent_defaults`."""
    kind, rate, given = kind_of(train.targets), default_rate(config, LEARNING_RATE), has_budget(config.training)
    is_composed = kind == "symbols" and has_marks(train.targets)
    return data_dependent_defaults(
        len(train.sources), is_text=kind == "text", is_composed=is_composed, rate=rate, has_budget=given
    )


# The parts of the task


class TranslatorBuilder(ModelBuilder[Translator]):
    """Builds encoder-decoders, models that write whole targets at once (CTC), and ensembles."""

    def build(self, vocabulary: Vocabulary) -> Translator:
        """Build a translator."""
        options, layer_options = split_options(Options, self.config)
        source, target = vocabulary.tokenizer, vocabulary.target
        sizes = source.vocabulary_size, target.vocabulary_size
        copied = copied_tokens(source, target) if options.copying else None
        return translator(options, self.config.model, layer_options, *sizes, copied)

    def combine(self, models: Sequence[Translator]) -> EncoderDecoders:
        """Return a model with the mean of the probabilities at every step; there are no steps with ctc."""
        if options_for(self.config).factorisation == "ctc":
            raise NotSupportedError("model.options.factorisation: ensembles are not supported for ctc; give one run")
        return EncoderDecoders(models)


class TranslationObjective(Objective[Pairs, PairBatch, Translator, Options]):
    """Teacher forcing, scheduled sampling, or a sum over alignments (CTC)."""

    def batches(self, data: Pairs) -> Buckets[PairBatch]:
        """Return batches of pairs of similar length."""
        lengths = data.source.lengths + data.target.lengths
        return Buckets(lengths, self.config.training.batch_size or BATCH_SIZE, data.batch)

    def loss(
        self, model: Translator, batch: PairBatch, state: State | None, *, progress: float = 0.0
    ) -> tuple[Tensor, None]:
        """Compute the loss by teacher forcing, by scheduled sampling, or as a sum over alignments (CTC)."""
        if isinstance(model, CTCTranslator):
            return alignment_losses(model, batch).sum(), None
        device, batch = model.output.weight.device, batch.with_invented_stems(self.options.hallucination or 0.0)
        source, inputs, targets = (to_device(tensor, device) for tensor in (batch.source, batch.inputs, batch.targets))
        arguments = source, batch.source_lengths, inputs, targets, batch.target_lengths
        return model.loss(*arguments, own_predictions=self.options.own_predictions(progress)), None

    def validate(self, model: Translator, data: Pairs) -> JsonObject:
        """Compute the loss, and the share of exact answers if it selects the weights."""
        metrics = likelihood(pair_losses(model, data))
        if self.options.location and isinstance(model, EncoderDecoder):
            metrics["exact_match"] = exact_fraction(model, data)
        return metrics


class TranslationEvaluator(PairEvaluator):
    """Likelihood of targets, and answers compared with them."""

    def __init__(self, config: Config, predictor: Predictor[Translator]) -> None:
        self.predictor, self.by_exact_answers = predictor, bool(options_for(config).location)

    def usual(self, vocabulary: Vocabulary) -> str:
        """Return exact answers if the targets are no running text, since they improve for longer, else the loss."""
        return "exact_match" if self.by_exact_answers else "loss"

    def measure(self, model: Translator, data: Pairs, **settings: object) -> Measurement:
        """Compute the loss, and compare the answers with the targets."""
        losses = data.summed(pair_losses(model, data))
        answers = [answer["text"] for answer in self.predictor.answer(model, data.vocabulary, data.inputs, **settings)]
        metrics, measures = measure_answers(answers, data)
        return Measurement({**likelihood(losses), **metrics}, {"loss": Measure(losses, mean), **measures})


class TranslationPredictor(PairPredictor[Translator]):
    """Writes a text for each source."""

    def __init__(self, config: Config) -> None:
        self.config, self.options = config, options_for(config)

    def answer(
        self, model: Translator, vocabulary: Vocabulary, items: Sequence[str], **settings: object
    ) -> list[JsonObject]:
        """Find the best answers to each source; ``settings`` are fields of `TranslationSettings`.

        With learned positions, a source is read up to their number, and an answer is no longer than it.
        """
        chosen = read_settings(TranslationSettings, settings)
        if not chosen.sampled:
            chosen = chosen.with_search(self.options)
        side, limit = encode_side(items, vocabulary.tokenizer), learned_positions(model)
        longest = self.options.max_target_length if limit is None else min(self.options.max_target_length, limit - 1)
        if check_integer("min_length", chosen.min_length, minimum=0) > longest:
            given = shown(chosen.min_length)
            raise RangeError(f"min_length: an answer of this model has at most {longest} tokens, got {given}; lower it")

        # CTC writes at several positions for each token of the source, and each needs a learned one.
        if limit is not None and (self.options.factorisation == "ctc"):
            limit //= self.options.upsample
        side = side._replace(lengths=read_lengths(items, side.lengths, limit))
        warn_of_long(side.lengths, self.config, name="predict", items="sources")
        if chosen.sampled and (self.options.factorisation == "ctc"):
            raise NotSupportedError("temperature, seed: this model writes whole answers at once; leave them out")
        with_alignments = chosen.alignments and self.options.attention not in ("none", "multi-head")
        return answer_all(model, vocabulary, side, chosen, longest=longest, with_alignments=with_alignments)


def open_task(config: Config) -> Task:
    """Compose the parts of sequence to sequence with a network."""
    options = options_for(config)
    reader = PairReader(
        config,
        shared_vocabulary=bool(options.shared_vocabulary),
        target_kind=options.target_kind,
        limits=PairLimits(options.max_target_length, options.upsample if options.factorisation == "ctc" else None),
        invents_stems=bool(options.hallucination),
    )
    predictor = TranslationPredictor(config)
    evaluator = TranslationEvaluator(config, predictor)

    def explain(explained: ExplainedModel) -> Explainer:
        data = TranslatedData(explained, predictor, reader)
        by_model = explain_ctc if options.factorisation == "ctc" else explain_encoder_decoder
        return by_model(explained, data, options.max_target_length)

    return Task(
        KIND,
        config,
        reader=reader,
        builder=TranslatorBuilder(config),
        evaluator=evaluator,
        objective=TranslationObjective(config, evaluator, KIND.items_name, options),
        predictor=predictor,
        explain=explain,
    )


KIND = TaskKind(
    name="seq2seq",
    summary=TASK_SUMMARIES["seq2seq"],
    learning_rate=LEARNING_RATE,
    open=open_task,
    evaluator=TranslationEvaluator,
    predictor=TranslationPredictor,
    usage="seriatim predict {run} SOURCES --beam 5",
    caution="It writes answers like those it was trained on, and one for every source, whether it has one or not.",
    options=Options,
    reference_model="rules",
    items_name="pairs",
    defaults=defaults,
    choose=choose,
    data_defaults=data_defaults,
    output_tokenizer=lambda vocabulary: vocabulary.target,
)

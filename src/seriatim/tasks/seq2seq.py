"""Sequence to sequence: a text for every text."""

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, TypeAlias

import numpy as np
from torch import Tensor, nn

from ..config import Config
from ..core.errors import InputError
from ..core.state import State
from ..data.arguments import check_integer
from ..data.batching import Buckets
from ..data.encoded_pairs import PairBatch, Pairs, encode_pairs, encode_side
from ..data.pairs import Pair, read_pairs, read_unpaired
from ..data.readers import PAIRED_SUFFIXES, Source
from ..data.tokenizer_factory import fit_tokenizer
from ..data.tokenizers import Tokenizer
from ..data.vocabulary import Vocabulary
from ..decoding.ensemble import EncoderDecoders
from ..evaluation.intervals import Measure, Metrics, mean, with_interval
from ..evaluation.perplexity import safe_exp
from ..evaluation.translation import translation_measures, translation_metrics
from ..layers.positions import learned_positions
from ..models.ctc_translator import CTCTranslator
from ..models.encoder_decoder import EncoderDecoder
from ..models.stepping import Stepper, decoder_stepper
from ..models.translator import Options, settled, translator
from ..training.loop import Trainer
from ..training.task import Task, evaluating, read_settings
from ..training.task_data import Figure
from .answering import (
    AnswerSettings,
    Sources,
    alignments,
    answer_limits,
    answer_of,
    excluded_tokens,
    sample_stepwise,
    search_at_once,
    search_stepwise,
)
from .options import seeing_everything, split_options, with_kind
from .overlong import read_lengths, warn_of_long
from .seq2seq_view import CTCView, EncoderDecoderView, TranslatorView

TOGETHER = 32
Translator: TypeAlias = EncoderDecoder | CTCTranslator


class SequenceToSequence(Task[Pairs, PairBatch, Translator]):
    """Write one text for another."""

    own_options = Options
    timed_work = "writing an answer"
    items_name = "pairs"
    suffixes = PAIRED_SUFFIXES
    estimator = Trainer
    baseline_name = "the source itself"
    usage = "seriatim predict {run} SOURCES --beam 5"
    caution = "It writes answers like those it was trained on, and one for every source, whether it has one or not."
    evaluation_settings = answer_settings = AnswerSettings
    per_token = ("loss", "perplexity")
    figures: ClassVar[tuple[Figure, ...]] = (
        Figure("loss", "loss (nats per target token)", 4),
        Figure("perplexity", "perplexity per target token", 3, headline=True),
        Figure("bleu", "BLEU", 2, headline=True),
        Figure("chrf", "chrF", 2),
        Figure("exact_match", "exact match", 4, headline=True),
        Figure("word_error_rate", "word error rate", 4),
    )
    counts = ("pairs", "source_tokens", "tokens", "unknown_tokens")

    @classmethod
    def settle(cls, config: Config) -> Config:
        """Fill in the defaults: byte-pair tokens, an encoder that reads in both directions, and all options."""
        config = with_kind(config, "bpe")
        own, rest = split_options(Options, config)
        encoder = seeing_everything(
            config.model_copy(update={"model": config.model.model_copy(update={"options": rest})})
        )
        implied = settled(own, encoder.model, encoder.model.options)
        options = {**encoder.model.options, **implied.model_dump()}
        return encoder.model_copy(update={"model": encoder.model.model_copy(update={"options": options})})

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.options, self.layer_options = split_options(Options, self.config)

    def view(self) -> type[TranslatorView[Translator]]:
        """Return the view of translators."""
        return TranslatorView

    def model_view(self, model: Translator, vocabulary: Vocabulary) -> CTCView | EncoderDecoderView:
        """Return the view of one translator."""

        def read_pairs(spec: str, file_format: str | None) -> Iterator[Pair]:
            return self.pairs(spec, "test", file_format)

        rest = vocabulary, read_pairs, self.answer, self.options.max_target_length
        if isinstance(model, CTCTranslator):
            return CTCView(self.config, model, *rest)
        return EncoderDecoderView(self.config, model, *rest)

    def learn_vocabulary(self) -> Vocabulary:
        """Learn one tokenizer for both sides, or one for each.

        Raises:
            InputError: the pairs cannot be read, or every target is empty, so that there is nothing to learn.
        """
        pairs = list(self.pairs(self.training_spec(), "train"))
        if not any(pair.target for pair in pairs):
            where = f"{pairs[0].name}:{pairs[0].line}"
            raise InputError(f"{where}: the targets of all {len(pairs):,} pairs are empty; write SOURCE<TAB>TARGET")
        sources, targets = [pair.source for pair in pairs], [pair.target for pair in pairs]
        if self.options.shared_vocabulary:
            return Vocabulary({"tokenizer": fit_tokenizer(self.config.tokenizer, [*sources, *targets])})
        settings = self.config.tokenizer
        kind = self.options.target_kind or settings.kind
        target = fit_tokenizer(settings.model_copy(update={"kind": kind}), targets)
        return Vocabulary({"tokenizer": fit_tokenizer(settings, sources), "target": target})

    def make_model(self, vocabulary: Vocabulary) -> EncoderDecoder | CTCTranslator:
        """Build an encoder-decoder, or a model that writes whole targets at once."""
        sizes = vocabulary.tokenizer.vocabulary_size, vocabulary.target.vocabulary_size
        return translator(self.options, self.config.model, self.layer_options, *sizes)

    def pairs(self, spec: str, split: str, file_format: str | None = None) -> Iterator[Pair]:
        """Read the pairs of ``spec``."""
        wanted = file_format or self.config.data.format
        return read_pairs(spec, file_format=wanted, split=split)

    def labelled_items(self, spec: str, split: str) -> Iterator[tuple[str, str]]:
        """Yield sources with their targets."""
        return ((pair.source, pair.target) for pair in self.pairs(spec, split))

    def stepper(self, model: nn.Module) -> Stepper | None:
        """Return what runs the decoder step by step; None where a target is predicted at once."""
        return decoder_stepper(model) if isinstance(model, EncoderDecoder) else None

    def timed_tokens(self, vocabulary: Vocabulary, text: str, answer: Mapping[str, object]) -> int:
        """Return the number of tokens of the answer, its end included."""
        return len(vocabulary.target.encode(str(answer["text"]))) + 1

    def read(self, spec: str, split: str, vocabulary: Vocabulary, *, file_format: str | None = None) -> Pairs:
        """Read and encode pairs; see `Task.read`.

        Raises:
            InputError: a target longer than answers may be.
        """
        pairs = list(self.pairs(spec, split, file_format))
        found, most = encode_pairs(pairs, vocabulary), self.options.max_target_length
        warn_of_long(found.source.lengths, self.config, name=spec, items="sources")
        for row in np.flatnonzero(found.target.lengths > most)[:1]:
            raise InputError(
                f"{pairs[row].name}:{pairs[row].line}: the target has {found.target.lengths[row]} tokens, "
                f"model.options.max_target_length is {most}; raise it, or split the pair"
            )
        if self.at_once:
            for row, needed in enumerate(found.places_needed()):
                places = int(found.source.lengths[row]) * self.options.upsample
                if needed > places:
                    raise InputError(
                        f"{pairs[row].name}:{pairs[row].line}: the target needs {needed} places, its source gives "
                        f"{places}; raise model.options.upsample, or leave the pair out"
                    )
        return found

    @property
    def at_once(self) -> bool:
        """Whether the model writes whole targets at once."""
        return self.options.factorisation == "ctc"

    def written_by(self, vocabulary: Vocabulary) -> Tokenizer:
        """Return the tokenizer of the targets."""
        return vocabulary.target

    def skim(self, spec: str, split: str) -> None:
        """Read the data and discard it; see `Task.skim`."""
        for _ in self.pairs(spec, split):
            pass

    def count(self, spec: str, split: str, vocabulary: Vocabulary) -> dict[str, object]:
        """Return statistics of the pairs and of both sides."""
        pairs = self.read(spec, split, vocabulary)
        return {
            "pairs": len(pairs.sources),
            "source_tokens": int(pairs.source.lengths.sum()),
            "tokens": int(pairs.target.lengths.sum()),
            "unknown_tokens": pairs.unknown(),
            "longest_source": int(pairs.source.lengths.max()),
            "longest_target": int(pairs.target.lengths.max()),
            "empty_sources": int((pairs.source.lengths == 0).sum()),
            "empty_targets": int((pairs.target.lengths == 0).sum()),
        }

    def batches(self, data: Pairs) -> Buckets[PairBatch]:
        """Return batches of pairs of similar length."""
        return Buckets(data.source.lengths + data.target.lengths, self.config.training.batch_size, data.batch)

    def loss(
        self, model: Translator, batch: PairBatch, state: State | None, *, progress: float = 0.0
    ) -> tuple[Tensor, None]:
        """Compute the loss by teacher forcing, by scheduled sampling, or as a sum over alignments (CTC)."""
        if isinstance(model, CTCTranslator):
            return alignment_losses(model, batch).sum(), None
        device = model.output.weight.device
        total = model.loss(
            batch.source.to(device),
            batch.source_lengths,
            batch.inputs.to(device),
            batch.targets.to(device),
            batch.target_lengths,
            own_predictions=self.options.own_predictions(progress),
        )
        return total, None

    def validate(self, model: Translator, data: Pairs) -> Metrics:
        """Compute the loss only, since writing every answer would take as long as an epoch."""
        return _likelihood(self.losses(model, data))

    def evaluate(self, model: Translator, data: Pairs, **settings: object) -> Metrics:
        """Compute the loss, and compare the answers with the targets."""
        return _metrics(self.losses(model, data), self.texts(model, data, **settings), data)

    def measures(self, model: Translator, data: Pairs, **settings: object) -> dict[str, Measure]:
        """Compute the contribution of each pair."""
        losses = Measure(self.losses(model, data), mean)
        return {"loss": losses, **translation_measures(self.texts(model, data, **settings), data.targets)}

    def examine(self, model: Translator, data: Pairs) -> tuple[Metrics, dict[str, Measure]]:
        """Compute both results from the same answers."""
        losses, answers = self.losses(model, data), self.texts(model, data)
        measures = {"loss": Measure(losses, mean), **translation_measures(answers, data.targets)}
        return _metrics(losses, answers, data), measures

    def texts(self, model: Translator, data: Pairs, **settings: object) -> list[str]:
        """Return the answer to every source."""
        return [answer["text"] for answer in self.answer(model, data.vocabulary, data.sources, **settings)]

    def losses(self, model: Translator, data: Pairs) -> np.ndarray:
        """Return for every pair the summed −log P in nats and the number of target tokens ``(pairs, 2)``."""
        batches = Buckets(data.source.lengths + data.target.lengths, TOGETHER, data.batch)
        found = np.zeros((len(data.sources), 2))
        with evaluating(model) as device:
            for batch in batches.read(batches.in_order()):
                lengths, inputs, targets = batch.target_lengths, batch.inputs.to(device), batch.targets.to(device)
                if isinstance(model, CTCTranslator):
                    total = alignment_losses(model, batch)
                else:
                    source = batch.source.to(device)
                    losses = model.token_losses(source, batch.source_lengths, inputs, targets, lengths)
                    total = losses.double().sum(1)
                found[batch.rows, 0] = total.cpu().numpy()
                found[batch.rows, 1] = lengths.numpy()
        return found

    def combine(self, models: Sequence[Translator]) -> EncoderDecoders:
        """Return a model with the mean of the probabilities at every step.

        Raises:
            InputError: all of an answer is given at once, so that there are no steps.
        """
        if self.at_once:
            raise InputError("model.options.factorisation: ensembles are not supported for ctc; give one run")
        return EncoderDecoders(models)

    def baseline(self, train: Pairs, valid: Pairs, vocabulary: Vocabulary) -> Metrics:
        """Compute the metrics of the source as its own answer."""
        return translation_metrics(valid.sources, valid.targets)

    def describe(self, data: Pairs) -> str:
        """Return the number of pairs and tokens."""
        return f"{len(data.sources):,} pairs ({data.source.lengths.sum():,} and {data.target.lengths.sum():,} tokens)"

    def items(self, sources: Sequence[Source], file_format: str | None) -> Iterator[str]:
        """Read lines, or the sources of TSV or JSONL; targets are ignored."""
        return read_unpaired(sources, file_format=file_format)

    def answer(
        self, model: Translator, vocabulary: Vocabulary, items: Sequence[str], **settings: object
    ) -> list[Metrics]:
        """Find the best answers to each source; ``settings`` are fields of `AnswerSettings`.

        With learned positions, a source is read up to their number, and an answer is no longer than it.
        """
        chosen = read_settings(AnswerSettings, settings)
        side, places = encode_side(items, vocabulary.tokenizer), learned_positions(model)
        longest = self.options.max_target_length if places is None else min(self.options.max_target_length, places - 1)
        check_integer("min_length", chosen.min_length, minimum=0)
        if chosen.min_length > longest:
            raise InputError(
                f"min_length: an answer of this model has at most {longest} tokens, got {chosen.min_length}; lower it"
            )
        if places is not None and self.at_once:
            places //= self.options.upsample
        side = side._replace(lengths=read_lengths(side.lengths, places))
        warn_of_long(side.lengths, self.config, name="predict", items="sources")
        if chosen.sampled and self.at_once:
            raise InputError("--temperature, --seed: not supported for a model that writes whole answers at once")
        attends = self.options.attention not in ("none", "multi-head")
        excluded = excluded_tokens(vocabulary.target)
        batches = Buckets(side.lengths, TOGETHER, lambda rows: (rows, *side.rows(rows)))
        answers: list[Metrics] = [{}] * len(items)
        with evaluating(model) as device:
            for rows, source, lengths in batches.read(batches.in_order()):
                sources = Sources(source.to(device), lengths, answer_limits(lengths, longest), excluded)
                if isinstance(model, CTCTranslator):
                    best = search_at_once(model, sources, chosen)
                else:
                    best = (sample_stepwise if chosen.sampled else search_stepwise)(model, sources, chosen)
                texts = [answer_of(hypotheses, vocabulary.target) for hypotheses in best]
                if chosen.alignments and attends and not isinstance(model, CTCTranslator):
                    aligned = alignments(model, sources, [hypotheses[0].tokens for hypotheses in best], vocabulary)
                    texts = [answer | alignment for answer, alignment in zip(texts, aligned, strict=True)]
                for row, answer in zip(rows.tolist(), texts, strict=True):
                    answers[row] = answer
        return answers


def alignment_losses(model: CTCTranslator, batch: PairBatch) -> Tensor:
    """Return −log P of each target ``(batch,)``, summed over its alignments with the source."""
    device = model.output.weight.device
    source, targets = batch.source.to(device), batch.targets.to(device)
    return model.losses(source, batch.source_lengths, targets, batch.target_lengths - 1)


def _likelihood(losses: np.ndarray) -> Metrics:
    """Return loss and perplexity with intervals, from the result of `losses`."""
    found = with_interval("loss", losses, mean)
    return found | {
        name.replace("loss", "perplexity"): None if value is None else safe_exp(value) for name, value in found.items()
    }


def _metrics(losses: np.ndarray, answers: list[str], data: Pairs) -> Metrics:
    """Return all metrics of some pairs."""
    counts = {
        "pairs": len(data.sources),
        "source_tokens": int(data.source.lengths.sum()),
        "tokens": int(data.target.lengths.sum()) + len(data.sources),
        "unknown_tokens": data.unknown(),
    }
    return {**_likelihood(losses), **translation_metrics(answers, data.targets), **counts}

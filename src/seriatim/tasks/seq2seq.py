"""Sequence to sequence: a text for every text."""

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, TypeAlias

import numpy as np
from torch import Tensor

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
from ..models.translator import Options, settled, translator
from ..training.task import evaluating, read_settings
from ..training.task_data import Metric
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
from .base_tasks import LabelledTask, seeing_everything, split_options, with_kind, with_model
from .overlong import read_lengths, warn_of_long
from .seq2seq_view import CTCView, EncoderDecoderView

TOGETHER = 32
Translator: TypeAlias = EncoderDecoder | CTCTranslator


class SequenceToSequence(LabelledTask[Pairs, PairBatch, Translator]):
    """Write one text for another."""

    options: Options
    own_options = Options
    timed_work = "writing an answer"
    items_name = "pairs"
    suffixes = PAIRED_SUFFIXES
    baseline_name = "the source itself"
    usage = "seriatim predict {run} SOURCES --beam 5"
    caution = "It writes answers like those it was trained on, and one for every source, whether it has one or not."
    evaluation_settings = answer_settings = AnswerSettings
    per_token = ("loss", "perplexity")
    figures: ClassVar[tuple[Metric, ...]] = (
        Metric("loss", "loss (nats per target token)", 4),
        Metric("perplexity", "perplexity per target token", 3, headline=True),
        Metric("bleu", "BLEU", 2, headline=True, more_is_better=True),
        Metric("chrf", "chrF", 2, more_is_better=True),
        Metric("exact_match", "exact match", 4, headline=True, more_is_better=True),
        Metric("word_error_rate", "word error rate", 4),
    )
    counts = ("pairs", "source_tokens", "tokens", "unknown_tokens")

    @classmethod
    def with_defaults(cls, config: Config) -> Config:
        """Fill in the defaults: byte-pair tokens, an encoder that reads in both directions, and all options."""
        config = with_kind(config, "bpe")
        options, rest = split_options(Options, config)
        config = seeing_everything(with_model(config, options=rest))
        implied = settled(options, config.model, config.model.options)
        return with_model(config, options={**config.model.options, **implied.model_dump()})

    def model_view(self, model: Translator, vocabulary: Vocabulary) -> CTCView | EncoderDecoderView:
        """Return the view of one translator."""
        read_pairs = functools.partial(self.pairs, split="test")
        rest = vocabulary, read_pairs, self.answer, self.options.max_target_length
        if isinstance(model, CTCTranslator):
            return CTCView(self.config, model, *rest)
        return EncoderDecoderView(self.config, model, *rest)

    def learn_vocabulary(self) -> Vocabulary:
        """Learn one tokenizer for both sides, or one for each; refuse pairs without any target."""
        pairs = list(self.pairs(self.training_spec(), "train"))
        if not any(pair.target for pair in pairs):
            where = f"{pairs[0].name}:{pairs[0].line}"
            raise InputError(f"{where}: the targets of all {len(pairs):,} pairs are empty; write SOURCE<TAB>TARGET")
        sources, targets = [pair.source for pair in pairs], [pair.target for pair in pairs]
        settings = self.config.tokenizer
        if self.options.shared_vocabulary:
            return Vocabulary({"tokenizer": fit_tokenizer(settings, [*sources, *targets])})
        target_settings = settings.model_copy(update={"kind": self.options.target_kind or settings.kind})
        target = fit_tokenizer(target_settings, targets)
        return Vocabulary({"tokenizer": fit_tokenizer(settings, sources), "target": target})

    def make_model(self, vocabulary: Vocabulary) -> Translator:
        """Build an encoder-decoder, or a model that writes whole targets at once."""
        sizes = vocabulary.tokenizer.vocabulary_size, vocabulary.target.vocabulary_size
        return translator(self.options, self.config.model, self.layer_options, *sizes)

    def pairs(self, spec: str, split: str, file_format: str | None = None) -> Iterator[Pair]:
        """Read the pairs of ``spec``."""
        return read_pairs(spec, file_format=file_format or self.config.data.format, split=split)

    def labelled_items(self, spec: str, split: str) -> Iterator[tuple[str, str]]:
        """Yield sources with their targets."""
        return ((pair.source, pair.target) for pair in self.pairs(spec, split))

    def timed_tokens(self, vocabulary: Vocabulary, text: str, answer: Mapping[str, object]) -> int:
        """Return the number of tokens of the answer, its end included."""
        return len(vocabulary.target.encode(str(answer["text"]))) + 1

    def read(self, spec: str, split: str, vocabulary: Vocabulary, *, file_format: str | None = None) -> Pairs:
        """Read and encode pairs, and refuse targets that are longer than answers may be; see `Task.read`."""
        pairs = list(self.pairs(spec, split, file_format))
        data, limit = encode_pairs(pairs, vocabulary), self.options.max_target_length
        sizes, target_sizes = data.source.lengths, data.target.lengths
        warn_of_long(sizes, self.config, name=spec, items="sources")
        for row in np.flatnonzero(target_sizes > limit)[:1]:
            raise InputError(
                f"{pairs[row].name}:{pairs[row].line}: the target has {target_sizes[row]} tokens, "
                f"model.options.max_target_length is {limit}; raise it, or split the pair"
            )
        if self.at_once:
            needed, places = data.places_needed(), sizes * self.options.upsample
            for row in np.flatnonzero(needed > places)[:1]:
                raise InputError(
                    f"{pairs[row].name}:{pairs[row].line}: the target needs {needed[row]} places, its source gives "
                    f"{places[row]}; raise model.options.upsample, or leave the pair out"
                )
        return data

    @property
    def at_once(self) -> bool:
        """Whether the model writes whole targets at once."""
        return self.options.factorisation == "ctc"

    def written_by(self, vocabulary: Vocabulary) -> Tokenizer:
        """Return the tokenizer of the targets."""
        return vocabulary.target

    def count(self, spec: str, split: str, vocabulary: Vocabulary) -> dict[str, object]:
        """Return statistics of the pairs and of both sides."""
        pairs = self.read(spec, split, vocabulary)
        sources, targets = pairs.source.lengths, pairs.target.lengths
        return {
            "pairs": len(sources),
            "source_tokens": int(sources.sum()),
            "tokens": int(targets.sum()),
            "unknown_tokens": pairs.unknown(),
            "longest_source": int(sources.max()),
            "longest_target": int(targets.max()),
            "empty_sources": int((sources == 0).sum()),
            "empty_targets": int((targets == 0).sum()),
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
        source, inputs, targets = (part.to(device) for part in (batch.source, batch.inputs, batch.targets))
        arguments = source, batch.source_lengths, inputs, targets, batch.target_lengths
        return model.loss(*arguments, own_predictions=self.options.own_predictions(progress)), None

    def validate(self, model: Translator, data: Pairs) -> Metrics:
        """Compute the loss only, since writing every answer would take as long as an epoch."""
        return _likelihood(self.losses(model, data))

    def evaluate(self, model: Translator, data: Pairs, **settings: object) -> Metrics:
        """Compute the loss, and compare the answers with the targets."""
        return _metrics(self.losses(model, data), self.texts(model, data, **settings), data)

    def measures(self, model: Translator, data: Pairs, **settings: object) -> dict[str, Measure]:
        """Compute the contribution of each pair."""
        return _measures(self.losses(model, data), self.texts(model, data, **settings), data)

    def examine(self, model: Translator, data: Pairs) -> tuple[Metrics, dict[str, Measure]]:
        """Compute both results from the same answers."""
        losses, answers = self.losses(model, data), self.texts(model, data)
        return _metrics(losses, answers, data), _measures(losses, answers, data)

    def texts(self, model: Translator, data: Pairs, **settings: object) -> list[str]:
        """Return the answer to every source."""
        return [answer["text"] for answer in self.answer(model, data.vocabulary, data.sources, **settings)]

    def losses(self, model: Translator, data: Pairs) -> np.ndarray:
        """Return for every pair the summed −log P in nats and the number of target tokens ``(pairs, 2)``."""
        batches = Buckets(data.source.lengths + data.target.lengths, TOGETHER, data.batch)
        losses = np.zeros((len(data.sources), 2))
        with evaluating(model) as device:
            for batch in batches.read(batches.in_order()):
                lengths = batch.target_lengths
                if isinstance(model, CTCTranslator):
                    total = alignment_losses(model, batch)
                else:
                    source, inputs, targets = (x.to(device) for x in (batch.source, batch.inputs, batch.targets))
                    total = model.token_losses(source, batch.source_lengths, inputs, targets, lengths).double().sum(1)
                losses[batch.rows, 0] = total.cpu().numpy()
                losses[batch.rows, 1] = lengths.numpy()
        return losses

    def combine(self, models: Sequence[Translator]) -> EncoderDecoders:
        """Return a model with the mean of the probabilities at every step; there are no steps with ctc."""
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
                for row, hypotheses in zip(rows.tolist(), best, strict=True):
                    answers[row] = answer_of(hypotheses, vocabulary.target)
                if chosen.alignments and attends and not isinstance(model, CTCTranslator):
                    aligned = alignments(model, sources, [hypotheses[0].tokens for hypotheses in best], vocabulary)
                    for row, alignment in zip(rows.tolist(), aligned, strict=True):
                        answers[row] |= alignment
        return answers


def alignment_losses(model: CTCTranslator, batch: PairBatch) -> Tensor:
    """Return −log P of each target ``(batch,)``, summed over its alignments with the source."""
    source, targets = (part.to(model.output.weight.device) for part in (batch.source, batch.targets))
    return model.losses(source, batch.source_lengths, targets, batch.target_lengths - 1)


def _likelihood(losses: np.ndarray) -> Metrics:
    """Return loss and perplexity with intervals, from the result of `losses`."""
    metrics = with_interval("loss", losses, mean)
    return metrics | {
        name.replace("loss", "perplexity"): None if value is None else safe_exp(value)
        for name, value in metrics.items()
    }


def _measures(losses: np.ndarray, answers: list[str], data: Pairs) -> dict[str, Measure]:
    """Return the contribution of each pair to each metric."""
    return {"loss": Measure(losses, mean), **translation_measures(answers, data.targets)}


def _metrics(losses: np.ndarray, answers: list[str], data: Pairs) -> Metrics:
    """Return all metrics of some pairs."""
    counts = {
        "pairs": len(data.sources),
        "source_tokens": int(data.source.lengths.sum()),
        "tokens": int(data.target.lengths.sum()) + len(data.sources),
        "unknown_tokens": data.unknown(),
    }
    return {**_likelihood(losses), **translation_metrics(answers, data.targets), **counts}

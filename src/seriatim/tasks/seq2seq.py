"""Sequence to sequence: a text for every text."""

import contextlib
import functools
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from ..config import Config, Fields, read_settings, set_fields
from ..core.device_copies import to_device
from ..core.errors import InputError, shown
from ..core.state import State
from ..data.arguments import check_integer
from ..data.batching import Buckets
from ..data.encoded_pairs import PairBatch, Pairs, encode_pairs, encode_side, items_of
from ..data.normal_forms import note_different_sides
from ..data.pairs import Pair, read_pairs, read_unpaired
from ..data.readers import PAIRED_SUFFIXES, Source
from ..data.repairs import DataWarning, Repairs
from ..data.text_kinds import kind_of
from ..data.tokenizer_factory import fit_tokenizer
from ..data.tokenizers import Tokenizer
from ..data.vocabulary import Vocabulary
from ..decoding.ensemble import EncoderDecoders
from ..evaluation.intervals import Measure, Metrics
from ..evaluation.translation import translation_metrics
from ..layers.positions import check_lengths, declared_positions, learned_positions
from ..models.copying import copied_tokens
from ..models.ctc_translator import CTCTranslator
from ..models.encoder_decoder import EncoderDecoder
from ..models.translator import Options, settled, translator
from ..training.adaptive_defaults import has_budget
from ..training.optimizers import default_rate
from ..training.task_data import Metric
from .answering import AnswerSettings, answer_all
from .base_tasks import LabelledTask, seeing_everything, split_options, with_kind, with_model
from .overlong import read_lengths, warn_of_long
from .pair_choices import PairChoices, choose, default_model, recipe
from .pair_metrics import (
    Translator,
    alignment_losses,
    exact_share,
    likelihood,
    pair_losses,
    pair_measures,
    pair_metrics,
)
from .seq2seq_view import CTCView, EncoderDecoderView


class SequenceToSequence(LabelledTask[Pairs, PairBatch, Translator]):
    """Write one text for another."""

    options: Options
    own_options = Options
    former_options: ClassVar[Mapping[str, object]] = {"beam": 1, "length_penalty": 0.0}
    timed_work = "writing an answer"
    items_name = "pairs"
    max_compared = 500  # an answer is a search
    suffixes = PAIRED_SUFFIXES
    baseline_name = "the source itself"
    simple_baseline: ClassVar[str | None] = "rules"
    endpoint = "translate"
    usage = "seriatim predict {run} SOURCES --beam 5"
    caution = "It writes answers like those it was trained on, and one for every source, whether it has one or not."
    evaluation_settings = answer_settings = AnswerSettings
    per_token = ("loss", "perplexity")
    figures: ClassVar[tuple[Metric, ...]] = (
        Metric("loss", "loss (nats per target token)", 4),
        Metric("perplexity", "perplexity per target token", 3, headline=True),
        Metric("bleu", "BLEU", 2, headline=True, more_is_better=True, ceiling=100.0),
        Metric("chrf", "chrF", 2, more_is_better=True, ceiling=100.0),
        Metric("exact_match", "exact match", 4, headline=True, more_is_better=True),
        Metric("word_error_rate", "word error rate", 4),
    )
    counts = ("pairs", "source_tokens", "tokens", "unknown_tokens")

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.given = config.model  # without the defaults, which depend on the layer

    @classmethod
    def with_defaults(cls, config: Config) -> Config:
        """Fill in the defaults that need no data: an encoder that reads in both directions, and all options."""
        config = with_kind(config, None)
        options, rest = split_options(Options, config)
        config = seeing_everything(with_model(config, options=rest))
        implied = settled(options, config.model, config.model.options)
        return with_model(config, options={**config.model.options, **implied.model_dump()})

    def model_view(self, model: Translator, vocabulary: Vocabulary) -> CTCView | EncoderDecoderView:
        """Return the view of one translator."""
        read_items = functools.partial(self.read_items, split="test")
        rest = vocabulary, read_items, self.answer, self.options.max_target_length
        if isinstance(model, CTCTranslator):
            return CTCView(self.config, model, *rest)
        return EncoderDecoderView(self.config, model, *rest)

    def learn_vocabulary(self) -> Vocabulary:
        """Choose the options that depend on the data, and learn one tokenizer for both sides, or one for each.

        Pairs without any target are refused.
        """
        pairs = list(self.pairs(self.training_spec(), "train"))
        if not any(pair.target for pair in pairs):
            where = f"{pairs[0].name}:{pairs[0].line}"
            raise InputError(f"{where}: the targets of all {len(pairs):,} pairs are empty; write SOURCE<TAB>TARGET")
        sources, targets = [pair.source for pair in pairs], [pair.target for pair in pairs]
        self.choose_options(sources, targets)
        settings = self.config.tokenizer
        if self.options.shared_vocabulary:
            return Vocabulary({"tokenizer": fit_tokenizer(settings, [*sources, *targets])})
        target_settings = settings.model_copy(update={"kind": self.options.target_kind or settings.kind})
        target = fit_tokenizer(target_settings, targets)
        return Vocabulary({"tokenizer": fit_tokenizer(settings, sources), "target": target})

    def choose_model(self, sources: Sequence[str], targets: Sequence[str]) -> None:
        """Choose the model by the pairs, unless the configuration names a layer or has options of another one."""
        if "layer" in self.given.model_fields_set or self.config.training.init is not None:
            return
        chosen = default_model(sources, targets)
        fields = {name: value for name, value in chosen.items() if name not in self.given.model_fields_set}
        model = self.given.model_copy(update=fields)
        if model.embedding_size != model.hidden_size:  # weights of different widths cannot be tied
            model.tie_weights = self.given.tie_weights
        config = self.config.model_copy(update={"model": model})
        with contextlib.suppress(InputError):  # the given options do not fit this model; the LSTM stays
            self.config.model = self.with_defaults(config).model
            self.options, self.layer_options = split_options(Options, self.config)

    def choose_options(self, sources: Sequence[str], targets: Sequence[str]) -> None:
        """Choose the model, and fill in those options that are None and depend on the training data."""
        self.choose_model(sources, targets)
        options, chosen = self.options, self.choose_tokens(sources, targets)
        samples = bool(options.scheduled_sampling) or options.readout == "tanh-logits"
        has_one_head = not self.at_once and options.attention not in ("none", "multi-head")
        copying = chosen.copying and not self.at_once and not samples
        self.set_options(copying=copying, location=chosen.location and has_one_head)
        invented, smoothing = chosen.hallucination, chosen.label_smoothing
        self.set_options(hallucination=0.0 if self.at_once else invented)
        self.set_options(label_smoothing=0.0 if self.at_once else smoothing)

    def choose_tokens(self, sources: Sequence[str], targets: Sequence[str]) -> PairChoices:
        """Fill in the kinds of tokens, and return all that the pairs suggest."""
        chosen = choose(self.config.tokenizer.kind, self.options.target_kind, sources, targets)
        set_fields(self.config, {"tokenizer.kind": chosen.kind})
        self.set_options(target_kind=chosen.target_kind, shared_vocabulary=chosen.shared_vocabulary)
        return chosen

    def set_options(self, **values: object) -> None:
        """Set options of the task that are None, in the configuration, too."""
        missing = {name: value for name, value in values.items() if getattr(self.options, name) is None}
        self.options = self.options.model_copy(update=missing)
        self.config.model.options.update(missing)

    def make_model(self, vocabulary: Vocabulary) -> Translator:
        """Build an encoder-decoder, or a model that writes whole targets at once."""
        source, target = vocabulary.tokenizer, vocabulary.target
        sizes = source.vocabulary_size, target.vocabulary_size
        copied = copied_tokens(source, target) if self.options.copying else None
        return translator(self.options, self.config.model, self.layer_options, *sizes, copied)

    def pairs(
        self, spec: str, split: str, file_format: str | None = None, repairs: Repairs | None = None
    ) -> Iterator[Pair]:
        """Read the pairs of ``spec``; ``repairs`` records what was repaired."""
        wanted, repairs, part = (
            file_format or self.config.data.format,
            repairs or self.new_repairs(),
            self.part(spec, split),
        )
        repairs.markers = self.markers(spec, split, file_format)
        pairs = read_pairs(part.spec, file_format=wanted, split=part.split, repairs=repairs)
        return part.chosen(pairs, attrgetter("source"))

    def sides(self, spec: str, split: str, file_format: str | None = None) -> list[Iterable[str]]:
        """Return the sources and the targets as they are written."""
        part, wanted = self.part(spec, split), file_format or self.config.data.format

        def side(name: str) -> Iterable[str]:
            pairs = read_pairs(part.spec, file_format=wanted, split=part.split, repairs=Repairs())
            return map(attrgetter(name), pairs)

        return [side("source"), side("target")]

    def labelled_items(self, spec: str, split: str) -> Iterator[tuple[str, str]]:
        """Yield sources with their targets."""
        return ((pair.source, pair.target) for pair in self.pairs(spec, split))

    def measured_items(self, vocabulary: Vocabulary, spec: str, split: str) -> Iterator[tuple[str, Sequence[str]]]:
        """Yield the items of `read_items`."""
        return iter(self.read_items(spec, split))

    def read_items(self, spec: str, split: str, file_format: str | None = None) -> list[tuple[str, list[str]]]:
        """Read the sources, each with its targets, which are several if they are alternatives; see `items_of`."""
        pairs = list(self.pairs(spec, split, file_format))
        numbers = items_of([pair.source for pair in pairs], alternatives=self.config.data.alternatives)
        items: dict[int, tuple[str, list[str]]] = {}
        for number, pair in zip(numbers.tolist(), pairs, strict=True):
            items.setdefault(number, (pair.source, []))[1].append(pair.target)
        return list(items.values())

    def timed_tokens(self, vocabulary: Vocabulary, text: str, answer: Mapping[str, object]) -> int:
        """Return the number of tokens of the answer, its end included."""
        return len(vocabulary.target.encode(str(answer["text"]))) + 1

    def read(self, spec: str, split: str, vocabulary: Vocabulary, *, file_format: str | None = None) -> Pairs:
        """Read and encode pairs, and refuse targets that are longer than answers may be; see `Task.read`."""
        data, pairs = self.encoded(spec, split, vocabulary, file_format)
        limit = self.options.max_target_length
        sizes, target_sizes = data.source.lengths, data.target.lengths
        warn_of_long(sizes, self.config, name=self.name_of(spec), items="sources")
        needed = sizes * self.options.upsample if self.at_once else np.maximum(sizes, target_sizes + 1)
        limited = declared_positions(self.config.model.options)
        check_lengths(limited, needed, lambda row: f"{pairs[row].name}:{pairs[row].line}")
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
        if self.options.hallucination and split == "train":
            return data.with_parts(copied_tokens(vocabulary.tokenizer, vocabulary.target))
        return data

    def encoded(
        self, spec: str, split: str, vocabulary: Vocabulary, file_format: str | None
    ) -> tuple[Pairs, list[Pair]]:
        """Read and encode pairs; warn of repairs, and of pairs that are measured as alternatives."""
        repairs = self.new_repairs(vocabulary)
        pairs = list(self.pairs(spec, split, file_format, repairs))
        if split == "train" and pairs:
            sides = (pair.source for pair in pairs), (pair.target for pair in pairs)
            note_different_sides(*sides, pairs[0].name, pairs[0].line, repairs)
        data = encode_pairs(pairs, vocabulary, alternatives=self.config.data.alternatives)
        data.repairs = self.reported(repairs, spec, split)
        data.repairs.warn()
        several = np.flatnonzero(np.bincount(data.items) > 1)
        if split != "train" and several.size:
            first, others = pairs[data.first_rows[several[0]]], several.size - 1
            more = f" and {others:,} more have" if others else " has"
            warnings.warn(
                f"{first.name}:{first.line}: the source {shown(first.source)}{more} several rows, of which the best "
                f"counts, and each of the {len(data.first_rows):,} sources counts once; --data.alternatives false "
                "counts each row",
                DataWarning,
                stacklevel=2,
            )
        return data, pairs

    def recipe(self, train: Pairs) -> Fields:
        """Return defaults for this number of pairs; see `pair_choices`."""
        is_text, given = kind_of(train.targets) == "text", has_budget(self.config.training)
        return recipe(len(train.sources), is_text=is_text, rate=default_rate(self.config), has_budget=given)

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
            "longest_source": int(sources.max(initial=0)),
            "longest_target": int(targets.max(initial=0)),
            "empty_sources": int((sources == 0).sum()),
            "empty_targets": int((targets == 0).sum()),
            **pairs.repairs.lines(),
        }

    def batches(self, data: Pairs) -> Buckets[PairBatch]:
        """Return batches of pairs of similar length."""
        return Buckets(data.source.lengths + data.target.lengths, self.batch_size, data.batch)

    @property
    def trains_by_steps(self) -> bool:
        """Whether some steps read the model's own predictions, which are known one step later."""
        return bool(self.options.scheduled_sampling)

    def loss(
        self, model: Translator, batch: PairBatch, state: State | None, *, progress: float = 0.0
    ) -> tuple[Tensor, None]:
        """Compute the loss by teacher forcing, by scheduled sampling, or as a sum over alignments (CTC)."""
        if isinstance(model, CTCTranslator):
            return alignment_losses(model, batch).sum(), None
        device, batch = model.output.weight.device, batch.with_invented_stems(self.options.hallucination or 0.0)
        source, inputs, targets = (to_device(part, device) for part in (batch.source, batch.inputs, batch.targets))
        arguments = source, batch.source_lengths, inputs, targets, batch.target_lengths
        return model.loss(*arguments, own_predictions=self.options.own_predictions(progress)), None

    @property
    def more_is_better(self) -> bool:
        """Whether a larger value of the metric that selects the best weights is better: that of exact answers is."""
        return bool(self.options.location)

    def selection_metric(self, vocabulary: Vocabulary) -> str:
        """Return exact answers if the targets are no running text, since they improve for longer, else the loss."""
        return "exact_match" if self.options.location else "loss"

    def validate(self, model: Translator, data: Pairs) -> Metrics:
        """Compute the loss, and the share of exact answers if it selects the weights."""
        metrics = likelihood(pair_losses(model, data))
        if self.options.location and isinstance(model, EncoderDecoder):
            metrics["exact_match"] = exact_share(model, data)
        return metrics

    def evaluate(self, model: Translator, data: Pairs, **settings: object) -> Metrics:
        """Compute the loss, and compare the answers with the targets."""
        return pair_metrics(pair_losses(model, data), self.texts(model, data, **settings), data)

    def measures(self, model: Translator, data: Pairs, **settings: object) -> dict[str, Measure]:
        """Compute the contribution of each item."""
        return pair_measures(pair_losses(model, data), self.texts(model, data, **settings), data)

    def examine(self, model: Translator, data: Pairs) -> tuple[Metrics, dict[str, Measure]]:
        """Compute both results from the same answers."""
        losses, answers = pair_losses(model, data), self.texts(model, data)
        return pair_metrics(losses, answers, data), pair_measures(losses, answers, data)

    def texts(self, model: Any, data: Pairs, **settings: object) -> list[str]:
        """Return the answer to every item."""
        return [answer["text"] for answer in self.answer(model, data.vocabulary, data.inputs, **settings)]

    def combine(self, models: Sequence[Translator]) -> EncoderDecoders:
        """Return a model with the mean of the probabilities at every step; there are no steps with ctc."""
        if self.at_once:
            raise InputError("model.options.factorisation: ensembles are not supported for ctc; give one run")
        return EncoderDecoders(models)

    def baseline(self, train: Pairs, valid: Pairs, vocabulary: Vocabulary) -> Metrics:
        """Compute the metrics of the source as its own answer."""
        return translation_metrics(valid.inputs, valid.references)

    def describe(self, data: Pairs) -> str:
        """Return the number of pairs and tokens."""
        return f"{len(data.sources):,} pairs ({data.source.lengths.sum():,} and {data.target.lengths.sum():,} tokens)"

    def items(
        self, sources: Sequence[Source], file_format: str | None, vocabulary: Vocabulary, repairs: Repairs
    ) -> Iterator[str]:
        """Read lines, or the sources of TSV or JSONL; targets are ignored."""
        return read_unpaired(sources, file_format, repairs)

    def answer(
        self, model: Translator, vocabulary: Vocabulary, items: Sequence[str], **settings: object
    ) -> list[Metrics]:
        """Find the best answers to each source; ``settings`` are fields of `AnswerSettings`.

        With learned positions, a source is read up to their number, and an answer is no longer than it.
        """
        chosen = read_settings(AnswerSettings, settings)
        if not chosen.sampled:
            chosen = chosen.with_search(self.options)
        side, places = encode_side(items, vocabulary.tokenizer), learned_positions(model)
        longest = self.options.max_target_length if places is None else min(self.options.max_target_length, places - 1)
        if check_integer("min_length", chosen.min_length, minimum=0) > longest:
            given = shown(chosen.min_length)
            raise InputError(f"min_length: an answer of this model has at most {longest} tokens, got {given}; lower it")
        if places is not None and self.at_once:
            places //= self.options.upsample
        side = side._replace(lengths=read_lengths(items, side.lengths, places))
        warn_of_long(side.lengths, self.config, name="predict", items="sources")
        if chosen.sampled and self.at_once:
            raise InputError("temperature, seed: not supported for a model that writes whole answers at once")
        with_alignments = chosen.alignments and self.options.attention not in ("none", "multi-head")
        return answer_all(model, vocabulary, side, chosen, longest=longest, with_alignments=with_alignments)

"""Written answers to source texts, by beam search or sampling, and the metrics of pairs and answers."""

import functools
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, TypeAlias

import numpy as np
import torch
from pydantic import Field, SkipValidation
from torch import Tensor

from ..config import MAX_BEAM, Section
from ..core.errors import ConflictError, NotSupportedError, RangeError, check_integer, shown
from ..core.json_object import JsonObject
from ..core.lengths import valid_mask
from ..core.state import select_state
from ..data.batches import Buckets
from ..data.pairs import PairBatch, Pairs, Side
from ..data.tokenizers import END, Tokenizer
from ..data.vocabulary import Vocabulary
from ..decoding.beam import Beam, Hypothesis, beam_search, best_alignments, search_alignments
from ..decoding.sampling import sample
from ..decoding.token_draws import Sampling
from ..evaluation.intervals import Measurement, Metric, mean, with_interval
from ..evaluation.perplexity import safe_exp
from ..evaluation.translation import measure_translations
from ..models.ctc_translator import CTCTranslator
from ..models.encoder_decoder import EncoderDecoder
from ..models.probabilities import check_finite, checked_losses
from ..models.translator import Options
from .task import Evaluator, Model, Predictor, evaluating

TOGETHER = 32
"""Number of pairs that are read or answered together."""
Translator: TypeAlias = EncoderDecoder | CTCTranslator


def alignment_losses(model: CTCTranslator, batch: PairBatch) -> Tensor:
    """Return −log P of each target ``(batch,)``, summed over its alignments with the source."""
    source, targets = (tensor.to(model.output.weight.device) for tensor in (batch.source, batch.targets))
    return model.losses(source, batch.source_lengths, targets, batch.target_lengths - 1)


def pair_losses(model: Translator, data: Pairs) -> np.ndarray:
    """Return for every pair the summed −log P in nats and the number of target tokens ``(pairs, 2)``."""
    batches = Buckets(data.source.lengths + data.target.lengths, TOGETHER, data.batch)
    losses = np.zeros((len(data.sources), 2))
    with evaluating(model) as device:
        for batch in batches.read(batches.in_order()):
            lengths = batch.target_lengths
            if isinstance(model, CTCTranslator):
                total = checked_losses(alignment_losses(model, batch))
            else:
                source, inputs, targets = (tensor.to(device) for tensor in (batch.source, batch.inputs, batch.targets))
                total = model.token_losses(source, batch.source_lengths, inputs, targets, lengths).double().sum(1)
            losses[batch.rows, 0] = total.cpu().numpy()
            losses[batch.rows, 1] = lengths.numpy()
    return losses


def likelihood(losses: np.ndarray) -> JsonObject:
    """Return loss and perplexity with intervals, from the result of `pair_losses`."""
    metrics = with_interval("loss", losses, mean)
    return metrics | {
        name.replace("loss", "perplexity"): None if value is None else safe_exp(value)
        for name, value in metrics.items()
    }


def measure_answers(answers: list[str], data: Pairs) -> Measurement:
    """Compare the answers to the items of some pairs with the targets."""
    counts = {
        "pairs": len(data.sources),
        "source_tokens": int(data.source.lengths.sum()),
        "tokens": int(data.target.lengths.sum()) + len(data.sources),
        "unknown_tokens": data.unknown(),
    }
    measured = measure_translations(answers, data.references)
    return measured._replace(metrics={**measured.metrics, **counts, **data.repairs.facts()})


def exact_fraction(model: EncoderDecoder, data: Pairs) -> float:
    """Return the fraction of items to which greedy search gives one of the targets.

    An answer is exact if each target token is the most probable one after those before it, which needs no search.
    """
    hits = np.zeros(len(data.first_rows), bool)
    batches = Buckets(data.source.lengths + data.target.lengths, TOGETHER, data.batch)
    with evaluating(model) as device:
        for batch in batches.read(batches.in_order()):
            source, inputs, targets = (tensor.to(device) for tensor in (batch.source, batch.inputs, batch.targets))
            logits, _ = model(inputs, model.encode(source, batch.source_lengths), lengths=batch.target_lengths)
            padding = ~valid_mask(batch.target_lengths, targets.shape[1]).to(device)
            exact = ((logits.argmax(2) == targets) | padding).all(1).cpu().numpy()
            hits[data.items[batch.rows[exact]]] = True
    return float(hits.mean())


LENGTH_FACTOR, LENGTH_MARGIN = 2, 32
"""An answer has at most `LENGTH_FACTOR` times as many tokens as its source, plus `LENGTH_MARGIN`."""
MAX_SAMPLED = 1000
"""The largest number of answers that are sampled for one source."""
SAMPLING = ("temperature", "top_k", "top_p", "min_p", "seed")
"""Settings that ask for sampled answers."""
SEARCHING = ("beam", "length_penalty", "min_length")
"""Settings that have no meaning for sampled answers."""


class TranslationSettings(Section):
    """How answers are computed: by beam search (`Beam`), or by sampling (`Sampling`) if one of `SAMPLING` is given.

    Values are checked where they are used; the ranges that are declared here are those that a server allows.
    """

    beam: SkipValidation[Annotated[int | None, Field(ge=1, le=MAX_BEAM)]] = None
    """Number of hypotheses of beam search, at least ``n_best``; None is that of the run."""
    length_penalty: SkipValidation[Annotated[float | None, Field(ge=0, le=100)]] = None
    """Prefers longer answers; 0 does not. None is that of the run."""
    n_best: SkipValidation[Annotated[int, Field(ge=1, le=64)]] = 1
    """Number of answers to each input."""
    min_length: SkipValidation[Annotated[int, Field(ge=0, le=4096)]] = 0
    """Smallest number of tokens of an answer."""
    alignments: bool = False
    """Add the source tokens that each answer attends to, which takes a second pass."""
    temperature: SkipValidation[Annotated[float, Field(ge=0, le=100)]] = 1.0
    """Divides the logits of sampled answers; 0 takes the likeliest token."""
    top_k: SkipValidation[Annotated[int | None, Field(ge=1, lt=1 << 31)]] = None
    """Sample from the k likeliest tokens."""
    top_p: SkipValidation[Annotated[float | None, Field(gt=0, le=1)]] = None
    """Sample from the likeliest tokens that together have this probability."""
    min_p: SkipValidation[Annotated[float | None, Field(gt=0, le=1)]] = None
    """Sample from tokens with at least this share of the probability of the likeliest one."""
    seed: SkipValidation[Annotated[int | None, Field(ge=0, lt=1 << 63)]] = None
    """The samples of an input depend on it and on the seed only; without a seed they differ."""

    def with_search(self, options: Options) -> "TranslationSettings":
        """Return the settings with the beam and the length penalty of a run where none is given."""
        n_best = check_integer("n_best", self.n_best)
        if self.beam is not None and check_integer("beam", self.beam) > MAX_BEAM:
            raise RangeError(f"beam: {shown(self.beam)} is out of range; give a number from 1 to {MAX_BEAM}")
        usual = {"beam": max(options.beam or 1, n_best), "length_penalty": options.length_penalty}
        missing = {name: value for name, value in usual.items() if getattr(self, name) is None}
        return self.model_copy(update=missing)

    @property
    def sampled(self) -> bool:
        """Whether answers are sampled; settings of sampling and of beam search together are refused."""
        sampling = [name for name in SAMPLING if name in self.model_fields_set]
        searching = [name for name in SEARCHING if name in self.model_fields_set]
        if sampling and searching:
            first, second = sorted(searching)[0], sampling[0]
            raise ConflictError(f"{first}: cannot be used for sampled answers ({second}); leave one out")
        return bool(sampling)

    @property
    def sampling(self) -> Sampling:
        """The settings of each draw."""
        return Sampling(self.temperature, self.top_k, self.top_p, self.min_p)


@dataclass(frozen=True)
class Sources:
    """Sources ``(batch, time)`` and their lengths, the largest length of each answer, and tokens that none contains."""

    ids: Tensor
    lengths: Tensor
    max_lengths: Tensor
    excluded: Sequence[int]


@functools.lru_cache(maxsize=4)
def excluded_tokens(tokenizer: Tokenizer) -> tuple[int, ...]:
    """Return the tokens that no answer may contain: the unknown token and line ends, since an answer is one line."""
    tokens = (token for token in range(tokenizer.vocabulary_size) if token != END)
    return tuple(
        token for token in tokens if token == tokenizer.unknown_id or set(b"\r\n") & set(tokenizer.token_bytes(token))
    )


def answer_all(
    model: Translator,
    vocabulary: Vocabulary,
    side: Side,
    settings: TranslationSettings,
    *,
    longest: int,
    with_alignments: bool,
) -> list[JsonObject]:
    """Return the answer to each encoded source of ``side``, of at most ``longest`` tokens."""
    excluded = excluded_tokens(vocabulary.target)

    # Sources of similar length are read together, so that each answer is put back into its row.
    batches = Buckets(side.lengths, TOGETHER, lambda rows: (rows, *side.rows(rows)))
    answers: list[JsonObject] = [{}] * len(side.lengths)
    with evaluating(model) as device:
        for rows, source, lengths in batches.read(batches.in_order()):
            limits = (lengths * LENGTH_FACTOR + LENGTH_MARGIN).clamp(max=longest)
            sources = Sources(source.to(device), lengths, limits, excluded)
            if isinstance(model, CTCTranslator):
                best = search_at_once(model, sources, settings)
            else:
                best = (sample_stepwise if settings.sampled else search_stepwise)(model, sources, settings)
            for row, hypotheses in zip(rows.tolist(), best, strict=True):
                answers[row] = answer_of(hypotheses, vocabulary.target)
            if with_alignments and not isinstance(model, CTCTranslator):
                aligned = alignments(model, sources, [hypotheses[0].tokens for hypotheses in best], vocabulary)
                for row, alignment in zip(rows.tolist(), aligned, strict=True):
                    answers[row] |= alignment
    return answers


def search_stepwise(model: EncoderDecoder, sources: Sources, settings: TranslationSettings) -> list[list[Hypothesis]]:
    """Find the best answers to each source by beam search. ``model`` may also be an ensemble of encoder-decoders."""
    assert settings.beam is not None
    beam = Beam(
        settings.beam,
        length_penalty=0.0 if settings.length_penalty is None else settings.length_penalty,
        n_best=settings.n_best,
        min_length=settings.min_length,
        stop=END,
        banned=sources.excluded,
    )
    return beam_search(model, model.encode(sources.ids, sources.lengths), beam, max_length=sources.max_lengths)


def sample_stepwise(model: EncoderDecoder, sources: Sources, settings: TranslationSettings) -> list[list[Hypothesis]]:
    """Sample ``n_best`` answers to each source from the distribution of the model.

    An answer that reaches its largest length ends there; its probability includes that end.

    Raises:
        InputError: ``n_best`` is not between 1 and `MAX_WIDTH`, or the seed is no integer.
    """
    # The answers to a source depend on its own text and the seed alone, whatever else is in the batch or comes before
    # it.
    count, source = check_integer("n_best", settings.n_best), sources.ids
    if not 1 <= count <= MAX_SAMPLED:
        raise RangeError(f"n_best: {shown(count)} is out of range; give a number from 1 to {MAX_SAMPLED:,}")
    base = random.SystemRandom().getrandbits(63) if settings.seed is None else check_integer("seed", settings.seed)
    texts = [row[:size] for row, size in zip(source.tolist(), sources.lengths.tolist(), strict=True)]
    seeds = [random.Random(f"{base} {text} {i}").getrandbits(63) for text in texts for i in range(count)]

    # All answers to all sources are rows of one batch (B · n_best), which share the work of the encoder.
    rows = torch.arange(len(source), device=source.device).repeat_interleave(count)
    state = select_state(model.encode(source, sources.lengths), rows)
    logits, state = model.step(torch.zeros_like(rows), state)
    answers: list[list[int]] = [[] for _ in seeds]
    longest = int(sources.max_lengths.max())
    for step in sample(
        model, logits, state, settings.sampling,
        max_tokens=longest, seeds=seeds, stop=END, banned=sources.excluded,
    ):  # fmt: skip
        for answer, token in zip(answers, step.tokens, strict=True):
            answer.extend([] if token is None else [token])

    # Rows stop at the largest limit of the batch, so the others are cut. The probabilities are those of the cut
    # answers, without the settings of sampling, and need a pass of their own.
    limits = sources.max_lengths.repeat_interleave(count).tolist()
    answers = [answer[:limit] for answer, limit in zip(answers, limits, strict=True)]
    inputs, targets, sizes = _decoder_tensors(answers, source)
    losses = model.token_losses(source[rows], sources.lengths[rows.cpu()], inputs, targets, sizes)
    log_probabilities = (-losses.double().sum(1)).tolist()
    hypotheses = [
        Hypothesis(tuple(answer), value, value) for answer, value in zip(answers, log_probabilities, strict=True)
    ]
    return [hypotheses[i : i + count] for i in range(0, len(hypotheses), count)]


def search_at_once(model: CTCTranslator, sources: Sources, settings: TranslationSettings) -> list[list[Hypothesis]]:
    """Find the answer of the best alignment of each source, or the best answers if the beam is wider than 1."""
    if settings.length_penalty or settings.min_length:
        raise NotSupportedError("length_penalty, min_length: this model writes whole answers at once; leave them out")
    assert settings.beam is not None
    Beam(settings.beam, n_best=settings.n_best)  # checks both values
    log_p, sizes = model(sources.ids, sources.lengths)
    log_p = log_p.index_fill(2, torch.tensor(sources.excluded, dtype=torch.long, device=log_p.device), -torch.inf)
    check_finite(log_p.amax(2)[valid_mask(sizes, log_p.shape[1]).to(log_p.device)])
    if settings.beam == 1:
        return [[best] for best in best_alignments(log_p, sizes)]
    return [
        search_alignments(log_p[row, :size], beam=settings.beam, n_best=settings.n_best)
        for row, size in enumerate(sizes.tolist())
    ]


def alignments(
    model: EncoderDecoder, sources: Sources, answers: Sequence[Sequence[int]], vocabulary: Vocabulary
) -> Iterator[JsonObject]:
    """Yield for each answer the attention weights over the source, one row for each token and one for the end."""
    inputs, _, sizes = _decoder_tensors(answers, sources.ids)
    weights = model.attention(sources.ids, sources.lengths, inputs, sizes).tolist()
    for row, tokens in enumerate(answers):
        size = int(sources.lengths[row])
        yield {
            "source_tokens": [vocabulary.tokenizer.describe(token) for token in sources.ids[row, :size].tolist()],
            "target_tokens": [vocabulary.target.describe(token) for token in (*tokens, END)],
            "alignment": [over_source[:size] for over_source in weights[row][: len(tokens) + 1]],
        }


def _decoder_tensors(answers: Sequence[Sequence[int]], like: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return decoder inputs and targets ``(batch, time)``, and the lengths of both, ends included ``(batch,)``."""
    sizes = torch.tensor([len(tokens) + 1 for tokens in answers])
    inputs, targets = like.new_full((2, len(answers), int(sizes.max())), END)
    for row, tokens in enumerate(answers):
        inputs[row, 1 : len(tokens) + 1] = targets[row, : len(tokens)] = torch.tensor(tokens)
    return inputs, targets, sizes


def answer_of(hypotheses: Sequence[Hypothesis], tokenizer: Tokenizer) -> JsonObject:
    """Return the best hypothesis as a text, and all hypotheses with their scores as ``n_best``."""
    texts = [
        {"text": tokenizer.decode(each.tokens), "score": each.score, "log_probability": each.log_probability}
        for each in hypotheses
    ]
    return {**texts[0], "n_best": texts}


# What translators of all families have in common


class PairEvaluator(Evaluator[Pairs]):
    """Metrics of answers to sources, and of targets where the model gives them probabilities."""

    settings = TranslationSettings
    per_token = ("loss", "perplexity")
    baseline_name = "the source itself"
    counts = ("pairs", "source_tokens", "tokens", "unknown_tokens")
    metrics: tuple[Metric, ...] = (
        Metric("loss", "loss (nats per target token)", 4),
        Metric("perplexity", "perplexity per target token", 3, headline=True),
        Metric("bleu", "BLEU", 2, headline=True, more_is_better=True, ceiling=100.0),
        Metric("chrf", "chrF", 2, more_is_better=True, ceiling=100.0),
        Metric("exact_match", "exact match", 4, headline=True, more_is_better=True),
        Metric("word_error_rate", "word error rate", 4),
    )

    def trivial_baseline(self, train: Pairs, valid: Pairs, vocabulary: Vocabulary) -> JsonObject:
        """Compute the metrics of the source as its own answer."""
        return measure_translations(valid.inputs, valid.references).metrics


class PairPredictor(Predictor[Model]):
    """Writes a text for each source."""

    settings = TranslationSettings
    endpoint = "translate"
    timed_work = "writing an answer"

    def timed_tokens(self, vocabulary: Vocabulary, text: str, answer: Mapping[str, object]) -> int:
        """Return the number of tokens of the answer, its end included."""
        return len(vocabulary.target.encode(str(answer["text"]))) + 1

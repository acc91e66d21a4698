"""Language modelling with n-grams, which are counted in one pass over the text."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, field_validator
from torch import Tensor, nn

from ..config import Config, Positive, Rate, Section, read_settings
from ..core.json_object import JsonObject
from ..counting.ngram import NGram, UnigramCache
from ..counting.ngrams.counting_jobs import Workers, counted, require_cluster
from ..counting.ngrams.resources import ArrayAllocator
from ..counting.ngrams.smoothing import Smoothing, smoothed
from ..counting.ngrams.unseen import seen_arrays, sparsity, tallied
from ..data.corpus import Corpus
from ..data.encoding import BLOCK
from ..data.vocabulary import Vocabulary
from ..evaluation.intervals import Measurement, MetricsTable
from ..evaluation.perplexity import each_loss, sum_blocks
from ..models.base_models import TextModel
from ..models.mixture import Mixture
from ..processes.cluster import is_address
from ..storage.weights import stream_tensors
from .fitted import FittedBuilder, describe_fitted, fitted_defaults, read_options
from .lm import PerplexitySettings, TextEvaluator, measure_blocks, mixture_of
from .task import Fitted, Fitter, Task, TaskKind
from .text import CorpusReader
from .text_explainer import explain_ngrams

MAX_ORDER = 100
"""The largest order of n-grams."""


class Options(Section):
    """Options of an n-gram model."""

    order: Annotated[int, Field(ge=1, le=MAX_ORDER, strict=True)] = 5
    """Length n of the longest n-grams."""
    smoothing: Literal["kneser-ney", "absolute", "witten-bell", "add-k", "maximum-likelihood", "stupid-backoff"] = (
        "kneser-ney"
    )
    """How probability is given to n-grams that were not seen; see `seriatim.counting.ngrams.smoothing`."""
    k: Positive = 1.0
    """Number added to every count, with add-k smoothing."""
    prune: int | list[int] = 0
    """Leave out n-grams with this count or less; a list gives a number for each order, the last one for all longer
    n-grams."""
    closed: bool = False
    """Give the unknown token no probability beyond its own occurrences in the training text."""
    word_dropout: Rate = 0.0
    """Rate at which a token that occurs once in the training text is counted as the unknown token, so that the model
    learns where unknown tokens occur; only if the training text itself has no unknown tokens. The simple baseline of a
    network, and a comparison, have the value of the networks."""
    cache: Rate = 0.0
    """Weight of a unigram model of the last tokens of the text."""
    cache_size: Annotated[int, Field(ge=1, le=100_000, strict=True)] = 200
    """Number of tokens in the cache."""
    memory: Annotated[float, Field(gt=0, le=1e6)] | None = None
    """Memory for counting, in GB; what does not fit is kept in files. On a cluster, each job may use as much."""
    workers: Annotated[int, Field(ge=1, le=1024, strict=True)] = 1
    """Number of processes that count parts of the text."""
    cluster: Annotated[str, Field(min_length=1)] | None = None
    """Address of a Dask scheduler, such as `tcp://host:8786`, whose workers count parts of the text; `workers` is then
    ignored."""

    @field_validator("prune", mode="before")
    @classmethod
    def _never_fewer(cls, prune: object) -> object:
        numbers = prune if isinstance(prune, list) else [0, prune]
        are_integers = bool(numbers) and all(type(number) is int for number in numbers)
        if not are_integers or numbers[0] != 0 or numbers != sorted(numbers):
            raise ValueError("give a number, or one for each order: 0 for the first, none smaller than the one before")
        return prune

    @field_validator("cluster")
    @classmethod
    def _is_address(cls, cluster: str | None) -> str | None:
        if cluster is not None and not is_address(cluster):
            raise ValueError("give the address of a scheduler, such as tcp://host:8786")
        return cluster

    def smoothing_settings(self) -> Smoothing:
        """Return the settings of the smoothing."""
        prune = (0, self.prune) if isinstance(self.prune, int) else tuple(self.prune)
        return Smoothing(self.smoothing, self.k, prune, self.closed)


class NgramBuilder(FittedBuilder):
    """Opens n-gram models, whose tables are written by counting."""

    refuses_nonfinite = False  # the tables are read when they are needed

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.options = read_options(Options, config)

    def open(self, tensors: Mapping[str, Tensor], vocabulary: Vocabulary) -> TextModel:
        """Open the tables, with a cache of the last tokens if there is one."""
        model = NGram.from_tensors(tensors, vocabulary.tokenizer.vocabulary_size)
        if model.order != self.options.order:
            raise ValueError("tables of another order")
        return self.with_cache(model)

    def with_cache(self, model: NGram) -> TextModel:
        """Return the model, mixed with a cache of the last tokens if the options ask for one."""
        if not self.options.cache:
            return model
        cache = UnigramCache(model.vocabulary_size, self.options.cache_size)
        return Mixture([model, cache], [1 - self.options.cache, self.options.cache])

    def combine(self, models: Sequence[nn.Module]) -> Mixture:
        """Return the mixture of the models with equal weights."""
        return mixture_of(models)

    def card_rows(self, model: nn.Module, summary: JsonObject) -> list[tuple[str, str]]:
        """Return the order, the smoothing, and the number of n-grams; there is no optimizer."""
        options = self.options
        counted = next(module for module in model.modules() if isinstance(module, NGram))
        sizes = [f"{len(order.probability):,} of order {n}" for n, order in enumerate(counted.table.orders, 1)]
        cache = ("cache", f"weight {options.cache:g}, the last {options.cache_size:,} tokens")
        return [
            ("model", f"n-gram counts of order {options.order}, smoothing {options.smoothing}"),
            ("n-grams", ", ".join(sizes)),
            *([cache] if options.cache else []),
            ("training", f"one pass over {summary['tokens']:,} tokens, {summary['seconds']:.0f} s"),
        ]


class NgramCounting(Fitter[Corpus, Options]):
    """Counts n-grams in one pass over the text."""

    def require_resources(self) -> None:
        """Raise InputError if the cluster that should count cannot be used."""
        if self.options.cluster is not None:
            require_cluster(self.options.cluster)

    def fit(self, train: Corpus, vocabulary: Vocabulary, weights: Path, metadata: dict[str, str]) -> Fitted:
        """Count a text, and write the tables of its n-grams."""
        tokenizer, options, size = vocabulary.tokenizer, self.options, vocabulary.tokenizer.vocabulary_size
        workers = Workers(options.workers, options.cluster, options.memory)
        arrays = ArrayAllocator(workers.half_memory)
        record: list[tuple[int, int, np.ndarray]] = []
        with counted(self._with_unknown(train), len(train.ids), options.order, size, workers, weights, arrays) as found:
            levels, settings = tallied(found, record), options.smoothing_settings()
            tables = smoothed(levels, size, settings, unknown=tokenizer.unknown_id, arrays=arrays)
            stream_tensors(itertools.chain(tables, seen_arrays(record)), weights, metadata)
        return Fitted(len(train.ids), "counting is one pass over the text")

    def _with_unknown(self, train: Corpus) -> np.ndarray | Iterator[np.ndarray]:
        """Return the ids of a text, or blocks of them if some tokens that occur once are unknown."""
        rate, once = self.options.word_dropout, train.seen_once() if self.options.word_dropout else None
        if once is None or train.tokenizer is None or train.tokenizer.unknown_id is None:
            return train.ids
        return _replaced(train.ids, once, train.tokenizer.unknown_id, rate, self.config.training.seed)


class NgramEvaluator(TextEvaluator):
    """Perplexities of texts under n-grams, and how sparse the counts are."""

    def measure(self, model: TextModel, data: Corpus, **settings: object) -> Measurement:
        """Compute the metrics, and how sparse the counts are (`seriatim.counting.ngrams.unseen`)."""
        counts = counts_of(model)
        if counts is None:  # a mixture with a model that was trained
            return super().measure(model, data, **settings)
        lookups = counts.look_up(data.ids)
        window = read_settings(PerplexitySettings, settings).window
        each = lookups.losses if counts is model else each_loss(model, data, window=window)
        measured = measure_blocks(*sum_blocks(data, [(np.arange(len(each)), each)]), data)
        impossible = int(np.count_nonzero(np.isinf(each)))
        sparse = sparsity(lookups, counts.seen, counts.vocabulary_size, impossible)
        return measured._replace(metrics=measured.metrics | sparse)

    def tables(self, metrics: JsonObject) -> list[MetricsTable]:
        """Return a table of how sparse the counts are, if the metrics have the figures of `counting.ngrams.unseen`."""
        if not metrics.get("ngrams"):
            return []
        cells = [
            [
                str(row["order"]),
                f"{row['possible']:,}" if isinstance(row["possible"], int) else f"{row['possible'] or math.inf:.2g}",
                *("not known" if row[key] is None else f"{row[key]:,}" for key in ("types", "once")),
                "not known" if row["unseen_share"] is None else f"{row['unseen']:,} ({row['unseen_share']:.2%})",
                f"{row['matched']:,} ({row['matched_share'] or 0.0:.2%})",
            ]
            for row in metrics["ngrams"]
        ]
        headings = (
            "n",
            "possible n-grams",
            "in the training text",
            "seen once",
            "unseen n-grams of this text",
            "longest match",
        )
        count, fraction = metrics.get("impossible_tokens"), metrics.get("impossible_share")
        zero = "not known" if count is None or fraction is None else f"{count:,} ({fraction:.2%})"
        return [MetricsTable(headings, cells, f"tokens of probability zero: {zero}")]


def counts_of(model: TextModel) -> NGram | None:
    """Return the n-gram model of a run; None if it is mixed with a trained model."""
    models = [model] if not isinstance(model, Mixture) else list(model.models)
    counts = [one for one in models if isinstance(one, NGram)]
    others = [one for one in models if not isinstance(one, NGram | UnigramCache)]
    return counts[0] if len(counts) == 1 and not others else None


def _replaced(ids: np.ndarray, once: np.ndarray, unknown: int, rate: float, seed: int) -> Iterator[np.ndarray]:
    """Yield ids in blocks, where tokens of which ``once`` is true are unknown at a rate."""
    generator = np.random.default_rng(seed)
    for start in range(0, len(ids), BLOCK):
        block = np.array(ids[start : start + BLOCK])
        positions = np.flatnonzero(once[block])
        block[positions[generator.random(len(positions)) < rate]] = unknown
        yield block


def open_task(config: Config) -> Task:
    """Compose the parts of language modelling with n-grams."""
    reader, options = CorpusReader(config), read_options(Options, config)
    return Task(
        KIND,
        config,
        reader=reader,
        builder=NgramBuilder(config),
        evaluator=NgramEvaluator(options.word_dropout),
        fitter=NgramCounting(config, options),
        explain=lambda ngrams: explain_ngrams(ngrams, reader.read, counts_of(ngrams.model)),
    )


KIND = TaskKind(
    name="lm",
    layer="ngram",
    summary="Model the probability of texts with counts of n-grams.",
    open=open_task,
    evaluator=NgramEvaluator,
    usage="seriatim generate {run} --max-tokens 200",
    caution=(
        "It predicts text like what it was trained on, and repeats whatever that text holds. It knows nothing else."
    ),
    model_name="an n-gram model",
    fitting="counted",
    options=Options,
    runtime_options=frozenset({"workers", "cluster"}),
    generates_text=True,
    defaults=lambda config: fitted_defaults(Options, config, "char"),
    describe_model=lambda: describe_fitted(
        "ngram",
        keeps="the last order − 1 tokens",
        paper="Chen & Goodman 1999",
        section=Options,
        state_bytes=8 * (Options().order - 1),
        path_length=lambda distance: 1 if distance < Options().order else None,
    ),
)

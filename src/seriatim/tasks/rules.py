"""Sequence to sequence by rules: the simple baseline that every trained model should beat.

Two kinds of rules are learned in one pass: changes of the beginning and the end of a source (`models.rewriting`), and
the most frequent translation of every token (`models.lexicon`). A tenth of the pairs is set aside, and the kind whose
answers to them have fewer wrong tokens is then learned from all pairs. Tokens are words or characters, see
`data.text_kinds`, whatever the tokenizer is, so that a comparison can have one tokenizer for all models.
"""

import functools
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
from torch import nn

from ..config import Config, Section, read_settings
from ..core.errors import InputError
from ..data.encoded_pairs import Pairs
from ..data.vocabulary import Vocabulary
from ..evaluation.intervals import Measure, Metrics
from ..evaluation.translation import edit_distance, translation_measures
from ..layers.declared_options import task_options
from ..layers.describe import DISTANCES, TOKENS, WIDTH
from ..models.rewriting import Tokens
from ..models.rule_translator import KINDS, Kind, RuleTranslator
from ..storage.weights import load_tensors, save_tensors
from ..training.estimator import OnePassEstimator, Written
from ..training.task import Task
from ..training.task_data import Metric
from ..training.view_types import Example, SearchResult
from .answering import AnswerSettings
from .pair_choices import choose, split
from .pair_metrics import answer_metrics
from .seq2seq import SequenceToSequence
from .seq2seq_view import TranslatorView
from .standalone import read_options, with_defaults

LAYER = "rules"
SET_ASIDE = 10
"""One of so many pairs is set aside to choose the kind of rules."""
TRIAL_PAIRS = 5_000
"""Number of pairs, evenly spread over the data, from which the kind of rules is chosen."""
LONGEST = 256
"""Largest number of tokens of an answer that is inspected."""
MAX_PAIRS = 100_000
"""Largest number of pairs from which rules are learned."""


class Options(Section):
    """Options of a translator of rules, which say how its data are counted and compared with those of other models."""

    shared_vocabulary: bool | None = None
    """Use one tokenizer for source and target; by default if both consist of the same symbols."""
    target_kind: Literal["byte", "char", "word", "bpe", "unigram"] | None = None
    """Kind of the target tokenizer; by default `tokenizer.kind`, or chosen from the targets if that is not given."""


class RulesView(TranslatorView[nn.Module]):
    """View of rules, which shows their answers and mistakes; they read no tokens one after another."""

    beam_search = False

    def search(self, text: str, beam: int) -> SearchResult:
        """Refuse to align: rules answer with a whole text."""
        raise InputError("inspect: rules have no attention, so there is no alignment to show")

    def read(self, item: object) -> list[Example]:
        """Refuse to read: there is nothing to see of how rules read a text."""
        raise InputError(
            "inspect: rules have no states or probabilities to show; evaluate and predict show the answers"
        )


class Rules(SequenceToSequence):
    """Translate by rules, which have no probabilities."""

    estimator = OnePassEstimator  # type: ignore[assignment]
    options: Options  # type: ignore[assignment]
    own_options = Options  # type: ignore[assignment]
    learned = "counted"
    uses_learning_rate = False
    simple_baseline = None
    model_name = "rules"
    selects = "exact_match"
    caution = "It answers with rules that were counted in its training data, whether they fit or not."
    usage = "seriatim predict {run} SOURCES"
    figures: ClassVar[tuple[Metric, ...]] = tuple(
        figure for figure in SequenceToSequence.figures if figure.key not in ("loss", "perplexity")
    )

    def __init__(self, config: Config) -> None:
        Task.__init__(self, config)
        self.options, self.layer_options = read_options(Options, self.config), {}

    @classmethod
    def with_defaults(cls, config: Config) -> Config:
        """Fill in the defaults: all options, and the precision float32."""
        return with_defaults(Options, config, None)

    def choose_options(self, sources: Sequence[str], targets: Sequence[str]) -> None:
        """Choose the tokens as for trained models."""
        self.choose_tokens(sources, targets)

    def make_model(self, vocabulary: Vocabulary) -> nn.Module:  # type: ignore[override]
        """Return a model without rules."""
        return nn.Module()

    def model_view(self, model: nn.Module, vocabulary: Vocabulary) -> RulesView:  # type: ignore[override]
        """Return the view of one model, which shows its answers and mistakes."""
        read_items = functools.partial(self.read_items, split="test")
        return RulesView(self.config, model, vocabulary, read_items, self.answer, LONGEST)

    def read(self, spec: str, split: str, vocabulary: Vocabulary, *, file_format: str | None = None) -> Pairs:
        """Read and encode pairs of any length; see `Task.read`."""
        return self.encoded(spec, split, vocabulary, file_format)[0]

    def check(self, train: Pairs, valid: Pairs | None) -> None:
        """Accept any pairs."""

    def write_model(self, train: Pairs, vocabulary: Vocabulary, weights: Path, metadata: dict[str, str]) -> Written:
        """Learn both kinds of rules, and write the kind with the better answers."""
        sources, targets = train.sources, train.targets
        if len(sources) > MAX_PAIRS:
            rows = np.random.default_rng(self.config.training.seed).permutation(len(sources))[:MAX_PAIRS]
            sources, targets = ([texts[row] for row in np.sort(rows).tolist()] for texts in (sources, targets))
            warnings.warn(
                f"{self.config.data.train}: rules are learned from {MAX_PAIRS:,} of the {len(train.sources):,} pairs, "
                "drawn at random",
                stacklevel=2,
            )
        chosen = choose(None, None, sources, targets)
        kinds = as_pieces(chosen.kind), as_pieces(chosen.target_kind or chosen.kind)
        left = [tuple(split(kinds[0])(text)) for text in sources]
        right = [tuple(split(kinds[1])(text)) for text in targets]
        pairs = list(zip(left, right, strict=True))
        model = RuleTranslator.fit(pairs, best_kind(pairs), kinds)
        save_tensors(model.tensors(), weights, metadata)
        return Written(
            int(train.source.lengths.sum() + train.target.lengths.sum()), "counting is one pass over the pairs"
        )

    def load_model(self, vocabulary: Vocabulary, weights: Path) -> RuleTranslator:  # type: ignore[override]
        """Read the rules."""
        try:
            return RuleTranslator.from_tensors(load_tensors(weights))
        except InputError:
            raise
        except ValueError as error:
            raise InputError(f"{weights}: {error}; restore the run's own file") from None

    @property
    def more_is_better(self) -> bool:
        """Whether a larger value of the metric that selects weights is better."""
        return True

    def selection_metric(self, vocabulary: Vocabulary) -> str:
        """Return BLEU for running text, which is cut into subwords, and the share of exact answers otherwise."""
        return "bleu" if vocabulary.target.kind in ("bpe", "unigram") else self.selects

    def validate(self, model: RuleTranslator, data: Pairs) -> Metrics:  # type: ignore[override]
        """Compute all metrics, since answers take no time."""
        return self.evaluate(model, data)

    def evaluate(self, model: RuleTranslator, data: Pairs, **settings: object) -> Metrics:  # type: ignore[override]
        """Compare the answers with the targets."""
        return answer_metrics(self.texts(model, data, **settings), data)

    def measures(self, model: RuleTranslator, data: Pairs, **settings: object) -> dict[str, Measure]:  # type: ignore[override]
        """Compute the contribution of each item."""
        return translation_measures(self.texts(model, data, **settings), data.references)

    def examine(self, model: RuleTranslator, data: Pairs) -> tuple[Metrics, dict[str, Measure]]:  # type: ignore[override]
        """Compute both results."""
        return self.evaluate(model, data), self.measures(model, data)

    def answer(  # type: ignore[override]
        self, model: RuleTranslator, vocabulary: Vocabulary, items: Sequence[str], **settings: object
    ) -> list[Metrics]:
        """Answer each source with the text that the rules give; settings of search or sampling are refused.

        A beam is accepted, because rules give the same answer with any.
        """
        chosen = read_settings(AnswerSettings, settings)
        for name in sorted(chosen.model_fields_set - {"beam", "alignments"}):
            raise InputError(f"{name}: has no meaning for rules, which give one answer to each source; leave it out")
        return [{"text": model.answer(item)} for item in items]

    def combine(self, models: Sequence[nn.Module]) -> nn.Module:  # type: ignore[override]
        """Refuse to combine models, which have no probabilities."""
        raise InputError("ensembles are not supported for the layer rules; give one run")

    def card_rows(self, model: RuleTranslator, summary: Metrics) -> list[tuple[str, str]]:  # type: ignore[override]
        """Return the kind and the number of the rules; there is no optimizer."""
        return [
            ("model", {"rewriting": "rules that rewrite beginnings and ends", "lexicon": "a lexicon"}[model.kind]),
            ("rules", f"{len(model.counts):,}"),
            ("training", f"one pass over {summary['tokens']:,} tokens, {summary['seconds']:.0f} s"),
        ]

    @classmethod
    def describe_model(cls) -> dict[str, object]:
        """Return what `seriatim.layers.describe` returns of layers."""
        return {
            "name": LAYER,
            "keeps": "the source",
            "parallel": True,
            "paper": "Cotterell et al. 2017",
            "hidden_size": WIDTH,
            "state_bytes": {str(count): None for count in TOKENS},
            "path_lengths": {str(distance): None for distance in DISTANCES},
            "options": Options().model_dump(),
            "option_details": {name: option.describe() for name, option in task_options(Options).items()},
        }


def as_pieces(kind: str) -> str:
    """Return the kind of the tokens of rules: characters or words."""
    return "char" if kind == "char" else "word"


def best_kind(pairs: Sequence[tuple[Tokens, Tokens]]) -> Kind:
    """Return the kind of rules whose answers to a tenth of the pairs have fewer wrong tokens."""
    pairs = pairs[:: -(-len(pairs) // TRIAL_PAIRS)]
    tested = pairs[::SET_ASIDE]
    learned = [pair for i, pair in enumerate(pairs) if i % SET_ASIDE] or tested
    errors = {}
    for kind in KINDS:
        model = RuleTranslator.fit(learned, kind)
        errors[kind] = sum(edit_distance(model.translate(source), target) for source, target in tested)
    return min(KINDS, key=lambda kind: errors[kind])

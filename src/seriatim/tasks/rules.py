"""Sequence to sequence by rules: the simple baseline that every trained model should beat.

Two kinds of rules are learned in one pass (see `counting.rule_translator`): changes of the beginning and the end of a
source, and the most frequent translation of every token. A tenth of the pairs is set aside, and the kind whose answers
to them have fewer wrong tokens is then learned from all pairs. Tokens are words or characters, see `data.text_kinds`,
whatever the tokenizer is, so that a comparison can have one tokenizer for all models.
"""

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
from torch import Tensor, nn

from ..config import Config, Section, read_settings
from ..core.errors import NotSupportedError
from ..core.json_object import JsonObject
from ..counting.rule_translator import KINDS, Kind, RuleTranslator, Tokens
from ..data.pairs import Pairs
from ..data.vocabulary import Vocabulary
from ..evaluation.intervals import Measurement
from ..evaluation.translation import edit_distance
from ..storage.weights import save_tensors
from .answering import PairEvaluator, PairPredictor, TranslationSettings, measure_answers
from .fitted import FittedBuilder, describe_fitted, fitted_defaults, read_options
from .paired import PairReader, choose, choose_for_pairs, split
from .task import Fitted, Fitter, Reader, Task, TaskKind
from .translation_explainer import TranslatedData, explain_rules

SET_ASIDE = 10
"""One of so many pairs is set aside to choose the kind of rules."""
TRIAL_PAIRS = 5_000
"""Number of pairs, evenly spread over the data, from which the kind of rules is chosen."""
MAX_PAIRS = 100_000
"""Largest number of pairs from which rules are learned."""


class Options(Section):
    """Options of a translator of rules, which say how its data are counted and compared with those of other models."""

    shared_vocabulary: bool | None = None
    """Use one tokenizer for source and target; by default if both consist of the same symbols."""
    target_kind: Literal["byte", "char", "word", "bpe", "unigram"] | None = None
    """Kind of the target tokenizer; by default `tokenizer.kind`, or chosen from the targets if that is not given."""


def choose_tokens(given: Config, config: Config, reader: Reader[Pairs]) -> Config:
    """Choose the tokens as for trained models."""
    assert isinstance(reader, PairReader)
    return choose_for_pairs(config, read_options(Options, config).target_kind, *reader.training_texts())[1]


class RulesBuilder(FittedBuilder):
    """Opens rules, which are written when they are counted."""

    refuses_nonfinite = False

    def open(self, tensors: Mapping[str, Tensor], vocabulary: Vocabulary) -> RuleTranslator:
        """Read the rules."""
        return RuleTranslator.from_tensors(tensors)

    def card_rows(self, model: nn.Module, summary: JsonObject) -> list[tuple[str, str]]:
        """Return the kind and the number of the rules; there is no optimizer."""
        assert isinstance(model, RuleTranslator)
        return [
            ("model", {"rewriting": "rules that rewrite beginnings and ends", "lexicon": "a lexicon"}[model.kind]),
            ("rules", f"{len(model.counts):,}"),
            ("training", f"one pass over {summary['tokens']:,} tokens, {summary['seconds']:.0f} s"),
        ]


class RuleCounting(Fitter[Pairs, Options]):
    """Learns both kinds of rules in one pass, and keeps the better ones."""

    def fit(self, train: Pairs, vocabulary: Vocabulary, weights: Path, metadata: dict[str, str]) -> Fitted:
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

        # Rules are of characters or of words, whatever the tokenizer of the run.
        chosen = choose(None, None, sources, targets)
        kinds = token_kind(chosen.kind), token_kind(chosen.target_kind or chosen.kind)
        left = [tuple(split(kinds[0])(text)) for text in sources]
        right = [tuple(split(kinds[1])(text)) for text in targets]
        pairs = list(zip(left, right, strict=True))
        model = RuleTranslator.fit(pairs, best_kind(pairs), kinds)
        save_tensors(model.tensors(), weights, metadata)
        return Fitted(
            int(train.source.lengths.sum() + train.target.lengths.sum()), "counting is one pass over the pairs"
        )


class RulesEvaluator(PairEvaluator):
    """Answers of rules compared with the targets; rules have no probabilities."""

    selects = "exact_match"
    metrics = PairEvaluator.metrics[2:]  # without loss and perplexity

    def measure(self, model: RuleTranslator, data: Pairs, **settings: object) -> Measurement:
        """Compare the answers with the targets."""
        return measure_answers(answer_all(model, data.inputs, settings), data)

    def usual(self, vocabulary: Vocabulary) -> str:
        """Return BLEU for running text, which is cut into subwords, and the share of exact answers otherwise."""
        return "bleu" if vocabulary.target.kind in ("bpe", "unigram") else self.selects


class RulesPredictor(PairPredictor[RuleTranslator]):
    """Answers each source with the text that the rules give."""

    def answer(
        self, model: RuleTranslator, vocabulary: Vocabulary, items: Sequence[str], **settings: object
    ) -> list[JsonObject]:
        """Answer each source; settings of search or sampling are refused."""
        return [{"text": text} for text in answer_all(model, items, settings)]


def answer_all(model: RuleTranslator, sources: Sequence[str], settings: Mapping[str, object]) -> list[str]:
    """Return the answer to each source; a beam is accepted, because rules give the same answer with any."""
    chosen = read_settings(TranslationSettings, settings)
    for name in sorted(chosen.model_fields_set - {"beam", "alignments"}):
        raise NotSupportedError(f"{name}: cannot be used for rules, which give one answer to each source; leave it out")
    return [model.answer(source) for source in sources]


def token_kind(kind: str) -> str:
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


def open_task(config: Config) -> Task:
    """Compose the parts of sequence to sequence by rules."""
    options = read_options(Options, config)
    reader = PairReader(
        config, shared_vocabulary=bool(options.shared_vocabulary), target_kind=options.target_kind, limits=None
    )
    predictor = RulesPredictor()
    return Task(
        KIND,
        config,
        reader=reader,
        builder=RulesBuilder(config),
        evaluator=RulesEvaluator(),
        fitter=RuleCounting(config, options),
        predictor=predictor,
        explain=lambda rules: explain_rules(rules, TranslatedData(rules, predictor, reader)),
    )


KIND = TaskKind(
    name="seq2seq",
    layer="rules",
    summary="Write one text for another by rules.",
    open=open_task,
    evaluator=RulesEvaluator,
    predictor=RulesPredictor,
    usage="seriatim predict {run} SOURCES",
    caution="It answers with rules that were counted in its training data, whether they fit or not.",
    model_name="rules",
    fitting="counted",
    options=Options,
    items_name="pairs",
    defaults=lambda config: fitted_defaults(Options, config, None),
    choose=choose_tokens,
    output_tokenizer=lambda vocabulary: vocabulary.target,
    describe_model=lambda: describe_fitted("rules", keeps="the source", paper="Cotterell et al. 2017", section=Options),
)

"""What can be shown of translators: encoder-decoders, models that write whole answers at once (CTC), and rules."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..core.json_object import JsonObject
from ..core.state import State
from ..data.tokenizers import END, Tokenizer
from ..evaluation.error_analysis import MAX_PAIRS, AnsweredItem, Mistakes, evaluated_items, evenly
from ..evaluation.token_scores import ALTERNATIVES, TokenSurprisals, score_tokens
from ..evaluation.translation import measure_translations
from ..models.ctc_translator import CTCTranslator
from ..models.encoder_decoder import EncoderDecoder
from ..models.exported_forms import ExportedModel, aligned_forms, translation_forms
from ..models.probabilities import log_softmax, softmax
from .answering import excluded_tokens
from .explainer import (
    NO_STATE,
    Example,
    Examples,
    ExplainedModel,
    Explainer,
    LabelledData,
    ModelT,
    Refusal,
    SearchResult,
    Wording,
)
from .paired import PairReader
from .task import Predictor

WORDING = Wording(
    title="translator",
    prediction="the distribution of each token of the answer",
    correct="answers exactly correct",
)

AT_ONCE = Refusal("a ctc run writes all of an answer at once, so that its tokens have no probabilities")


@dataclass(frozen=True)
class TranslatedData(LabelledData):
    """Reads pairs of texts, and answers their sources as the predictor of the task does."""

    explained: ExplainedModel
    predictor: Predictor
    reader: PairReader

    def answers(self, sources: Sequence[str], *, beam: int | None = None) -> list[JsonObject]:
        """Return the answers to some sources, as `Predictor.answer` does."""
        return self.predictor.answer(self.explained.model, self.explained.vocabulary, sources, beam=beam)

    def search(self, text: str, beam: int) -> SearchResult:
        """Return the answer of a search."""
        (answer,) = self.answers([text], beam=beam)
        best = answer.get("n_best")
        return SearchResult(answer["text"], best[0]["log_probability"] if best else math.nan)

    def mistakes(self, source: str, file_format: str | None) -> Mistakes:
        """Return the mistakes; the figure of an answer is its chrF, 0 to 100."""
        items = self.reader.read_items(source, "test", file_format)
        evaluated = evaluated_items(min(len(items), MAX_PAIRS), len(items), "sources")
        sources, targets = zip(*evenly(items, MAX_PAIRS), strict=True)
        answers = [answer["text"] for answer in self.answers(sources)]
        measures = measure_translations(answers, targets).measures
        exact, chrf = measures["exact_match"].statistics[:, 0] > 0, measures["chrf"]
        scores, total = chrf.compute(chrf.statistics), chrf.value
        answered = [
            AnsweredItem(source, " or ".join(truths), [answer], [float(score)], [bool(right)])
            for source, truths, answer, score, right in zip(sources, targets, answers, scores, exact, strict=True)
        ]
        name = "chrF of the sentence"
        return Mistakes(evaluated, int(exact.sum()), len(sources), answered, name, more_is_better=True, chrf=total)

    def reference_answer(self, text: str, source: str, file_format: str | None) -> Sequence[str] | None:
        """Return the targets of a source."""
        items = self.reader.read_items(source, "test", file_format)
        return next((targets for each, targets in items if each.strip() == text), None)

    def held_out(self, source: str, file_format: str | None, *, count: int, tokens: int) -> Sequence[object]:
        """Return sources of some data that are not blank, spread over them, with the first of their targets."""
        items = self.reader.read_items(source, "test", file_format)
        return evenly([(each, targets[0]) for each, targets in items if each.strip()], count)


# The explainers


def explain_encoder_decoder(explained: ExplainedModel[EncoderDecoder], data: TranslatedData, longest: int) -> Explainer:
    """Compose what can be shown of an encoder-decoder, whose answers have ``longest`` tokens at most."""
    examples = DecodedExamples(explained, data)
    return Explainer(
        explained,
        WORDING,
        inputs=examples,
        predictions=examples.predictions,
        token_scores=examples.token_scores,
        search=data.search,
        states=lambda tokens: explained.model.encode(torch.zeros(1, tokens, dtype=torch.long, device=explained.device)),
        export=lambda: _with_facts(translation_forms(explained.model), explained, longest),
        labelled=data,
    )


def explain_ctc(explained: ExplainedModel[CTCTranslator], data: TranslatedData, longest: int) -> Explainer:
    """Compose what can be shown of a model that writes whole answers at once: its tokens have no probabilities."""
    examples = AlignedExamples(explained, data)
    return Explainer(
        explained,
        WORDING,
        inputs=examples,
        predictions=AT_ONCE,
        token_scores=AT_ONCE,
        search=data.search,
        states=NO_STATE,
        export=lambda: _with_facts(aligned_forms(explained.model), explained, longest),
        labelled=data,
    )


def explain_rules(explained: ExplainedModel[nn.Module], data: TranslatedData) -> Explainer:
    """Compose what can be shown of rules: answers and mistakes, since they read no tokens one after another."""
    nothing = Refusal("rules read no tokens one after another, so that they have no states or probabilities")
    return Explainer(explained, WORDING, inputs=nothing, token_scores=nothing, search=data.search, labelled=data)


def _with_facts(exported: ExportedModel, explained: ExplainedModel[ModelT], longest: int) -> ExportedModel:
    """Add the files of the tokenizers, the tokens that no answer contains and the limit of its length."""
    target = "target" if "target" in explained.vocabulary.tokenizers else "tokenizer"
    facts: dict[str, object] = {"source": "tokenizer", "target": target, "longest": longest}
    facts |= {"excluded": list(excluded_tokens(explained.vocabulary.target))}
    return replace(exported, facts={**exported.facts, **facts})


# Pairs as models read them


class PairExamples(Examples[ModelT]):
    """Sources with their targets, or with the answers of greedy search."""

    def __init__(self, explained: ExplainedModel[ModelT], data: TranslatedData) -> None:
        super().__init__(explained)
        self.data = data

    @property
    def target_tokenizer(self) -> Tokenizer:
        """Tokenizer of the answers."""
        return self.vocabulary.target

    def read(self, item: object) -> list[Example]:
        """Return a source with its target: a pair of texts, or a source that the model answers by greedy search."""
        if isinstance(item, tuple):
            source, target = (str(side) for side in item)
        else:
            source = str(item)
            target = self.data.answers([source], beam=1)[0]["text"]
        sides = (self.tokenizer, source), (self.target_tokenizer, target)
        ids, answer = ([token for token in side.encode(line).tolist() if token != END] for side, line in sides)
        decoded = self.token_names([END, *answer], self.target_tokenizer)
        return [Example(tuple(ids), (*answer, END), self.token_names(ids), decoded)]


class DecodedExamples(PairExamples[EncoderDecoder]):
    """Pairs for an encoder-decoder, which writes one token after another."""

    predicts = "next token"

    def _decoded(self, batch: Sequence[Example]) -> tuple[Tensor, Tensor, State]:
        """Return what the decoder reads, its targets, both ``(batch, time)``, and the state of the encoder."""
        source, targets = self.tensors(batch)
        inputs = torch.cat([torch.zeros_like(targets[:, :1]), targets[:, :-1]], dim=1)
        return inputs, targets, self.model.encode(source)

    def forward(self, batch: Sequence[Example]) -> Tensor:
        """Return what the output layer reads for each token of the targets ``(batch, time, size)``."""
        inputs, _, state = self._decoded(batch)
        return self.model.features(inputs, state, None)[0]

    def place_losses(self, batch: Sequence[Example], places: Sequence[int]) -> Tensor:
        """Return −log P of one token of each target."""
        rows = range(len(batch))
        inputs, targets, state = self._decoded(batch)
        logits: Tensor = self.model(inputs, state)[0]
        return F.cross_entropy(logits[rows, places].double(), targets[rows, places], reduction="none")

    def target_names(self, example: Example) -> tuple[str, ...]:
        """Return the names of the tokens of the target, its end included."""
        return self.token_names(example.targets, self.target_tokenizer)

    def predictions(self, batch: Sequence[Example]) -> Tensor:
        """Return the distribution of each token of the targets."""
        inputs, _, state = self._decoded(batch)
        return softmax(self.model(inputs, state)[0])

    def token_scores(self, item: object, *, alternatives: int = ALTERNATIVES) -> TokenSurprisals:
        """Return the surprisal of each token of the answer, with its end."""
        example = self.fitting(item)[0]
        with torch.no_grad():
            inputs, targets, state = self._decoded([example])
            log_probabilities = log_softmax(self.model(inputs, state)[0][0]).cpu()
        target, end = self.target_tokenizer, self.target_tokenizer.describe(END)
        scores = score_tokens(target, log_probabilities, targets[0].cpu(), alternatives=alternatives, end=end)
        caption = (
            "The answer of beam search. Each token is shaded by −log₂ of its probability, given the source and the "
            "answer so far; the last is the end symbol."
        )
        return TokenSurprisals(list(scores), target.vocabulary_size, "tokens", caption)


class AlignedExamples(PairExamples[CTCTranslator]):
    """Pairs for a model that repeats the tokens of the source and writes at all positions at once."""

    def read(self, item: object) -> list[Example]:
        """Return a source with its target, with one name for each position of the source's tokens."""
        return [example.repeated(self.model.upsample) for example in super().read(item)]

    def forward(self, batch: Sequence[Example]) -> Tensor:
        """Return log P of each token at each position ``(batch, positions, vocabulary)``."""
        source, _ = self.tensors(batch)
        log_probabilities: Tensor = self.model(source, torch.full((len(batch),), source.shape[1]))[0]
        return log_probabilities

    def place_losses(self, batch: Sequence[Example], places: Sequence[int]) -> Tensor:
        """Return −log P of the only answer, the whole target."""
        source, targets = self.tensors(batch)
        sizes = [torch.full((len(batch),), side.shape[1]) for side in (source, targets[:, :-1])]
        return self.model.losses(source, sizes[0], targets[:, :-1], sizes[1])

    def target_names(self, example: Example) -> tuple[str, ...]:
        """Return the whole target as one name."""
        return (self.target_tokenizer.decode([token for token in example.targets if token != END]),)

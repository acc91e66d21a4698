"""What inspection shows of translators: encoder-decoders, and models that write whole answers at once (CTC)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from ..core.state import State
from ..data.batching import padded
from ..data.encoded_pairs import encode_side
from ..data.tokenizers import END, Tokenizer
from ..evaluation.context_use import ContextScore, ContextUse, shorter_contexts
from ..evaluation.error_analysis import MAX_PAIRS, MAX_WORST, Mistakes, WrongExample, part_of
from ..evaluation.intervals import Metrics
from ..evaluation.token_scores import ALTERNATIVES, TokenScores, score_tokens
from ..evaluation.translation import translation_measures
from ..layers.positions import learned_positions
from ..models.ctc_translator import CTCTranslator
from ..models.encoder_decoder import EncoderDecoder
from ..models.exported_forms import ExportedModel, aligned_forms, translation_forms
from ..models.probabilities import log_softmax, softmax
from .answering import Sources, TranslationSettings, answer_limits, excluded_tokens, search_stepwise
from .view import ModelT, NotOfferedError, View, no_state, no_words
from .view_types import Example, SearchResult, StateReader

SOURCE_TOKENS = 20
"""Tokens of the source that a decoder attends to while the size of its state is measured, if positions allow it."""


class Translation(NamedTuple):
    """An answer as ids ``tokens``, without its end, to a source ``(1, source_time)`` of ``lengths`` ``(1,)``."""

    source: Tensor
    lengths: Tensor
    tokens: tuple[int, ...]

    def shifted(self) -> tuple[Tensor, Tensor]:
        """Return the inputs and the targets of the decoder, both ``(1, time)``."""
        return torch.tensor([[END, *self.tokens]]), torch.tensor([[*self.tokens, END]])


@dataclass(frozen=True)
class TranslatorView(View[ModelT]):
    """View of any translator, with `SequenceToSequence.read_items` to read data, and `SequenceToSequence.answer`."""

    read_items: Callable[..., list[tuple[str, list[str]]]]
    answer_all: Callable[..., list[Metrics]]
    max_target_length: int

    title = "translator"
    prediction_name = "the distribution of each token of the answer"
    correct_name = "answers exactly correct"
    context_name = "each token of the answer"
    sections = ("alignment",)
    beam_search = True

    @property
    def target_tokenizer(self) -> Tokenizer:
        """Tokenizer of the answers."""
        return self.vocabulary.target

    def with_facts(self, exported: ExportedModel) -> ExportedModel:
        """Add the files of the tokenizers, the tokens that no answer contains and the limit of its length."""
        target = "target" if "target" in self.vocabulary.tokenizers else "tokenizer"
        facts: dict[str, object] = {"source": "tokenizer", "target": target, "longest": self.max_target_length}
        facts |= {"excluded": list(excluded_tokens(self.target_tokenizer))}
        return replace(exported, facts={**exported.facts, **facts})

    def answers(self, sources: Sequence[str], *, beam: int | None = None, alignments: bool = False) -> list[Metrics]:
        """Return the answers to some sources, as `Task.answer` does."""
        return self.answer_all(self.model, self.vocabulary, sources, beam=beam, alignments=alignments)

    def read(self, item: object) -> list[Example]:
        """Return a source with its target: a pair of texts, or a source that the model answers by greedy search."""
        if isinstance(item, tuple):
            source, target = (str(side) for side in item)
        else:
            source = str(item)
            target = self.answers([source], beam=1)[0]["text"]
        sides = (self.tokenizer, source), (self.vocabulary.target, target)
        ids, answer = ([token for token in side.encode(line).tolist() if token != END] for side, line in sides)
        decoded = self.token_names([END, *answer], self.vocabulary.target)
        return [Example(tuple(ids), (*answer, END), self.token_names(ids), decoded)]

    def search(self, text: str, beam: int) -> SearchResult:
        """Return the answer of a search, with the weights of a decoder that has a single head of attention."""
        (answer,) = self.answers([text], beam=beam, alignments=True)
        names = answer.get("source_tokens", ()), answer.get("target_tokens", ())
        weights = answer.get("alignment", ())
        return SearchResult(answer["text"], answer["n_best"][0]["log_probability"], *names, weights)

    def mistakes(self, spec: str, file_format: str | None) -> Mistakes:
        """Return the mistakes; the worst examples are the answers with the lowest chrF."""
        items = self.read_items(spec, file_format=file_format)
        evaluated = part_of(min(len(items), MAX_PAIRS), len(items), "sources")
        sources, targets = zip(*items[:MAX_PAIRS], strict=True)
        answers = [answer["text"] for answer in self.answers(sources)]
        measures = translation_measures(answers, targets)
        exact, chrf = measures["exact_match"].statistics[:, 0] > 0, measures["chrf"]
        scores, total = chrf.compute(chrf.statistics), float(chrf.compute(chrf.statistics.sum(0)))
        worst = [
            WrongExample(float(scores[i]), sources[i], " or ".join(targets[i]), answers[i])
            for i in np.argsort(scores, kind="stable")[:MAX_WORST].tolist()
            if not exact[i]
        ]
        name = "chrF of the sentence, 0 to 100"
        return Mistakes(evaluated, int(exact.sum()), len(sources), [], worst, name, chrf=total)

    def gold(self, text: str, spec: str, file_format: str | None) -> Sequence[str] | None:
        """Return the targets of a source."""
        items = self.read_items(spec, file_format=file_format)
        return next((targets for source, targets in items if source.strip() == text), None)

    def held_out(self, spec: str, file_format: str | None, *, count: int, tokens: int) -> Sequence[object]:
        """Return the first sources of some data that are not blank, with the first of their targets."""
        items = self.read_items(spec, file_format=file_format)[:count]
        return [(source, targets[0]) for source, targets in items if source.strip()]


@dataclass(frozen=True)
class EncoderDecoderView(TranslatorView[EncoderDecoder]):
    """View of an encoder-decoder, which writes one token after another."""

    no_alignment = "the decoder has no attention"
    target_place = "after"

    def exported(self) -> ExportedModel:
        """Return the encoder and a step of the decoder."""
        return self.with_facts(translation_forms(self.model))

    def forward(self, batch: Sequence[Example]) -> Tensor:
        """Return what the output layer reads for each token of the targets ``(batch, time, size)``."""
        source, targets = self.tensors(batch)
        inputs = torch.cat([torch.zeros_like(targets[:, :1]), targets[:, :-1]], dim=1)
        return self.model.features(inputs, self.model.encode(source), None)[0]

    def end_losses(self, batch: Sequence[Example], *, at_start: bool = False) -> Tensor:
        """Return −log P of the last token of each target."""
        return self.place_losses(batch, [len(example.targets) - 1 for example in batch])

    def place_losses(self, batch: Sequence[Example], places: Sequence[int]) -> Tensor:
        """Return −log P of one token of each target."""
        rows = range(len(batch))
        logits = self._logits(batch)[rows, places]
        return F.cross_entropy(logits.double(), self.tensors(batch)[1][rows, places], reduction="none")

    def target_names(self, example: Example) -> tuple[str, ...]:
        """Return the names of the tokens of the target, its end included."""
        return self.token_names(example.targets, self.vocabulary.target)

    def predictions(self, batch: Sequence[Example]) -> Tensor:
        """Return the distribution of each token of the targets."""
        return softmax(self._logits(batch))

    def _logits(self, batch: Sequence[Example]) -> Tensor:
        """Return the logits of each token of the targets ``(batch, time, vocabulary)``."""
        source, targets = self.tensors(batch)
        inputs = torch.cat([torch.zeros_like(targets[:, :1]), targets[:, :-1]], dim=1)
        logits: Tensor = self.model(inputs, self.model.encode(source))[0]
        return logits

    def translate(self, text: str) -> Translation:
        """Return the greedy answer to a source as tokens; with learned positions, the source is cut to their number."""
        positions, limit = learned_positions(self.model), self.max_target_length
        source, lengths = encode_side([text], self.tokenizer).rows(np.array([0]))
        if positions is not None:
            source, lengths, limit = source[:, :positions], lengths.clamp(max=positions), min(limit, positions - 1)
        excluded = excluded_tokens(self.vocabulary.target)
        with torch.no_grad():
            sources = Sources(source.to(self.device), lengths, answer_limits(lengths, limit), excluded)
            (best,) = search_stepwise(self.model, sources, TranslationSettings(beam=1))
        return Translation(source, lengths, best[0].tokens)

    def translation(self, item: object) -> Translation:
        """Return a pair of texts as tokens, or the greedy answer to a source; see `translate`."""
        if not isinstance(item, tuple):
            return self.translate(str(item))
        (example,) = self.examples(item)
        return Translation(self.tensors([example])[0].cpu(), torch.tensor([len(example.inputs)]), example.targets[:-1])

    def token_scores(self, item: object, *, alternatives: int = ALTERNATIVES) -> TokenScores:
        """Return the surprisal of each token of the given answer, or of the greedy one, with its end."""
        answer = self.translation(item)
        inputs, targets = answer.shifted()
        with torch.no_grad():
            state = self.model.encode(answer.source.to(self.device), answer.lengths)
            logits, _ = self.model(inputs.to(self.device), state)
        log_probabilities = log_softmax(logits[0]).cpu()
        target = self.vocabulary.target
        scores = list(
            score_tokens(target, log_probabilities, targets[0], alternatives=alternatives, end=target.describe(END))
        )
        caption = (
            f"The answer{' of beam search' if isinstance(item, tuple) else ', found by greedy search'}. Each token is "
            "shaded by −log₂ of its probability, given the source and the answer so far; the last is the end symbol."
        )
        return TokenScores(scores, target.vocabulary_size, "tokens of the answer", caption)

    def context_use(self, item: object) -> ContextUse:
        """Return −log P per token of the model's own answer when only the last tokens of the source are seen."""
        answer = self.translation(item)
        ids, tokens = answer.source[0].numpy(), answer.source.shape[1]
        if not len(ids):
            raise no_words()
        sizes = shorter_contexts(tokens)
        lengths = np.minimum([*sizes, len(ids)], len(ids))
        windows = torch.from_numpy(padded(ids, len(ids) - lengths, lengths)).to(self.device)
        inputs, targets = (part.expand(len(windows), -1).to(self.device) for part in answer.shifted())
        losses = self.model.token_losses(windows, torch.from_numpy(lengths), inputs, targets).double().mean(1)
        keys: list[int | None] = [*sizes, None]
        return ContextUse({key: ContextScore(float(loss)) for key, loss in zip(keys, losses, strict=True)}, tokens)

    def state_reader(self) -> StateReader:
        """Return a way to write zeros by the decoder, after a source of zeros."""
        source = min(SOURCE_TOKENS, learned_positions(self.model) or SOURCE_TOKENS)

        def ids(count: int) -> Tensor:
            return torch.zeros(1, count, dtype=torch.long, device=self.device)

        def read(count: int, state: State) -> State:
            return self.model.features(ids(count), state, None)[1]

        text = f"the answer to a source of {source} tokens"
        return StateReader(self.model.encode(ids(source)), read, text, source)


@dataclass(frozen=True)
class CTCView(TranslatorView[CTCTranslator]):
    """View of a translator that writes whole answers at once, whose tokens have no probabilities of their own."""

    def exported(self) -> ExportedModel:
        """Return the whole model."""
        return self.with_facts(aligned_forms(self.model))

    def not_offered(self, missing: str) -> NotOfferedError:
        """Return the error for something that these models do not have."""
        return NotOfferedError(f"a ctc run writes all of an answer at once, and offers {missing}")

    def read(self, item: object) -> list[Example]:
        """Return a source with its target, with one name for each place of the source's tokens."""
        return [example.repeated(self.model.upsample) for example in super().read(item)]

    def forward(self, batch: Sequence[Example]) -> Tensor:
        """Return log P of each token at each place ``(batch, places, vocabulary)``."""
        source, _ = self.tensors(batch)
        log_probabilities: Tensor = self.model(source, torch.full((len(batch),), source.shape[1]))[0]
        return log_probabilities

    def target_names(self, example: Example) -> tuple[str, ...]:
        """Return the whole target as one name."""
        target = [token for token in example.targets if token != END]
        return (self.vocabulary.target.decode(target),)

    def end_losses(self, batch: Sequence[Example], *, at_start: bool = False) -> Tensor:
        """Return −log P of each whole target."""
        source, targets = self.tensors(batch)
        sizes = [torch.full((len(batch),), side.shape[1]) for side in (source, targets[:, :-1])]
        return self.model.losses(source, sizes[0], targets[:, :-1], sizes[1])

    def state_reader(self) -> StateReader:
        """Raise an error, since the model has no state that goes from token to token."""
        raise no_state()

"""What inspection shows of taggers: how certain each tag is, and wrong tags."""

import copy
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..data.conll import Sentence
from ..data.tagged_corpus import NO_TAG, TaggedBatch, TaggedCorpus
from ..evaluation.context_use import ContextUse, answer_losses, shorter_contexts
from ..evaluation.error_analysis import MAX_ITEMS, MAX_WORST, Mistakes, WrongExample, compare_labels
from ..evaluation.token_scores import ALTERNATIVES, TokenScore, TokenScores
from ..layers.positions import learned_positions
from ..models.exported_forms import ExportedModel, tag_forms
from ..models.tagger import Tagger, TagModel
from .tagged import tag_corpus, untagged
from .view import View, no_words
from .view_types import Example


@dataclass(frozen=True)
class TaggerView(View[Tagger]):
    """View of a tagger, with `Tagging.sentences` to read data."""

    read_sentences: Callable[..., Iterator[Sentence]]

    title = "tagger"
    prediction_name = "the distribution of the last word's tag"
    correct_name = "tags correct"
    context_name = "the tag of the last word"
    first_section = "certainty"
    two_ends = True
    target_place = "at"

    def exported(self) -> ExportedModel:
        """Return the whole model, and the search for the best tags."""
        return tag_forms(self.model) if isinstance(self.model, Tagger) else super().exported()

    def token_count(self, text: str) -> int:
        """Return the number of words of a sentence."""
        return len(text.split())

    def note_unknown(self, ids: np.ndarray) -> list[str]:
        """Return no note if the model reads the characters of words outside the vocabulary."""
        return super().note_unknown(ids) if not self.model.reads_spelling else []

    def batch(self, sentences: Sequence[Sequence[str]]) -> TaggedBatch:
        """Return sentences, given as words, as the model reads them."""
        corpus = TaggedCorpus(map(untagged, sentences), self.vocabulary, labelled=False)
        return corpus.batch(np.arange(len(sentences))).to(self.device)

    def read(self, item: object) -> list[Example]:
        """Return the words of a text or of a `Sentence`, with the tags that the model predicts."""
        words = item.words if isinstance(item, Sentence) else str(item).split()
        words = words[: learned_positions(self.model)]
        if not words:
            return []
        with torch.no_grad():
            batch = self.batch([words])
            (tags,) = self.model.decode(self.model(batch), batch.lengths)
        return [Example(tuple(range(len(words))), tuple(tags), tuple(words), words=tuple(words))]

    def forward(self, batch: Sequence[Example]) -> Tensor:
        """Return the scores of the tags ``(batch, time, tags)``."""
        scores: Tensor = self.model(self.batch([example.words for example in batch]))
        return scores

    def end_losses(self, batch: Sequence[Example], *, at_start: bool = False) -> Tensor:
        """Return −log P of the last word's tag, or of the first word's, whatever the other tags are."""
        return self.place_losses(batch, [0 if at_start else len(example.targets) - 1 for example in batch])

    def place_losses(self, batch: Sequence[Example], places: Sequence[int]) -> Tensor:
        """Return −log P of the tag of one word of each sentence, whatever the other tags are: the marginal of a CRF."""
        sentences = self.batch([example.words for example in batch])
        tags = torch.full(sentences.words.shape, NO_TAG, device=self.device)
        tags[range(len(batch)), places] = torch.tensor(
            [example.targets[place] for example, place in zip(batch, places, strict=True)], device=self.device
        )
        field = None if self.model.crf is None else copy.deepcopy(self.model.crf).double()
        return TagModel(field).losses(self.model(sentences).double(), sentences._replace(tags=tags))

    def target_names(self, example: Example) -> tuple[str, ...]:
        """Return the names of the tags."""
        return tuple(self.vocabulary.labels[tag] for tag in example.targets)

    def predictions(self, batch: Sequence[Example]) -> Tensor:
        """Return P(tag) of the last word of each sentence."""
        tagged = self.batch([example.words for example in batch])
        return self.model.marginals(self.model(tagged), tagged.lengths)[:, -1:]

    def token_scores(self, item: object, *, alternatives: int = ALTERNATIVES) -> TokenScores:
        """Return −log₂ P of the tag of each word as the run answers, and its most likely tags."""
        text = str(item)
        labels = self.vocabulary.labels
        words = text.split()[: min(self.max_tokens, learned_positions(self.model) or self.max_tokens)]
        if not words:
            raise no_words()
        with torch.no_grad():
            batch = self.batch([words])
            scores = self.answering(batch)
            shares = self.answering.marginals(scores, batch.lengths)[0].double().cpu()
            (tags,) = self.answering.decode(scores, batch.lengths)
        best = shares.topk(min(alternatives, shares.shape[1]), dim=1)
        tagged = []
        for word, tag, row, values, others in zip(words, tags, shares, best[0].tolist(), best[1].tolist(), strict=True):
            share = float(row[tag])
            likely = [(labels[other], value) for other, value in zip(others, values, strict=True)]
            bits, rank = -math.log2(share) if share else math.inf, int((row > share).sum()) + 1
            tagged.append(TokenScore(f"{word}/{labels[tag]} ", bits, rank, likely))
        caption = (
            "Each word with its predicted tag, shaded by −log₂ P(tag): the stronger the shade, the less certain. "
            "Select a word to see the most likely tags."
        )
        answers = tuple(labels[tag] for tag in tags)
        scale = ("certain", "uncertain")
        return TokenScores(tagged, max(2, len(labels)), "words", caption, scale, answers=answers)

    def context_use(self, item: object) -> ContextUse:
        """Return −log P of the last word's tag when only the last words are seen."""
        text = str(item)
        words = text.split()
        if not words:
            raise no_words()
        limit, sizes = learned_positions(self.model) or len(words), shorter_contexts(len(words))
        with torch.no_grad():
            batch = self.batch([words[-min(size, limit) :] for size in (*sizes, len(words))])
            shares = self.model.marginals(self.model(batch), batch.lengths)
        last = shares[torch.arange(len(shares)), batch.lengths - 1].double().cpu().numpy()
        return answer_losses(sizes, last[:, int(last[-1].argmax())], len(words))

    def mistakes(self, spec: str, file_format: str | None) -> Mistakes:
        """Return the mistakes; the worst examples are the sentences with the largest number of wrong tags."""
        sentences = list(itertools.islice(self.read_sentences(spec, file_format=file_format), MAX_ITEMS + 1))
        more = len(sentences) > MAX_ITEMS
        evaluated = f"the first {MAX_ITEMS:,} sentences" if more else f"all {len(sentences):,} sentences"
        sentences = sentences[:MAX_ITEMS]
        corpus = TaggedCorpus(sentences, self.vocabulary)
        tags: list[list[str]] = [[]] * len(sentences)
        confidence: list[Sequence[float]] = [[]] * len(sentences)
        for row, row_tags, values in tag_corpus(self.answering, corpus):
            tags[row], confidence[row] = [corpus.tag_names[tag] for tag in row_tags], values
        truth = [list(sentence.tags) for sentence in sentences]
        wrong = [
            [(i, true, tag) for i, (true, tag) in enumerate(zip(*pair, strict=True)) if true != tag]
            for pair in zip(truth, tags, strict=True)
        ]
        worst = []
        for row in sorted(range(len(wrong)), key=lambda row: -len(wrong[row]))[:MAX_WORST]:
            words = sentences[row].words
            marked = [" ".join(f"{words[mistake[0]]}/{mistake[side]}" for mistake in wrong[row]) for side in (1, 2)]
            if wrong[row]:
                worst.append(WrongExample(len(wrong[row]), " ".join(words), *marked))
        true_tags, guesses = (list(itertools.chain(*rows)) for rows in (truth, tags))
        shares = np.array(list(itertools.chain(*confidence)))
        return compare_labels(true_tags, guesses, shares, evaluated=evaluated, worst=worst, score_name="wrong tags")

    def gold(self, text: str, spec: str, file_format: str | None) -> Sequence[str] | None:
        """Return the tags of a sentence."""
        words = text.split()
        sentences = self.read_sentences(spec, file_format=file_format)
        return next((sentence.tags for sentence in sentences if sentence.words == words), None)

    def held_out(self, spec: str, file_format: str | None, *, count: int, tokens: int) -> Sequence[object]:
        """Return the first sentences of some data."""
        return list(itertools.islice(self.read_sentences(spec, file_format=file_format), count))

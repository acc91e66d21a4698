"""What can be shown of taggers: how certain each tag is, and wrong tags."""

import copy
import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..data.conll import Sentence, untagged
from ..data.tagged_corpus import NO_TAG, TaggedBatch, TaggedCorpus
from ..evaluation.error_analysis import MAX_ITEMS, AnsweredItem, Mistakes, compare_labels, evaluated_items, evenly
from ..evaluation.token_scores import ALTERNATIVES, TokenScore, TokenSurprisals
from ..layers.positions import learned_positions
from ..models.exported_forms import tag_forms
from ..models.tagger import Tagger, TagModel, tag_corpus
from .explainer import (
    MAX_LINE,
    Example,
    Examples,
    ExplainedModel,
    Explainer,
    LabelledData,
    Wording,
    first_line,
    no_words,
)

ReadSentences = Callable[..., Iterator[Sentence]]
"""`TaggedReader.sentences`."""


def explain_tagger(explained: ExplainedModel[Tagger], read_sentences: ReadSentences) -> Explainer:
    """Compose what can be shown of a tagger: a network, or a CRF on attributes of words, which is not exported."""
    model, examples = explained.model, TaggedExamples(explained)
    return Explainer(
        explained,
        Wording(
            title="tagger",
            prediction="the distribution of the last word's tag",
            correct="tags correct",
        ),
        functools.partial(first_line, tokenizer=explained.vocabulary.tokenizer, notes_unknown=not model.reads_spelling),
        inputs=examples,
        predictions=examples.predictions,
        token_scores=examples.token_scores,
        export=(lambda: tag_forms(model)) if isinstance(model, Tagger) else None,
        labelled=TaggedData(explained, read_sentences),
    )


class TaggedExamples(Examples[Tagger]):
    """Sentences as a tagger reads them, with the tags that it predicts as targets."""

    predicts = "each token"

    def batch(self, sentences: Sequence[Sequence[str]]) -> TaggedBatch:
        """Return sentences, given as words, as the model reads them."""
        corpus = TaggedCorpus(map(untagged, sentences), self.vocabulary, labelled=False)
        return corpus.batch(np.arange(len(sentences))).to(self.explained.device)

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

    def place_losses(self, batch: Sequence[Example], places: Sequence[int]) -> Tensor:
        """Return −log P of the tag of one word of each sentence, whatever the other tags are: the marginal of a CRF."""
        sentences = self.batch([example.words for example in batch])
        tags = torch.full(sentences.words.shape, NO_TAG, device=self.explained.device)
        tags[range(len(batch)), places] = torch.tensor(
            [example.targets[place] for example, place in zip(batch, places, strict=True)], device=self.explained.device
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

    def token_scores(self, item: object, *, alternatives: int = ALTERNATIVES) -> TokenSurprisals:
        """Return −log₂ P of the tag of each word as the run answers, and its most likely tags."""
        text = str(item)
        labels = self.vocabulary.labels
        words = text.split()[: min(MAX_LINE, learned_positions(self.model) or MAX_LINE)]
        if not words:
            raise no_words()
        with torch.no_grad():
            batch = self.batch([words])
            scores = self.explained.answering(batch)
            marginals = self.explained.answering.marginals(scores, batch.lengths)[0].double().cpu()
            (tags,) = self.explained.answering.decode(scores, batch.lengths)

        # The tags are those of the best sequence; one of them may be less likely at its position than another tag.
        best = marginals.topk(min(alternatives, marginals.shape[1]), dim=1)
        tagged = []
        for word, tag, row, values, others in zip(
            words, tags, marginals, best[0].tolist(), best[1].tolist(), strict=True
        ):
            probability = float(row[tag])
            likely = [(labels[other], value) for other, value in zip(others, values, strict=True)]
            bits = -math.log2(probability) if probability else math.inf
            tagged.append(TokenScore(f"{word}/{labels[tag]} ", bits, likely))
        caption = (
            "Each word with its predicted tag, shaded by −log₂ P(tag): the stronger the shade, the less certain. "
            "Select a word to see the most likely tags."
        )
        answers = tuple(labels[tag] for tag in tags)
        scale = ("certain", "uncertain")
        return TokenSurprisals(tagged, max(2, len(labels)), "words", caption, scale, answers=answers)


@dataclass(frozen=True)
class TaggedData(LabelledData):
    """Reads tagged sentences, and tags them as the run does."""

    explained: ExplainedModel[Tagger]
    read_sentences: ReadSentences

    def sentences(self, source: str, file_format: str | None) -> Iterator[Sentence]:
        """Read the sentences of some data, with tags as the model spells them."""
        return self.read_sentences(source, "test", file_format, labels=self.explained.vocabulary.labels)

    def mistakes(self, source: str, file_format: str | None) -> Mistakes:
        """Return the mistakes; the figure of a sentence is its number of wrong tags."""
        found = list(self.sentences(source, file_format))
        sentences = evenly(found, MAX_ITEMS)
        evaluated = evaluated_items(len(sentences), len(found), "sentences")
        corpus = TaggedCorpus(sentences, self.explained.vocabulary)
        tags: list[list[str]] = [[]] * len(sentences)
        confidence: list[Sequence[float]] = [[]] * len(sentences)
        for row, row_tags, values in tag_corpus(self.explained.answering, corpus):
            tags[row], confidence[row] = [corpus.tag_names[tag] for tag in row_tags], values

        truth = [list(sentence.tags) for sentence in sentences]
        wrong = [sum(a != b for a, b in zip(*pair, strict=True)) for pair in zip(truth, tags, strict=True)]
        items = [
            AnsweredItem(sentence.words, sentence.tags, [given], [count], [not count])
            for sentence, given, count in zip(sentences, tags, wrong, strict=True)
        ]
        true_tags, guesses = (list(itertools.chain(*rows)) for rows in (truth, tags))
        confidences = np.array(list(itertools.chain(*confidence)))
        return compare_labels(true_tags, guesses, confidences, evaluated=evaluated, items=items, figure="wrong tags")

    def reference_answer(self, text: str, source: str, file_format: str | None) -> Sequence[str] | None:
        """Return the tags of a sentence."""
        words = text.split()
        sentences = self.sentences(source, file_format)
        return next((sentence.tags for sentence in sentences if sentence.words == words), None)

    def held_out(self, source: str, file_format: str | None, *, count: int, tokens: int) -> Sequence[object]:
        """Return sentences of some data, spread over them."""
        return evenly(list(self.sentences(source, file_format)), count)

"""Reading sentences whose words have tags, and tagging them."""

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Literal

import torch
from torch import Tensor

from ..config import Config
from ..data.batches import Buckets
from ..data.conll import Sentence, read_sentences, read_untagged
from ..data.repairs import Repairs
from ..data.sources import TAGGED_SUFFIXES
from ..data.split import is_held_out, share_of
from ..data.tag_sets import TagSet, marks_chunks
from ..data.tagged_corpus import TaggedBatch, TaggedCorpus, fit_vocabulary
from ..data.text import Source
from ..data.vocabulary import Vocabulary
from ..layers.positions import check_lengths, declared_positions
from ..models.tagger import TagModel
from .data_warnings import listed, warn_of_long, warn_of_unseen
from .labelled import LabelledReader

TOGETHER, TOKENS_TOGETHER = 256, 8192
"""Sentences and tokens of a batch that is tagged, so that intermediate results stay in the processor's cache."""


class TaggedReader(LabelledReader[TaggedCorpus]):
    """Reads sentences with tags.

    ``scheme`` is that of tags that mark chunks; see `read_sentences`. ``reads_characters`` says whether the vocabulary
    has the characters of words.
    """

    tags_words = True

    def __init__(self, config: Config, *, scheme: Literal["bio", "iob1"], reads_characters: bool) -> None:
        super().__init__(config, TAGGED_SUFFIXES)
        self.scheme, self.reads_characters = scheme, reads_characters

    def learn_vocabulary(self) -> Vocabulary:
        """Learn words, characters and tags from the training sentences."""
        sentences = self.sentences(self.files.training_source(), "train")
        return fit_vocabulary(sentences, self.config.tokenizer, characters=self.reads_characters)

    def sentences(
        self,
        source: str,
        split: str,
        file_format: str | None = None,
        repairs: Repairs | None = None,
        labels: Sequence[str] | None = None,
    ) -> Iterator[Sentence]:
        """Read the sentences of ``source`` with their tags; see `read_sentences` for ``labels`` and ``repairs``."""
        data = self.config.data
        wanted, subset = file_format or data.format, self.files.subset(source, split)
        sentences = read_sentences(
            self.files.sources(subset.source, subset.split, wanted),
            file_format=wanted,
            column=data.column,
            scheme=self.scheme,
            labels=labels,
            exact=data.spellings == "exact",
            repairs=repairs or self.files.new_repairs(),
        )
        return subset.chosen(sentences, lambda sentence: " ".join(sentence.words))

    def labelled_items(self, source: str, split: str) -> Iterator[tuple[str, str]]:
        """Yield sentences with their tags, both as words in one line."""
        return ((" ".join(one.words), " ".join(one.tags)) for one in self.sentences(source, split))

    def measured_items(self, vocabulary: Vocabulary, source: str, split: str) -> Iterator[tuple[str, Sequence[str]]]:
        """Yield sentences with their tags as the vocabulary spells them, both as words in one line."""
        sentences = self.sentences(source, split, labels=vocabulary.labels)
        return ((" ".join(one.words), (" ".join(one.tags),)) for one in sentences)

    def has_content(self, source: str, split: str) -> bool:
        """Return whether there is a sentence; held-out ones must have tags that can be measured."""
        if split == "train":
            return super().has_content(source, split)
        trained = {tag for sentence in self.sentences(self.files.training_source(), "train") for tag in sentence.tags}
        labels = sorted(trained)
        held_out = [tag for sentence in self.sentences(source, split, labels=labels) for tag in sentence.tags]
        return not trained.isdisjoint(held_out) and (marks_chunks(held_out) or not TagSet.known(labels).style)

    def explain_empty_split(self, fraction: str, *, none_held_out: bool) -> str:
        """Say that the split would have no tag in common with the rest, or no chunk; or see `LabelledReader`."""
        rows = (row for row, _ in self.labelled_items(self.files.training_source(), "train"))
        if none_held_out and any(is_held_out(row, share_of(fraction)) for row in rows):
            return "none of its tags would be in the rest, or no chunk in it"
        return super().explain_empty_split(fraction, none_held_out=none_held_out)

    def read(self, source: str, split: str, vocabulary: Vocabulary, *, file_format: str | None = None) -> TaggedCorpus:
        """Read and encode sentences; warn of repairs, and of tags that never occur in training and count as wrong.

        A sentence with more words than learned positions is refused.
        """
        repairs = self.files.new_repairs(vocabulary)
        corpus = TaggedCorpus(self.sentences(source, split, file_format, repairs, vocabulary.labels), vocabulary)
        warn_of_long(corpus.lengths, self.config, name=self.files.name_of(source), items="sentences")

        def place(index: int) -> str:
            sentences = self.sentences(source, split, file_format, labels=vocabulary.labels)
            return next(itertools.islice(sentences, index, None)).place(0)

        check_lengths(declared_positions(self.config.model.options), corpus.lengths, place)
        corpus.repairs = self.files.repairs_to_report(repairs, source, split)
        corpus.repairs.warn()
        if corpus.unseen:
            count = corpus.unseen_tags()
            warn_of_unseen("tag", corpus.unseen, count, f"{count:,} word{'s' if count != 1 else ''}")
        return corpus

    def describe(self, data: TaggedCorpus) -> str:
        """Return the number of sentences and words, and how many words are known."""
        return f"{len(data.lengths):,} sentences ({len(data.words):,} words, {data.unknown_words():,} unknown)"

    def count(self, source: str, split: str, vocabulary: Vocabulary) -> dict[str, object]:
        """Return statistics of sentences, words and tags."""
        corpus = self.read(source, split, vocabulary)
        assert corpus.tags is not None
        counts = Counter(corpus.tag_names[tag] for tag in corpus.tags.tolist())
        return {
            "sentences": len(corpus.lengths),
            "tokens": len(corpus.words),
            "unknown_tokens": corpus.unknown_words(),
            "words_seen_once": int(corpus.seen_once().sum()),
            "longest_sentence": int(corpus.lengths.max(initial=0)),
            "unseen_tags": corpus.unseen_tags(),
            "tags": listed(counts),
            **corpus.repairs.lines(),
        }

    def items(
        self, sources: Sequence[Source], file_format: str | None, vocabulary: Vocabulary, repairs: Repairs
    ) -> Iterator[Sentence | str]:
        """Read the sentences of files in columns, which the tags of a model help to recognize, or lines of text."""
        column, labels = self.config.data.column, vocabulary.labels
        return read_untagged(sources, file_format=file_format, column=column, labels=labels, repairs=repairs)


def tag_corpus(
    model: TagModel, corpus: TaggedCorpus, *, probabilities: bool = True
) -> Iterator[tuple[int, list[int], list[float]]]:
    """Yield for each sentence its row, its predicted tags and the probability of each tag, or an empty list."""
    for batch, scores in scored_batches(model, corpus):
        tags = model.decode(scores, batch.lengths)
        shares = model.probabilities(scores, batch.lengths, tags) if probabilities else [list[float]()] * len(tags)
        yield from zip(batch.rows.tolist(), tags, shares, strict=True)


def scored_batches(model: TagModel, corpus: TaggedCorpus) -> Iterator[tuple[TaggedBatch, Tensor]]:
    """Yield batches of the sentences with the scores of their tags ``(batch, time, tags)``, without gradients."""
    batches = Buckets(corpus.lengths, TOGETHER, corpus.batch, max_tokens=TOKENS_TOGETHER)
    device = next(model.parameters()).device
    for batch in batches.read(batches.in_order() if len(corpus.lengths) else []):
        batch = batch.to(device)
        with torch.no_grad():
            scores = model(batch)
        yield batch, scores


def untagged(words: Sequence[str]) -> Sentence:
    """Return words as a sentence without tags."""
    return Sentence(list(words), [], [], [], 0, "", 0)


def parts_of(words: list[str], limit: int | None) -> list[list[str]]:
    """Split a sentence into parts of at most ``limit`` words."""
    step = limit or max(1, len(words))
    return [words[start : start + step] for start in range(0, len(words), step)]

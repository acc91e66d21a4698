"""Texts with labels: reading and encoding them, batches, and the probabilities that classifiers give their labels."""

import hashlib
import itertools
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from ..config import Config
from ..config import Tokenizer as TokenizerConfig
from ..core.errors import EmptyError, MismatchError
from ..counting.bag import Bag, BlendedClassifier
from ..data.batches import Buckets
from ..data.pairs import Side, encode_side
from ..data.repairs import Repairs, kept_rows
from ..data.sources import LABELLED_SUFFIXES
from ..data.tables import Labelled, read_labelled, with_spellings
from ..data.text import Source
from ..data.vocabulary import Vocabulary, check_label, fit_tokenizer
from ..data.word_forms import Spellings, WordForms
from ..decoding.ensemble import Classifiers
from ..evaluation.label_metrics import Predictions
from ..models import Classifier
from .data_files import Subset, check_lengths, declared_positions, listed, name_unseen, warn_of_long, warn_of_unseen
from .task import LabelledReader, evaluating

TOGETHER = 64
"""Texts of a batch in evaluation."""
AnyClassifier: TypeAlias = Classifier | Bag | BlendedClassifier | Classifiers
STRINGS_TOGETHER = 4096
"""Texts that a linear model reads together."""


class Documents(NamedTuple):
    """Encoded texts.

    Attributes:
        texts: the tokens.
        labels: the index in `label_names` of the label of each text ``(texts,)``.
        vocabulary: of the model.
        unseen: labels that are not in the vocabulary.
        repairs: the repairs made while the texts were read; None if they were not read from files.
        strings: the texts themselves, for models that read them; None otherwise.
        forms: the words with an id of their own each, if the model reads characters; None otherwise.
        digests: a number for each text ``(texts,)``, equal for equal ones of one process; None as above.
    """

    texts: Side
    labels: np.ndarray
    vocabulary: Vocabulary
    unseen: Sequence[str] = ()
    repairs: Repairs | None = None
    strings: Sequence[str] | None = None
    digests: np.ndarray | None = None
    forms: WordForms | None = None

    def row_digests(self) -> np.ndarray | None:
        """Return `digests`; see `seriatim.training.settle`."""
        return self.digests

    @property
    def label_names(self) -> list[str]:
        """The labels of the vocabulary, followed by those that are not in it."""
        return [*self.vocabulary.labels, *self.unseen]

    @property
    def key(self) -> str:
        """An identifier that is equal for equal data, and only then."""
        key = hashlib.blake2b(f"classify {self.vocabulary.fingerprint()}".encode(), digest_size=16)
        ids = self.texts.ids
        if self.forms is not None:  # equal for models that read characters and others
            ids = np.where(ids < self.forms.vocabulary_size, ids, self.forms.unknown_id).astype(ids.dtype)
        for values in (ids, self.texts.lengths, self.labels):
            key.update(values.tobytes())
        key.update("\n".join(self.unseen).encode())
        return key.hexdigest()

    def counts(self) -> dict[str, int]:
        """Return the numbers of texts, of tokens, and of tokens and labels that are not in the vocabulary."""
        unknown_id = self.vocabulary.tokenizer.unknown_id
        unknown = 0 if unknown_id is None else int((self.texts.ids == unknown_id).sum())
        unknown += int((self.texts.ids >= self.vocabulary.tokenizer.vocabulary_size).sum())
        return {
            "texts": len(self.labels),
            "tokens": int(self.texts.lengths.sum()),
            "unknown_tokens": unknown,
            "unseen_labels": int((self.labels >= len(self.vocabulary.labels)).sum()),
        }


@dataclass
class DocumentBatch:
    """A batch of texts ``(batch, time)``, with the length, label, weight in the loss and row of each ``(batch,)``.

    ``once`` says which tokens occur once in the training data ``(batch, time)``. It and ``weights`` may be None, and so
    may ``spellings``, if the model reads no characters.
    """

    inputs: Tensor
    once: Tensor | None
    lengths: Tensor
    labels: Tensor
    weights: Tensor | None
    rows: np.ndarray
    spellings: Spellings | None = None
    fresh: bool = True

    @property
    def tokens(self) -> int:
        """Number of tokens without padding."""
        return int(self.lengths.sum())

    @property
    def terms(self) -> int:
        """Number of texts."""
        return len(self.labels)


def probabilities(model: AnyClassifier, data: Documents) -> np.ndarray:
    """Return P(label) of every text ``(texts, labels)``."""
    probabilities = np.zeros((len(data.labels), len(data.vocabulary.labels)))
    for rows, values in label_probabilities(model, data):
        probabilities[rows] = values
    return probabilities


def predictions(model: AnyClassifier, data: Documents) -> Predictions:
    """Predict the label of every text; of the probabilities, only what figures need is kept in memory."""
    found = Predictions.empty(data.labels)
    for rows, values in label_probabilities(model, data):
        found.set(rows, values)
    return found


def label_probabilities(model: AnyClassifier, data: Documents) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the indices of some texts, and P(label) of each of them ``(rows, labels)``."""
    if isinstance(model, Classifiers):
        # One after another: generators that disable gradients in turns would leave them disabled.
        by_model = [list(label_probabilities(one, data)) for one in model.models]
        for group in zip(*by_model, strict=True):
            yield group[0][0], np.mean([values for _, values in group], axis=0)
        return
    if isinstance(model, BlendedClassifier):
        assert data.strings is not None
        for rows, values in label_probabilities(model.network, data):
            counted = model.bag.probabilities([data.strings[row] for row in rows.tolist()]).cpu().numpy()
            yield rows, (1 - model.weight) * values + model.weight * counted
        return
    if isinstance(model, Bag):
        assert data.strings is not None
        for start in range(0, len(data.labels), STRINGS_TOGETHER):
            rows = np.arange(start, min(start + STRINGS_TOGETHER, len(data.labels)))
            yield rows, model.probabilities([data.strings[row] for row in rows.tolist()]).cpu().numpy()
        return
    batches = Buckets(data.texts.lengths, TOGETHER, lambda rows: batch_of(data, rows))
    with evaluating(model) as device:
        for batch in batches.read(batches.in_order()):
            spellings = batch.spellings and batch.spellings.to(device)
            yield batch.rows, model.probabilities(batch.inputs.to(device), batch.lengths, spellings).cpu().numpy()


def encode(
    texts: Sequence[str], labels: Sequence[int], vocabulary: Vocabulary, *, characters: bool = False
) -> Documents:
    """Encode texts, given with the indices of their labels; ``characters`` says whether the model reads characters."""
    forms = WordForms(vocabulary) if characters else None
    side = encode_side(texts, forms or vocabulary.tokenizer)
    return Documents(side, np.array(labels, dtype=np.int64), vocabulary, forms=forms)


def batch_of(
    data: Documents, rows: np.ndarray, *, weights: np.ndarray | None = None, once: np.ndarray | None = None
) -> DocumentBatch:
    """Return the texts ``rows`` as a batch.

    The loss has ``weights`` of labels ``(labels,)``; ``once`` says which of all tokens occur once ``(vocabulary,)``.
    """
    (inputs, lengths), labels, forms = data.texts.rows(rows), data.labels[rows], data.forms
    tokens = inputs if forms is None else forms.known(inputs)
    return DocumentBatch(
        tokens,
        None if once is None else torch.from_numpy(once[tokens.numpy()]),
        lengths,
        torch.from_numpy(labels),
        None if weights is None else torch.from_numpy(weights[labels]).float(),
        rows,
        None if forms is None else forms.spellings(inputs),
    )


class LabelledTextReader(LabelledReader[Documents]):
    """Reads texts with labels.

    ``reads_characters`` says whether the model reads the characters of words, and ``keeps_strings`` whether the texts
    themselves are kept, which a bag of n-grams reads.
    """

    def __init__(self, config: Config, *, reads_characters: bool, keeps_strings: bool) -> None:
        super().__init__(config, LABELLED_SUFFIXES)
        self.reads_characters, self.keeps_strings = reads_characters, keeps_strings

    def learn_vocabulary(self) -> Vocabulary:
        """Learn the tokenizer, and the characters of words, and collect the labels in sorted order.

        Models that read no characters have them, too, so that the vocabularies of all classifiers are equal.
        """
        rows = list(self.rows(self.files.training_source(), "train"))
        first = {str(row.label): row for row in reversed(rows)}
        for label, row in reversed(first.items()):
            check_label(label, f"{row.name}:{row.line}", "remove it from the label")
        labels = sorted(first)
        if len(labels) < 2:
            raise EmptyError(f"{rows[0].name}: all texts have the label {labels[0]!r}; give data of several labels")
        tokenizers = {"tokenizer": fit_tokenizer(self.config.tokenizer, (row.text for row in rows))}
        if self.config.tokenizer.kind == "word":
            words = set(
                itertools.chain.from_iterable(tokenizers["tokenizer"].prepare(row.text).split() for row in rows)
            )
            tokenizers["characters"] = fit_tokenizer(TokenizerConfig(kind="char"), sorted(words))
        return Vocabulary(tokenizers, labels)

    def rows(
        self,
        source: str,
        split: str,
        file_format: str | None = None,
        repairs: Repairs | None = None,
        labels: Sequence[str] | None = None,
    ) -> Iterator[Labelled]:
        """Read the texts of ``source`` with their labels; see `with_spellings` for ``labels`` and ``repairs``.

        The rows of a subset and of the rest decide together which spellings are one label.
        """
        subset = self.files.subset(source, split)
        markers = self.files.markers_in(self.texts(source, split, file_format))

        def read(repairs: Repairs) -> Iterator[Labelled]:
            repairs.markers = markers
            return self.all_rows(subset, file_format, repairs)

        exact = self.config.data.spellings == "exact"
        rows = with_spellings(read, labels, repairs or self.files.new_repairs(), exact=exact)
        return subset.chosen(rows, attrgetter("text"), attrgetter("label"))

    def all_rows(self, subset: Subset, file_format: str | None, repairs: Repairs) -> Iterator[Labelled]:
        """Read the rows of a subset and of the rest."""
        data, wanted = self.config.data, file_format or self.config.data.format
        sources = self.files.sources(subset.source, subset.split, wanted)

        def read(repairs: Repairs) -> Iterator[Labelled]:
            return read_labelled(sources, file_format=wanted, text=data.text, label=data.label, repairs=repairs)

        if any(source.is_live for source in sources):
            return read(repairs)
        return kept_rows((subset.source, subset.split, wanted, data.text, data.label), read, repairs)

    def texts(self, source: str, split: str, file_format: str | None = None) -> list[Iterable[str]]:
        """Return the texts as they are written."""
        return [(row.text for row in self.all_rows(self.files.subset(source, split), file_format, Repairs()))]

    def labelled_items(self, source: str, split: str) -> Iterator[tuple[str, str]]:
        """Yield texts with their labels."""
        return ((row.text, str(row.label)) for row in self.rows(source, split))

    def measured_items(self, vocabulary: Vocabulary, source: str, split: str) -> Iterator[tuple[str, Sequence[str]]]:
        """Yield texts with their labels as the vocabulary spells them."""
        return ((row.text, (str(row.label),)) for row in self.rows(source, split, labels=vocabulary.labels))

    def explain_empty_split(self, fraction: str, *, none_held_out: bool) -> str:
        """Say also that the first text of each label, which is trained on, is the only one."""
        rows = set(self.labelled_items(self.files.training_source(), "train"))
        texts, labels = ({row[i] for row in rows} for i in (0, 1))
        if none_held_out and len(labels) == len(rows) and len(texts) > 1:
            return "no label has two different texts"
        return super().explain_empty_split(fraction, none_held_out=none_held_out)

    def read(self, source: str, split: str, vocabulary: Vocabulary, *, file_format: str | None = None) -> Documents:
        """Read and encode labelled texts; warn of repairs, and of labels that never occur in training.

        Texts with such a label count as wrong. A text with more tokens than learned positions is refused.
        """
        # A label that training did not have gets a number of its own, so that its texts count as wrong, each as its own
        # class.
        repairs, numbers = self.files.new_repairs(vocabulary), {label: i for i, label in enumerate(vocabulary.labels)}
        texts, labels, digests, first = [], [], array("q"), dict[str, str]()
        for row in self.rows(source, split, file_format, repairs, vocabulary.labels):
            if row.label not in numbers:
                numbers[row.label] = len(numbers)
                first[row.label] = f"{row.name}:{row.line}"
            texts.append(row.text)
            labels.append(numbers[row.label])
            digests.append(hash(row.text))

        # Warnings come after everything was read, so that one message counts all of them.
        repairs = self.files.repairs_to_report(repairs, source, split)
        data = self.encode(texts, labels, vocabulary)._replace(
            unseen=tuple(first), repairs=repairs, digests=np.array(digests)
        )
        repairs.warn()
        warn_of_long(data.texts.lengths, self.config, name=self.files.name_of(source), items="texts")

        # The file is read again to name a line, since no text keeps its location in memory.
        def location(index: int) -> str:
            row = next(itertools.islice(self.rows(source, split, file_format), index, None))
            return f"{row.name}:{row.line}"

        check_lengths(declared_positions(self.config.model.options), data.texts.lengths, location)
        if first:
            count = data.counts()["unseen_labels"]
            if count == len(labels):
                raise MismatchError(
                    f"{name_unseen('label', first)}, nor does any other here; give data with the same labels"
                )
            warn_of_unseen("label", first, count, f"{count:,} of {len(labels):,} texts")
        return data

    def encode(self, texts: Sequence[str], labels: Sequence[int], vocabulary: Vocabulary) -> Documents:
        """Encode texts, given with the indices of their labels."""
        data = encode(texts, labels, vocabulary, characters=self.reads_characters)
        return data._replace(strings=texts) if self.keeps_strings else data

    def describe(self, data: Documents) -> str:
        """Return the number of texts and tokens."""
        counts = data.counts()
        return f"{counts['texts']:,} texts ({counts['tokens']:,} tokens, {counts['unknown_tokens']:,} unknown)"

    def count(self, source: str, split: str, vocabulary: Vocabulary) -> dict[str, object]:
        """Return statistics of texts and labels."""
        data = self.read(source, split, vocabulary)
        names = data.label_names
        labels = Counter(names[label] for label in data.labels.tolist())
        return {
            **data.counts(),
            "longest_text": int(data.texts.lengths.max(initial=0)),
            "empty_texts": int((data.texts.lengths == 0).sum()),
            "labels": listed(labels),
            **(data.repairs.lines() if data.repairs else {}),
        }

    def items(
        self, sources: Sequence[Source], file_format: str | None, vocabulary: Vocabulary, repairs: Repairs
    ) -> Iterator[str]:
        """Read lines, or the texts of a table or of JSONL, depending on the name; labels are ignored."""
        wanted, column = file_format or "auto", self.config.data.text
        rows = read_labelled(sources, file_format=wanted, text=column, label=None, repairs=repairs)
        return (row.text for row in rows)

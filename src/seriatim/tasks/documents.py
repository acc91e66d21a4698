"""Encoded texts with labels, and batches of them, for classification."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from ..counting.bag import Bag, BlendedClassifier
from ..data.batching import Buckets
from ..data.encoded_pairs import Side, encode_side
from ..data.repairs import Repairs
from ..data.vocabulary import Vocabulary
from ..data.word_forms import Spellings, WordForms
from ..decoding.ensemble import Classifiers
from ..evaluation.label_metrics import Predictions
from ..models import Classifier
from .task import evaluating

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
        """Return `digests`; see `seriatim.training.overlap`."""
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
    for rows, shares in label_probabilities(model, data):
        probabilities[rows] = shares
    return probabilities


def predictions(model: AnyClassifier, data: Documents) -> Predictions:
    """Predict the label of every text; of the probabilities, only what figures need is kept in memory."""
    found = Predictions.empty(data.labels)
    for rows, shares in label_probabilities(model, data):
        found.set(rows, shares)
    return found


def label_probabilities(model: AnyClassifier, data: Documents) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the indices of some texts, and P(label) of each of them ``(rows, labels)``."""
    if isinstance(model, Classifiers):
        # One after another: generators that disable gradients in turns would leave them disabled.
        parts = [list(label_probabilities(one, data)) for one in model.models]
        for group in zip(*parts, strict=True):
            yield group[0][0], np.mean([shares for _, shares in group], axis=0)
        return
    if isinstance(model, BlendedClassifier):
        assert data.strings is not None
        for rows, shares in label_probabilities(model.network, data):
            counted = model.bag.probabilities([data.strings[row] for row in rows.tolist()]).cpu().numpy()
            yield rows, (1 - model.weight) * shares + model.weight * counted
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

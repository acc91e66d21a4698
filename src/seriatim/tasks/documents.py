"""Encoded texts with labels, and batches of them, for classification."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..data.batching import Buckets, padded
from ..data.tokenizers import END
from ..data.vocabulary import Vocabulary
from ..models import Classifier
from ..training.task import evaluating

TOGETHER = 64
"""Texts of a batch in evaluation."""


class Documents(NamedTuple):
    """Encoded texts, one after another in one array, and their labels.

    Attributes:
        ids: token ids of all texts ``(tokens,)``.
        starts: place in ``ids`` of the first token of each text ``(documents,)``.
        lengths: number of tokens of each text ``(documents,)``.
        labels: index of the label of each text ``(documents,)``.
        vocabulary: tokenizer and labels.
    """

    ids: np.ndarray
    starts: np.ndarray
    lengths: np.ndarray
    labels: np.ndarray
    vocabulary: Vocabulary

    @property
    def key(self) -> str:
        """An identifier that is equal for equal data, and only then."""
        key = hashlib.blake2b(f"classify {self.vocabulary.fingerprint()}".encode(), digest_size=16)
        for values in (self.ids, self.lengths, self.labels):
            key.update(values.tobytes())
        return key.hexdigest()

    def unknown(self) -> int:
        """Return the number of tokens that are not in the vocabulary."""
        unknown_id = self.vocabulary.tokenizer.unknown_id
        return 0 if unknown_id is None else int((self.ids == unknown_id).sum())


@dataclass
class DocumentBatch:
    """A batch of texts.

    Attributes:
        inputs: token ids ``(batch, time)``.
        once: whether each token occurs once in the training data ``(batch, time)``; None if that is not used.
        lengths: number of tokens of each text ``(batch,)``.
        labels: index of the label of each text ``(batch,)``.
        weights: weight of each text in the loss ``(batch,)``; None for equal weights.
        rows: indices of the texts in the data ``(batch,)``.
        fresh: always True, since no state is carried from batch to batch.
    """

    inputs: Tensor
    once: Tensor | None
    lengths: Tensor
    labels: Tensor
    weights: Tensor | None
    rows: np.ndarray
    fresh: bool = True

    @property
    def tokens(self) -> int:
        """Number of tokens without padding."""
        return int(self.lengths.sum())

    @property
    def terms(self) -> int:
        """Number of texts."""
        return len(self.labels)


def probabilities(model: Classifier, data: Documents) -> np.ndarray:
    """Return P(label) of every text ``(texts, labels)``."""
    batches = Buckets(data.lengths, TOGETHER, lambda rows: batch_of(data, rows))
    shares = np.zeros((len(data.labels), model.output.out_features))
    with evaluating(model) as device:
        for batch in batches.read(batches.in_order()):
            shares[batch.rows] = model.probabilities(batch.inputs.to(device), batch.lengths).cpu().numpy()
    return shares


def encode(texts: Sequence[str], labels: Sequence[int], vocabulary: Vocabulary) -> Documents:
    """Encode texts, given with the indices of their labels."""
    tokenizer, parts = vocabulary.tokenizer, []
    for text in texts:
        ids = tokenizer.encode(text)
        parts.append(ids[ids != END] if tokenizer.ends_lines else ids)
    lengths = np.array([len(part) for part in parts], dtype=np.int64)
    ids = np.concatenate([*parts, np.zeros(0, np.int32)])
    starts = lengths.cumsum() - lengths
    return Documents(ids, starts, lengths, np.array(labels, dtype=np.int64), vocabulary)


def batch_of(
    data: Documents, rows: np.ndarray, *, weights: np.ndarray | None = None, once: np.ndarray | None = None
) -> DocumentBatch:
    """Return some of the texts as a batch.

    Args:
        data: all texts.
        rows: indices of the texts ``(batch,)``.
        weights: weight of each label in the loss ``(labels,)``; None for equal weights.
        once: whether each token of the vocabulary occurs once in the training data; None if that is not used.
    """
    labels = data.labels[rows]
    inputs = padded(data.ids, data.starts[rows], data.lengths[rows])
    return DocumentBatch(
        torch.from_numpy(inputs),
        None if once is None else torch.from_numpy(once[inputs]),
        torch.from_numpy(data.lengths[rows]),
        torch.from_numpy(labels),
        None if weights is None else torch.from_numpy(weights[labels]).float(),
        rows,
    )

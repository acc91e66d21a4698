"""Encoded texts with labels, and batches of them, for classification."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..data.batching import Buckets
from ..data.encoded_pairs import Side, encode_side
from ..data.vocabulary import Vocabulary
from ..models import Classifier
from ..training.task import evaluating

TOGETHER = 64
"""Texts of a batch in evaluation."""


class Documents(NamedTuple):
    """Encoded texts, the index of the label of each one ``(texts,)``, and their vocabulary."""

    texts: Side
    labels: np.ndarray
    vocabulary: Vocabulary

    @property
    def key(self) -> str:
        """An identifier that is equal for equal data, and only then."""
        key = hashlib.blake2b(f"classify {self.vocabulary.fingerprint()}".encode(), digest_size=16)
        for values in (self.texts.ids, self.texts.lengths, self.labels):
            key.update(values.tobytes())
        return key.hexdigest()

    def counts(self) -> dict[str, int]:
        """Return the numbers of texts, of tokens, and of tokens that are not in the vocabulary."""
        unknown_id = self.vocabulary.tokenizer.unknown_id
        unknown = 0 if unknown_id is None else int((self.texts.ids == unknown_id).sum())
        return {"texts": len(self.labels), "tokens": int(self.texts.lengths.sum()), "unknown_tokens": unknown}


@dataclass
class DocumentBatch:
    """A batch of texts ``(batch, time)``, with the length, label, weight in the loss and row of each ``(batch,)``.

    ``once`` says which tokens occur once in the training data ``(batch, time)``. It and ``weights`` may be None.
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
    batches = Buckets(data.texts.lengths, TOGETHER, lambda rows: batch_of(data, rows))
    shares = np.zeros((len(data.labels), model.output.out_features))
    with evaluating(model) as device:
        for batch in batches.read(batches.in_order()):
            shares[batch.rows] = model.probabilities(batch.inputs.to(device), batch.lengths).cpu().numpy()
    return shares


def encode(texts: Sequence[str], labels: Sequence[int], vocabulary: Vocabulary) -> Documents:
    """Encode texts, given with the indices of their labels."""
    return Documents(encode_side(texts, vocabulary.tokenizer), np.array(labels, dtype=np.int64), vocabulary)


def batch_of(
    data: Documents, rows: np.ndarray, *, weights: np.ndarray | None = None, once: np.ndarray | None = None
) -> DocumentBatch:
    """Return the texts ``rows`` as a batch.

    The loss has ``weights`` of labels ``(labels,)``; ``once`` says which of all tokens occur once ``(vocabulary,)``.
    """
    (inputs, lengths), labels = data.texts.rows(rows), data.labels[rows]
    return DocumentBatch(
        inputs,
        None if once is None else torch.from_numpy(once[inputs.numpy()]),
        lengths,
        torch.from_numpy(labels),
        None if weights is None else torch.from_numpy(weights[labels]).float(),
        rows,
    )

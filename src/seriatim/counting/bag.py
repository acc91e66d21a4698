"""A linear classifier of weighted n-grams: P(label | text) = softmax(W x + b), with x the TF-IDF of its n-grams.

    x_j = (1 + log c_j) · (1 + log((1 + n) / (1 + d_j))),  divided by its norm, for words and for characters separately
    minimize  (1/n) Σ_i w_i (−log P(y_i | x_i)) + (‖W‖² + ‖b‖²) / (2 n C)

c_j how often n-gram j occurs in the text · d_j in how many of the n training texts it occurs · w_i weights, 1 by
default · C the strength with which the data pull: small values regularize more.

G. Salton and C. Buckley, "Term-weighting approaches in automatic text retrieval", Information Processing & Management
24 (1988); words and characters together as in S. Wang and C. Manning, ACL 2012, and the pipelines of scikit-learn.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..models.classifier import Classifier
from ..models.probabilities import softmax
from .minimization import minimize
from .sparse_features import Occurrences, SparseRows, find_ngrams

TYPES = {
    **dict.fromkeys(("words", "characters"), torch.int64),
    "scales": torch.float64,
    **dict.fromkeys(("weights", "bias"), torch.float32),
}
"""The types of the tensors of a model by name; keys of 64 bits are stored as signed numbers."""


class BagNgrams(NamedTuple):
    """The n-grams that a model knows: sorted keys of words, sorted keys of characters, and the scale of each.

    ``scales`` ``(features,)`` are those of the words, then those of the characters. ``longest`` holds the largest
    number of words and of characters of an n-gram.
    """

    words: np.ndarray
    characters: np.ndarray
    scales: np.ndarray
    longest: tuple[int, int]

    def features(self, texts: Sequence[str]) -> SparseRows:
        """Return the features of some texts ``(texts, features)``."""
        found = find_ngrams(texts, words=self.longest[0], characters=range(2, self.longest[1] + 1))
        matches, first = [], 0
        for known, (keys, rows) in zip((self.words, self.characters), found, strict=True):
            if len(known) and len(keys):
                position = np.searchsorted(known, keys).clip(max=len(known) - 1)
                hit = known[position] == keys
                matches.append((rows[hit], position[hit] + first))
            first += len(known)
        rows, columns = map(np.concatenate, zip((np.zeros(0, np.int64),) * 2, *matches, strict=True))
        pairs, counts = np.unique(rows * max(1, len(self.scales)) + columns, return_counts=True)
        return weighted(pairs, counts, self.scales, len(self.words), len(texts))


def weighted(pairs: np.ndarray, counts: np.ndarray, scales: np.ndarray, num_words: int, rows: int) -> SparseRows:
    """Return the matrix x from sorted pairs ``row · features + feature``, how often each occurs, and scales."""
    row, column = np.divmod(pairs, max(1, len(scales)))
    values = (1 + np.log(counts)) * scales[column]
    block = 2 * row + (column >= num_words)
    norms = np.sqrt(np.bincount(block, values**2, minlength=2 * rows))
    return SparseRows.build(row, column, values / norms[block], (rows, len(scales)))


def count_features(
    texts: Sequence[str], *, words: int, characters: Sequence[int], min_texts: int, max_features: int
) -> tuple[BagNgrams, SparseRows]:
    """Find the n-grams of training texts and return them with the features of the texts.

    N-grams of fewer than ``min_texts`` texts are left out, and the rarest if there are more than ``max_features``.
    """
    blocks = [_document_counts(found, len(texts)) for found in find_ngrams(texts, words=words, characters=characters)]
    frequency = np.concatenate([block.frequency for block in blocks])

    # Rarer n-grams are left out first, since they say least and are most; all of one frequency stay or go, so that the
    # order of texts does not matter.
    least = min_texts
    if np.count_nonzero(frequency >= least) > max_features:
        least = int(np.sort(frequency)[-max_features - 1]) + 1
    kept = frequency >= least
    index = np.cumsum(kept) - 1
    width, num_words = int(np.count_nonzero(kept)), len(blocks[0].keys)

    # The counts of the training texts are known already: their features are made of these, with new numbers for the
    # n-grams that are kept, instead of reading the texts again.
    scales = 1 + np.log((1 + len(texts)) / (1 + frequency[kept]))
    pairs, counts = [], []
    for first, block in zip((0, num_words), blocks, strict=True):
        rows, columns = np.divmod(block.pairs, max(1, len(block.keys)))
        used = kept[columns + first]
        pairs.append(rows[used] * width + index[columns[used] + first])
        counts.append(block.counts[used])
    joined = np.concatenate(pairs)
    order = np.argsort(joined, kind="stable")
    keys = [block.keys[mask] for block, mask in zip(blocks, np.split(kept, [num_words]), strict=True)]
    table = BagNgrams(keys[0], keys[1], scales, (words, max(characters, default=0)))
    return table, weighted(joined[order], np.concatenate(counts)[order], scales, len(keys[0]), len(texts))


class _Block(NamedTuple):
    """The n-grams of one kind: sorted keys, in how many texts each occurs, and how often in each text."""

    keys: np.ndarray
    frequency: np.ndarray
    pairs: np.ndarray  # row · keys + index of the key, sorted
    counts: np.ndarray  # of each pair


def _document_counts(found: Occurrences, texts: int) -> _Block:
    order = np.argsort(found.keys)
    ordered = found.keys[order]
    new = np.ones(len(ordered), bool)
    new[1:] = ordered[1:] != ordered[:-1]
    number = np.empty(len(order), np.int64)
    number[order] = np.cumsum(new) - 1
    keys = ordered[new]
    pairs, counts = np.unique(found.rows * max(1, len(keys)) + number, return_counts=True)
    return _Block(keys, np.bincount(pairs % max(1, len(keys)), minlength=len(keys)), pairs, counts)


class Bag(nn.Module):
    """Texts to logits ``(texts, labels)``, with weights ``(features, labels)`` and biases ``(labels,)``."""

    def __init__(self, table: BagNgrams, weights: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.table = table
        self.weights, self.bias = (nn.Parameter(values, requires_grad=False) for values in (weights, bias))

    def forward(self, texts: Sequence[str]) -> Tensor:
        """Return the logits."""
        return self.table.features(texts).to(self.weights.device).times(self.weights) + self.bias

    @torch.no_grad()
    def probabilities(self, texts: Sequence[str]) -> Tensor:
        """Return P(label) ``(texts, labels)``, in float64."""
        return softmax(self(texts))

    def tensors(self) -> dict[str, Tensor]:
        """Return everything that `from_tensors` needs, by name."""
        table = self.table
        keys = {"words": table.words.view(np.int64), "characters": table.characters.view(np.int64)}
        arrays = {name: torch.from_numpy(values) for name, values in {**keys, "scales": table.scales}.items()}
        return {**arrays, "weights": self.weights.data, "bias": self.bias.data}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], longest: tuple[int, int], num_labels: int) -> "Bag":
        """Build a model from its tensors by name.

        Raises:
            ValueError: tensors are missing or damaged, or belong to other labels.
        """
        if tensors.keys() != TYPES.keys():
            raise ValueError("not the tables of a bag of n-grams")
        for name, values in tensors.items():
            if (values.dtype, values.dim()) != (TYPES[name], 2 if name == "weights" else 1):
                raise ValueError(f"{name} has the wrong type or shape")
        words, characters = (tensors[name].numpy().view(np.uint64) for name in ("words", "characters"))
        if any((keys[1:] <= keys[:-1]).any() for keys in (words, characters)):
            raise ValueError("the keys of the n-grams are not sorted")
        if tensors["bias"].shape != (num_labels,):
            raise ValueError("the weights belong to other labels")
        features = len(words) + len(characters)
        if tensors["scales"].shape != (features,) or tensors["weights"].shape != (features, num_labels):
            raise ValueError("the n-grams and their weights have different numbers")
        table = BagNgrams(words, characters, tensors["scales"].numpy(), longest)
        return cls(table, tensors["weights"], tensors["bias"])


class BlendedClassifier(nn.Module):
    """A classifier and a bag of n-grams with the same labels; answers have the mean of both models' probabilities.

    ``weight`` is that of the bag.
    """

    def __init__(self, network: Classifier, bag: Bag, weight: float) -> None:
        super().__init__()
        self.network, self.bag, self.weight = network, bag, weight


TOLERANCE = 2e-3
VARIANCE = 0.05
"""P (1 − P) of a label on average, which scales the diagonal of the Hessian; it only changes the speed."""


TEXTS_TOGETHER = 256
"""Texts whose probabilities are computed in memory of their own."""


class FittedSoftmax(NamedTuple):
    """Weights ``(features, labels)``, biases ``(labels,)``, and why the search ended."""

    weights: Tensor
    bias: Tensor
    ended: str


def fit_softmax(
    features: SparseRows,
    labels: Tensor,
    num_labels: int,
    *,
    strength: float,
    weights: Tensor | None = None,
    seconds: float | None = None,
) -> FittedSoftmax:
    """Fit the weights of all labels.

    Args:
        features: one row for each text.
        labels: index of each text's label ``(texts,)``.
        num_labels: number of labels.
        strength: C of the formula.
        weights: w of the formula ``(texts,)``; None for 1 each.
        seconds: limit of the time; None for none.
    """
    found = minimize(_Softmax(features, labels, num_labels, weights, strength), tolerance=TOLERANCE, seconds=seconds)
    return FittedSoftmax(found.point[:-1], found.point[-1], found.ended)


class _Softmax:
    """The loss of logits; a point is ``(features + 1, labels)``, with the biases in the last row."""

    def __init__(
        self, features: SparseRows, labels: Tensor, num_labels: int, weights: Tensor | None, strength: float
    ) -> None:
        self.features, self.transposed = features, features.transposed()
        self.labels, self.num_labels = labels, num_labels
        self.weights = None if weights is None else weights.float()
        self.decay = 1 / (strength * len(labels))

    def start(self) -> Tensor:
        return torch.zeros(self.features.width + 1, self.num_labels)

    def diagonal(self) -> Tensor:
        energy = torch.zeros(self.features.width + 1)
        energy.index_add_(0, self.features.columns.long(), self.features.values.square())
        energy[-1] = len(self.labels)
        return (1 / (VARIANCE * energy / len(self.labels) + self.decay)).unsqueeze(1)

    def outputs(self, point: Tensor) -> Tensor:
        """Return the logits ``(texts, labels)``."""
        return self.features.times(point[:-1]) + point[-1]

    def loss(self, outputs: Tensor) -> tuple[float, Tensor]:
        for some in torch.split(outputs, TEXTS_TOGETHER):
            some.copy_(F.log_softmax(some, dim=1))
        log_p = outputs
        rows = torch.arange(len(self.labels))
        losses = -log_p[rows, self.labels]
        errors = log_p.exp_()
        errors[rows, self.labels] -= 1
        if self.weights is not None:
            losses, errors = losses * self.weights, errors.mul_(self.weights.unsqueeze(1))
        return float(losses.double().mean()), errors.div_(len(losses))

    def gradient(self, errors: Tensor) -> Tensor:
        return torch.cat([self.transposed.times(errors), errors.sum(0, keepdim=True)])

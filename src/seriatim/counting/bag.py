"""A linear classifier of weighted n-grams: P(label | text) = softmax(W x + b), with x the TF-IDF of its n-grams.

    x_j = (1 + log c_j) · (1 + log((1 + n) / (1 + d_j))),  divided by its norm, for words and for characters separately
    minimize  (1/n) Σ_i w_i (−log P(y_i | x_i)) + (‖W‖² + ‖b‖²) / (2 n C)

c_j how often n-gram j occurs in the text · d_j in how many of the n training texts it occurs · w_i weights, 1 by
default · C the strength with which the data pull: small values regularize more. Of many labels, each is fitted against
all others: −log P(y_i | x_i) above is then Σ_k −log σ(±(W x_i + b)_k), with + where k is the label (R. Rifkin and A.
Klautau, "In defense of one-vs-all classification", JMLR 5, 2004).

G. Salton and C. Buckley, "Term-weighting approaches in automatic text retrieval", Information Processing & Management
24 (1988); words and characters together as in S. Wang and C. Manning, ACL 2012, and the pipelines of scikit-learn.
"""

import ctypes
import functools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..compiler.cpp.toolchain import address
from ..models.classifier import Classifier
from ..models.probabilities import softmax
from .compiled_bag import TEXTS_READ, CompiledCounts, compiled_bag
from .minimization import TIME_SPENT, minimize
from .sparse_features import SparseRows, find_keys, find_ngrams, read_characters

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
        longest, functions = self.longest[1] if len(self.characters) else 0, compiled_bag()
        if functions is not None:
            counted = CompiledCounts(functions, texts, self.longest[0], longest)
            where = map(find_keys, self[:2], counted.keys, (0, len(self.words)))
            return counted.features(np.concatenate(list(where)).astype(np.int32), self.scales, len(self.words))
        found = find_ngrams(texts, words=self.longest[0], characters=range(2, longest + 1))
        matches = []
        for known, (keys, rows), first in zip(self[:2], found, (0, len(self.words)), strict=True):
            columns = find_keys(known, keys, first)
            matches.append((rows[columns >= 0], columns[columns >= 0]))
        rows, columns = map(np.concatenate, zip((np.zeros(0, np.int64),) * 2, *matches, strict=True))
        pairs, counts = np.unique(rows * max(1, len(self.scales)) + columns, return_counts=True)

        row, column = np.divmod(pairs, max(1, len(self.scales)))
        values = (1 + np.log(counts)) * self.scales[column]
        block = 2 * row + (column >= len(self.words))
        norms = np.sqrt(np.bincount(block, values**2, minlength=2 * len(texts)))
        return SparseRows.build(row, column, values / norms[block], (len(texts), len(self.scales)))


def count_features(
    texts: Sequence[str], *, words: int, characters: int, min_texts: int, max_features: int
) -> tuple[BagNgrams, SparseRows]:
    """Find the n-grams of training texts, of 1 to ``words`` words and 2 to ``characters`` characters.

    N-grams of fewer than ``min_texts`` texts are left out, and the rarest if there are more than ``max_features``.

    Returns:
        The n-grams, and the features of the texts.
    """
    functions = compiled_bag()
    counts = functions and CompiledCounts(functions, texts, words, characters)
    every, found = (counts.keys, counts.frequency) if counts else count_arrays(texts, words, characters)
    frequency = np.concatenate(found)

    # Rarer n-grams are left out first, since they say least and are most; all of one frequency stay or go, so that the
    # order of texts does not matter.
    least = min_texts
    if np.count_nonzero(frequency >= least) > max_features:
        least = int(np.sort(frequency)[-max_features - 1]) + 1

    # Columns are in the order of the keys, those of words first; n-grams that are left out have none.
    kept = [np.flatnonzero(texts_with >= least) for texts_with in found]
    kept = [indices[np.argsort(keys[indices])] for keys, indices in zip(every, kept, strict=True)]
    order = np.concatenate([kept[0], kept[1] + len(every[0])])
    scales = 1 + np.log((1 + len(texts)) / (1 + frequency[order]))
    table = BagNgrams(every[0][kept[0]], every[1][kept[1]], scales, (words, characters))
    if not counts:
        return table, table.features(texts)
    columns = np.full(len(frequency), -1, np.int32)
    columns[order] = np.arange(len(order))
    return table, counts.features(columns, scales, len(kept[0]))


def count_arrays(texts: Sequence[str], words: int, characters: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Return the sorted keys of n-grams of words and of characters, and in how many texts each occurs.

    This is the reference of `CompiledCounts`, with operations on whole arrays.
    """
    every, frequency = list[np.ndarray](), list[np.ndarray]()
    for found in find_ngrams(texts, words=words, characters=range(2, characters + 1)):
        keys, numbers = np.unique(found.keys, return_inverse=True)
        pairs = np.unique(found.rows * max(1, len(keys)) + numbers)
        every.append(keys)
        frequency.append(np.bincount(pairs % max(1, len(keys)), minlength=len(keys)))
    return every, frequency


class Bag(nn.Module):
    """Texts to logits ``(texts, labels)``, with weights ``(features, labels)`` and biases ``(labels,)``."""

    def __init__(self, table: BagNgrams, weights: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.table = table
        self.weights, self.bias = (nn.Parameter(values, requires_grad=False) for values in (weights, bias))

    def forward(self, texts: Sequence[str]) -> Tensor:
        """Return the logits."""
        if len(texts) <= TEXTS_READ and self.weights.type() == "torch.FloatTensor" and (functions := compiled_bag()):
            words, characters, scales, longest = self.table
            logits = self.bias.new_empty(len(texts), len(self.bias))
            arrays = [*read_characters(texts), words, characters, scales, self.weights.numpy(), self.bias.numpy()]
            sizes = len(texts), len(words), len(characters), len(self.bias)
            functions.bag_logits(*map(address, arrays), logits.data_ptr(), *sizes, *longest)
            return logits
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
"""The relative decrease of a step of L-BFGS at which the weights have converged."""
GAP, LARGE_GAP, LARGE, MAX_PASSES = 1e-3, 2e-2, 1 << 23, 50
"""The same of dual coordinate ascent, as a duality gap in nats for each text; that of more than so many features of all
texts, of which a pass takes a second; and the largest number of passes."""
VARIANCE = 0.05
"""P (1 − P) of a label on average, which scales the diagonal of the Hessian; it only changes the speed."""


class FittedWeights(NamedTuple):
    """Weights ``(features, labels)``, biases ``(labels,)``, and why the search ended."""

    weights: Tensor
    bias: Tensor
    ended: str


def fit_weights(
    features: SparseRows,
    labels: Tensor,
    num_labels: int,
    *,
    strength: float,
    weights: Tensor | None = None,
    one_versus_rest: bool = False,
    seconds: float | None = None,
) -> FittedWeights:
    """Fit the weights of all labels.

    Args:
        features: one row for each text.
        labels: index of each text's label ``(texts,)``.
        num_labels: number of labels.
        strength: C of the formula.
        weights: w of the formula ``(texts,)``; None for 1 each.
        one_versus_rest: fit each label against all others.
        seconds: limit of the time; None for none.
    """
    weights, functions = torch.ones(len(labels)) if weights is None else weights.float(), compiled_bag()
    regression = _Regression(features, labels, num_labels, 1 / (strength * len(labels)), weights, one_versus_rest)
    if functions is not None and len(features.columns):
        return _ascend(functions, regression, seconds)
    found = minimize(regression, tolerance=TOLERANCE, seconds=seconds)
    return FittedWeights(found.point[:-1], found.point[-1], found.ended)


def _ascend(functions: ctypes.CDLL, regression: "_Regression", seconds: float | None) -> FittedWeights:
    """Fit by dual coordinate ascent in compiled code.

    W = Σ_i C w_i (y_i − q_i) x_i, where q_i are probabilities, at the minimum those of the model. Text by text, q_i
    becomes the one that minimizes the objective while all others stay. H.-F. Yu, F.-L. Huang and C.-J. Lin, "Dual
    coordinate descent methods for logistic regression and maximum entropy models", Machine Learning 85 (2011).
    """
    started, features, labels = time.perf_counter(), regression.features, regression.labels
    texts, num_labels, pulls = len(labels), regression.num_labels, regression.weights / (regression.decay * len(labels))
    weights, bias = torch.zeros(features.width, num_labels), torch.zeros(num_labels)
    duals = np.eye(num_labels, dtype=np.float32)[labels.numpy()]
    given = [x.numpy() for x in (features.offsets, features.columns, features.values, labels, pulls)]
    random, ended = np.random.default_rng(0), f"{MAX_PASSES} passes over the texts were made"
    for number in range(1, MAX_PASSES + 1):
        arrays = [*given, random.permutation(texts)]
        sizes, results = (texts, num_labels), (weights.numpy(), bias.numpy(), duals)
        gap = functions.ascend(*map(address, arrays), *sizes, *map(address, results), regression.one_versus_rest)
        if gap < texts * (GAP if len(features.values) <= LARGE else LARGE_GAP):
            ended = f"the duality gap was small after {number} passes over the texts"
            break
        if seconds is not None and time.perf_counter() - started > seconds:
            ended = f"{TIME_SPENT} after {number} passes over the texts"
            break
    return FittedWeights(weights, bias, ended)


@dataclass
class _Regression:
    """The arguments of `fit_weights`, as `minimize` needs them.

    A point is ``(features + 1, labels)``, with the biases in the last row.
    """

    features: SparseRows
    labels: Tensor
    num_labels: int
    decay: float
    weights: Tensor
    one_versus_rest: bool

    @functools.cached_property
    def transposed(self) -> SparseRows:
        return self.features.transposed()

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
        rows = torch.arange(len(self.labels))
        if self.one_versus_rest:
            losses, errors = F.softplus(outputs).sum(1) - outputs[rows, self.labels], outputs.sigmoid()
        else:
            log_p = F.log_softmax(outputs, dim=1)
            losses, errors = -log_p[rows, self.labels], log_p.exp()
        errors[rows, self.labels] -= 1
        errors *= self.weights.unsqueeze(1) / len(losses)
        return float((losses * self.weights).double().mean()), errors

    def gradient(self, errors: Tensor) -> Tensor:
        return torch.cat([self.transposed.times(errors), errors.sum(0, keepdim=True)])

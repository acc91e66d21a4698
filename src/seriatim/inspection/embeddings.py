"""What a model has learned about single tokens: neighbours in the space of its embeddings, and a map of it.

Tokens that are used alike get similar vectors, so that what is learned about one carries over to the others (Y. Bengio
et al., "A neural probabilistic language model", JMLR 3, 2003). An n-gram model has no such vectors: to its counts,
every word is as different from every other one. Similarity is the cosine (T. Mikolov et al., "Distributed
representations of words and phrases and their compositionality", NeurIPS 2013).
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from ..core.errors import InputError
from ..data.tokenizers import END
from .predictions import name_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ..runs.run import Run

NEIGHBOURS = 5
"""Neighbours of each token."""
TOKENS = 20
"""Different tokens of a text whose neighbours are looked up."""
CANDIDATES = 2_000
"""Tokens among which neighbours are searched: the first of the vocabulary. Words are in order of frequency there, and
the embeddings of rare words are hardly trained."""
DRAWN = 300
"""Tokens that show how similar a nearest neighbour is by chance."""
MAPPED = 50
"""Tokens on a map."""
WIDTH, HEIGHT = 8.4, 5.6
LETTER_WIDTH, LINE_HEIGHT = 0.09, 0.17
"""Inches of a map, and of the letters of its labels."""
ATTRIBUTES = ("embedding", "source_embedding")
"""Where the models of different tasks keep the embeddings of their input tokens."""


class Neighbour(NamedTuple):
    """A token, and its cosine similarity with another."""

    token: str
    similarity: float


class Neighbours(NamedTuple):
    """The nearest tokens of one token, the nearest first."""

    token: str
    nearest: list[Neighbour]


class Embeddings(NamedTuple):
    """Embeddings of the tokens of a text, and what is near them.

    Attributes:
        neighbours: of each different token of the text, in order of first appearance.
        chance: 99th percentile of the similarity of nearest neighbours if each dimension of the embeddings is shuffled
            by itself, so that only chance makes tokens similar.
        candidates: number of tokens searched.
        by_frequency: whether these are the most frequent tokens of the vocabulary.
        mapped: names of the tokens on the map, those of the text first.
        of_text: how many of them are of the text.
        points: coordinates on the map ``(mapped, 2)``.
        variance: shares of the variance of these tokens' vectors that the two axes show.
    """

    neighbours: list[Neighbours]
    chance: float
    candidates: int
    by_frequency: bool
    mapped: list[str]
    of_text: int
    points: np.ndarray
    variance: tuple[float, float]


def embeddings(run: "Run", text: str, *, neighbours: int = NEIGHBOURS, tokens: int = TOKENS) -> Embeddings:
    """Looks up the neighbours of the tokens of a text among a model's embeddings, and maps them to the plane.

    The map shows the tokens of the text and their neighbours; for a vocabulary of at most `MAPPED` tokens, all of it.

    Args:
        run: of any task whose model embeds its input tokens.
        text: a text; tokens outside the vocabulary are left out.
        neighbours: neighbours of each token.
        tokens: different tokens of the text that are looked up, the first ones.

    Raises:
        InputError: the model has no embeddings (n-grams), or the text no token of the vocabulary.
    """
    table = _table(run)
    tokenizer = run.tokenizer
    special = {END, tokenizer.unknown_id}
    own = [token for token in dict.fromkeys(tokenizer.encode(text).tolist()) if token not in special][:tokens]
    if not own:
        raise InputError("no token of the text is in the vocabulary")
    candidates = np.array([token for token in range(min(len(table), CANDIDATES)) if token not in special])
    units = table / np.maximum(np.linalg.norm(table, axis=1, keepdims=True), np.finfo(float).tiny)
    similar = units[own] @ units[candidates].T
    similar[np.array(own)[:, None] == candidates] = -np.inf
    order = np.argsort(-similar, axis=1, kind="stable")[:, : min(neighbours, len(candidates) - 1)]
    near = [
        Neighbours(
            name_of(tokenizer, token),
            [Neighbour(name_of(tokenizer, int(candidates[i])), float(similar[row, i])) for i in order[row]],
        )
        for row, token in enumerate(own)
    ]
    shown = list(
        dict.fromkeys([*own, *candidates[order[:, : max(1, (MAPPED - len(own)) // len(own))]].ravel().tolist()])
    )
    shown = (
        [*own, *[token for token in candidates.tolist() if token not in own]] if len(candidates) <= MAPPED else shown
    )
    points, variance = principal_axes(table[shown[:MAPPED]])
    names = [name_of(tokenizer, token) for token in shown[:MAPPED]]
    chance = chance_similarity(table[candidates])
    ranked = tokenizer.kind == "word" and len(candidates) < len(table) - 2
    return Embeddings(near, chance, len(candidates), ranked, names, len(own), points, variance)


def principal_axes(vectors: np.ndarray) -> tuple[np.ndarray, tuple[float, float]]:
    """The first two principal components, by the singular value decomposition of the centred vectors.

    The sign of each axis is chosen so that its largest coordinate is positive; the result is therefore deterministic.

    Args:
        vectors: ``(n, size)``.

    Returns:
        Coordinates ``(n, 2)``, and the share of the variance that each axis shows.
    """
    centred = vectors - vectors.mean(0)
    left, values, _ = np.linalg.svd(centred, full_matrices=False)
    total = float(np.square(values).sum())
    points, shares = np.zeros((len(vectors), 2)), [0.0, 0.0]
    for axis in range(min(2, len(values))):
        column = left[:, axis] * values[axis]
        points[:, axis] = column if column[np.abs(column).argmax()] >= 0 else -column
        shares[axis] = float(values[axis] ** 2) / total if total else 0.0
    return points, (shares[0], shares[1])


def _table(run: "Run") -> np.ndarray:
    """Embeddings of the tokenizer's tokens ``(vocabulary, size)``, in float64."""
    found: Any = next((getattr(run.model, name, None) for name in ATTRIBUTES if hasattr(run.model, name)), None)
    if found is None:
        raise InputError(
            "an n-gram model has no embeddings: its counts treat every word as different from every other word, so "
            "that nothing learned about one carries over to similar ones"
        )
    weight: torch.Tensor = found.weight.detach()[: run.tokenizer.vocabulary_size]
    return weight.double().cpu().numpy()


def chance_similarity(vectors: np.ndarray) -> float:
    """How similar nearest neighbours are by chance; see `Embeddings`.

    Args:
        vectors: embeddings of the tokens that are searched ``(tokens, size)``.
    """
    if len(vectors) < 2:
        return 0.0
    random = np.random.default_rng(0)
    nearest: list[float] = []
    while len(nearest) < DRAWN:  # of a small vocabulary several times
        shuffled = random.permuted(vectors, axis=0)
        units = shuffled / np.maximum(np.linalg.norm(shuffled, axis=1, keepdims=True), np.finfo(float).tiny)
        drawn = random.permutation(len(units))[:DRAWN]
        similar = units[drawn] @ units.T
        similar[np.arange(len(drawn)), drawn] = -np.inf
        nearest += similar.max(1).tolist()
    return float(np.quantile(nearest, 0.99))


def _without_overlap(found: Embeddings) -> list[int]:
    """Which points have a label: those of the text, and the others where there is room."""
    span = np.maximum(np.ptp(found.points, axis=0), np.finfo(float).tiny)
    inches = found.points / span * np.array([WIDTH - 1.6, HEIGHT - 1.4])
    chosen: list[int] = []
    for i, name in enumerate(found.mapped):
        width = LETTER_WIDTH * max(len(name), 1)
        clear = all(
            abs(inches[i, 1] - inches[j, 1]) > LINE_HEIGHT
            or inches[i, 0] + width < inches[j, 0]
            or inches[j, 0] + LETTER_WIDTH * len(found.mapped[j]) < inches[i, 0]
            for j in chosen
        )
        if i < found.of_text or clear:
            chosen.append(i)
    return chosen


def map_figure(found: Embeddings) -> "Figure":
    """Draws the map: tokens of the text as filled points, the others as open ones.

    Labels of the others are left out where they would overlap.
    """
    from ..report.theme import COLOURS, INK, PAPER, new_figure, plain

    figure, axes = new_figure(width=WIDTH, height=HEIGHT)
    plot = axes[0, 0]
    groups: Sequence[tuple[str, slice, str]] = (
        ("in the text", slice(0, found.of_text), COLOURS[0]),
        ("others", slice(found.of_text, None), PAPER),
    )
    for label, some, face in groups:
        if len(found.points[some]):
            plot.scatter(*found.points[some].T, s=18, facecolor=face, edgecolor=COLOURS[0], linewidth=0.9, label=label)
    labelled = _without_overlap(found)
    for i in labelled:
        offset = {"xytext": (4, 3), "textcoords": "offset points"}
        plot.annotate(plain(found.mapped[i]), tuple(found.points[i]), **offset, fontsize=9, color=INK)
    for i, axis in enumerate((plot.xaxis, plot.yaxis)):
        axis.set_label_text(f"principal component {i + 1} ({found.variance[i]:.0%} of the variance)")
    plot.margins(0.12)
    plot.legend(loc="best")
    return figure

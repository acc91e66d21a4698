"""Embeddings of a model: nearest neighbours of the tokens of a text, and a map.

Tokens that are used alike get similar vectors, so that what the model learns about one carries over to the others (Y.
Bengio et al., "A neural probabilistic language model", JMLR 3, 2003). Similarity is measured by the cosine (T. Mikolov
et al., "Distributed representations of words and phrases and their compositionality", NeurIPS 2013).
"""

import math
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from ..core.errors import UnknownNameError
from ..data.tokenizers import END
from ..evaluation.token_scores import token_name
from ..pages.drawing import show
from ..pages.page import Folded, Plot, Prose, Table
from ..pages.palette import COLOURS, INK, PAPER
from ..pages.theme import new_figure, plain
from ..pages.wording import isolated, percent, quoted
from ..runs.run import Run
from .inspected_run import InspectedRun, SectionBody, explainer_of

NEIGHBOURS = 5
"""Neighbours of each token."""
TOKENS = 20
"""Different tokens of a text whose neighbours are looked up."""
CANDIDATES = 2_000
"""Tokens among which neighbours are searched: the first of the vocabulary, which are the most frequent words. The
embeddings of rare words are hardly trained."""
SAMPLED, CONFIDENCE = 10_000, 0.99
"""Nearest neighbours that are sampled to measure how similar they are by chance, and the fraction below the bound."""
MAPPED = 50
"""Tokens on a map."""
WIDTH, HEIGHT = 8.4, 5.6
LETTER_WIDTH, LINE_HEIGHT = 0.09, 0.17
"""Inches of a map, and of the letters of its labels."""


class Neighbour(NamedTuple):
    """A token, and its cosine similarity with another."""

    token: str
    similarity: float


class Neighbours(NamedTuple):
    """The nearest tokens of one token, the nearest first."""

    token: str
    nearest: list[Neighbour]


class Embeddings(NamedTuple):
    """Embeddings of the tokens of a text, and of their neighbours.

    Attributes:
        chance: 99th percentile of the largest similarity of so many tokens with their nearest neighbours if each
            dimension of the embeddings is shuffled by itself, so that tokens are similar only by chance.
        candidates: number of tokens searched; ``by_frequency`` if they are the most frequent ones.
        mapped: names of the tokens on the map, the ``of_text`` tokens of the text first.
        points: coordinates on the map ``(mapped, 2)``.
        variance: fractions of the variance of these tokens' vectors along the two axes.
    """

    neighbours: list[Neighbours]
    chance: float
    candidates: int
    by_frequency: bool
    mapped: list[str]
    of_text: int
    points: np.ndarray
    variance: tuple[float, float]


def embeddings(run: Run, text: str, *, neighbours: int = NEIGHBOURS, tokens: int = TOKENS) -> Embeddings:
    """Return the neighbours of the first different tokens of a text among a model's embeddings, and a map of them.

    The map shows these tokens and their neighbours, or the whole vocabulary if it has at most `MAPPED` tokens.

    Raises:
        InputError: the model has no embeddings (n-grams), or no token of the text is in the vocabulary.
    """
    tokenizer, weight = run.tokenizer, explainer_of(run).embedding_table().detach()
    table = weight[: tokenizer.vocabulary_size].double().cpu().numpy()  # (vocabulary, size)
    special = {END, tokenizer.unknown_id}
    chosen = [token for token in dict.fromkeys(tokenizer.encode(text).tolist()) if token not in special][:tokens]
    if not chosen:
        raise UnknownNameError("no token of the text is in the vocabulary")

    # Only frequent tokens are neighbours, since the embeddings of rare ones are hardly trained.
    candidates = np.array([token for token in range(min(len(table), CANDIDATES)) if token not in special])
    units = _normalized(table)
    similarity = units[chosen] @ units[candidates].T
    similarity[np.array(chosen)[:, None] == candidates] = -np.inf
    order = np.argsort(-similarity, axis=1, kind="stable")[:, : min(neighbours, len(candidates) - 1)]
    nearest = []
    for token, row, columns in zip(chosen, similarity, order, strict=True):
        near = [Neighbour(token_name(tokenizer, int(candidates[i])), float(row[i])) for i in columns]
        nearest.append(Neighbours(token_name(tokenizer, token), near))

    # A small vocabulary is shown as a whole, since a map has room for it.
    few = order[:, : max(1, (MAPPED - len(chosen)) // len(chosen))].ravel()
    others = candidates if len(candidates) <= MAPPED else candidates[few]
    mapped = list(dict.fromkeys([*chosen, *others.tolist()]))[:MAPPED]
    points, variance = principal_axes(table[mapped])
    names = [token_name(tokenizer, token) for token in mapped]
    chance = chance_similarity(table[candidates], len(chosen))
    by_frequency = tokenizer.kind == "word" and len(candidates) < len(table) - 2
    return Embeddings(nearest, chance, len(candidates), by_frequency, names, len(chosen), points, variance)


def _normalized(vectors: np.ndarray) -> np.ndarray:
    return np.asarray(vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), np.finfo(float).tiny))


def principal_axes(vectors: np.ndarray) -> tuple[np.ndarray, tuple[float, float]]:
    """Return the first two principal components ``(n, 2)`` of vectors ``(n, size)``, and the variance explained.

    The sign of each axis is chosen so that its largest coordinate is positive, which makes the result deterministic.
    """
    left, values, _ = np.linalg.svd(vectors - vectors.mean(0), full_matrices=False)
    points, explained = np.zeros((len(vectors), 2)), np.zeros(2)
    points[:, : len(values)] = (left * values)[:, :2]
    explained[: len(values)] = np.square(values[:2]) / max(np.square(values).sum(), np.finfo(float).tiny)
    signs = np.sign(points[np.abs(points).argmax(0), [0, 1]])
    return points * signs, (float(explained[0]), float(explained[1]))


def chance_similarity(vectors: np.ndarray, count: int) -> float:
    """Return the bound of `Embeddings.chance` for ``count`` tokens among vectors ``(tokens, size)``."""
    if len(vectors) < 2:
        return 0.0
    random = np.random.default_rng(0)
    nearest: list[float] = []
    while len(nearest) < SAMPLED:  # a small vocabulary is shuffled several times
        units = _normalized(random.permuted(vectors, axis=0))
        similarity = units @ units.T
        np.fill_diagonal(similarity, -np.inf)
        nearest += similarity.max(1).tolist()
    return float(np.quantile(nearest, CONFIDENCE ** (1 / count)))  # all of them are below it


def _labelled_points(result: Embeddings) -> list[int]:
    """Return the points that get a label, those of the text first: labels that would overlap are left out."""
    span = np.maximum(np.ptp(result.points, axis=0), np.finfo(float).tiny)
    inches = result.points / span * np.array([WIDTH - 1.6, HEIGHT - 1.4])
    labelled: list[int] = []
    for i, name in enumerate(result.mapped):
        width = LETTER_WIDTH * max(len(name), 1)
        clear = all(
            abs(inches[i, 1] - inches[j, 1]) > LINE_HEIGHT
            or inches[i, 0] + width < inches[j, 0]
            or inches[j, 0] + LETTER_WIDTH * len(result.mapped[j]) < inches[i, 0]
            for j in labelled
        )
        if clear:
            labelled.append(i)
    return labelled


def map_figure(result: Embeddings) -> Figure:
    """Draw the map: tokens of the text as filled points, others as open points, with labels that do not overlap."""
    figure, [[plot]] = new_figure(width=WIDTH, height=HEIGHT)
    text, others = np.split(result.points, [result.of_text])
    names = result.mapped[: result.of_text], result.mapped[result.of_text :]
    for label, points, face, tokens in zip(
        ("in the text", "others"), (text, others), (COLOURS[0], PAPER), names, strict=True
    ):
        if len(points):
            marks = plot.scatter(*points.T, s=18, facecolor=face, edgecolor=COLOURS[0], linewidth=0.9, label=label)
            show([marks], label, names=tokens)
    offset = {"xytext": (4, 3), "textcoords": "offset points"}
    for i in _labelled_points(result):
        plot.annotate(plain(result.mapped[i]), tuple(result.points[i]), **offset, fontsize=9, color=INK)
    for i, axis in enumerate((plot.xaxis, plot.yaxis)):
        axis.set_label_text(f"principal component {i + 1} ({percent(result.variance[i])} of the variance)")
    plot.margins(0.12)
    plot.legend(loc="best")
    return figure


def embeddings_section(inspected: InspectedRun) -> SectionBody:
    """Write the section on the neighbours of the tokens of the text, with a map."""
    result = embeddings(inspected.run, inspected.text)
    rows = [
        [each.token, ", ".join(f"{isolated(near.token)} {near.similarity:.2f}" for near in each.nearest)]
        for each in result.neighbours
    ]

    # Similarities are judged against those of shuffled embeddings, because in few dimensions some are high by chance.
    frequent = "most frequent " if result.by_frequency else ""
    caption = (
        f"Tokens of the text with the nearest of the {result.candidates:,} {frequent}tokens of the vocabulary, by the "
        "cosine of their embeddings. With each dimension of the embeddings shuffled, the highest similarity of "
        f"{_tokens(len(result.neighbours))} nearest is below {result.chance:.2f} in {percent(CONFIDENCE)} of "
        "the cases; similarities that are not above it may be chance."
    )
    others = len(result.mapped) - result.of_text
    rest = f" and {others} others" if others else ""
    plot = Plot(
        map_figure(result),
        "Map of the embeddings",
        f"{result.of_text} tokens of the text (filled){rest} (open). Labels that would overlap are left out; a point "
        "shows its name when it is pointed at. The axes are the first two principal components of these tokens; "
        f"together they show {percent(sum(result.variance))} of the variance. Tokens that are close here may be far "
        "apart in other directions.",
        f"{len(result.mapped)} tokens in the plane of the two directions in which they differ most.",
    )
    intro = Prose(
        "Tokens that are used alike tend to get similar embeddings, and what the model learns about one carries over "
        "to the others. An n-gram model cannot do this: to its counts, all tokens are equally different."
    )
    table = Table(["token", "nearest tokens"], rows, caption, stacked=False)
    pair = most_similar(result)
    if pair is None:
        nothing = "The nearest neighbours of the tokens of this text are no more similar than by chance."
        return SectionBody([intro, Prose(nothing), Folded("The nearest tokens, and a map", [table, plot])])
    token, near = pair
    line = (
        f"embeddings: of the tokens of this text, {quoted(token)} has the most similar neighbour, {quoted(near.token)} "
        f"(cosine {near.similarity:.2f})"
    )
    return SectionBody([intro, table, plot], [line])


def most_similar(result: Embeddings) -> tuple[str, Neighbour] | None:
    """Return the token of the text with the most similar neighbour; None if no similarity is above chance."""
    pairs = [(each.token, near) for each in result.neighbours for near in each.nearest[:1]]
    above = [pair for pair in pairs if max(result.chance, 0.0) < pair[1].similarity < math.inf]
    return max(above, key=lambda pair: pair[1].similarity, default=None)


def _tokens(count: int) -> str:
    return "1 token with its" if count == 1 else f"{count} tokens with their"

"""Embeddings of a model: nearest neighbours of the tokens of a text.

Tokens that are used alike get similar vectors, so that what the model learns about one carries over to the others (Y.
Bengio et al., "A neural probabilistic language model", JMLR 3, 2003). Similarity is measured by the cosine (T. Mikolov
et al., "Distributed representations of words and phrases and their compositionality", NeurIPS 2013).
"""

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ..core.errors import UnknownNameError
from ..data.tokenizers import END
from ..evaluation.token_scores import token_name
from ..pages.page import Folded, Prose, Table
from ..pages.statements import Statement, told
from ..pages.wording import isolated
from ..runs.run import Run
from .inspected_run import InspectedRun, SectionBody, explainer_of

NEIGHBOURS = 5
"""Neighbours of each token."""
TOKENS = 20
"""Different tokens of a text whose neighbours are looked up."""
CANDIDATES = 2_000
"""Tokens among which neighbours are searched: the most frequent ones, since those of rare tokens are hardly trained."""
READ_ITEMS, READ_TOKENS = 5_000, 20
"""Items of data that are read to learn which tokens occur, and tokens of each in a running text."""
SAMPLED, CONFIDENCE = 10_000, 0.99
"""Nearest neighbours that are sampled to measure how similar they are by chance, and the fraction below the bound."""


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
        candidates: number of tokens searched; all of them occur.
    """

    neighbours: list[Neighbours]
    chance: float
    candidates: int

    @property
    def is_above_chance(self) -> bool:
        """Whether the most similar neighbour of any token is more similar than by chance."""
        return any(each.nearest and each.nearest[0].similarity > max(self.chance, 0.0) for each in self.neighbours)


def embeddings(run: Run, text: str, *, data: Sequence[object] = ()) -> Embeddings:
    """Return the neighbours of the first different tokens of a text among a model's embeddings.

    Neighbours are searched among the most frequent tokens of the text and of ``data``, which are items that
    `Examples.read` reads: the embedding of a token that does not occur was never trained.

    Raises:
        InputError: the model has no embeddings (n-grams), or no token of the text is in the vocabulary.
    """
    explainer, tokenizer = explainer_of(run), run.tokenizer
    table = explainer.embedding_table().detach()[: tokenizer.vocabulary_size].double().cpu().numpy()
    special, ids = {END, tokenizer.unknown_id}, tokenizer.encode(text).tolist()
    chosen = [token for token in dict.fromkeys(ids) if token not in special][:TOKENS]
    if not chosen:
        raise UnknownNameError("no token of the text is in the vocabulary")
    inputs = explainer.require(explainer.inputs)
    examples = itertools.chain.from_iterable(map(inputs.read, data))
    counts = Counter(itertools.chain(ids, (token for example in examples for token in example.inputs)))
    occurring = [token for token, _ in counts.most_common() if token not in special and token < len(table)]
    candidates = np.array(occurring[:CANDIDATES])

    units = _normalized(table)
    similarity = units[chosen] @ units[candidates].T
    similarity[np.array(chosen)[:, None] == candidates] = -np.inf
    order = np.argsort(-similarity, axis=1, kind="stable")[:, : min(NEIGHBOURS, len(candidates) - 1)]
    nearest = []
    for token, row, columns in zip(chosen, similarity, order, strict=True):
        near = [
            Neighbour(token_name(tokenizer, int(candidates[i])), float(row[i])) for i in columns if row[i] > -math.inf
        ]
        nearest.append(Neighbours(token_name(tokenizer, token), near))

    chance = chance_similarity(table[candidates], len(chosen))
    return Embeddings(nearest, chance, len(candidates))


def _normalized(vectors: np.ndarray) -> np.ndarray:
    return np.asarray(vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), np.finfo(float).tiny))


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


CAPTION = (
    Statement[Embeddings](
        lambda result: True,
        "The nearest of {candidates:,} tokens that occur, by the cosine of their embeddings.",
    ),
    Statement[Embeddings](
        lambda result: result.is_above_chance, "Shuffled embeddings have a nearest neighbour above {chance:.2f} in 1 %."
    ),
    Statement[Embeddings](
        lambda result: not result.is_above_chance, "No neighbour is more similar than those of shuffled embeddings."
    ),
)


def _similarity(near: Neighbour) -> str:
    return f"{round(near.similarity, 2) + 0.0:.2f}".replace("-", "−")


def embeddings_section(inspected: InspectedRun) -> SectionBody:
    """Write the section on the neighbours of the tokens of the text."""
    explainer = inspected.explainer
    explainer.embedding_table()  # refuses before any data is read
    result = embeddings(inspected.run, inspected.text, data=inspected.held_out_items(READ_ITEMS, READ_TOKENS))
    rows = [
        [each.token, ", ".join(f"{isolated(near.token)} {_similarity(near)}" for near in each.nearest)]
        for each in result.neighbours
    ]
    table = Table(["token", "nearest tokens"], rows, " ".join(told(CAPTION, result)))
    if result.is_above_chance:
        return SectionBody([table])
    return SectionBody([Prose(told(CAPTION, result)[-1]), Folded("The nearest tokens", [table])])

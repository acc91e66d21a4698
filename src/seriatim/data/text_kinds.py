"""Kinds of texts that need different tokens: written symbol by symbol, single words, or running text."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Literal, TypeAlias

Kind: TypeAlias = Literal["symbols", "words", "text"]
"""`symbols`: separated by spaces, such as phones or letters with features. `words`: one word, or text without spaces.
`text`: anything else."""
SHORT, MANY = 3.0, 2000
"""Largest mean length of symbols, in characters, and the largest number of different symbols."""
FEW, OFTEN = 300, 20
"""Symbols can also be longer if there are at most `FEW` different ones, each occurring `OFTEN` times in the mean."""


def kind_of(texts: Iterable[str]) -> Kind:
    """Return the kind of some texts, each of which is an item of its own; empty ones do not count."""
    counts: Counter[str] = Counter()
    items = 0
    for text in texts:
        tokens = text.split()
        items += bool(tokens)
        counts.update(tokens)
    total = counts.total()
    if total < 1.5 * items or not items:
        return "words"
    is_short = sum(len(token) * count for token, count in counts.items()) <= SHORT * total and len(counts) <= MANY
    return "symbols" if is_short or (len(counts) <= FEW and total >= OFTEN * len(counts)) else "text"


def shared_share(sources: Sequence[Sequence[str]], targets: Sequence[Sequence[str]]) -> float:
    """Return which share of the target tokens also occurs in their own source; a token counts as often as there."""
    shared = total = 0
    for source, target in zip(sources, targets, strict=True):
        shared += (Counter(source) & Counter(target)).total()
        total += len(target)
    return shared / max(total, 1)

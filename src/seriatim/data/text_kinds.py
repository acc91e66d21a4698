"""Kinds of texts: written symbol by symbol, single words, or running text; and text that is cut into marked pieces."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple, TypeAlias

Kind: TypeAlias = Literal["symbols", "words", "text"]
"""`symbols`: separated by spaces, such as phones or letters with features. `words`: one word, or text without spaces.
`text`: anything else."""
SHORT, MANY = 3.0, 2000
"""Largest mean length of symbols, in characters, and the largest number of different symbols."""
FEW, OFTEN = 300, 20
"""Symbols can also be longer if there are at most `FEW` different ones, each occurring `OFTEN` times in the mean."""


class Pieces(NamedTuple):
    """How another program marks the pieces of words."""

    mark: str
    at_piece: str  # the pattern of a mark where it joins or begins pieces
    between: str  # the pattern of what stands between two pieces; empty if the mark stands for the spaces of the text
    in_line: str = ""  # the pattern that lines of pieces have, if it is not that of a mark

    def join(self, text: str) -> str:
        """Return the words of a text of pieces; a text that is joined already is unchanged."""
        if self.between:
            return re.sub(self.between, "", text)
        return text.replace(" ", "").replace(self.mark, " ").strip() if self.mark in text else text


PIECES = (
    Pieces("@@", r"(?<=\S)@@(?= +\S)", r"@@( +|$)"),  # re@@ d (subword-nmt)
    Pieces("##", r"(?<=\S )##(?=[^\s#])", r" +##(?=\S)"),  # re ##d (WordPiece)
    Pieces("￭", r"(?<!\S)￭|￭(?!\S)", r" *￭ *"),  # re￭ d (OpenNMT)
    Pieces("▁", r"(?<!\S)▁", "", "^▁"),  # ▁re d (SentencePiece)
)
LINES, SLIPS = 5, 20
"""Texts are pieces if more than one of `LINES` has some, and at most one of `SLIPS` marks stands elsewhere."""


def find_pieces(texts: Sequence[str]) -> Pieces | None:
    """Return how pieces of words are marked in some texts, each of which is a line; None for other texts."""
    for pieces in PIECES:
        marks = sum(text.count(pieces.mark) for text in texts)
        joints = sum(len(re.findall(pieces.at_piece, text)) for text in texts) if marks else 0
        lines = sum(re.search(pieces.in_line or pieces.at_piece, text) is not None for text in texts) if joints else 0
        if LINES * lines > len(texts) and SLIPS * (marks - joints) <= marks:
            return pieces
    return None


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

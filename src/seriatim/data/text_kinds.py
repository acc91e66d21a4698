"""Kinds of texts: written symbol by symbol, single words, or running text; and text cut into marked subwords."""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple, TypeAlias

Kind: TypeAlias = Literal["symbols", "words", "text"]
"""`symbols`: separated by spaces, such as phones or letters with features. `words`: one word, text without spaces, or a
few words that are short together, such as syllables. `text`: anything else."""
SHORT, MANY = 3.0, 2000
"""Largest mean length of symbols, in characters, and the largest number of different symbols."""
FEW, OFTEN = 300, 20
"""Symbols can also be longer if there are at most `FEW` different ones, each occurring `OFTEN` times in the mean."""
BRIEF = 24.0
"""Largest mean length, in characters, of items that are words although there are spaces in them."""
RARE, RARELY, RARER = 5, 0.01, 4
"""A letter that occurs less often is rare; parts are read if this share of letters is rare, and so many times fewer."""
MARKS, MARKED = {"Mn", "Lm", "Sk"}, 0.05
"""Unicode's categories of marks, and the share of symbols with marks from which on all are read by characters."""


class SubwordMarks(NamedTuple):
    """How another program marks subwords."""

    mark: str
    joint: str  # the pattern of a mark where it joins or begins subwords
    between: str  # the pattern of what stands between two subwords; empty if the mark stands for the spaces of the text
    in_line: str = ""  # the pattern that lines of subwords have, if it is not that of a mark

    def join(self, text: str) -> str:
        """Return the words of a text of subwords; a text that is joined already is unchanged."""
        if self.between:
            return re.sub(self.between, "", text)
        return text.replace(" ", "").replace(self.mark, " ").strip() if self.mark in text else text


SUBWORD_MARKS = (
    SubwordMarks("@@", r"(?<=\S)@@(?= +\S)", r"@@( +|$)"),  # re@@ d (subword-nmt)
    SubwordMarks("##", r"(?<=\S )##(?=[^\s#])", r" +##(?=\S)"),  # re ##d (WordPiece)
    SubwordMarks("￭", r"(?<!\S)￭|￭(?!\S)", r" *￭ *"),  # re￭ d (OpenNMT)
    SubwordMarks("▁", r"(?<!\S)▁", "", "^▁"),  # ▁re d (SentencePiece)
)
LINES, SLIPS = 5, 20
"""Texts are cut into subwords if more than one of `LINES` has some, and at most one of `SLIPS` marks is elsewhere."""


def find_subword_marks(texts: Sequence[str]) -> SubwordMarks | None:
    """Return how subwords are marked in some texts, each of which is a line; None for other texts."""
    for marks in SUBWORD_MARKS:
        count = sum(text.count(marks.mark) for text in texts)
        joints = sum(len(re.findall(marks.joint, text)) for text in texts) if count else 0
        lines = sum(re.search(marks.in_line or marks.joint, text) is not None for text in texts) if joints else 0
        if LINES * lines > len(texts) and SLIPS * (count - joints) <= count:
            return marks
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
    size = sum(len(token) * count for token, count in counts.items())
    if (size <= SHORT * total and len(counts) <= MANY) or (len(counts) <= FEW and total >= OFTEN * len(counts)):
        return "symbols"
    return "words" if size + total <= (BRIEF + 1) * items else "text"  # with the spaces between the words


def parts_generalise(texts: Sequence[str]) -> bool:
    """Return whether rare letters of some texts have parts that are not rare, as the syllables of Hangul have.

    The parts are those of Unicode's form NFD. A text that is not in the form NFC could not be composed again, so that
    the answer is then no.
    """
    counts, parts = Counter("".join(texts)), Counter[str]()
    for letter, count in counts.items():
        parts.update(dict.fromkeys(unicodedata.normalize("NFD", letter), count))
    rare, rarer = (sum(n for n in each.values() if n < RARE) / max(1, each.total()) for each in (counts, parts))
    return rare >= max(RARELY, rarer * RARER) and all(unicodedata.is_normalized("NFC", text) for text in texts)


def has_marks(texts: Iterable[str]) -> bool:
    """Return whether symbols of some texts are letters with marks, as in the phonetic alphabet: `tʰ`, `sʲ`, `ɑː`, `ẽ`.

    What two symbols have in common is then seen in their characters.
    """
    counts = Counter(symbol for text in texts for symbol in text.split())
    marked = sum(n for symbol, n in counts.items() if MARKS & set(map(unicodedata.category, symbol[1:])))
    return marked >= MARKED * max(1, counts.total())


def shared_fraction(sources: Sequence[Sequence[str]], targets: Sequence[Sequence[str]]) -> float:
    """Return which fraction of the target tokens also occurs in their own source; a token counts as often as there."""
    shared = total = 0
    for source, target in zip(sources, targets, strict=True):
        shared += (Counter(source) & Counter(target)).total()
        total += len(target)
    return shared / max(total, 1)

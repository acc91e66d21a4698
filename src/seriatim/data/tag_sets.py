"""The tags of some data: their spelling, and whether and how they mark chunks.

In BIO, ``B-X`` begins a chunk of type X, ``I-X`` continues it, and ``O`` is outside. IOBES also marks the last word of
a chunk (``E-X``) and chunks of one word (``S-X``); BILOU names these ``L-X`` and ``U-X``. In IOB1, ``B-X`` only
separates adjacent chunks of the same type. Each scheme can be read as the others, because conlleval reads tags of any
scheme in one way: a chunk begins at B, S and U, after O, E, S, L and U, and where the type changes.
"""

import functools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from .spellings import Spellings

ANY_CASE = re.compile("([BIESLUbieslu])-(.+)", re.DOTALL)
PREFIXES = tuple("BIESLU")
TYPELESS = frozenset(f"{prefix}-" for prefix in PREFIXES)
OUTSIDE = "O"
SCHEMES = {"bio": "BIO", "iobes": "IOBES", "bilou": "BILOU"}
CLOSING = {"iobes": ("E", "S"), "bilou": ("L", "U")}
"""The prefixes of the last word of a longer chunk, and of a chunk of one word, in schemes that mark the end."""
MINORITY = 20
"""Data keep a scheme that marks the ends of chunks if at most 1 of so many chunks has no such mark."""


def to_bio(tags: Sequence[str]) -> list[str]:
    """Convert tags of any scheme to BIO. BIO, and tags that mark no chunk, are unchanged."""
    return to_scheme(tags, "bio")


def to_scheme(tags: Sequence[str], scheme: str) -> list[str]:
    """Convert the tags of one sentence to ``bio``, ``iobes`` or ``bilou``; tags that mark no chunk are unchanged."""
    converted, before, before_kind = list(tags), OUTSIDE, ""
    for i, tag in enumerate(tags):
        prefix, kind = ("", "") if tag == OUTSIDE else _parts(tag)
        if prefix in PREFIXES:
            begins = prefix in "BSU" or before not in ("B", "I") or before_kind != kind
            converted[i] = f"{'B' if begins else 'I'}-{kind}"
        before, before_kind = prefix, kind
    if scheme == "bio":
        return converted
    last, single = CLOSING[scheme]
    closed = converted.copy()
    for i, (tag, following) in enumerate(pairwise([*converted, OUTSIDE])):
        prefix, kind = _parts(tag)
        if prefix in PREFIXES and following != f"I-{kind}":
            closed[i] = f"{single if prefix == 'B' else last}-{kind}"
    return closed


def last_prefixes(tags: Sequence[str]) -> Iterator[str]:
    """Yield the prefix of the last word of each chunk."""
    for (prefix, kind), (following, next_kind) in pairwise([*map(_parts, tags), ("", "")]):
        if prefix and (prefix in "esluESLU" or not (following and following in "ielIEL" and next_kind == kind)):
            yield prefix.upper()


@dataclass(frozen=True)
class TagSet:
    """How the tags of some data are read.

    Attributes:
        names: the spelling of whole tags.
        types: the spelling of the types of chunks.
        chunks: whether tags mark chunks.
        scheme: the scheme to which chunks are converted.
    """

    names: Spellings
    types: Spellings
    chunks: bool
    scheme: str

    @classmethod
    def known(cls, labels: Sequence[str]) -> "TagSet":
        """Return how tags are read for a model with these labels."""
        parts = [_parts(label) for label in labels]
        prefixes, types = {prefix for prefix, _ in parts if prefix}, {kind for _, kind in parts if kind}
        marked = [name for name, closing in CLOSING.items() if prefixes & set(closing)]
        scheme = marked[0] if len(marked) == 1 else "bio"
        return cls(Spellings.known(labels), Spellings.known(sorted(types)), _mark_chunks(labels), scheme)

    @classmethod
    def learned(cls, sentences: Iterable[Sequence[str]]) -> "TagSet":
        """Return how the tags of training sentences are read: spelled and marked as most of them are."""
        counts, ends = Counter[str](), Counter[str]()
        for tags in sentences:
            counts.update(tags)
            if any(tag != OUTSIDE for tag in tags):
                ends.update(last_prefixes(tags))
        chunks = _mark_chunks(counts) or all(tag == "o" or _parts(tag)[0] for tag in counts)
        types, names = Counter[str](), Counter[str]()
        for tag, count in counts.items():
            prefix, kind = _parts(tag) if chunks else ("", "")
            if prefix:
                types[kind] += count
            else:
                names[OUTSIDE if chunks and tag == "o" else tag] += count
        marked = {name: sum(ends[prefix] for prefix in closing) for name, closing in CLOSING.items()}
        scheme = max(marked, key=marked.__getitem__)
        if marked[scheme] < MINORITY * (ends.total() - marked[scheme]) or not marked[scheme]:
            scheme = "bio"
        return cls(Spellings.learned(names), Spellings.learned(types), chunks, scheme)

    def has(self, tag: str) -> bool:
        """Return whether a tag is one of the names, or marks a chunk where some of them do."""
        return self.spelled(tag) in self.names.exact or (self.chunks and _parts(tag)[0].upper() in PREFIXES)

    def spelled(self, tag: str) -> str:
        """Return the spelling that stands for a tag."""
        prefix, kind = _parts(tag) if self.chunks and tag not in self.names.exact else ("", "")
        return f"{prefix.upper()}-{self.types(kind)}" if prefix else self.names(tag)

    def converted(self, tags: Sequence[str]) -> list[str]:
        """Return the tags of a sentence in `scheme`."""
        return to_scheme(tags, self.scheme) if self.chunks else list(tags)


@functools.lru_cache(maxsize=1 << 12)
def _parts(tag: str) -> tuple[str, str]:
    """Return the prefix of a tag, in upper or lower case, and its type; both are empty if it marks no chunk."""
    match = ANY_CASE.fullmatch(tag)
    return (match[1], match[2]) if match else ("", "")


def _mark_chunks(tags: Iterable[str]) -> bool:
    return any(tag == OUTSIDE or (tag[:2] in ("B-", "I-") and len(tag) > 2) for tag in tags)

"""The tags of some data: their spelling, and whether and how they mark chunks.

In BIO, ``B-X`` begins a chunk of type X, ``I-X`` continues it, and ``O`` is outside. IOBES also marks the last word of
a chunk (``E-X``) and chunks of one word (``S-X``); BILOU names these ``L-X`` and ``U-X``, and BMES writes ``M-X`` for
``I-X``. In IOB1, ``B-X`` only separates adjacent chunks of the same type. Where there is only one type, tags may be
prefixes alone (``B``, ``I``, ``O``). Each scheme can be read as the others, because conlleval reads tags of any scheme
in one way: a chunk begins at B, S and U, after O, E, S, L and U, and where the type changes.

Data mark chunks if more than half of their words whose tag is not ``O`` have the tag of a chunk: with a type, or
without if these are more. The other tags of such data are odd: typing errors, say. They count as ``O``.
"""

import functools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, TypeAlias

from .spellings import LabelSpellings

PREFIXES = tuple("BIESLUM")
ANY_CASE = re.compile(r"([BIESLUMbieslum])(?:-(.*))?", re.DOTALL)
OUTSIDE = "O"
SCHEMES = {"bio": "BIO", "iobes": "IOBES", "bilou": "BILOU", "bmes": "BMES"}
INSIDE = {"iobes": "I", "bilou": "I", "bmes": "M"}
CLOSING = {"iobes": ("E", "S"), "bilou": ("L", "U"), "bmes": ("E", "S")}
"""The prefixes of a word within a chunk, and of the last word of a longer chunk and a chunk of one word, in schemes
that mark the end."""
MINORITY = 20
"""Data keep a scheme that marks the ends of chunks if at most 1 of so many chunks has no such mark. What less than 1 of
so many tags shows decides nothing."""
Style: TypeAlias = Literal["", "typed", "bare"]
"""How tags mark chunks: not at all, with types (``B-X``), or without (``B``)."""


def marks_chunks(tags: Iterable[str]) -> bool:
    """Return whether the tags of some words mark chunks: most of those that are not ``O`` do."""
    return bool(style_of(Counter(tags)))


def style_of(counts: Mapping[str, int]) -> Style:
    """Return how most tags of chunks mark them, if these are more than half of the words that are not outside.

    Tags of words can look like those of chunks. Therefore one of `MINORITY` tags must also be ``O`` or ``B-X``, or
    without types one of `MINORITY` that are not ``O`` must be ``B`` or ``I``.
    """
    words, prefixes = Counter[str](), Counter[str]()
    for tag, count in counts.items():
        style = _style(tag)
        words[style] += count
        prefixes[f"{style} {tag[0].upper()}"] += count
    marked = words.total() - words[OUTSIDE]
    if 2 * (words["typed"] + words["bare"]) <= marked:
        return ""
    if words["typed"] >= words["bare"]:
        return "typed" if MINORITY * (words[OUTSIDE] + prefixes["typed B"]) >= words.total() else ""
    return "bare" if marked <= MINORITY * (prefixes["bare B"] + prefixes["bare I"]) else ""


def first_without_chunk(counts: Mapping[str, int]) -> str | None:
    """Return the first tag that marks no chunk, if so many tags do that no chunks are counted although some are marked.

    Some are if there is ``O``, or one other tag in its place, and one of `MINORITY` words with another tag begins or
    continues a chunk with a type.
    """
    typed = {tag: count for tag, count in counts.items() if _style(tag) == "typed"}
    others = [tag for tag in counts if not _style(tag)]
    outside = [tag for tag in counts if _style(tag) == OUTSIDE] or others[: len(others) == 1]
    marked = sum(count for tag, count in counts.items() if tag not in outside)
    is_marked = any(tag[0] in "Bb" for tag in typed) and MINORITY * sum(typed.values()) >= marked
    return others[0] if others and outside and is_marked and not style_of(counts) else None


def to_scheme(tags: Sequence[str], scheme: str) -> list[str]:
    """Convert the tags of one sentence to a scheme of `SCHEMES`; tags that mark no chunk are unchanged."""
    # The tags become BIO first, from which every other scheme follows, whatever the scheme of the tags is.
    converted, before, before_kind = list(tags), OUTSIDE, ""
    for i, tag in enumerate(tags):
        prefix, kind = _split_tag(tag)
        if prefix in PREFIXES:
            begins = prefix in "BSU" or before not in ("B", "I", "M") or before_kind != kind
            converted[i] = _joined("B" if begins else "I", kind)
        before, before_kind = prefix, kind
    if scheme == "bio":
        return converted

    # Whether a chunk ends is known only from the tag that follows.
    inside, (last, single) = INSIDE[scheme], CLOSING[scheme]
    closed = converted.copy()
    for i, (tag, following) in enumerate(pairwise([*converted, OUTSIDE])):
        prefix, kind = _split_tag(tag)
        if prefix in PREFIXES:
            ends = following != _joined("I", kind)
            closed[i] = _joined((single if ends else "B") if prefix == "B" else (last if ends else inside), kind)
    return closed


def last_prefixes(tags: Sequence[str]) -> Iterator[str]:
    """Yield the prefix of the last word of each chunk."""
    for (prefix, kind), (following, next_kind) in pairwise([*map(_split_tag, tags), ("", "")]):
        continues = following and following in "ielmIELM" and next_kind == kind
        if prefix and (prefix in "esluESLU" or not continues):
            yield prefix.upper()


@dataclass(frozen=True)
class TagSet:
    """How the tags of some data are read.

    Attributes:
        names: the spelling of whole tags.
        types: the spelling of the types of chunks.
        style: how tags mark chunks.
        scheme: the scheme to which chunks are converted.
    """

    names: LabelSpellings
    types: LabelSpellings
    style: Style
    scheme: str

    @classmethod
    def known(cls, labels: Sequence[str], *, exact: bool = False) -> "TagSet":
        """Return how tags are read for a model with these labels, which mark chunks if each of them does.

        The labels of a model have no odd tag, since they are learned from what a `TagSet` makes of the tags.
        """
        split = [_split_tag(label) for label in labels]
        prefixes, types = {prefix for prefix, _ in split if prefix}, {kind for _, kind in split if kind}
        style = style_of(dict.fromkeys(labels, 1))
        if {_style(label) for label in labels} - {OUTSIDE, style} or (style == "bare" and "B" not in prefixes):
            style = ""
        ends = {name for name, closing in CLOSING.items() if prefixes & set(closing)}
        ends -= {"iobes"} if "M" in prefixes else {"bmes"}
        scheme = ends.pop() if len(ends) == 1 else "bio"
        return cls(LabelSpellings(labels, exact=exact), LabelSpellings(types, exact=exact), style, scheme)

    @classmethod
    def learned(cls, sentences: Iterable[Sequence[str]], *, exact: bool = False) -> "TagSet":
        """Return how the tags of training sentences are read: spelled and marked as most of them are.

        With ``exact``, names and types are spelled as they are.
        """
        counts, ends = Counter[str](), Counter[str]()
        for tags in sentences:
            counts.update(tags)
            if any(tag != OUTSIDE for tag in tags):
                ends.update(last_prefixes(tags))
        style = style_of(counts)

        # Where tags mark chunks, their types are spelled alike whatever their prefixes; else the tags themselves are.
        types, names, prefixes = Counter[str](), Counter[str](), Counter[str]()
        for tag, count in counts.items():
            if style and _style(tag) == style:
                prefix, kind = _split_tag(tag)
                types[kind] += count
                prefixes[prefix.upper()] += count
            elif not style:
                names[tag] += count

        # A scheme that marks the ends of chunks is kept only if nearly all chunks have such a mark.
        marked = {name: sum(ends[prefix] for prefix in closing) for name, closing in CLOSING.items()}
        marked.pop("iobes" if prefixes["M"] > prefixes["I"] else "bmes")
        scheme = max(marked, key=marked.__getitem__)
        if marked[scheme] < MINORITY * (ends.total() - marked[scheme]) or not marked[scheme]:
            scheme = "bio"
        learn = functools.partial(LabelSpellings, exact=True) if exact else LabelSpellings.learned
        return cls(learn(names), learn(types), style, scheme)

    def fits(self, counts: Mapping[str, int]) -> bool:
        """Return whether tags that occur so often mark chunks as these do: most of those that are not outside."""
        styles = Counter[str]()
        for tag, count in counts.items():
            styles[_style(tag)] += count
        chunks, most = styles["typed"] + styles["bare"], max(styles["typed"], styles["bare"])
        return 2 * chunks > styles.total() - styles[OUTSIDE] and styles[self.style] == most

    def is_odd(self, tag: str) -> bool:
        """Return whether a tag marks no chunk, and is not outside, where the tags mark chunks."""
        return bool(self.style) and not self.has(tag)

    def has(self, tag: str) -> bool:
        """Return whether a tag is one of the names, or marks a chunk where some of them do."""
        if self.style and tag not in self.names.exact:
            return _style(tag) in (OUTSIDE, self.style)
        return self.names(tag) in self.names.exact

    def spelled(self, tag: str) -> str:
        """Return the spelling that stands for a tag; an odd one is outside."""
        if not self.style or tag in self.names.exact:
            return self.names(tag)
        if _style(tag) != self.style:
            return OUTSIDE
        prefix, kind = _split_tag(tag)
        return _joined(prefix.upper(), self.types(kind)) if prefix else tag

    def converted(self, tags: Sequence[str]) -> list[str]:
        """Return the tags of a sentence in `scheme`."""
        return to_scheme(tags, self.scheme) if self.style else list(tags)

    def lacks_type(self, tag: str) -> bool:
        """Return whether a tag marks a chunk and has a hyphen, but no type after it."""
        return bool(self.style) and tag[1:] == "-" and _style(tag) == "typed"


@functools.lru_cache(maxsize=1 << 12)
def _style(tag: str) -> str:
    """Return the `Style` of a tag, or `OUTSIDE`."""
    if tag in ("O", "o"):
        return OUTSIDE
    match = ANY_CASE.fullmatch(tag)
    return "" if match is None else "bare" if match[2] is None else "typed"


@functools.lru_cache(maxsize=1 << 12)
def _split_tag(tag: str) -> tuple[str, str]:
    """Return the prefix of a tag, in upper or lower case, and its type; both are empty if it marks no chunk."""
    match = ANY_CASE.fullmatch(tag)
    return (match[1], match[2] or "") if match and match[2] != "" else ("", "")


def _joined(prefix: str, kind: str) -> str:
    """Return the tag with a prefix and a type."""
    return f"{prefix}-{kind}" if kind else prefix

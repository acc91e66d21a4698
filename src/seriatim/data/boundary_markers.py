"""Symbols such as ``<s>`` and ``</s>`` that other tools write around every line of a text.

A model here has a boundary symbol of its own, so that such markers are words to it. They are left out where every line
of some data has both; a run records that, and its inputs are then read so, too.
"""

import functools
import re
from collections.abc import Iterable
from typing import TypeAlias

Markers: TypeAlias = tuple[str, str]
"""What begins a line, and what ends it."""
KNOWN: tuple[Markers, ...] = (
    *(("<s>", "</s>"), ("<S>", "</S>"), ("[CLS]", "[SEP]"), ("<bos>", "<eos>"), ("<BOS>", "<EOS>")),
    *(("<sos>", "<eos>"), ("<SOS>", "<EOS>"), ("[BOS]", "[EOS]"), ("<start>", "<end>"), ("<START>", "<END>")),
    *(("<|startoftext|>", "<|endoftext|>"), ("<|begin_of_text|>", "<|end_of_text|>")),
)
SIGNS = ("<", "[")
"""What one of all markers begins with."""
BEFORE, AFTER = r"""(?<![^\s",;])""", r"""(?![^\s",;])"""
"""Where a word begins and ends, also in tables and JSON."""


def markers_of(setting: str) -> Markers | None:
    """Return the markers that a value of ``data.markers`` names; None for ``auto`` and ``keep``."""
    begin, blank, end = setting.partition(" ")
    return (begin, end) if blank else None


def common_markers(texts: Iterable[str]) -> Markers | None:
    """Return the markers around every text that is not blank, or None; no more texts are read than are needed."""
    common: Markers | None = None
    for text in filter(None, map(str.strip, texts)):
        if common is None or not _has(text, *common):
            found = next((markers for markers in KNOWN if _has(text, *markers)), None)
            if found is None or common is not None:
                return None
            common = found
    return common


def _has(text: str, begin: str, end: str) -> bool:
    return len(text) >= len(begin) + len(end) and text.startswith(begin) and text.endswith(end)


def without_markers(text: str, markers: Markers) -> tuple[str, list[int]]:
    """Return a text whose lines have no markers around them, and the indices of the lines that had some."""
    if not any(marker in text for marker in markers):
        return text, []
    lines = text.split("\n")
    bare = [_bare(line, *markers) for line in lines]
    return "\n".join(bare), [i for i, (before, after) in enumerate(zip(lines, bare, strict=True)) if before != after]


def _bare(line: str, begin: str, end: str) -> str:
    """Return a line without the markers at its ends, and without the blanks beside them.

    A known marker needs no blank beside it. Another one does, because a word may begin or end with it.
    """
    is_known = (begin, end) in KNOWN
    while (words := line.lstrip()).startswith(begin) and (is_known or words[len(begin) :][:1].strip() == ""):
        line = words[len(begin) :].lstrip()
    while (words := line.rstrip()).endswith(end) and (is_known or words[: -len(end)][-1:].strip() == ""):
        line = words[: -len(end)].rstrip()
    return line


def find_markers(text: str, others: Markers | None = None) -> tuple[list[int], Markers, str]:
    """Find the markers in a text: known ones, and ``others``.

    A word begins with what begins a line, or ends with what ends one, or one line follows another within the word.

    Returns:
        The indices of the lines that have some, the pair to which the first one belongs, and the first one.
    """
    lines, line, start, first = dict[int, None](), 0, 0, ""
    if others is not None or any(sign in text for sign in SIGNS):
        for found in _pattern(others).finditer(text):
            line, start = line + text.count("\n", start, found.start()), found.start()
            lines[line], first = None, first or found[0]
    pairs = [pair for pair in (*filter(None, [others]), *KNOWN) if first in pair]
    pair = next((pair for pair in pairs if all(marker in text for marker in pair)), pairs[0] if pairs else KNOWN[0])
    return list(lines), pair, first


@functools.cache
def _pattern(others: Markers | None) -> re.Pattern[str]:
    begins, ends = ("|".join(sorted({re.escape(pair[side]) for pair in KNOWN})) for side in (0, 1))
    alone = "" if others is None else "|" + BEFORE + f"(?:{'|'.join(map(re.escape, others))})" + AFTER
    return re.compile(f"{BEFORE}(?:{begins})|(?:{ends})(?:{AFTER}|(?={begins})){alone}")

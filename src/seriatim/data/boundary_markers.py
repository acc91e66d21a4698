"""Symbols such as ``<s>`` and ``</s>`` that other tools write around every line of a text.

A model here has a boundary symbol of its own, so that such markers are words to it. They are left out where every line
of some data has both; a run records that, and its inputs are then read so, too.
"""

import itertools
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
BEGINNINGS = ("<", "[")
"""What one of all markers begins with."""
MARKER = re.compile(rf"""(?<![^\s",;])(?:{"|".join(map(re.escape, {*itertools.chain(*KNOWN)}))})(?![^\s",;])""")
"""A marker as a word of its own, also in tables and JSON."""


def markers_of(setting: str) -> Markers | None:
    """Return the markers that a value of ``data.markers`` names; None for ``auto`` and ``keep``."""
    begin, blank, end = setting.partition(" ")
    return (begin, end) if blank else None


def common_markers(texts: Iterable[str]) -> Markers | None:
    """Return the markers around every text that is not blank, or None; no more texts are read than are needed."""
    common: Markers | None = None
    for text in filter(str.strip, texts):
        markers = text.split(None, 1)[0], text.rsplit(None, 1)[-1]
        if markers not in KNOWN or common not in (None, markers):
            return None
        common = markers
    return common


def without_markers(text: str, markers: Markers) -> tuple[str, list[int]]:
    """Return a text whose lines have no markers around them, and the indices of the lines that had some."""
    if not any(marker in text for marker in markers):
        return text, []
    lines = text.split("\n")
    bare = [_bare(line, *markers) for line in lines]
    return "\n".join(bare), [i for i, (before, after) in enumerate(zip(lines, bare, strict=True)) if before != after]


def _bare(line: str, begin: str, end: str) -> str:
    """Return a line without the markers at its ends, and without the blanks beside them."""
    while (words := line.lstrip()).startswith(begin) and (words == begin or words[len(begin)].isspace()):
        line = words[len(begin) :].lstrip()
    while (words := line.rstrip()).endswith(end) and (words == end or words[-len(end) - 1].isspace()):
        line = words[: -len(end)].rstrip()
    return line


def lines_with_markers(text: str) -> list[int]:
    """Return the indices of the lines that have a known marker as a word."""
    if not any(beginning in text for beginning in BEGINNINGS):
        return []
    lines, line, start = dict[int, None](), 0, 0
    for found in MARKER.finditer(text):
        line, start = line + text.count("\n", start, found.start()), found.start()
        lines[line] = None
    return list(lines)

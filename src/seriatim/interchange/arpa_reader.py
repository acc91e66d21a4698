"""Reading the ARPA format, which `arpa` describes: line by line, in memory that grows with what is read."""

import functools
import gzip
import io
import math
import os
import re
import stat
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np

from ..core.errors import InputError, shown
from ..data.readers import UNREADABLE
from ..data.tokenizers import END
from ..models.ngrams.table import Order, Table
from .arpa import BEGIN, ESCAPED, FINISH, NOTHING, OTHER_UNKNOWN, UNKNOWN

LARGEST = 300.0
"""The largest logarithm of a weight that a float can hold."""
DIGITS = 18
"""Of a count that is looked at."""
MOST_ORDERS = 1000
SHORTEST, DENSEST = 4, 1032
"""Bytes of the shortest line of an n-gram, and how many bytes gzip can hold in one."""
COUNT = re.compile(r"ngram\s+(\d+)\s*=\s*(\d+)\s*", re.ASCII)
LONGEST = 1 << 20
"""Bytes of a line that is no longer taken for one of this format."""
ESCAPES = re.compile(rb"\\(x[0-9a-f]{2}|u[0-9a-f]{4}|U[0-9a-f]{8}|[ntr\\<])")


class Arpa(NamedTuple):
    """What a file holds.

    Attributes:
        words: tokens from id 2 on; 0 is the boundary, 1 the unknown word.
        orders: shortest first.
    """

    words: list[str]
    orders: list[Order]


def read_arpa(path: Path) -> Arpa:
    """Read a model.

    Raises:
        InputError: the file is missing, not in this format, damaged, or cut off; with the line.
    """
    try:
        with path.open("rb") as raw:
            compressed = raw.peek(2)[:2] == b"\x1f\x8b"
            known = os.fstat(raw.fileno())
            most = known.st_size * (DENSEST if compressed else 1) // SHORTEST if stat.S_ISREG(known.st_mode) else None
            with io.BufferedReader(gzip.GzipFile(fileobj=raw)) if compressed else raw as file:
                return _Reader(path, file, most).read()
    except UNREADABLE as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{path}: cannot be read ({reason}); give an ARPA file") from None


class _Reader:
    def __init__(self, path: Path, file: IO[bytes], most: int | None) -> None:
        self.path, self.number, self.most = path, 0, most
        self.lines = iter(functools.partial(file.readline, LONGEST), b"")
        self.escaped = False
        self.ids = {BEGIN: END, FINISH: END, UNKNOWN: 1, OTHER_UNKNOWN: 1}
        self.words: list[str] = []
        self.meant: set[bytes] = set()

    def read(self) -> Arpa:
        """Read the whole file."""
        counts = self.header()
        orders = [self.unigrams(counts[0], longest=len(counts) == 1)]
        for n, count in enumerate(counts[1:], 2):
            orders.append(self.section(n, count, orders, longest=n == len(counts)))
        if self.line().strip() != "\\end\\":
            raise self.wrong("\\end\\ is missing here", "are the counts at the top right?")
        if self.next() is not None:
            raise self.wrong("something stands behind \\end\\", "are these two files in one? delete the rest")
        return Arpa(self.words, orders)

    def line(self) -> str:
        """Return the next line that is not empty."""
        line = self.next()
        if line is None:
            raise self.wrong("ends too early", "is the file whole?")
        return line

    def next(self) -> str | None:
        """Return the next line that is not empty, or None at the end of the file."""
        for raw in self.lines:
            self.number += 1
            if len(raw) == LONGEST:
                raise self.wrong(f"a line of {LONGEST:,} bytes or more", "is it an ARPA file?")
            try:
                line = raw.decode()
            except UnicodeDecodeError:
                raise self.wrong("not UTF-8", "give an ARPA file in UTF-8") from None
            if "\0" in line:
                raise self.wrong("a NUL byte", "is it an ARPA file?")
            line = line.removesuffix("\n").removesuffix("\r")
            if self.number == 1:
                line = line.removeprefix("\ufeff")
            if line.strip():
                return line
        return None

    def wrong(self, what: str, hint: str) -> InputError:
        """Return an error that names this line."""
        return InputError(f"{self.path}:{max(1, self.number)}: {what}; {hint}")

    def header(self) -> list[int]:
        """How many n-grams of each order."""
        line = self.line()
        while line.strip() != "\\data\\":
            self.escaped |= line == ESCAPED
            if self.number > 100:
                raise self.wrong("no \\data\\ so far", "is it an ARPA file?")
            line = self.line()
        counts: list[int] = []
        while found := COUNT.fullmatch(line := self.line()):
            if found[1] != str(len(counts) + 1):
                raise self.wrong(
                    f"counts of {found[1][:DIGITS]}-grams where those of {len(counts) + 1}-grams should be", "mend it"
                )
            counts.append(int(found[2][:DIGITS]))
            if len(counts) > MOST_ORDERS:
                raise self.wrong(f"more than {MOST_ORDERS} orders", "is it an ARPA file?")
            if self.most is not None and sum(counts) > self.most:
                raise self.wrong("more n-grams than the file has room for", "is the file whole?")
        if not counts:
            raise self.wrong("no counts of n-grams", "is it an ARPA file?")
        self.expect(line, 1)
        return counts

    def expect(self, line: str, n: int) -> None:
        """Raise InputError if a section does not begin."""
        if line.strip() != f"\\{n}-grams:":
            raise self.wrong(f"\\{n}-grams: should be here, not {line[:40]!r}", "are the counts at the top right?")

    def entry(self, n: int, *, longest: bool) -> tuple[float, list[str], float]:
        """Probability, words and backoff of the next line."""
        line = self.line()
        fields = line.split("\t") if "\t" in line else [field for field in line.split(" ") if field]
        if "\t" not in line:
            fields = [fields[0], " ".join(fields[1 : n + 1]), *fields[n + 1 :]]
        words = fields[1].split(" ") if len(fields) > 1 else []
        if len(words) != n or not all(words) or len(fields) > 3 - longest:
            raise self.wrong(f"not a {n}-gram: {line[:60]!r}", "are the counts at the top right?")
        p, backoff = (self.figure(field) for field in (fields[0], fields[2] if len(fields) > 2 else "0"))
        if p > 0:
            raise self.wrong(f"the logarithm of a probability is above 0: {fields[0][:40]}", "mend it")
        if backoff > LARGEST:
            raise self.wrong(f"a back-off weight too large for a number: {fields[2][:40]}", "mend it")
        return 10**p if p > NOTHING else 0.0, words, 10**backoff if backoff > NOTHING else 0.0

    def figure(self, text: str) -> float:
        """Return a finite number."""
        try:
            value = math.nan if "_" in text else float(text)
        except ValueError:
            value = math.nan
        if math.isnan(value) or value == math.inf:
            raise self.wrong(f"not a number: {text[:40]!r}", "mend it")
        return value

    def unigrams(self, count: int, *, longest: bool) -> Order:
        """Every word there is."""
        known, left = array("d", [0.0, 0.0]), array("d", [1.0, 1.0])
        seen: set[str] = set()
        for _ in range(count):
            p, (word,), backoff = self.entry(1, longest=longest)
            word = UNKNOWN if word == OTHER_UNKNOWN else word
            if word in seen:
                raise self.wrong(f"{shown(word)} stands twice among the 1-grams", "leave one out")
            seen.add(word)
            token = self.ids.get(word)
            if token is None:
                token = self.ids[word] = len(self.words) + 2
                self.words.append(self.plain(word))
                known.append(0.0)
                left.append(1.0)
            if word != BEGIN:
                known[token] = p
            if word != FINISH:
                left[token] = backoff
        return Order(np.arange(len(known)), np.array(known), np.ones(0) if longest else np.array(left))

    def plain(self, word: str) -> str:
        """Return a token as it is written in a text."""
        if not self.escaped:
            return word
        try:
            meant = ESCAPES.sub(_unescaped, word.encode())
        except ValueError:
            raise self.wrong(f"no character is written as in {shown(word)}", "mend the escape") from None
        if meant in self.meant:
            raise self.wrong(f"{shown(word)} is another 1-gram with other escapes", "leave one out")
        self.meant.add(meant)
        return meant.decode("utf-8", "replace")

    def section(self, n: int, count: int, orders: Sequence[Order], *, longest: bool) -> Order:
        """Return the n-grams of one order, sorted by their words."""
        self.expect(self.line(), n)
        found, at = array("q"), array("q")  # which grow as lines come: what a header promises may never come
        p, backoff = array("d"), array("d")
        for _ in range(count):
            probability, spelled, weight = self.entry(n, longest=longest)
            try:
                found.extend([self.ids[word] for word in spelled])
            except KeyError as error:
                raise self.wrong(f"{shown(error.args[0])} is not among the 1-grams", "add it there") from None
            if BEGIN in spelled[1:] or FINISH in spelled[:-1]:
                raise self.wrong(f"{BEGIN} begins an n-gram, {FINISH} ends one", "leave this one out")
            p.append(probability)
            backoff.append(weight)
            at.append(self.number)
        words, numbers = np.array(found).reshape(-1, n), np.array(at)
        known, left = np.array(p), np.array(backoff)
        table = Table(orders)
        place = words[:, 0]
        for shorter in range(2, n):
            place = table.find(shorter, place, words[:, shorter - 1])
        if (place < 0).any():
            self.number = int(numbers[(place < 0).argmax()])
            raise self.wrong(f"its first {n - 1} words are not among the {n - 1}-grams", "add them there")
        key = place * len(orders[0].probability) + words[:, -1]
        order = np.argsort(key, kind="stable")
        key = key[order]
        if (twice := key[1:] == key[:-1]).any():
            self.number = int(numbers[order[1:][twice]].min())
            raise self.wrong("this n-gram stands there twice", "leave one out")
        return Order(key, known[order], np.ones(0) if longest else left[order])


def _unescaped(found: re.Match[bytes]) -> bytes:
    kind, rest = found[1][:1], found[1][1:]
    if kind == b"x":
        return bytes([int(rest, 16)])
    if kind in b"uU":
        return chr(int(rest, 16)).encode()
    return {b"n": b"\n", b"t": b"\t", b"r": b"\r"}.get(kind, kind)

"""Files made to use up memory or time; run as a program, every one is read or refused within bounds.

    python adversaries.py FOLDER

prints a JSON object: for each its outcome (what was counted, or the refusal) and the seconds it took.
"""

import gzip
import json
import os
import random
import re
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from seriatim.core.errors import InputError
from seriatim.data.conll import read_sentences
from seriatim.data.pairs import read_pairs
from seriatim.data.sources import find_sources
from seriatim.data.tables import read_labelled
from seriatim.data.text import read_chunks, read_lines
from seriatim.data.vectors import read_vectors
from seriatim.interchange.arpa import read_arpa

LARGE = 20_000_000
"""Bytes of the largest line."""
BOUND = 8 * LARGE
"""Bytes of memory that a reader may take above what the program has taken before it: so many times the largest line."""
SECONDS = 10
PACKED = 180
"""Millions of bytes that a small packed file holds: more than the bound."""


def packed(text: bytes) -> bytes:
    """A text many times over."""
    return gzip.compress(text * (10**6 // len(text)), 1) * PACKED


def promising(folder: Path) -> bytes:
    """A packed ARPA file whose size does not give away that its header lies."""
    noise = random.Random(0).randbytes(1_000_000).hex().encode()
    header = b"\\data\\\nngram 1=2\nngram 2=200000000\n\n\\1-grams:\n-1\ta\n-1\tb\n\n\\2-grams:\n-1\ta b\n\n\\end\\\n"
    return gzip.compress(header + re.sub(b"(.{1000})", rb"\1\n", noise), 1)


FILES: dict[str, Callable[[Path], bytes]] = {
    "line.txt": lambda _: b"ab" * (LARGE // 2),
    "returns.txt": lambda _: b"\r" * (LARGE // 4),
    "broken.txt": lambda _: b"\x80" * LARGE,
    "bomb.txt.gz": lambda _: packed(b"a" * 999 + b"\n"),
    "line.bomb.txt.gz": lambda _: packed(b"a"),
    "zeros.bomb.txt.gz": lambda _: packed(b"\0"),
    "deep.jsonl": lambda _: b"[" * 10**6,
    "deeper.jsonl": lambda _: b'{"text": ' * 10**6,
    "long.jsonl": lambda _: b'{"text": "' + b"a" * LARGE + b'"}',
    "integer.jsonl": lambda _: b'{"text": ' + b"9" * 10**6 + b"}",
    "float.jsonl": lambda _: b'{"text": "a", "n": 1.' + b"9" * 10**6 + b"}",
    "fields.jsonl": lambda _: b"{" + b", ".join(b'"%d": 0' % i for i in range(10**5)) + b', "7": 0}',
    "quoted.csv": lambda _: b'label,text\na,"' + b"x\n" * (LARGE // 2),
    "commas.csv": lambda _: b"label,text\na," + b"," * LARGE,
    "columns.csv": lambda _: b"tex," * 10**6,
    "quoted.tsv": lambda _: b'label\ttext\na\t"' + b"x\n" * (LARGE // 2),
    "quotes.tsv": lambda _: b'label\ttext\n"' + b'"' * LARGE,
    "tabs.tsv": lambda _: b"label\ttext\n" + b"\t" * LARGE,
    "columns.tsv": lambda _: b"tex\t" * 10**6,
    "names.tsv": lambda _: b"tex" * 10**6 + b"\tlabel\n",
    "tabs.pairs": lambda _: b"a\tb\n" + b"\t" * LARGE,
    "id.conllu": lambda _: b"9" * LARGE + b"\t_" * 9,
    "tag.conll": lambda _: b"a\tO\nb\tI-" + b"x" * LARGE,
    "tabs.conll": lambda _: b"\t" * LARGE,
    "count.vec": lambda _: b"999999999999 999999\na 1.5\n",
    "row.vec": lambda _: b"a 1.5\nb " + b"9" * LARGE,
    "number.vec": lambda _: b"a 1.5\nb x" + b"9" * LARGE,
    "promise.arpa": lambda _: b"\\data\\\nngram 1=1000000000000\n\n\\1-grams:\n-1\ta\n\n\\end\\\n",
    "promise.arpa.gz": promising,
    "pipe.arpa": lambda _: b"\\data\\\nngram 1=1000000000000\n\n\\1-grams:\n-1\ta\n\n\\end\\\n",
    "line.arpa": lambda _: b"\\data\\\nngram 1=1\n\n\\1-grams:\n-1\t" + b"a" * LARGE,
    "orders.arpa": lambda _: b"\\data\\\n" + b"".join(b"ngram %d=0\n" % n for n in range(1, 10**5)),
}


def count(items: Iterable[object]) -> str:
    """Reads it all, and holds nothing."""
    return f"{sum(1 for _ in items)} read"


def read(path: Path) -> str:
    """With the reader that is meant for it."""
    name, sources = str(path), find_sources
    if path.suffix in (".csv", ".tsv", ".jsonl"):
        return count(read_labelled(sources(name), label=None))
    if path.suffix == ".pairs":
        return count(read_pairs(name, file_format="tsv"))
    if path.suffix in (".conll", ".conllu"):
        return count(read_sentences(sources(name)))
    if path.suffix == ".vec":
        return f"{len(read_vectors(path, {'a', 'b'})[0])} read"
    if ".arpa" in path.name:
        return f"{len(read_arpa(path).words)} read"
    return count(read_chunks(sources(name)) if path.name.startswith("line.bomb") else read_lines(sources(name)))


def within_bounds(path: Path) -> tuple[str, float]:
    """What came of it, and the seconds it took."""
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + BOUND, resource.RLIM_INFINITY))
    signal.alarm(SECONDS)
    started = time.perf_counter()
    try:
        found = read(path)
    except InputError as error:
        found = str(error)
    except BaseException as error:
        found = f"{type(error).__name__}: {str(error)[:200]}"
    signal.alarm(0)
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    return found, time.perf_counter() - started


class LateError(BaseException):
    """A reader that does not end."""


def late(*_: object) -> None:
    raise LateError(f"not done after {SECONDS} s")


def run(folder: Path) -> dict[str, tuple[str, float]]:
    """Every one in its turn."""
    signal.signal(signal.SIGALRM, late)
    found = {}
    for name, made in FILES.items():
        path, content = folder / name, made(folder)
        if name.startswith("pipe"):
            os.mkfifo(path)
            threading.Thread(target=path.write_bytes, args=(content,), daemon=True).start()
        else:
            path.write_bytes(content)
        del content
        found[name] = within_bounds(path)
        path.unlink()
    return found


if __name__ == "__main__":
    print(json.dumps(run(Path(sys.argv[1])), indent=1))

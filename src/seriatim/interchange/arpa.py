r"""N-gram models in the ARPA format, which most toolkits read: plain text, gzip where the name ends in .gz.

    \data\
    ngram 1=COUNT …
    \1-grams:
    LOG10_PROBABILITY<TAB>WORDS<TAB>LOG10_BACKOFF
    …
    \end\

The boundary is `<s>` where it begins a sequence and `</s>` where it ends one, the unknown token `<unk>`. Tokens that
hold white space or a backslash, or are one of these names, are written with backslashes, and a first line says so.
"""

import gzip
import math
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO

import numpy as np

from ..counting.ngrams.table import Order
from ..data.tokenizers import END, Tokenizer
from ..storage.atomic_files import whole
from ..training.run_files import ARPA_MARK

BEGIN, FINISH, UNKNOWN = "<s>", "</s>", "<unk>"
OTHER_UNKNOWN = "<UNK>"  # as some programs write it
NOTHING = -99.0  # the logarithm of probability zero
ESCAPED = "# tokens are written with backslash escapes"
BLOCK = 1 << 16
SPECIAL = re.compile(r"[\s\x00-\x1f\x7f-\x9f]")


def write_arpa(orders: Sequence[Order], tokenizer: Tokenizer, path: Path) -> None:
    """Write a model, its orders shortest first, completely or not at all."""
    names = [spelled(tokenizer, token) for token in range(tokenizer.vocabulary_size)]
    write: Callable[..., IO[str]] = gzip.open if path.suffix == ".gz" else open
    with whole(path) as aside, write(aside, "wt", encoding="utf-8", newline="\n") as file:
        file.write(ARPA_MARK + "\n")
        if any("\\" in name for name in names):
            file.write(ESCAPED + "\n")
        counts = [len(order.probability) + (n == 1) for n, order in enumerate(orders, 1)]
        file.write("\\data\\\n" + "".join(f"ngram {n}={count}\n" for n, count in enumerate(counts, 1)))
        for n in range(1, len(orders) + 1):
            file.write(f"\n\\{n}-grams:\n")
            file.writelines(_lines(orders, n, names))
        file.write("\n\\end\\\n")


def spelled(tokenizer: Tokenizer, token: int) -> str:
    """Return a token without white space, as ARPA files need it."""
    if token == END:
        return FINISH
    if token == tokenizer.unknown_id:
        return UNKNOWN
    text = tokenizer.token_bytes(token).replace(b"\\", b"\\\\").decode("utf-8", "backslashreplace")
    text = SPECIAL.sub(_escape, text)
    return f"\\{text}" if text in (BEGIN, FINISH, UNKNOWN, OTHER_UNKNOWN) else text


def _lines(orders: Sequence[Order], n: int, names: Sequence[str]) -> Iterator[str]:
    order, longest = orders[n - 1], n == len(orders)
    if n == 1:
        yield _line(-np.inf, BEGIN, 1.0 if longest else float(order.backoff[END]))
    for start in range(0, len(order.probability), BLOCK):
        part = slice(start, start + BLOCK)
        columns, place = [], order.key[part]
        for shorter in range(n - 1, 0, -1):
            columns.append([names[word] for word in (place % len(names)).tolist()])
            place = orders[shorter - 1].key[place // len(names)]
        columns.append([names[word] if n == 1 or word != END else BEGIN for word in place.tolist()])
        with np.errstate(divide="ignore"):
            probability = np.log10(order.probability[part]).tolist()
        backoff = [1.0] * len(probability) if longest else order.backoff[part].tolist()
        if n == 1 and start == 0:
            backoff[END] = 1.0  # written with `<s>`
        for p, words, weight in zip(probability, zip(*reversed(columns), strict=True), backoff, strict=True):
            yield _line(p, " ".join(words), weight)


def _line(probability: float, words: str, backoff: float) -> str:
    line = f"{max(probability, NOTHING):.10g}\t{words}"
    if backoff == 1:
        return f"{line}\n"
    return f"{line}\t{max(math.log10(backoff), NOTHING) if backoff else NOTHING:.10g}\n"


def _escape(match: re.Match[str]) -> str:
    point = ord(match[0])
    return f"\\x{point:02x}" if point < 0x80 else f"\\u{point:04x}"

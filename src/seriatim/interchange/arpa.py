r"""N-gram models in the ARPA format, which most toolkits read: written, read, and mixed into one.

The format is plain text, gzip where the name ends in .gz:

    \data\
    ngram 1=COUNT …
    \1-grams:
    LOG10_PROBABILITY<TAB>WORDS<TAB>LOG10_BACKOFF
    …
    \end\

The boundary is `<s>` where it begins a sequence and `</s>` where it ends one, the unknown token `<unk>`. Tokens that
hold white space or a backslash, or are one of these names, are written with backslashes, and a first line says so.

SRILM, IRSTLM, MITLM, KenLM and the CMU toolkit differ in white space, in what stands before the data, and in entries
that nothing ever looks up. The memory for reading depends on the n-grams that were read, not on the counts that the
beginning of the file announces.

The mixture p(w | h) = Σ_i λ_i p_i(w | h) is written for every n-gram that any of the models lists; of the others,

    γ(h) = (1 − Σ_w p(w | h)) / (1 − Σ_w p(w | h')),    w such that hw is listed, h' is h without its first word

restores the sum 1, as in every back-off model (A. Stolcke, "SRILM – an extensible language modeling toolkit", ICSLP
2002). A word that a model does not have has probability 0 there, also if the model has an unknown word.
"""

import contextlib
import gzip
import math
import os
import re
import stat
import warnings
from array import array
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, BinaryIO, NamedTuple, cast

import numpy as np

from ..core.errors import InputError, MalformedError, MismatchError, RangeError, UnreadableError, shown
from ..counting.ngrams.table import NgramTable, Order
from ..data.repairs import DataWarning, Repairs
from ..data.text import UNREADABLE, TextFile
from ..data.tokenizers import END, Tokenizer
from ..storage.files import atomic
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
    with atomic(path) as aside, write(aside, "wt", encoding="utf-8", newline="\n") as file:
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
        block = slice(start, start + BLOCK)

        # A key holds the index of the shorter n-gram and the last word, so words are found from the last to the
        # first.
        columns, words_before = [], order.key[block]
        for shorter in range(n - 1, 0, -1):
            columns.append([names[word] for word in (words_before % len(names)).tolist()])
            words_before = orders[shorter - 1].key[words_before // len(names)]
        columns.append([names[word] if n == 1 or word != END else BEGIN for word in words_before.tolist()])

        # A probability of 0 becomes −∞ here, and `NOTHING` on the line.
        with np.errstate(divide="ignore"):
            probability = np.log10(order.probability[block]).tolist()
        backoff = [1.0] * len(probability) if longest else order.backoff[block].tolist()
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


MAX_LOGARITHM = 300.0  # of a weight that a float can hold
ROUNDING = 1e-5  # by which programs that compute in float32 exceed the logarithm 0
MAX_DIGITS = 18  # of a count
MAX_ORDERS = 1000
MAX_LINE = 1 << 20  # bytes of a line
SHORTEST, DENSEST = 4, 1032  # bytes of the shortest line of an n-gram, and how many bytes gzip can hold in one
COUNT = re.compile(r"ngram\s+(\d+)\s*=\s*(\d+)\s*", re.ASCII)
BLANKS = re.compile(r"[ \t\v\f\r]+")  # words may hold other white space
NUMBER = re.compile(r"[-+]?[0-9.]+(e[-+]?[0-9]+)?", re.IGNORECASE)
INTERPOLATED = ("iARPA", "qARPA")  # first lines of two formats of IRSTLM whose numbers mean something else
MISSING = {
    BEGIN: "no probability depends on the beginning of a line",
    FINISH: "the end of a line has probability 0, and so has every whole line",
}
"""What follows if a name is not among the 1-grams."""
ESCAPES = re.compile(rb"\\(x[0-9a-f]{2}|u[0-9a-f]{4}|U[0-9a-f]{8}|[ntr\\<])")


class Arpa(NamedTuple):
    """The contents of a file."""

    words: list[str]  # tokens from id 2 on; 0 is the boundary, 1 the unknown word
    orders: list[Order]  # shortest first


def read_arpa(path: Path, repairs: Repairs | None = None) -> Arpa:
    """Read a model; InputError names the line where a file is not in this format, damaged or cut off.

    ``repairs`` records the entries that are left out or read as something else; without it they are refused.
    """
    try:
        with path.open("rb") as raw:
            compressed = raw.peek(2)[:2] == b"\x1f\x8b"
            info = os.fstat(raw.fileno())
            limit = info.st_size * (DENSEST if compressed else 1) // SHORTEST if stat.S_ISREG(info.st_mode) else None
            with gzip.GzipFile(fileobj=raw) if compressed else raw as file:
                return _Reader(path, cast(BinaryIO, file), limit, repairs or Repairs(strict=True)).read()
    except UNREADABLE as error:
        reason = getattr(error, "strerror", None) or error
        raise UnreadableError(f"{path}: cannot be read ({reason}); give an ARPA file") from None


class _Reader:
    """Reads a file that has room for at most ``limit`` n-grams, if that is known."""

    def __init__(self, path: Path, file: BinaryIO, limit: int | None, repairs: Repairs) -> None:
        self.path, self.number, self.limit, self.repairs = path, 0, limit, repairs
        self.lines = self.read_lines(file)
        self.escaped = False
        self.ids = {BEGIN: END, FINISH: END, UNKNOWN: 1, OTHER_UNKNOWN: 1}
        self.begin, self.finish = BEGIN, FINISH  # as this file spells them
        self.missing: list[str] = []
        self.words: list[str] = []
        self.unescaped: set[bytes] = set()

    def read(self) -> Arpa:
        """Read the whole file."""
        counts = self.header()
        orders = [self.unigrams(counts[0], longest=len(counts) == 1)]
        for n, count in enumerate(counts[1:], 2):
            orders.append(self.section(n, count, orders, longest=n == len(counts)))
        if self.line().strip() != "\\end\\":
            raise self.wrong("\\end\\ is missing here", "check the counts at the top")
        if next(self.lines, None) is not None:
            raise self.wrong("something stands behind \\end\\", "delete what follows it")
        for name in self.missing:
            text = f"{self.path}: no {name} among the 1-grams, so that {MISSING[name]}; add it there"
            warnings.warn(text, DataWarning, stacklevel=3)
        return Arpa(self.words, orders)

    def read_lines(self, file: BinaryIO) -> Iterator[str]:
        """Yield the lines that are not empty."""
        text = TextFile(contextlib.nullcontext(file), MAX_LINE)
        for raw in text.__enter__():
            self.number += 1
            text.record(str(self.path), self.repairs)

            # A file of any kind may be given, so that lines can be long and bytes can be no text.
            if len(raw) >= MAX_LINE:
                raise self.wrong(f"a line of {MAX_LINE:,} bytes or more", "give an ARPA file")
            try:
                line = raw.decode()
            except UnicodeDecodeError:
                raise self.wrong("not UTF-8", "give an ARPA file in UTF-8") from None
            if "\0" in line:
                raise self.wrong("a NUL byte", "give an ARPA file")

            line = line.removesuffix("\n").removesuffix("\r")  # white space inside an entry is up to `entry`
            if self.number == 1:
                line = line.removeprefix("\ufeff")
            if line.strip():
                yield line

    def line(self) -> str:
        """Return the next line that is not empty."""
        line = next(self.lines, None)
        if line is None:
            raise self.wrong("ends too early", "give the whole file")
        return line

    def wrong(self, what: str, hint: str) -> InputError:
        """Return an error that names this line."""
        return MalformedError(f"{self.path}:{max(1, self.number)}: {what}; {hint}")

    def repaired(self, kind: str, problem: str, reading: str, remedy: str, line: int | None = None) -> None:
        """Record a repair of a line, by default this one, or raise InputError if repairs are refused."""
        self.repairs.add(kind, str(self.path), line or self.number, problem=problem, reading=reading, remedy=remedy)

    def header(self) -> list[int]:
        """Return the number of n-grams of each order."""
        line = self.line()
        while line.strip() != "\\data\\":
            self.escaped |= line == ESCAPED
            if line.startswith(INTERPOLATED):
                raise self.wrong(
                    f"the format {line[:5]} of IRSTLM, whose numbers are no probabilities",
                    "write an ARPA file with compile-lm --text=yes",
                )
            if self.number > 100:
                raise self.wrong("no \\data\\ so far", "give an ARPA file")
            line = self.line()

        # The counts are not trusted: they may announce more than memory holds, but never more than the file has room
        # for.
        counts: list[int] = []
        while match := COUNT.fullmatch((line := self.line()).strip()):
            n = len(counts) + 1
            if match[1] != str(n):
                raise self.wrong(
                    f"counts of {match[1][:MAX_DIGITS]}-grams where those of {n}-grams should be", "correct it"
                )
            counts.append(int(match[2][:MAX_DIGITS]))
            if n > MAX_ORDERS:
                raise self.wrong(f"more than {MAX_ORDERS} orders", "give an ARPA file")
            if self.limit is not None and sum(counts) > self.limit:
                raise self.wrong("more n-grams than the file has room for", "give the whole file")
        if not counts:
            raise self.wrong("no counts of n-grams", "give an ARPA file")
        self.expect(line, 1)
        return counts

    def expect(self, line: str, n: int) -> None:
        """Raise InputError if a line does not begin a section."""
        if line.strip() != f"\\{n}-grams:":
            raise self.wrong(f"\\{n}-grams: should be here, not {line[:40]!r}", "check the counts at the top")

    def entry(self, n: int, *, longest: bool) -> tuple[float, list[str], float]:
        """Return probability, words and back-off weight of the next line."""
        line = self.line()
        fields = BLANKS.split(line.strip(" \t\v\f\r"))
        words, rest = fields[1 : n + 1], fields[n + 1 :]
        # An empty column may be a word that was lost, so that what seems to be the word is the weight.
        is_empty = n == 1 and "\t\t" in line and not rest and NUMBER.fullmatch("".join(words))
        if len(words) != n or len(rest) > 1 or is_empty:
            raise self.wrong(f"not a {n}-gram: {line[:60]!r}", "check the counts at the top")
        p, backoff = (self.figure(field) for field in (fields[0], rest[0] if rest else "0"))

        # Programs that compute in float32 write logarithms a little above 0; anything larger is no rounding.
        if p > ROUNDING:
            raise self.wrong(f"the logarithm of a probability is above 0: {fields[0][:40]}", "correct it")
        if p > 0:
            self.repaired(
                "probabilities rounded to more than 1",
                f"the logarithm of a probability is above 0: {fields[0][:40]}",
                "read as 0",
                "write 0",
            )
        if backoff > MAX_LOGARITHM:
            raise self.wrong(f"a back-off weight too large for a number: {rest[0][:40]}", "correct it")
        if longest and backoff:
            self.repaired(
                "back-off weights without a use",
                f"a back-off weight of one of the longest n-grams, {n}-grams, which is never used",
                "ignored",
                "leave it out",
            )
        return min(10**p, 1.0) if p > NOTHING else 0.0, words, 10**backoff if backoff > NOTHING else 0.0

    def figure(self, text: str) -> float:
        """Return a finite number, or −∞."""
        with contextlib.suppress(ValueError):
            if "_" not in text and (value := float(text)) < math.inf:  # NaN is not less
                return value
        raise self.wrong(f"not a number: {text[:40]!r}", "correct it")

    def unigrams(self, count: int, *, longest: bool) -> Order:
        """Read all words."""
        probability, backoff = array("d", [0.0, 0.0]), array("d", [1.0, 1.0])
        seen, capitals = set[str](), dict[str, int]()
        for _ in range(count):
            p, (word,), weight = self.entry(1, longest=longest)
            word = UNKNOWN if word == OTHER_UNKNOWN else word
            if word in seen:
                raise self.wrong(f"{shown(word)} stands twice among the 1-grams", "leave one out")
            seen.add(word)
            if word.lower() in (BEGIN, FINISH):
                capitals[word] = self.number
            token = self.ids.get(word)
            if token is None:
                token = self.ids[word] = len(self.words) + 2
                self.words.append(self.plain(word))
                probability.append(0.0)
                backoff.append(1.0)
            if word != BEGIN:
                probability[token] = p
            if word != FINISH:
                backoff[token] = weight

        # Some programs write the names of the boundary in capitals. A file that has both means two different words.
        for name in MISSING:
            if name not in seen and (line := capitals.get(name.upper())):
                p, weight = self.adopt(name, line, probability, backoff)
                if name == BEGIN:
                    self.begin, backoff[END] = name.upper(), weight
                else:
                    self.finish, probability[END] = name.upper(), p
            elif name not in seen:
                self.missing.append(name)
        return Order(np.arange(len(probability)), np.array(probability), np.ones(0) if longest else np.array(backoff))

    def adopt(self, name: str, line: int, probability: "array[float]", backoff: "array[float]") -> tuple[float, float]:
        """Make the word that is a name in capitals this name, and return its probability and back-off weight."""
        problem = f"{name.upper()} is among the 1-grams, and {name} is not"
        self.repaired("names in capitals", problem, f"read as {name}", f"write {name}", line)
        token = self.ids.pop(name.upper())
        self.ids = {word: index - (index > token) for word, index in self.ids.items()} | {name.upper(): END}
        del self.words[token - 2]
        return probability.pop(token), backoff.pop(token)

    def plain(self, word: str) -> str:
        """Return a token without escapes."""
        if not self.escaped:
            return word
        try:
            unescaped = ESCAPES.sub(_unescape, word.encode())
        except ValueError:
            raise self.wrong(f"no character is written as in {shown(word)}", "correct the escape") from None
        if unescaped in self.unescaped:
            raise self.wrong(f"{shown(word)} is another 1-gram with other escapes", "leave one out")
        self.unescaped.add(unescaped)
        return unescaped.decode("utf-8", "replace")

    def section(self, n: int, count: int, orders: Sequence[Order], *, longest: bool) -> Order:
        """Read the n-grams of one order."""
        self.expect(self.line(), n)
        tokens, numbers = array("q"), array("q")  # which grow as lines come, whatever number the header promises
        p, backoff = array("d"), array("d")
        for _ in range(count):
            probability, words, weight = self.entry(n, longest=longest)
            try:
                tokens.extend([self.ids[word] for word in words])
            except KeyError as error:
                raise self.wrong(f"{shown(error.args[0])} is not among the 1-grams", "add it there") from None
            if self.begin in words[1:] or self.finish in words[:-1]:
                del tokens[-n:]
                self.repaired(
                    "n-grams across a boundary",
                    f"{self.begin} begins an n-gram, {self.finish} ends one, and nothing looks this one up",
                    "left out",
                    "leave it out",
                )
                continue
            p.append(probability)
            backoff.append(weight)
            numbers.append(self.number)

        # All n-grams are looked up together, which takes a small part of the time of one lookup a line.
        table, columns, lines = NgramTable(orders), np.array(tokens).reshape(-1, n).T, np.array(numbers)
        context = columns[0]
        for shorter in range(2, n):
            context = table.find(shorter, context, columns[shorter - 1])
        if (context < 0).any():
            self.number = int(lines[(context < 0).argmax()])
            raise self.wrong(f"its first {n - 1} words are not among the {n - 1}-grams", "add them there")

        # The table is searched by key, and files list n-grams in any order.
        key = context * table.vocabulary_size + columns[-1]
        order = np.argsort(key, kind="stable")
        key = key[order]
        if (repeated := key[1:] == key[:-1]).any():
            self.number = int(lines[order[1:][repeated]].min())
            raise self.wrong("this n-gram stands there twice", "leave one out")
        return Order(key, np.array(p)[order], np.ones(0) if longest else np.array(backoff)[order])


def _unescape(match: re.Match[bytes]) -> bytes:
    kind, digits = match[1][:1], match[1][1:]
    if kind == b"x":
        return bytes([int(digits, 16)])
    if kind in b"uU":
        return chr(int(digits, 16)).encode()
    return {b"n": b"\n", b"t": b"\t", b"r": b"\r"}.get(kind, kind)


FIRST_WORD = 2
"""The number of ids before those of words: the boundary and the unknown word."""
LEAST = 1e-12
"""The least fraction that a context leaves to words it does not list; smaller ones are errors of rounding."""


def mix(models: Sequence[Arpa], weights: Sequence[float]) -> Arpa:
    """Return one model for several, with ``weights`` that are positive and sum to 1."""
    words = list(dict.fromkeys(word for model in models for word in model.words))
    ids = {word: FIRST_WORD + i for i, word in enumerate(words)}
    to_mixed = [np.array([0, 1, *(ids[word] for word in model.words)]) for model in models]
    tables = [NgramTable(model.orders) for model in models]
    from_mixed = [_inverse(ids_of, FIRST_WORD + len(words)) for ids_of in to_mixed]
    size, orders = FIRST_WORD + len(words), list[Order]()

    # From the shortest on, because the weight of a context needs the probabilities of the n-grams below it.
    grams = np.arange(size)[:, None]
    for n in range(1, max(len(model.orders) for model in models) + 1):
        if n > 1:
            listed = [
                ids_of[_grams(model.orders, n)]
                for model, ids_of in zip(models, to_mixed, strict=True)
                if len(model.orders) >= n
            ]
            grams = np.unique(np.concatenate(listed), axis=0)
        probability = np.zeros(len(grams))
        for table, weight, known in zip(tables, weights, from_mixed, strict=True):
            probability += weight * _probabilities(table, known[grams], is_known=known[grams[:, -1]] >= 0)

        # The context of every n-gram is an n-gram itself, so its position in the order before is its index there.
        key = grams[:, 0].astype(np.int64)
        if n > 1:
            key = _contexts(orders, grams[:, :-1]) * size + grams[:, -1]
            orders[-1] = orders[-1]._replace(backoff=_backoffs(orders, grams, key // size, probability))
        orders.append(Order(key, probability, np.ones(0)))
    return Arpa(words, orders)


def check_weights(weights: Sequence[float] | None, count: int) -> list[float]:
    """Return the weights of ``count`` models, by default equal; raise InputError if they are not weights."""
    if weights is None:
        return [1 / count] * count
    if len(weights) != count:
        raise MismatchError(f"--mixture-weights: {len(weights)} weights for {count} files; give one for each")
    if not all(weight > 0 for weight in weights) or not 0 < sum(weights) < float("inf"):
        raise RangeError("--mixture-weights: not all are above 0, or finite; give for instance 0.7,0.3")
    return [weight / sum(weights) for weight in weights]


def _inverse(ids: np.ndarray, size: int) -> np.ndarray:
    """Return the id of each word of the mixture in a model; −1 for a word that it does not have."""
    inverse = np.full(size, -1, dtype=np.int64)
    inverse[ids] = np.arange(len(ids))
    return inverse


def _grams(orders: Sequence[Order], n: int) -> np.ndarray:
    """Return the words of all n-grams of a model ``(n-grams, n)``."""
    size, columns = len(orders[0].probability), []
    index = np.arange(len(orders[n - 1].key))
    for order in reversed(orders[1:n]):
        key = order.key[index]
        columns.append(key % size)
        index = key // size
    return np.stack([index, *reversed(columns)], axis=1)


def _probabilities(table: NgramTable, grams: np.ndarray, *, is_known: np.ndarray) -> np.ndarray:
    """Return p of the last word of each n-gram ``(n-grams,)`` after the others; 0 if the model does not have it."""
    result = np.zeros(len(grams))
    some = grams[is_known]
    if grams.shape[1] == 1:
        result[is_known] = table.orders[0].probability[some[:, 0]]
        return result
    with np.errstate(divide="ignore"):
        result[is_known] = np.exp(table.log_probabilities(some[:, :-1], some[:, -1:])[:, 0])
    return result


def _contexts(orders: Sequence[Order], grams: np.ndarray) -> np.ndarray:
    """Return the indices of n-grams among those of their order."""
    table, index = NgramTable(orders), grams[:, 0].astype(np.int64)
    for n in range(2, grams.shape[1] + 1):
        index = table.find(n, index, grams[:, n - 1])
    assert (index >= 0).all()  # the first words of an n-gram are an n-gram, too
    return index


def _backoffs(orders: Sequence[Order], grams: np.ndarray, contexts: np.ndarray, probability: np.ndarray) -> np.ndarray:
    """Return γ of every n-gram of the last of ``orders``, given the n-grams that are one word longer."""
    lower = _probabilities(NgramTable(orders), grams[:, 1:], is_known=np.ones(len(grams), dtype=bool))
    count = len(orders[-1].key)
    left, left_below = (1 - np.bincount(contexts, values, minlength=count) for values in (probability, lower))
    follows = np.bincount(contexts, minlength=count) > 0
    backoff = np.ones(count)
    backoff[follows] = np.where(
        left_below[follows] > LEAST, left[follows].clip(min=0) / left_below[follows].clip(min=LEAST), 0.0
    )
    return backoff

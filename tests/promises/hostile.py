"""Well-formed files of every kind, and what can happen to them: bytes and lines flipped, lost, doubled, put in.

Also what can stand in the place of a file: a pipe, a folder, a device, links, and content without an end or a meaning.
"""

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from hypothesis import strategies as st

from .obvious import MARK

NASTIES = [
    *(MARK, MARK * 2, b"\xff\xfe", b"\xfe\xff", "é".encode("utf-16")),
    *(b"\r\n", b"\r", b"\r\r\n", b"\n", b"\n\n", b"\n\r", b"\0", b"\t", b" ", b"\t\t", b'"', b'""', b",", b"#"),
    *(b"\x80", b"\xff", b"\xc3", b"\xe2\x82", b"\xf0\x9f\x99", b"\xed\xa0\x80", b"\xc0\x80", b"\xf4\x90\x80\x80"),
    *("\u2028".encode(), "\u2029".encode(), "\x85".encode(), b"\v", b"\f", b"\x1c", b"\x1e", "\u3000".encode()),
    *(b"<unk>", b"<UNK>", b"<s>", b"</s>", b"<pad>", b"[MASK]", b"[UNK]", b"<mask>", b"<|endoftext|>", b"-DOCSTART-"),
    *(b"\\ud800", b"\\udc00\\ud800", b"\\u0000", b"\\", b"\\x00", b"\\U00110000", b"\\ud83d\\ude42", b"\\<"),
    *(b"{", b"}", b"[", b"null", b"NaN", b"1e999", b"9" * 30, b"-1_0", b"_", b"O", b"B-", b"I-PER", b"1-2", b"0"),
    *(b"ngram 1=7\n", b"\\data\\\n", b"\\end\\\n", b"\\1-grams:\n", b"\t-0.5\n", b"text", b"label", b"x" * 3000),
]
ODD = ["\u2028", "\x85", "\v", "\f", "\ufeff", "\u00a0", "\u200d", "🙂", "é", "e\u0301", "İ", "\x1b", "\x7f", "\\", '"']
SPECIALS = ["<unk>", "<UNK>", "<s>", "</s>", "<pad>", "[MASK]", "[UNK]", "<|endoftext|>", "-DOCSTART-", "\\x20", "#"]
CHARACTERS = st.characters(exclude_categories=["Cs"], exclude_characters="\0\r\n\t")
ANY_TEXT = st.lists(st.sampled_from([*ODD, *SPECIALS, "the", "sea", " ", "  "]) | st.text(CHARACTERS, max_size=3))
LINE = ANY_TEXT.map("".join).map(lambda line: line.lstrip("\ufeff"))  # a mark where a line begins is no text
WORD = st.sampled_from(["a", "sea", "Ünïcödé", "猫", "12", "1.5", '"', *SPECIALS])
MANY_LINES = st.lists(LINE, min_size=1, max_size=6)


class Edit(NamedTuple):
    """What happens to a file: its kind, where, and what is put in."""

    kind: str
    place: int
    other: int
    nasty: bytes


KINDS = ["put in", "put in", "put in", "begin", "flip", "lose", "double line", "lose line", "swap lines", "cut", "end"]
EDITS = st.lists(
    st.builds(Edit, st.sampled_from(KINDS), st.integers(0, 2**16), st.integers(0, 2**16), st.sampled_from(NASTIES)),
    max_size=3,
)


def damaged(content: bytes, edits: Sequence[Edit]) -> bytes:
    """What is left of a file."""
    for edit in edits:
        content = _edited(content, edit)
    return content


def _edited(content: bytes, edit: Edit) -> bytes:
    at, to = sorted(place % (len(content) + 1) for place in (edit.place, edit.other))
    if edit.kind in ("double line", "lose line", "swap lines"):
        return b"".join(_moved(content.splitlines(keepends=True), edit))
    if edit.kind == "flip" and content:
        at = edit.place % len(content)
        return content[:at] + bytes([content[at] ^ 1 << edit.other % 8]) + content[at + 1 :]
    return {
        "put in": content[:at] + edit.nasty + content[at:],
        "begin": edit.nasty + content,
        "lose": content[:at] + content[min(to, at + 20) :],
        "cut": content[:at],
        "end": content + edit.nasty,
    }.get(edit.kind, content)


def _moved(lines: list[bytes], edit: Edit) -> list[bytes]:
    if not lines:
        return lines
    one, other = edit.place % len(lines), edit.other % len(lines)
    if edit.kind == "double line":
        lines.insert(other, lines[one])
    elif edit.kind == "lose line":
        del lines[one]
    else:
        lines[one], lines[other] = lines[other], lines[one]
    return lines


ENDS = st.sampled_from(["\n", "\r\n"])


def encoded(lines: Sequence[str], end: str) -> bytes:
    """As a file."""
    return "".join(line + end for line in lines).encode()


def begins_without_quotes(rows: list[tuple[str, str]]) -> bool:
    """Whether no field of the first row begins with a quote, so that no column can be read as one in quotes.

    A quote in the first row could end in a later one: all rows up to there could be read as one field.
    """
    return not any(field.lstrip().startswith('"') for field in rows[0])


def table(draw: st.DrawFn, kind: str) -> bytes:
    """Labelled texts as TSV, CSV or JSONL."""
    rows = draw(st.lists(st.tuples(LINE, WORD), min_size=2, max_size=5).filter(begins_without_quotes))
    if kind == "jsonl":
        return encoded([json.dumps({"text": t, "label": n}) for t, n in rows], draw(ENDS))
    if kind == "tsv":
        return encoded(["label\ttext", *(f"{label}\t{text}" for text, label in rows)], draw(ENDS))
    quoted = ['"{}","{}"'.format(label.replace('"', '""'), text.replace('"', '""')) for text, label in rows]
    return encoded(["label,text", *quoted], draw(ENDS))


@st.composite
def conllu(draw: st.DrawFn) -> bytes:
    """Sentences with comments, ranges and empty nodes."""
    lines: list[str] = []
    for words in draw(st.lists(st.lists(WORD, min_size=1, max_size=4), min_size=1, max_size=3)):
        lines += draw(st.sampled_from([[], ["# text = x"]]))
        last = 0  # the last word of a range
        for i, word in enumerate(words, 1):
            if last < i < len(words) and draw(st.booleans()):
                last = i + 1
                lines.append(f"{i}-{last}\tab" + "\t_" * 8)
            lines.append(f"{i}\t{word}\t_\t{draw(st.sampled_from(['NOUN', 'VERB']))}\t_\tA=b\t0\tx\t_\t_")
        lines += draw(st.sampled_from([[""], [f"{len(words)}.1\tc" + "\t_" * 8, ""]]))
    return encoded(lines, draw(ENDS))


@st.composite
def columns(draw: st.DrawFn) -> bytes:
    """Words and chunks between tabs or spaces."""
    gap = draw(st.sampled_from(["\t", " "]))
    lines = draw(st.sampled_from([[], ["-DOCSTART- -X- O", ""]]))
    for words in draw(st.lists(st.lists(WORD, min_size=1, max_size=4), min_size=1, max_size=3)):
        words = [word for word in words if word not in ("-DOCSTART-", "#")] or ["a"]
        tags = draw(st.sampled_from([["O"], ["B-PER", "I-PER", "I-PER", "I-PER"], ["B-X", "O", "B-PER", "O"]]))
        lines += [gap.join([word, "x", tags[i % len(tags)]]) for i, word in enumerate(words)] + [""]
    return encoded(lines, draw(ENDS))


@st.composite
def vectors(draw: st.DrawFn) -> bytes:
    """Of word2vec, or of GloVe."""
    words, size = draw(st.lists(WORD, min_size=1, max_size=5)), draw(st.integers(1, 3))
    number = st.sampled_from(["0.5", "-1.25", "3e-2", "-0.0"])
    rows = [" ".join([word, *draw(st.lists(number, min_size=size, max_size=size))]) for word in words]
    return encoded([f"{len(words)} {size}", *rows] if draw(st.booleans()) or size == 1 else rows, draw(ENDS))


@st.composite
def arpa(draw: st.DrawFn) -> bytes:
    """A model of n-grams."""
    words = draw(st.lists(WORD.filter(lambda w: w.lower() not in ("<s>", "</s>", "<unk>")), max_size=4, unique=True))
    order = draw(st.integers(1, 3))
    levels = [[(word,) for word in ["<unk>", "<s>", "</s>", *words]]]
    for _ in range(order - 1):
        before = [gram for gram in levels[-1] if gram[-1] != "</s>"]
        longer = [(*gram, word) for gram in before for word in ["</s>", "<unk>", *words]]
        levels.append(draw(st.lists(st.sampled_from(longer), max_size=4, unique=True)) if longer else [])
    lines = draw(st.sampled_from([[], ["# tokens are written with backslash escapes"], ["made by hand", ""]]))
    lines += ["\\data\\", *(f"ngram {n}={len(level)}" for n, level in enumerate(levels, 1))]
    for n, level in enumerate(levels, 1):
        backoff = draw(st.sampled_from(["", "\t-0.25", "\t0.5"])) if n < order else ""
        lines += ["", f"\\{n}-grams:", *(f"-{i % 7}.5\t{' '.join(gram)}{backoff}" for i, gram in enumerate(level))]
    return encoded([*lines, "", "\\end\\"], draw(ENDS))


@st.composite
def running_text(draw: st.DrawFn, kind: str) -> bytes:
    """Plain, or as JSONL."""
    lines = draw(MANY_LINES)
    return encoded([json.dumps({"text": line}) for line in lines] if kind == "jsonl" else lines, draw(ENDS))


@st.composite
def pairs_of_texts(draw: st.DrawFn, kind: str) -> bytes:
    """As TSV or JSONL."""
    pairs = draw(st.lists(st.tuples(LINE, LINE), min_size=1, max_size=4))
    lines = [json.dumps({"source": s, "target": t}) if kind == "jsonl" else f"{s}\t{t}" for s, t in pairs]
    return encoded(lines, draw(ENDS))


LARGE = 200 << 20


def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _large(path: Path) -> None:
    with path.open("wb") as file:
        file.write(b'{"a": [')
        file.truncate(LARGE)


PLACED: dict[str, Callable[[Path], object]] = {
    "a pipe": _pipe,
    "a folder": Path.mkdir,
    "zeros without end": lambda path: path.symlink_to("/dev/zero"),
    "a link to a pipe": lambda path: (_pipe(path.with_name("pipe")), path.symlink_to("pipe")),
    "a link to a folder": lambda path: path.symlink_to("/tmp"),
    "a link to itself": lambda path: path.symlink_to(path),
    "a link to nothing": lambda path: path.symlink_to("nothing"),
    "a link elsewhere": lambda path: path.symlink_to("/etc/passwd"),
    "a large file": _large,
    "deep lists": lambda path: path.write_text("[" * 100_000),
    "deep objects": lambda path: path.write_text('{"kind":' * 100_000),
    "a number": lambda path: path.write_text("1" * 10_000),
    "null": lambda path: path.write_text("null"),
    "other bytes": lambda path: path.write_bytes(bytes(range(256))),
}
"""What stands where a file should."""
NOT_REGULAR = ("a pipe", "a folder", "zeros without end", "a link to a pipe", "a link to a folder")

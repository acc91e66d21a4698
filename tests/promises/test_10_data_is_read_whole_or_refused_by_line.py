"""Whatever the bytes of a file: it is read and nothing is dropped, or refused by file and line with the next step."""

import gzip
import io
import itertools
import json
import os
import re
import subprocess
import sys
import warnings
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.internal.conjecture import providers

from seriatim.cli.main import main
from seriatim.config import Tokenizer as TokenizerConfig
from seriatim.core.errors import InputError
from seriatim.data import pipes
from seriatim.data.conll import read_sentences, write
from seriatim.data.pairs import read_pairs
from seriatim.data.sources import find_sources, standard_input
from seriatim.data.tables import read_labelled
from seriatim.data.text import read_chunks, read_lines
from seriatim.data.tokenizers import END, Spelling, Tokenizer, WordTokenizer
from seriatim.data.vectors import read_vectors
from seriatim.data.vocabulary import fit_tokenizer
from seriatim.interchange.arpa import read_arpa, write_arpa

from .hostile import (
    ANY_TEXT,
    EDITS,
    ENDS,
    LINE,
    MANY_LINES,
    arpa,
    begins_without_quotes,
    columns,
    conllu,
    damaged,
    encoded,
    pairs_of_texts,
    running_text,
    table,
    vectors,
)
from .obvious import expect_refusal, lines_of, n_grams, objects, plain, rows, with_plain_ends

MORE = int(os.environ.get("SERIATIM_EXAMPLES", "0"))
RANDOM = bool(os.environ.get("SERIATIM_RANDOM"))
"""More examples than usual, as ``make test-exhaustive`` asks for, and whether each run has others."""


def examples(count: int) -> Callable[[Any], Any]:
    """So many, and the same every time."""
    health = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.filter_too_much]
    return settings(
        max_examples=MORE or count,
        derandomize=not RANDOM,
        database=None,
        deadline=None,
        print_blob=True,
        suppress_health_check=health,
    )


@pytest.fixture(autouse=True, scope="module")
def _same_examples():
    """Hypothesis also draws constants of the modules that are loaded, which differ from process to process."""
    with pytest.MonkeyPatch.context() as patch:
        if not RANDOM:
            providers.CONSTANTS_CACHE.cache.clear()
            patch.setattr(providers, "_get_local_constants", providers.Constants)
        yield
    providers.CONSTANTS_CACHE.cache.clear()


def written(folder: Path, content: bytes, name: str) -> str:
    path = folder / name
    path.write_bytes(gzip.compress(content, 1) if name.endswith(".gz") else content)
    return str(path)


def read(path: str, content: bytes, reading: Callable[[], Any], whole: bool) -> Any:
    """What a reader gives, None where it refuses; what was not damaged it does not refuse."""
    try:
        return reading()
    except InputError as error:
        if whole:
            raise
        expect_refusal(error, path, content)
        return None


@examples(50)
@given(MANY_LINES, ENDS, EDITS, st.sampled_from([4, 7, 1 << 20]), st.sampled_from(["a.txt", "a.txt.gz"]))
def test_text(tmp_path: Path, lines: list[str], end: str, edits: list, size: int, name: str) -> None:
    content = damaged(encoded(lines, end), edits)
    path, expected = written(tmp_path, content, name), plain(content)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("seriatim.data.text.CHUNK_BYTES", size)
        try:
            found = "".join(chunk.text for chunk in read_chunks(find_sources(path)))
            assert found == expected
            assert list(read_lines(find_sources(path))) == lines_of(found)
        except InputError as error:
            assert expected is None
            number = expect_refusal(error, path, content)
            assert number
            line = with_plain_ends(content).split(b"\n")[number - 1]
            assert plain(content[:2] if number == 1 else b"") is None or plain(line) is None


@examples(40)
@given(MANY_LINES, ENDS, EDITS, st.lists(st.integers(1, 5), min_size=1), st.sampled_from([0, 9, 1 << 20]))
def test_standard_input_in_any_pieces(
    tmp_path: Path, lines: list[str], end: str, edits: list, sizes: list[int], arrived: int
) -> None:
    content = damaged(encoded(lines, end), edits)
    path = written(tmp_path, content, "a.txt")
    found = read(path, content, lambda: list(read_lines(find_sources(path))), not edits)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stdin", Dripping(content, sizes))
        patch.setattr(pipes, "ARRIVED_BYTES", arrived)
        again = read("<stdin>", content, lambda: list(read_lines([standard_input()])), not edits)
    assert found == again


class Dripping:
    """Standard input that gives a few bytes at a time."""

    def __init__(self, content: bytes, sizes: list[int]) -> None:
        self.buffer, self.raw, self.sizes = self, io.BytesIO(content), itertools.cycle(sizes)
        self.raw_read, self.raw = self.raw.read, self

    def read(self, size: int) -> bytes:
        return self.raw_read(next(self.sizes))


@examples(25)
@given(MANY_LINES, st.integers(0, 10**6), st.integers(0, 7))
def test_packed_text_that_is_cut_off_or_changed(tmp_path: Path, lines: list[str], place: int, bit: int) -> None:
    content = encoded(lines, "\n")
    packed = gzip.compress(content)
    path = tmp_path / "a.txt.gz"

    def reading() -> str:
        return "".join(chunk.text for chunk in read_chunks(find_sources(str(path))))

    path.write_bytes(packed[: 1 + place % (len(packed) - 1)])
    assert read(str(path), content, reading, False) is None
    changed = bytearray(packed)
    changed[place % len(packed)] ^= 1 << bit
    path.write_bytes(changed)
    assert read(str(path), content, reading, False) in (None, plain(content))


@pytest.mark.parametrize("kind", ["tsv", "csv", "jsonl"])
@examples(50)
@given(data=st.data(), edits=EDITS)
def test_labelled_texts(tmp_path: Path, kind: str, data: st.DataObject, edits: list) -> None:
    content = damaged(table(data.draw, kind), edits)
    path = written(tmp_path, content, f"a.{kind}")
    found = read(path, content, lambda: list(read_labelled(find_sources(path))), not edits)
    if found is None:
        return
    text = plain(content)
    assert text is not None
    assert [(row.text, row.label) for row in found] == (objects(text) if kind == "jsonl" else rows(text, kind))


@pytest.mark.parametrize("kind", ["tsv", "jsonl", "parallel"])
@examples(40)
@given(
    pairs=st.lists(st.tuples(LINE, LINE), min_size=1, max_size=5).filter(begins_without_quotes), end=ENDS, edits=EDITS
)
def test_pairs(tmp_path: Path, kind: str, pairs: list[tuple[str, str]], end: str, edits: list) -> None:
    if kind == "parallel":
        left, right = (damaged(encoded([pair[side] for pair in pairs], end), edits[side:]) for side in (0, 1))
        paths = [written(tmp_path, left, "a.left"), written(tmp_path, right, "a.right")]
        try:
            found = list(read_pairs(",".join(paths)))
        except InputError as error:
            side = str(error).startswith(paths[1])
            expect_refusal(error, paths[side], (left, right)[side])
            assert edits
            return
        assert [pair.source for pair in found] == lines_of(str(plain(left)))
        assert [pair.target for pair in found] == lines_of(str(plain(right)))
        return
    lines = [f"{s}\t{t}" if kind == "tsv" else json.dumps({"source": s, "target": t}) for s, t in pairs]
    content = damaged(encoded(lines, end), edits)
    path = written(tmp_path, content, f"a.{kind}")
    found = read(path, content, lambda: [(p.source, p.target) for p in read_pairs(path)], not edits)
    if found is not None:
        text = str(plain(content))
        assert found == (
            objects(text, "source", "target")
            if kind == "jsonl"
            else [tuple(line.split("\t")) for line in lines_of(text)]
        )


@examples(60)
@given(st.one_of(st.tuples(conllu(), st.just("a.conllu")), st.tuples(columns(), st.just("a.conll"))), EDITS)
def test_sentences(tmp_path: Path, made: tuple[bytes, str], edits: list) -> None:
    content, name = damaged(made[0], edits), made[1]
    path, text = written(tmp_path, content, name), plain(content)
    found = read(path, content, lambda: list(read_sentences(find_sources(path))), not edits)
    if found is not None:
        assert text is not None
        assert "".join(write(one, one.tags) for one in found) == text.removesuffix("\n") + "\n"
        assert [one.number for one in found] == sorted({one.number for one in found})
        assert all(word in one.lines[row] for one in found for word, row in zip(one.words, one.rows, strict=True))
        blank = sum(not line.strip(" \t") for line in lines_of(text))
        apart = (r"(?m)^(#|[0-9]+[-.]|[ \t]*$)", r"(?m)^(-DOCSTART-([ \t]|$)|[ \t]*$)")[name == "a.conll"]
        assert sum(len(one.words) for one in found) == sum(not re.match(apart, line) for line in lines_of(text)), blank
    untagged = read(path, content, lambda: list(read_sentences(find_sources(path), labelled=False)), not edits)
    if untagged is not None:
        again = "".join(write(one, ["X"] * len(one.words)) for one in untagged)
        assert again.count("\n") == str(text).removesuffix("\n").count("\n") + 1


@examples(50)
@given(vectors(), EDITS)
def test_word_vectors(tmp_path: Path, made: bytes, edits: list) -> None:
    content = damaged(made, edits)
    path, text = written(tmp_path, content, "v.txt"), plain(content)
    rows = [line.rstrip(" ") for line in lines_of(text or "")] or [""]
    header = re.fullmatch("([0-9]{1,12}) ([0-9]{1,6})", rows[0])
    size = int(header[2]) if header else rows[0].count(" ")
    split = [row.rsplit(" ", size) for row in rows[bool(header) :]]
    found = read(path, content, lambda: read_vectors(path, {row[0] for row in split}), not edits)
    if found is None:
        return
    assert not header or int(header[1]) == len(split)
    expected: dict[str, list[float]] = {}
    for word, *values in split:  # of a word that comes twice, the first
        expected[word] = expected[word] if word in expected else [float(value) for value in values]
    assert found[0] == list(expected)
    np.testing.assert_array_equal(found[1], np.array(list(expected.values()), np.float32).reshape(-1, size))


@pytest.mark.filterwarnings("ignore::seriatim.data.repairs.DataWarning")  # an edit can take <s> or </s> away
@examples(50)
@given(arpa(), EDITS, st.sampled_from(["a.arpa", "a.arpa.gz"]))
def test_n_grams(tmp_path: Path, made: bytes, edits: list, name: str) -> None:
    content = damaged(made, edits)
    path, again = written(tmp_path, content, name), tmp_path / "again"
    found = read(path, content, lambda: read_arpa(Path(path)), not edits)
    if found is None:
        return
    counts, names = n_grams(content)
    named = len(names & {"<s>", "</s>", "<unk>", "<UNK>"})
    assert [len(found.words) + named, *(len(order.key) for order in found.orders[1:])] == counts
    write_arpa(found.orders, WordTokenizer(found.words, Spelling()), again)
    same = read_arpa(again)
    assert same.words == found.words
    for one, other in zip(found.orders, same.orders, strict=True):
        np.testing.assert_array_equal(one.key, other.key)
        np.testing.assert_allclose(one.probability, other.probability, rtol=1e-8)
        np.testing.assert_allclose(one.backoff, other.backoff, rtol=1e-8)


KINDS = ("byte", "char", "word", "bpe", "unigram")
TEXTS = ["the sea, the moon", "naïve Ünïcödé 猫 🙂", "<s> </s> <pad> [MASK] [UNK] [CLS] [SEP] <mask> <|endoftext|>"] * 3


@pytest.fixture(scope="module")
def tokenizers() -> dict[str, Tokenizer]:
    sizes = {"bpe": 300, "unigram": 300}
    return {kind: fit_tokenizer(TokenizerConfig(kind=kind, vocabulary_size=sizes.get(kind)), TEXTS) for kind in KINDS}


@examples(40)
@given(st.lists(LINE, min_size=1, max_size=4))
def test_a_text_never_becomes_a_symbol(tokenizers: dict[str, Tokenizer], lines: list[str]) -> None:
    """No text is the boundary, unless it is a line end to words, and none but the unknown is the unknown."""
    text = "\n".join(lines)
    for kind, tokenizer in tokenizers.items():
        ids = tokenizer.encode(text)
        assert np.all((ids >= 0) & (ids < tokenizer.vocabulary_size))
        assert (ids == END).sum() == (text.count("\n") if kind == "word" else 0)
        unknown = tokenizer.find_unknown(text)
        literal = text.split().count("<unk>") if kind == "word" else 0
        assert (ids == tokenizer.unknown_id).sum() == len(unknown) + literal
        expected = text
        if kind == "word":
            expected = "\n".join(" ".join("<unk>" if w in unknown else w for w in line.split()) for line in lines)
        elif kind == "char":
            expected = "".join("<unk>" if c in unknown else c for c in text)
        assert tokenizer.decode(ids) == expected


def test_no_word_of_another_program_is_a_line_end() -> None:
    found = WordTokenizer(["\0", "</s>", "<s>", "a"], Spelling())
    assert (found.encode("a </s>\n<s> \0\n") == END).tolist() == [False, False, True, False, False, True]


@pytest.mark.parametrize("kind", KINDS)
@examples(10)
@given(st.lists(ANY_TEXT.map(" ".join), min_size=1, max_size=4))
def test_a_tokenizer_knows_the_text_it_was_learned_from(kind: str, lines: list[str]) -> None:
    text = "\n".join(lines)
    tokenizer = fit_tokenizer(TokenizerConfig(kind=kind, vocabulary_size=280 if kind in KINDS[3:] else None), [text])
    whole = "\n".join(" ".join(line.split()) for line in lines) if kind == "word" else text
    assert tokenizer.decode(tokenizer.encode(text)) == whole
    assert not tokenizer.find_unknown(text)


CHECKS = [
    *(("lm --data.unit stream", name, running_text(name)) for name in ("txt", "jsonl")),
    *(("lm --data.unit line --tokenizer.kind word", name, running_text(name)) for name in ("txt", "jsonl")),
    ("mlm --data.unit line", "txt", running_text("txt")),
    *(("classify", name, st.composite(table)(name)) for name in ("tsv", "csv", "jsonl")),
    *(("tag", name, made) for name, made in (("conll", columns()), ("conllu", conllu()))),
    *(("seq2seq --tokenizer.vocabulary_size 257", name, pairs_of_texts(name)) for name in ("tsv", "jsonl")),
]


@pytest.mark.parametrize(("task", "name", "contents"), CHECKS, ids=[f"{task}-{name}" for task, name, _ in CHECKS])
@examples(10)
@given(data=st.data(), edits=EDITS)
def test_the_command_checks(
    tmp_path: Path, task: str, name: str, contents: st.SearchStrategy[bytes], data: st.DataObject, edits: list
) -> None:
    """The exit code is 0 or 2; an error is one line, and a repair is a warning that names its line."""
    content = damaged(data.draw(contents), edits)
    path = written(tmp_path, content, f"a.{name}")
    out, errors = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(errors), warnings.catch_warnings(record=True) as repairs:
        warnings.simplefilter("always")
        code = main(["check", *task.split(), "--data", path, "--sequence_length", "1", "--batch_size", "1"])
    for repair in repairs:
        assert re.fullmatch(rf"{re.escape(path)}:[1-9][0-9]*: .+; .+", str(repair.message))
    said = errors.getvalue()
    if code == 0:
        assert not said
        assert "in the vocabulary" in out.getvalue()
        return
    assert code == 2, said
    assert said.startswith("seriatim: error: ")
    assert said.count("\n") == 1
    assert not out.getvalue()
    expect_refusal(InputError(said.removeprefix("seriatim: error: ").removesuffix("\n")), path, content)


@pytest.mark.exhaustive
@pytest.mark.skipif(sys.platform != "linux", reason="memory is bounded as Linux does it")
def test_no_file_uses_up_memory_or_time(tmp_path: Path) -> None:
    """Lines of 20 MB, packed files of 180 MB and headers that promise anything, in at most 160 MB above the program."""
    program = [sys.executable, str(Path(__file__).with_name("adversaries.py")), str(tmp_path)]
    done = subprocess.run(program, capture_output=True, text=True, check=True, timeout=120)
    found = json.loads(done.stdout)
    wrong = {
        name: outcome
        for name, (outcome, _) in found.items()
        if not re.fullmatch(rf"[1-9][0-9]* read|{re.escape(str(tmp_path / name))}(:[1-9][0-9]*)?: [^;]+.*; .+", outcome)
    }
    assert not wrong
    read_whole = {name for name, (outcome, _) in found.items() if outcome.endswith(" read")}
    assert read_whole == {"line.txt", "returns.txt", "bomb.txt.gz", "line.bomb.txt.gz", "long.jsonl", "float.jsonl"}
    assert all(len(outcome) < len(str(tmp_path)) + 600 for outcome, _ in found.values())

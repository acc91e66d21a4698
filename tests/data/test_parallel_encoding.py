"""A text that is encoded in blocks, in several processes, or by two calls of which the first was killed."""

import errno
import functools
import gc
import itertools
import json
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seriatim.config import Tokenizer as TokenizerConfig
from seriatim.core.errors import InputError, TrainingError
from seriatim.data import block_encoding, worker_processes
from seriatim.data.block_encoding import EncodedBlock, WordNumberer
from seriatim.data.corpus import encode_corpus, fit_corpus_tokenizer
from seriatim.data.encoding import write_encoded, write_words
from seriatim.data.readers import Piece, Source, find_sources
from seriatim.data.reading_progress import listening
from seriatim.data.source_content import content_of
from seriatim.data.text_blocks import Block
from seriatim.data.tokenizer_factory import fit_tokenizer
from seriatim.data.tokenizers import Tokenizer
from seriatim.data.worker_processes import MAX_WORKERS, START, ended_early, map_in_processes, worker_count
from seriatim.storage import disk_cache
from seriatim.storage.disk_cache import SCRATCH
from seriatim.storage.journal import JOURNAL, JournaledFiles

KINDS = ["byte", "char", "word", "bpe", "unigram"]
UNITS = ["stream", "line"]
TEXT = "one two\n\n three  fours é\r\nfive <unk>\t" * 40


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of a few pieces, and two processes for every text."""
    set_sizes(monkeypatch, piece=64, block=300, parallel=1)


def set_sizes(monkeypatch: pytest.MonkeyPatch, *, piece: int, block: int, parallel: int) -> None:
    monkeypatch.setattr("seriatim.data.readers.PIECE_BYTES", piece)
    monkeypatch.setattr("seriatim.data.text_blocks.MIN_CHARACTERS", piece)
    monkeypatch.setattr("seriatim.data.text_blocks.BLOCK_CHARACTERS", block)
    monkeypatch.setattr("seriatim.data.encoding.PARALLEL_BYTES", parallel)
    monkeypatch.setattr("seriatim.data.encoding.worker_count", lambda: 2)


def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("seriatim.data.encoding.worker_count", lambda: 1)


@functools.cache
def tokenizer_of(kind: str, lowercase: bool = False) -> Tokenizer:
    config = TokenizerConfig(
        kind=kind, lowercase=lowercase, vocabulary_size=270 if kind in ("bpe", "unigram") else None
    )
    return fit_tokenizer(config, [TEXT[:20]])


def many_files(folder: Path) -> list[Source]:
    """Text and JSONL, with documents that are empty, that end without a line end, and that are blank."""
    folder.mkdir()
    (folder / "a.txt").write_bytes(b"\xef\xbb\xbf" + TEXT.encode())
    (folder / "b.txt").write_text(TEXT + "no line end")
    (folder / "c.txt").write_text("")
    records = ["", "x", "", "", "two\n", "\n", " ", *[TEXT[i : i + 9] for i in range(60)], "", ""]
    (folder / "d.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in records))
    (folder / "e.txt").write_text(TEXT)
    return find_sources(str(folder))


class Failing:
    """An open file, whose last part cannot be read while ``broken``."""

    def __init__(self, source: Source, broken: list[bool]) -> None:
        self.broken, self.is_last, self.opened = broken, source.name.endswith("e.txt"), source.open()

    def __enter__(self) -> "Failing":
        self.file = self.opened.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self.opened.__exit__(*error)

    def read(self, size: int = -1) -> bytes:
        if self.broken[0] and self.is_last and self.file.tell():
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return self.file.read(size)


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.suffix != SCRATCH}


def written(folder: Path, sources: list[Source], tokenizer: Tokenizer | TokenizerConfig, unit: str) -> dict[str, bytes]:
    folder.mkdir(exist_ok=True)
    if isinstance(tokenizer, TokenizerConfig):
        write_words(folder, sources, tokenizer, unit=unit, content=content_of(sources))
    else:
        write_encoded(folder, sources, tokenizer, unit=unit, content=content_of(sources))
    return files_of(folder)


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.lists(st.text("ab\n \té", max_size=12), min_size=1, max_size=6), min_size=1, max_size=4),
    st.sampled_from(KINDS),
    st.sampled_from(UNITS),
    st.booleans(),
    st.integers(1, 300),
)
def test_the_size_of_blocks_changes_nothing(
    tmp_path_factory: pytest.TempPathFactory, texts: list[list[str]], kind: str, unit: str, jsonl: bool, size: int
) -> None:
    folder = tmp_path_factory.mktemp("blocks")
    for i, documents in enumerate(texts):
        content = "".join(json.dumps({"text": text}) + "\n" for text in documents) if jsonl else "".join(documents)
        (folder / f"{i}.{'jsonl' if jsonl else 'txt'}").write_text(content)
    (folder / "z.txt").write_text("a b")
    sources = find_sources(str(folder))
    found = []
    for block in (1 << 22, size):
        with pytest.MonkeyPatch.context() as patched:
            set_sizes(patched, piece=8, block=block, parallel=1)
            in_this_process(patched)
            found.append(written(folder / str(block), sources, tokenizer_of(kind), unit))
            if kind == "word":
                found[-1] |= written(folder / f"words-{block}", sources, TokenizerConfig(kind="word"), unit)
    assert found[0] == found[1]


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize(
    "kind", ["word", "bpe", *(pytest.param(kind, marks=pytest.mark.exhaustive) for kind in ("byte", "char", "unigram"))]
)
def test_several_processes_write_the_same_bytes(tmp_path: Path, kind: str, unit: str, monkeypatch) -> None:
    sources, config = many_files(tmp_path / "texts"), TokenizerConfig(kind="word", min_count=2)
    learning = [config] if kind == "word" else []
    found = []
    for processes in (2, 1):
        monkeypatch.setattr("seriatim.data.encoding.worker_count", lambda processes=processes: processes)
        for tokenizer in (tokenizer_of(kind, lowercase=True), *learning):
            name = f"{processes}-{type(tokenizer).__name__}"
            found.append(written(tmp_path / name, sources, tokenizer, unit))
    half = len(found) // 2
    assert found[:half] == found[half:]
    assert all(name in found[0] for name in ("ids.bin", "statistics.json", *(["ends.bin"] if unit == "line" else [])))


class Killed(BaseException):
    """Stands for the end of the process."""


def kill_at(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Let the process end while it appends a part: after the first file, and before the journal."""
    calls, append = itertools.count(), JournaledFiles.append

    def killed(self: JournaledFiles, *arguments: object) -> None:
        if next(calls) == count:
            self._write(self.names[0], b"half a part")
            raise Killed
        append(self, *arguments)

    monkeypatch.setattr(JournaledFiles, "append", killed)


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("learned", [False, True])
def test_what_a_killed_process_wrote_is_used(tmp_path: Path, unit: str, learned: bool, monkeypatch) -> None:
    in_this_process(monkeypatch)
    sources = many_files(tmp_path / "texts")
    tokenizer = TokenizerConfig(kind="word") if learned else tokenizer_of("word")
    expected = written(tmp_path / "whole", sources, tokenizer, unit)
    with monkeypatch.context() as patched:
        kill_at(patched, 5)
        with pytest.raises(Killed):
            written(tmp_path / "killed", sources, tokenizer, unit)
    encoded, encode = [], block_encoding.encode_block
    monkeypatch.setattr(
        "seriatim.data.block_encoding.encode_block", lambda *given: (encoded.append(given), encode(*given))[1]
    )
    assert written(tmp_path / "killed", sources, tokenizer, unit) == expected
    resumed = len(encoded)
    written(tmp_path / "again", sources, tokenizer, unit)
    assert len(encoded) - resumed == resumed + 5


@pytest.mark.parametrize("damage", ["ids.bin", JOURNAL])
@pytest.mark.parametrize("how", ["cut", "changed", "removed"])
def test_damaged_parts_are_encoded_again(tmp_path: Path, damage: str, how: str, monkeypatch) -> None:
    in_this_process(monkeypatch)
    sources = many_files(tmp_path / "texts")
    expected = written(tmp_path / "whole", sources, tokenizer_of("char"), "stream")
    with monkeypatch.context() as patched:
        kill_at(patched, 6)
        with pytest.raises(Killed):
            written(tmp_path / "killed", sources, tokenizer_of("char"), "stream")
    path = tmp_path / "killed" / damage
    content = path.read_bytes()
    if how == "removed":
        path.unlink()
    else:
        middle = len(content) // 2
        path.write_bytes(content[:middle] + (b"" if how == "cut" else b"##" + content[middle + 2 :]))
    assert written(tmp_path / "killed", sources, tokenizer_of("char"), "stream") == expected


def test_parts_of_another_text_are_not_used(tmp_path: Path, monkeypatch) -> None:
    in_this_process(monkeypatch)
    texts = []
    for name, text in {"one": TEXT, "two": TEXT[:1000] + "changed" + TEXT[1007:]}.items():
        (tmp_path / f"{name}.txt").write_text(text)
        texts.append(find_sources(str(tmp_path / f"{name}.txt")))
    expected = written(tmp_path / "whole", texts[1], tokenizer_of("byte"), "stream")
    with monkeypatch.context() as patched:
        kill_at(patched, 4)
        with pytest.raises(Killed):
            written(tmp_path / "killed", texts[0], tokenizer_of("byte"), "stream")
    assert written(tmp_path / "killed", texts[1], tokenizer_of("byte"), "stream") == expected


@pytest.mark.parametrize("kind", ["word", "bpe", "char"])
def test_a_text_that_changes_while_it_is_read_is_not_cached(tmp_path: Path, kind: str, monkeypatch) -> None:
    monkeypatch.setenv("SERIATIM_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "a.txt"
    (source,) = find_sources(str(path)) if path.write_text(TEXT) else ()
    opened = itertools.count()

    def changing():
        if next(opened):  # not while it is hashed
            path.write_text(TEXT.replace("five", "nine"))
        return source.open()

    config, sources = TokenizerConfig(kind=kind), [source._replace(open=changing)]
    with pytest.raises(InputError, match=r"a\.txt: changed while it was read; run again"):
        encode_corpus(sources, fit_corpus_tokenizer(sources, config, unit="stream"), unit="stream")
    assert not [path for path in (tmp_path / "cache").iterdir() if path.name.startswith(("corpus", "tokenizer"))]
    corpus = encode_corpus([source], fit_corpus_tokenizer([source], config, unit="stream"), unit="stream")
    assert "nine" in corpus.tokenizer.decode(corpus.ids)


def test_a_full_disk_is_one_line_and_loses_nothing(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("SERIATIM_CACHE", str(tmp_path / "cache"))
    in_this_process(monkeypatch)
    (tmp_path / "a.txt").write_text(TEXT)
    sources, tokenizer = find_sources(str(tmp_path / "a.txt")), tokenizer_of("byte")
    append, calls = JournaledFiles.append, []

    def full(self: JournaledFiles, *arguments: object) -> None:
        calls.append(arguments)
        if len(calls) == 4:
            self._write(self.names[0], b"half a part")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        append(self, *arguments)

    with monkeypatch.context() as patched:
        patched.setattr(JournaledFiles, "append", full)
        with pytest.raises(OSError, match="No space left on device") as error:
            encode_corpus(sources, tokenizer, unit="stream")
        assert "set $SERIATIM_CACHE to move it" in error.value.filename
        corpus = encode_corpus(sources, tokenizer, unit="stream")
        assert len(calls) < 2 * 4 + len(corpus.ids) // 300
    assert tokenizer.decode(corpus.ids) == TEXT.replace("\r\n", "\n")
    assert not list((tmp_path / "cache").glob("*.partial"))


@pytest.mark.parametrize("place", ["seal", "flush", "_remove_scratch"])
@pytest.mark.parametrize("learned", [False, True])
@pytest.mark.parametrize("unit", UNITS)
def test_what_was_killed_after_the_last_block_is_not_encoded_again(
    tmp_path: Path, unit: str, learned: bool, place: str, monkeypatch
) -> None:
    monkeypatch.setenv("SERIATIM_CACHE", str(tmp_path / "cache"))
    in_this_process(monkeypatch)
    sources, encoded = many_files(tmp_path / "texts"), []
    encode = block_encoding.encode_block
    monkeypatch.setattr(block_encoding, "encode_block", lambda *given: (encoded.append(given), encode(*given))[1])

    def read() -> dict[str, bytes]:
        config = TokenizerConfig(kind="word")
        tokenizer = fit_corpus_tokenizer(sources, config, unit=unit) if learned else tokenizer_of("char")
        return files_of(Path(encode_corpus(sources, tokenizer, unit=unit).ids.filename).parent)

    def die(path: Path) -> None:
        if (path if path.is_dir() else path.parent).joinpath("ids.bin").exists():
            raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(disk_cache, place, die)
        with pytest.raises(Killed):
            read()
    blocks, at_the_end = len(encoded), place == "_remove_scratch"
    files = read()
    assert len(encoded) == blocks or (learned and at_the_end)  # the tokenizer was not written yet
    assert not [*(tmp_path / "cache").rglob(f"*{SCRATCH}"), *(tmp_path / "cache").glob("*.partial")]
    monkeypatch.setenv("SERIATIM_CACHE", str(tmp_path / "other"))
    assert read() == files


@pytest.mark.parametrize("learned", [False, True])
def test_a_file_that_is_unreadable_for_a_moment_loses_nothing(tmp_path: Path, learned: bool, monkeypatch) -> None:
    monkeypatch.setenv("SERIATIM_CACHE", str(tmp_path / "cache"))
    in_this_process(monkeypatch)
    broken, encoded = [False], []
    sources = [
        source._replace(open=functools.partial(Failing, source, broken)) for source in many_files(tmp_path / "a")
    ]
    encode = block_encoding.encode_block
    monkeypatch.setattr(block_encoding, "encode_block", lambda *given: (encoded.append(given), encode(*given))[1])

    def read() -> object:
        config = TokenizerConfig(kind="word")
        known = fit_corpus_tokenizer(sources, config, unit="stream") if learned else tokenizer_of("char")
        return encode_corpus(sources, known, unit="stream").ids

    content = content_of(sources)
    broken[0] = True
    with monkeypatch.context() as patched:
        patched.setattr("seriatim.data.corpus.content_of", lambda _: content)
        with pytest.raises(InputError, match=r"e\.txt: cannot be read \(Input/output"):
            read()
    before = len(encoded)
    assert before > 4
    broken[0] = False
    read()
    all_blocks = len(encoded)
    monkeypatch.setenv("SERIATIM_CACHE", str(tmp_path / "other"))
    read()
    assert len(encoded) - all_blocks == all_blocks


def test_too_small_a_disk_is_refused_before_it_is_full(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "a.txt").write_text(TEXT)
    sources = find_sources(str(tmp_path / "a.txt"))
    monkeypatch.setattr("shutil.disk_usage", lambda folder: SimpleNamespace(free=100))
    with pytest.raises(TrainingError, match=r"MB are needed for the encoded text, 0\.0 MB are free; make room"):
        written(tmp_path / "out", sources, tokenizer_of("byte"), "stream")


@pytest.mark.parametrize("bad", [b"\xff", b"\0"])
def test_errors_name_the_line_as_one_process_does(tmp_path: Path, bad: bytes, monkeypatch) -> None:
    sources = many_files(tmp_path / "texts")
    path = tmp_path / "texts" / "e.txt"
    path.write_bytes(path.read_bytes() + b"line\n" * 100 + b"before " + bad + b"\nafter\n")
    messages = []
    for processes in (2, 1):
        monkeypatch.setattr("seriatim.data.encoding.worker_count", lambda processes=processes: processes)
        with pytest.raises(InputError) as error:
            written(tmp_path / str(processes), sources, tokenizer_of("char"), "stream")
        messages.append(str(error.value))
    assert messages[0] == messages[1]
    assert f"e.txt:{TEXT.count(chr(10)) + 101}" in messages[0]


def test_progress_is_reported_and_ends_at_the_size(tmp_path: Path, monkeypatch) -> None:
    in_this_process(monkeypatch)
    monkeypatch.setattr("seriatim.data.reading_progress.SECONDS", 0.0)
    (tmp_path / "a.txt").write_text(TEXT)
    sources = find_sources(str(tmp_path / "a.txt"))
    reports: list[tuple[str, float]] = []
    with listening(lambda *given: reports.append(given)):
        written(tmp_path / "out", sources, tokenizer_of("byte"), "stream")
    shares = [share for _, share in reports]
    assert shares == sorted(shares)
    assert shares[-1] == 1
    assert all(text.startswith(f"reading {tmp_path / 'a.txt'}: ") and text.endswith("MB/s") for text, _ in reports)
    written(tmp_path / "again", sources, tokenizer_of("byte"), "stream")
    assert len(reports) == len(shares)


def test_a_listener_that_cannot_write_does_not_stop_the_reading(tmp_path: Path, monkeypatch) -> None:
    in_this_process(monkeypatch)
    monkeypatch.setattr("seriatim.data.reading_progress.SECONDS", 0.0)
    (tmp_path / "a.txt").write_text(TEXT)
    calls = []

    def broken(text: str, share: float) -> None:
        calls.append(text)
        raise BrokenPipeError

    with listening(broken):
        written(tmp_path / "out", find_sources(str(tmp_path / "a.txt")), tokenizer_of("byte"), "stream")
    assert len(calls) == 1


def test_a_process_that_ends_is_reported_in_one_line() -> None:
    with pytest.raises(TrainingError, match=r"ended early \(exit code 3\)"):
        list(map_in_processes(os._exit, [3, 3, 3], 2))


@pytest.mark.parametrize(("number", "advice"), [(signal.SIGTERM, False), (signal.SIGKILL, True)])
def test_a_signal_is_named_and_memory_only_where_it_may_be_the_reason(number: signal.Signals, advice: bool) -> None:
    message = ended_early(-number)
    assert f"was ended by {number.name}; run again to continue" in message
    assert ("memory" in message) == advice


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "content", [b"", pickle.dumps(abs)[:-3], pickle.dumps(abs) + pickle.dumps("a" * 70_000)[:9000]]
)
def test_a_process_whose_input_ends_anywhere_is_silent(content: bytes) -> None:
    done = subprocess.run([sys.executable, "-c", START], input=content, capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


@pytest.mark.parametrize(
    ("limit", "count"), [("max 100000", 8), ("350000 100000", 3), ("50000 100000", 1), ("9900000 100000", 8), ("?", 8)]
)
def test_the_limit_of_a_container_is_respected(tmp_path: Path, limit: str, count: int, monkeypatch) -> None:
    (tmp_path / "cpu.max").write_text(f"{limit}\n")
    monkeypatch.setattr(worker_processes, "CPU_LIMIT", tmp_path / "cpu.max")
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(8), raising=False)
    assert worker_count() == count
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(200))
    assert worker_count() == (MAX_WORKERS if count == 8 else count)


def test_results_are_in_order_and_errors_are_raised() -> None:
    assert list(map_in_processes(abs, range(-20, 0), 2)) == list(range(20, 0, -1))
    with pytest.raises(ValueError, match="invalid literal"):
        list(map_in_processes(int, ["1", "x"], 2))


def test_few_items_are_read_ahead() -> None:
    read = []

    def items() -> Iterator[int]:
        for i in range(30):
            read.append(i)
            yield i

    for done, _ in enumerate(map_in_processes(abs, items(), 2)):
        assert len(read) <= done + 5
    assert len(read) == 30


def test_the_encoded_text_is_mapped_and_not_loaded(tmp_path: Path) -> None:
    sources = many_files(tmp_path / "texts")
    corpus = encode_corpus(sources, tokenizer_of("char"), unit="line")
    assert isinstance(corpus.ids, np.memmap)
    assert isinstance(corpus.ends, np.memmap)
    assert len(corpus.ends) == corpus.statistics.lines


def test_the_numbers_of_a_block_do_not_refer_to_themselves(monkeypatch) -> None:
    """The garbage collector would find them too late: they are few objects, and large ones."""
    made, encode = [], block_encoding.encode_block

    def watched(block: Block, tokenizer: Tokenizer, unit: str) -> EncodedBlock:
        made.append(tokenizer._ids)
        return encode(block, tokenizer, unit)

    monkeypatch.setattr(block_encoding, "encode_block", watched)
    numbered = WordNumberer(TokenizerConfig(kind="word"), "stream")(Block([Piece("one two", True)]))
    (numbers,) = made
    assert list(numbers) == numbered.words
    assert numbers not in gc.get_referents(numbers.default_factory)

"""Encoded text and its batches: every token is trained on once an epoch, and counted."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seriatim.config import Tokenizer as TokenizerConfig
from seriatim.data.batches import Batches
from seriatim.data.corpus import Corpus, encode_corpus, fit_corpus_tokenizer
from seriatim.data.encoding import Statistics, write_encoded
from seriatim.data.source_content import listening
from seriatim.data.sources import find_sources
from seriatim.data.text import read_chunks
from seriatim.data.tokenizers import END, Spelling
from seriatim.data.vocabulary import fit_tokenizer

from ..refusals import refused


def encode(path: Path, kind: str, unit: str, **options) -> tuple[Corpus, object]:
    sources = find_sources(str(path))
    tokenizer = fit_corpus_tokenizer(sources, TokenizerConfig(kind=kind, **options), unit=unit)
    return encode_corpus(sources, tokenizer, unit=unit), tokenizer


def test_words_of_a_stream_count_line_ends_and_literal_unknowns(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("a b <unk>\n\n b a a\nc")
    corpus, tokenizer = encode(path, "word", "stream", min_count=2)
    unk = tokenizer.unknown_id
    a, b = (int(tokenizer.encode(word)[0]) for word in "ab")
    assert corpus.ids.tolist() == [a, b, unk, END, END, b, a, a, END, unk, END]
    found = corpus.statistics
    assert (found.tokens, found.words, found.lines, found.unknown_tokens) == (11, 7, 4, 2)
    assert found.bytes == len(path.read_bytes())
    assert found.empty_lines == 1
    assert found.spelling_nats == pytest.approx(tokenizer.spelling.nats(Spelling.count_symbols(["c"])))


def test_characters_of_a_stream_are_the_text(tmp_path: Path) -> None:
    text = "ab\n\ncd é"
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text(text)
    one, tokenizer = encode(tmp_path / "a.txt", "char", "stream")
    assert tokenizer.decode(one.ids) == text
    assert one.statistics.bytes == len(text.encode())
    both, _ = encode(tmp_path, "char", "stream")
    assert both.ids.tolist() == [*one.ids, END, *one.ids]


def test_lines_end_with_the_end_symbol(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("ab\n\nc")
    corpus, tokenizer = encode(tmp_path / "a.txt", "char", "line")
    assert [tokenizer.decode(line) for line in np.split(corpus.ids, corpus.ends[:-1])] == ["ab", "", "c"]
    assert corpus.ids[corpus.ends - 1].tolist() == [END] * 3
    assert corpus.statistics.empty_lines == 1
    assert corpus.statistics.bytes == 6


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.text("ab \tXé", max_size=8), min_size=1, max_size=6),
    st.sampled_from(["byte", "char", "word", "bpe", "unigram"]),
    st.sampled_from(["stream", "line"]),
    st.booleans(),
)
def test_unknown_pieces_alone_are_spelled_out(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str], kind: str, unit: str, lowercase: bool
) -> None:
    """What a text pays for spelling is the sum over its lines of what their unknown words or characters cost."""
    folder = tmp_path_factory.mktemp("spelling")
    config = TokenizerConfig(
        kind=kind, lowercase=lowercase, vocabulary_size=260 if kind in ("bpe", "unigram") else None
    )
    tokenizer = fit_tokenizer(config, ["ab a b\n" if unit == "stream" else "ab a b"])
    (folder / "a.txt").write_text("\n".join([*lines, "a", ""]))
    (folder / "out").mkdir()
    write_encoded(folder / "out", find_sources(str(folder / "a.txt")), tokenizer, unit=unit)
    found = Statistics(**json.loads((folder / "out" / "statistics.json").read_text()))
    unknown = []
    for line in lines if kind in ("char", "word") else []:
        line = line.lower() if lowercase else line
        parts, known = (line.split(), {"ab", "a", "b"}) if kind == "word" else (list(line), set("ab "))
        unknown += [part for part in parts if part not in known]
    cost = sum(tokenizer.spelling.cost[byte] for piece in unknown for byte in [*piece.encode(), 256]) if unknown else 0
    assert found.unknown_tokens == len(unknown)
    assert found.spelling_nats == pytest.approx(cost)


def test_the_cache_follows_the_content(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("one two")
    first, _ = encode(path, "byte", "stream")
    assert isinstance(first.ids, np.memmap)
    again, _ = encode(path, "byte", "stream")
    assert again.ids.filename == first.ids.filename
    path.write_text("one too")
    changed, _ = encode(path, "byte", "stream")
    assert changed.ids.filename != first.ids.filename


@pytest.mark.parametrize("unit", ["stream", "line"])
@pytest.mark.parametrize("content", ["", "\n\n \n"])
def test_a_text_without_text_is_refused(tmp_path: Path, unit: str, content: str) -> None:
    (tmp_path / "a.txt").write_text(content)
    with refused("empty", "a.txt:1"):
        encode(tmp_path / "a.txt", "word", unit)


def corpus_of(lengths: list[int], unit: str) -> Corpus:
    ids = np.arange(1, sum(lengths) + 1, dtype=np.uint16)
    ends = np.cumsum(lengths)
    if unit == "line":
        ids[ends - 1] = END
    return Corpus(ids, ends if unit == "line" else None, Statistics(tokens=len(ids)))


@settings(deadline=None, max_examples=60)
@given(
    lengths=st.lists(st.integers(1, 30), min_size=1, max_size=40),
    batch_size=st.integers(1, 7),
    sequence_length=st.integers(1, 9),
    unit=st.sampled_from(["stream", "line"]),
    epoch=st.integers(0, 3),
)
def test_an_epoch_reads_every_token_once(lengths, batch_size: int, sequence_length: int, unit: str, epoch: int) -> None:
    corpus = corpus_of(lengths, unit)
    batches = Batches(corpus, batch_size, sequence_length)
    groups = batches.shuffled(7, epoch)
    windows = list(batches.read(groups))
    assert len(windows) == batches.windows(groups)
    seen: list[int] = []
    for batch in windows:
        rows, time = batch.targets.shape
        assert rows <= batch_size or unit == "line"  # groups of lines have about as many tokens, not rows
        assert time <= sequence_length
        sizes = [time] * rows if batch.lengths is None else batch.lengths.tolist()
        for row, size in enumerate(sizes):
            targets, inputs = batch.targets[row, :size].tolist(), batch.inputs[row, :size].tolist()
            seen += targets
            assert inputs[1:] == targets[:-1]
            if size and batch.start == 0:
                begins = unit == "line" or batches.starts_of(batch.rows[row]) == 0
                assert inputs[0] == (END if begins else targets[0] - 1)
    assert sorted(seen) == sorted(corpus.ids.tolist())
    skipped = list(batches.read(groups, skip=2))
    assert len(skipped) == max(0, len(windows) - 2)
    for batch, wanted in zip(skipped, windows[2:], strict=True):
        assert batch.targets.equal(wanted.targets)


def test_the_order_depends_on_seed_and_epoch_alone() -> None:
    batches = Batches(corpus_of([3, 5, 2, 9] * 20, "line"), 4, 6)

    def order(seed: int, epoch: int) -> list[int]:
        return np.concatenate(batches.shuffled(seed, epoch)).tolist()

    assert order(1, 0) == order(1, 0)
    assert order(1, 0) != order(1, 1)
    assert order(1, 0) != order(2, 0)


@pytest.mark.parametrize("unit", ["stream", "line"])
def test_texts_of_many_pieces_are_one(tmp_path: Path, unit: str, monkeypatch) -> None:
    """However a file is read, and lines are joined, its tokens and counts are the same."""
    (tmp_path / "a.txt").write_text("one two\n\nthree  four\r\nfive " * 30 + "end")
    found = []
    for size in (1 << 20, 7, 64):
        monkeypatch.setattr("seriatim.data.text.CHUNK_BYTES", size)
        monkeypatch.setattr("seriatim.data.encoding.MIN_CHARACTERS", size)
        folder = tmp_path / str(size)
        folder.mkdir()
        sources = find_sources(str(tmp_path / "a.txt"))
        tokenizer = fit_tokenizer(TokenizerConfig(kind="word"), (chunk.text for chunk in read_chunks(sources)))
        write_encoded(folder, sources, tokenizer, unit=unit)
        found.append([(folder / name).read_bytes() for name in ("ids.bin", "statistics.json")])
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("damage", ["ids.bin", "ends.bin", "statistics.json", "tokenizer.json"])
@pytest.mark.parametrize("left", [0, 10, None])
def test_a_damaged_cache_is_made_anew(tmp_path: Path, damage: str, left: int | None, monkeypatch) -> None:
    monkeypatch.setenv("SERIATIM_CACHE", str(tmp_path / "cache"))
    (tmp_path / "a.txt").write_text("one two\nthree\n" * 20)
    whole, _ = encode(tmp_path / "a.txt", "word", "line")
    expected = whole.ids.tolist()
    for path in (tmp_path / "cache").glob(f"*/{damage}"):
        path.unlink() if left is None else path.write_bytes(path.read_bytes()[:left])
    with pytest.warns(UserWarning, match=f"{damage}: damaged; this entry of the cache is built again"):
        again, _ = encode(tmp_path / "a.txt", "word", "line")
    assert again.ids.tolist() == expected
    assert again.statistics == whole.statistics


def test_a_file_without_a_checksum_is_not_trusted(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("SERIATIM_CACHE", str(tmp_path / "cache"))
    (tmp_path / "a.txt").write_text("one two\nthree\n" * 20)
    encode(tmp_path / "a.txt", "word", "line")
    (path,) = (tmp_path / "cache").glob("corpus-*/checksums.json")
    path.write_text("{}")
    with pytest.warns(UserWarning, match="damaged; this entry of the cache is built again"):
        encode(tmp_path / "a.txt", "word", "line")


@pytest.mark.parametrize("token", [2, 65_000])
def test_ids_that_were_changed_are_encoded_again(tmp_path: Path, token: int, monkeypatch) -> None:
    """Their number is right, so that only a checksum can tell."""
    monkeypatch.setenv("SERIATIM_CACHE", str(tmp_path / "cache"))
    (tmp_path / "a.txt").write_text("one two\nthree\n" * 20)
    whole, _ = encode(tmp_path / "a.txt", "word", "line")
    expected = whole.ids.tolist()
    (path,) = (tmp_path / "cache").glob("corpus-*/ids.bin")
    np.full(len(expected), token, dtype=np.uint16).tofile(path)
    with pytest.warns(UserWarning, match=r"ids\.bin: damaged") as said:
        again, _ = encode(tmp_path / "a.txt", "word", "line")
    assert len(said) == 1
    assert again.ids.tolist() == expected
    assert encode(tmp_path / "a.txt", "word", "line")[0].ids.tolist() == expected


def test_words_that_tabs_part_are_not_cut(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("seriatim.data.text.CHUNK_BYTES", 64)
    (tmp_path / "a.txt").write_text("\t".join(f"word{i}" for i in range(100)))
    assert encode(tmp_path / "a.txt", "word", "stream")[0].statistics.tokens == 101


@pytest.mark.parametrize("unit", ["stream", "line"])
def test_progress_is_shown_while_the_lines_of_a_large_text_are_compared(tmp_path: Path, unit: str, monkeypatch) -> None:
    monkeypatch.setattr("seriatim.data.source_content.SECONDS", 0.0)
    monkeypatch.setattr("seriatim.data.text.CHUNK_BYTES", 64)
    (tmp_path / "a.txt").write_text("one two é\n" * 100)
    sources, tokenizer = find_sources(str(tmp_path / "a.txt")), fit_tokenizer(TokenizerConfig(kind="byte"), [])
    corpus, reports = encode_corpus(sources, tokenizer, unit=unit), []
    with listening(lambda *report: reports.append(report)):
        corpus.row_digests()
        assert not reports
        monkeypatch.setattr("seriatim.data.corpus.PARALLEL_BYTES", 1)
        corpus.row_digests()
    shares = [share for _, share in reports]
    assert shares == sorted(shares)
    assert len(shares) > 5
    assert shares[-1] == 1

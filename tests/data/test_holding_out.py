"""A part of the training data is held out where no other data are given."""

import gzip
import io
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import seriatim
from seriatim.cli.main import main
from seriatim.config import resolve
from seriatim.data.sources import find_sources
from seriatim.data.text import read_chunks, read_lines
from seriatim.runs.checking import check_training
from seriatim.storage.weights import load_tensors
from seriatim.tasks import new_task
from seriatim.tasks.data_files import (
    MAX_BYTES,
    MAX_ROWS,
    MIN_ROWS,
    MOST_ROWS,
    cut_at,
    end_split,
    fraction_of,
    is_held_out,
    line_split,
    usual_fraction,
    usual_fraction_of_text,
)

from ..refusals import refused

SIZES = {"layer": "rnn", "embedding_size": 4, "hidden_size": 4}


def labelled(folder: Path, rows: int) -> Path:
    path = folder / "labelled.tsv"
    lines = (f"{'even' if i % 2 == 0 else 'odd'}\tword{i} w{i % 7}\n" for i in range(rows))
    path.write_text("label\ttext\n" + "".join(lines))
    return path


def text_of(sources: list) -> str:
    return "".join(chunk.text for chunk in read_chunks(sources))


def test_a_share_is_about_as_large_as_it_says_and_depends_on_the_content_only() -> None:
    rows = [f"row {i}" for i in range(2000)]
    chosen = [row for row in rows if is_held_out(row, 0.1)]
    assert 140 < len(chosen) < 260
    assert chosen == [row for row in reversed(rows) if is_held_out(row, 0.1)][::-1]


@pytest.mark.parametrize(("spec", "share"), [("10%", 0.1), ("2.5%", 0.025), ("file.tsv", 0), (None, 0), ("none", 0)])
def test_shares_are_told_from_files(spec: str | None, share: float) -> None:
    assert fraction_of(spec) == pytest.approx(share)


@pytest.mark.parametrize("spec", ["0%", "100%", "250%"])
def test_a_share_leaves_something_on_both_sides(spec: str) -> None:
    with refused("range", "data.valid"):
        fraction_of(spec)


def test_little_data_are_trained_on_whole_and_much_data_lose_a_small_share() -> None:
    assert usual_fraction(MIN_ROWS - 1) == "none"
    assert usual_fraction(MIN_ROWS) == "10%"
    assert fraction_of(usual_fraction(1_000_000)) == pytest.approx(0.01)


@pytest.mark.parametrize("compressed", [False, True])
def test_both_parts_of_a_text_make_the_whole(tmp_path: Path, compressed: bool) -> None:
    texts = ["".join(f"line {name} {i} é\n" for i in range(count)) for name, count in (("a", 50), ("b", 7), ("c", 3))]
    for name, text in zip("abc", texts, strict=True):
        path = tmp_path / f"{name}.txt"
        if compressed:
            with gzip.open(f"{path}.gz", "wt", encoding="utf-8", newline="\n") as file:
                file.write(text)
        else:
            path.write_text(text, encoding="utf-8")
    sources = find_sources(str(tmp_path))
    rest, end = (text_of(end_split(sources, 0.1, held_out=held_out)) for held_out in (False, True))
    assert rest + end == "".join(texts)
    assert 0 < len(end) < 0.2 * len(rest)
    rest_lines, held = (
        list(read_lines([line_split(one, 0.3, held_out=out) for one in sources])) for out in (False, True)
    )
    assert sorted(rest_lines + held) == sorted("".join(texts).splitlines())
    assert held


def test_words_of_the_held_out_part_are_unknown_and_resuming_reads_the_same_parts(tmp_path: Path) -> None:
    config = {"task": "classify", "data": {"train": str(labelled(tmp_path, 200))}, "model": SIZES}
    run = seriatim.train({**config, "training": {"baseline": "none", "steps": 2}, "out": str(tmp_path / "run")})
    assert resolve(run.path / "config.yaml").data.valid == "10%"
    assert run.summary["valid"]["unknown_tokens"] > 0
    task = new_task(resolve(run.path / "config.yaml"))
    train, held = (
        list(task.reader.labelled_items(*part)) for part in ((task.files.training_source(), "train"), ("10%", "valid"))
    )
    assert len(train) + len(held) == 200
    assert not set(train) & set(held)
    assert "10% of" in (run.path / "README.md").read_text()
    whole = seriatim.train({**config, "training": {"baseline": "none", "steps": 4}, "out": str(tmp_path / "whole")})
    resumed = seriatim.resume(run.path, overrides={"training.steps": 4})
    first, second = (load_tensors(one.path / "model.safetensors") for one in (whole, resumed))
    assert first.keys() == second.keys()


def test_nothing_is_held_out_if_the_user_says_so(tmp_path: Path) -> None:
    config = {"task": "classify", "data": {"train": str(labelled(tmp_path, 200)), "valid": "none"}, "model": SIZES}
    run = seriatim.train({**config, "training": {"baseline": "none", "steps": 1}, "out": str(tmp_path / "run")})
    assert "valid" not in run.summary
    assert run.evaluate(config["data"]["train"])["texts"] == 200


@pytest.mark.parametrize("unit", ["stream", "line"])
def test_a_text_is_held_out_in_part(tmp_path: Path, unit: str) -> None:
    path = tmp_path / "text.txt"
    path.write_text("".join(f"the line number {i} of a long text\n" for i in range(2000)))
    config = {"data": {"train": str(path), "unit": unit}, "model": SIZES, "tokenizer": {"kind": "word"}}
    summary = seriatim.train(
        {**config, "training": {"baseline": "none", "steps": 1}, "out": str(tmp_path / "run")}
    ).summary
    assert summary["valid"]["lines"] == pytest.approx(200, rel=0.25)
    assert summary["valid"]["unknown_tokens"] > 0


UNDIVIDED = {
    "equal texts": ("classify", "label\ttext\n" + "a\tone text\nb\tone text\n" * 50, "its inputs are all equal"),
    "single texts": (
        "classify",
        "label\ttext\n" + "".join(f"c{i}\ttext {i}\n" for i in range(60)),
        "no label has two different texts",
    ),
    "equal sentences": ("tag", "the\tO\nAda\tB-PER\n\n" * 60, "its inputs are all equal"),
    "equal pairs": ("seq2seq", "a b\tb a\n" * 60, "its inputs are all equal"),
    "two lines": ("lm", "c\nb\n" * 60, "chooses none of its 2 different ones"),
    "one long line": ("lm", "a text on one line " * 3000, "no line of text begins in its last 10%"),
}


@pytest.mark.parametrize("case", UNDIVIDED)
def test_nothing_is_held_out_of_data_that_the_rule_puts_on_one_side(
    tmp_path: Path, case: str, capsys: pytest.CaptureFixture[str]
) -> None:
    task, content, reason = UNDIVIDED[case]
    (tmp_path / "data.tsv").write_text(content)
    unit = "line" if case == "two lines" else "stream"
    data = {"train": str(tmp_path / "data.tsv"), "unit": unit}
    if task == "lm":
        data["format"] = "text"
    config = {"task": task, "data": data, "model": SIZES, "training": {"steps": 1}}
    with pytest.warns(UserWarning, match=f"nothing is held out of .*, because .*{reason}") as caught:
        report = check_training(config)
    assert len(caught) == 1
    assert "valid" not in report
    with pytest.warns(UserWarning, match=f"nothing is held out of .*, because .*{reason}"):
        run = seriatim.train({**config, "out": str(tmp_path / "run")})
    assert resolve(run.path / "config.yaml").data.valid == "none"
    assert "valid" not in run.summary
    arguments = ["--data", data["train"], "--valid", "10%", "--data.unit", unit, "--out", str(tmp_path / "x")]
    for command in ("train", "check"):
        assert main([command, task, *arguments]) == 2
        error = capsys.readouterr().err
        assert reason in error
        assert error.endswith("; give another share, a file, or none\n")
        assert error.count("\n") == 1


def test_a_comparison_says_why_nothing_is_held_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "data.tsv").write_text("a b\tb a\n" * 60)
    arguments = ["--data", str(tmp_path / "data.tsv"), "--layers", "rnn,gru", "--steps", "1"]
    with pytest.warns(UserWarning, match="nothing is held out of .*, because its inputs are all equal"):
        assert main(["compare", "seq2seq", *arguments, "--out", str(tmp_path / "out")]) == 2
    assert "no held-out data to measure on" in capsys.readouterr().err


def test_equal_labelled_texts_are_on_the_same_side(tmp_path: Path) -> None:
    path = tmp_path / "labelled.tsv"
    path.write_text("label\ttext\n" + "".join(f"c{i % 40}\ttext {i % 80}\n" for i in range(400)))
    task = new_task(resolve({"task": "classify", "data": {"train": str(path), "valid": "30%"}, "model": SIZES}))
    train, held = (set(task.reader.labelled_items(*part)) for part in ((str(path), "train"), ("30%", "valid")))
    assert held
    assert not train & held


@given(
    st.lists(st.binary(max_size=6).map(lambda line: line.replace(b"\n", b"")), max_size=12), st.booleans(), st.data()
)
def test_the_end_of_a_file_is_cut_where_a_line_begins(lines: list[bytes], ended: bool, data: st.DataObject) -> None:
    content = b"\n".join(lines) + (b"\n" if ended else b"")
    at, size = data.draw(st.integers(1, max(1, len(content)))), data.draw(st.integers(1, 5))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("seriatim.tasks.data_files.CHUNK_BYTES", size)
        rest, end = (b"".join(cut_at(io.BytesIO(content), at=at, end=end)) for end in (False, True))
    place, expected = 0, b""
    for line in io.BytesIO(content):
        expected += line if place < at else b""
        place += len(line)
    assert rest == expected
    assert rest + end == content


def test_the_end_of_a_file_is_found_without_reading_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("seriatim.tasks.data_files.CHUNK_BYTES", 10)
    file, reads = io.BytesIO(b"one two\n" * 100), []
    counted = SimpleNamespace(
        read=lambda size: reads.append(size) or file.read(size), seek=file.seek, seekable=lambda: True
    )
    assert b"".join(cut_at(counted, at=780, end=True)) == b"one two\n" * 2
    assert len(reads) <= 4


@given(st.integers(10**6, 10**12))
def test_of_large_data_as_much_is_held_out_as_is_enough(size: int) -> None:
    rows = fraction_of(usual_fraction(size)) * size
    assert rows == pytest.approx(min(max(MAX_ROWS, size / 100), MOST_ROWS), rel=0.02, abs=size / 10**6)
    held_out = fraction_of(usual_fraction_of_text(size)) * size
    assert held_out == pytest.approx(min(size / 10, MAX_BYTES), rel=0.02, abs=size / 10**6)

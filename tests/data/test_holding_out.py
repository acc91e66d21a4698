"""A part of the training data is held out where no other data are given."""

import gzip
from pathlib import Path

import pytest

import seriatim
from seriatim.config import resolve
from seriatim.core.errors import InputError
from seriatim.data.holding_out import MIN_ROWS, end_part, is_held_out, line_part, share_of, usual_share
from seriatim.data.readers import find_sources, read_lines, read_pieces
from seriatim.storage.weights import load_tensors
from seriatim.tasks import find

SIZES = {"layer": "rnn", "embedding_size": 4, "hidden_size": 4}


def labelled(folder: Path, rows: int) -> Path:
    path = folder / "labelled.tsv"
    lines = (f"{'even' if i % 2 == 0 else 'odd'}\tword{i} w{i % 7}\n" for i in range(rows))
    path.write_text("label\ttext\n" + "".join(lines))
    return path


def text_of(sources: list) -> str:
    return "".join(piece.text for piece in read_pieces(sources))


def test_a_share_is_about_as_large_as_it_says_and_depends_on_the_content_only() -> None:
    rows = [f"row {i}" for i in range(2000)]
    chosen = [row for row in rows if is_held_out(row, 0.1)]
    assert 140 < len(chosen) < 260
    assert chosen == [row for row in reversed(rows) if is_held_out(row, 0.1)][::-1]


@pytest.mark.parametrize(("spec", "share"), [("10%", 0.1), ("2.5%", 0.025), ("file.tsv", 0), (None, 0), ("none", 0)])
def test_shares_are_told_from_files(spec: str | None, share: float) -> None:
    assert share_of(spec) == pytest.approx(share)


@pytest.mark.parametrize("spec", ["0%", "100%", "250%"])
def test_a_share_leaves_something_on_both_sides(spec: str) -> None:
    with pytest.raises(InputError, match="10%, or none"):
        share_of(spec)


def test_little_data_are_trained_on_whole_and_much_data_lose_a_small_share() -> None:
    assert usual_share(MIN_ROWS - 1) == "none"
    assert usual_share(MIN_ROWS) == "10%"
    assert share_of(usual_share(1_000_000)) == pytest.approx(0.01)


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
    rest, end = (text_of(end_part(sources, 0.1, held_out=held_out)) for held_out in (False, True))
    assert rest + end == "".join(texts)
    assert 0 < len(end) < 0.2 * len(rest)
    rest_lines, held = (
        list(read_lines([line_part(one, 0.3, held_out=out) for one in sources])) for out in (False, True)
    )
    assert sorted(rest_lines + held) == sorted("".join(texts).splitlines())
    assert held


def test_words_of_the_held_out_part_are_unknown_and_resuming_reads_the_same_parts(tmp_path: Path) -> None:
    config = {"task": "classify", "data": {"train": str(labelled(tmp_path, 200))}, "model": SIZES}
    run = seriatim.train({**config, "training": {"steps": 2}, "out": str(tmp_path / "run")})
    assert resolve(run.path / "config.yaml").data.valid == "10%"
    assert run.summary["valid"]["unknown_tokens"] > 0
    task = find(resolve(run.path / "config.yaml"))
    train, held = (list(task.labelled_items(*part)) for part in ((task.training_spec(), "train"), ("10%", "valid")))
    assert len(train) + len(held) == 200
    assert not set(train) & set(held)
    assert "10% of" in (run.path / "README.md").read_text()
    whole = seriatim.train({**config, "training": {"steps": 4}, "out": str(tmp_path / "whole")})
    resumed = seriatim.resume(run.path, overrides={"training.steps": 4})
    first, second = (load_tensors(one.path / "model.safetensors") for one in (whole, resumed))
    assert first.keys() == second.keys()


def test_nothing_is_held_out_if_the_user_says_so(tmp_path: Path) -> None:
    config = {"task": "classify", "data": {"train": str(labelled(tmp_path, 200)), "valid": "none"}, "model": SIZES}
    run = seriatim.train({**config, "training": {"steps": 1}, "out": str(tmp_path / "run")})
    assert "valid" not in run.summary
    assert run.evaluate(config["data"]["train"])["texts"] == 200


@pytest.mark.parametrize("unit", ["stream", "line"])
def test_a_text_is_held_out_in_part(tmp_path: Path, unit: str) -> None:
    path = tmp_path / "text.txt"
    path.write_text("".join(f"the line number {i} of a long text\n" for i in range(2000)))
    config = {"data": {"train": str(path), "unit": unit}, "model": SIZES, "tokenizer": {"kind": "word"}}
    summary = seriatim.train({**config, "training": {"steps": 1}, "out": str(tmp_path / "run")}).summary
    assert summary["valid"]["lines"] == pytest.approx(200, rel=0.25)
    assert summary["valid"]["unknown_tokens"] > 0

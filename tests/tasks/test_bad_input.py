"""Data from which little or nothing can be learned: one clear line, or a training that ends sensibly."""

import json
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import seriatim
from seriatim.cli.main import main
from seriatim.config import Tokenizer
from seriatim.data.corpus import Corpus, encode_corpus
from seriatim.data.sources import find_sources
from seriatim.data.text import read_lines
from seriatim.data.vocabulary import fit_tokenizer
from seriatim.tasks import new_task
from seriatim.tasks.data_files import listed
from seriatim.training.settle import warn_of_overlap

HEADER = "label\ttext\n"
SENTENCE = "the\tO\nAda\tB-PER\n\n"
WORD = "x" * 1_000_000
SIZES = ["--layer", "window", "--embedding_size", "4", "--hidden_size", "4", "--steps", "2", "--quiet"]
TRAINS = {
    "two texts": ("classify", f"{HEADER}a\tone\nb\ttwo\n"),
    "equal texts": ("classify", HEADER + "a\tsame\nb\tsame\n" * 5),
    "empty texts": ("classify", HEADER + "a\t\nb\t\n" * 3),
    "a class with one example": ("classify", HEADER + "a\tone\n" * 9 + "b\ttwo\n"),
    "a text of one long word": ("classify", f"{HEADER}a\t{WORD}\nb\ttwo\n"),
    "two sentences": ("tag", SENTENCE * 2),
    "a single sentence": ("tag", SENTENCE),
    "a long word": ("tag", f"{SENTENCE}{WORD}\tO\n"),
    "two pairs": ("seq2seq", "a b\tb a\nc d\td c\n"),
    "equal pairs": ("seq2seq", "a b\tb a\n" * 5),
    "empty sources": ("seq2seq", "\ta b\n\tc d\n"),
    "two lines": ("lm", "one line\nanother line\n"),
    "one line": ("lm", "one line of text\n"),
}
REFUSED = {
    "one class": ("classify", f"{HEADER}a\tone\na\ttwo\n", "all texts have the label 'a'"),
    "one text": ("classify", f"{HEADER}a\tone\n", "all texts have the label 'a'"),
    "no text": ("classify", HEADER, ":1: no rows; give a text and its label"),
    "one tag": ("tag", "the\tO\n\nAda\tO\n", "every word has the tag 'O'"),
    "no tags": ("tag", "the\nAda\n\nsaw\n", ":1: 1 column, but column 2 should have the tags"),
    "no targets": ("seq2seq", "a\t\nb\t\n", ":1: the targets of all 2 pairs are empty"),
    "no words": ("lm", "\n\n\n", "no text to read"),
}


def train(folder: Path, task: str, content: str, *more: str) -> int:
    (folder / "data.txt").write_text(content)
    extra = ["--data.format", "tsv"] if task == "classify" else []
    extra += ["--data.unit", "line"] if task == "lm" and "--data.unit" not in more else []
    return main(
        ["train", task, "--data", str(folder / "data.txt"), "--out", str(folder / "run"), *SIZES, *extra, *more]
    )


@pytest.mark.filterwarnings("ignore:.*several rows")
@pytest.mark.parametrize("case", TRAINS)
def test_little_data_trains_and_answers(tmp_path: Path, case: str) -> None:
    task, content = TRAINS[case]
    assert train(tmp_path, task, content) == 0
    run = seriatim.load(tmp_path / "run")
    assert np.isfinite(run.evaluate(str(tmp_path / "data.txt"))["loss"])
    if task != "lm":
        assert len(list(run.predict(["a text", ""]))) == 2


@pytest.mark.parametrize("case", REFUSED)
def test_data_with_nothing_to_learn_is_one_line(tmp_path: Path, case: str, capsys: pytest.CaptureFixture[str]) -> None:
    task, content, message = REFUSED[case]
    assert train(tmp_path, task, content) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("task", "content", "count", "of"),
    [
        ("classify", f"{HEADER}a\tone\nb\ttwo\n", 1, "held-out texts (50.0%)"),
        ("tag", "the\tO\nAda\tB-PER\n\nBob\tB-PER\n", 1, "held-out sentences (50.0%)"),
        ("seq2seq", "a b\tb a\nc d\td c\n", 1, "held-out pairs (50.0%)"),
        ("lm", "one line\nanother line\n", 1, "held-out lines (50.0%)"),
    ],
)
def test_held_out_rows_of_the_training_data_are_counted(
    tmp_path: Path, task: str, content: str, count: int, of: str
) -> None:
    other = {"classify": "a\tthree\n", "tag": "Eve\tO\n", "seq2seq": "c d\tc d\n", "lm": "a third line\n"}
    kept = content.split("\n\n")[0] + "\n\n" if task == "tag" else "\n".join(content.split("\n")[:-2]) + "\n"
    (tmp_path / "valid.txt").write_text(kept + other[task])
    with pytest.warns(UserWarning, match=rf"valid\.txt: {count} of the 2 {re.escape(of)}"):
        assert train(tmp_path, task, content, "--valid", str(tmp_path / "valid.txt")) == 0
    (tmp_path / "valid.txt").write_text(content)
    arguments = ["check", task, "--data", str(tmp_path / "data.txt"), "--valid", str(tmp_path / "valid.txt")]
    arguments += ["--data.unit", "line", *(["--data.format", "tsv"] if task == "classify" else [])]
    with pytest.warns(UserWarning, match=r"2 of the 2 held-out .*100\.0%"):
        assert main(arguments) == 0


def test_nothing_is_said_of_other_rows_running_text_and_built_in_data(
    tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    def corpus(content: str, unit: str = "line") -> Corpus:
        (tmp_path / content).write_text(content.replace(" ", "\n"))
        sources = find_sources(str(tmp_path / content))
        return encode_corpus(sources, fit_tokenizer(Tokenizer(kind="char"), ["abc"]), unit=unit)

    files = new_task(seriatim.Config(task="lm", data={"train": "a", "valid": "b"}))
    warn_of_overlap(files, corpus("ab c", "stream"), corpus("ab c", "stream"))  # lines that can be equal by chance
    lines = corpus("ab c")
    warn_of_overlap(files, lines, corpus("a bc"))
    warn_of_overlap(files, lines, None)
    warn_of_overlap(new_task(seriatim.Config(task="lm", data={"train": "builtin:python-docs"})), lines, lines)
    warn_of_overlap(new_task(seriatim.Config(task="lm", data={"train": "a", "valid": "10%"})), lines, lines)
    assert not list(recwarn)


def test_long_lines_of_running_text_that_are_trained_on_are_counted(tmp_path: Path) -> None:
    lines = [f"This is line number {i} of a text that is long enough.\n" for i in range(30)]
    (tmp_path / "train.txt").write_text("".join(lines[:20]))
    (tmp_path / "valid.txt").write_text("".join(lines[15:]))
    sources = [find_sources(str(tmp_path / name)) for name in ("train.txt", "valid.txt")]
    train, valid = (encode_corpus(one, fit_tokenizer(Tokenizer(kind="char"), lines), unit="stream") for one in sources)
    task = new_task(seriatim.Config(task="lm", data={"train": "a", "valid": "valid.txt"}))
    with pytest.warns(UserWarning, match=re.escape("valid.txt: 5 of the 15 held-out lines (33.3%)")):
        warn_of_overlap(task, train, valid)


def test_texts_that_are_trained_on_with_other_labels_are_counted(tmp_path: Path) -> None:
    (tmp_path / "valid.txt").write_text("label\ttext\nyes\tone text\nno\tanother\n")
    content = "label\ttext\nno\tone text\nyes\tanother\n"
    with pytest.warns(UserWarning, match="2 of the 2 held-out texts"):
        assert train(tmp_path, "classify", content, "--valid", str(tmp_path / "valid.txt")) == 0


UNKNOWN_WORDS = {
    "lm": ("", "the {} sees\n", ""),
    "classify": (HEADER, "a\tthe {} sees\n", "b\tanother\n" * 2),
    "tag": ("", "the\tO\n{}\tB-PER\n\n", ""),
    "seq2seq": ("", "the {} sees\tsees the {}\n", ""),
}


@pytest.mark.parametrize("task", UNKNOWN_WORDS)
def test_rows_that_differ_in_unknown_words_are_different_rows(
    tmp_path: Path, task: str, recwarn: pytest.WarningsRecorder
) -> None:
    head, row, more = UNKNOWN_WORDS[task]
    rows = [row.replace("{}", f"word{i}") for i in range(20)]
    (tmp_path / "valid.txt").write_text(head + "".join(rows[10:]))
    words = ["--tokenizer.kind", "word", "--tokenizer.min_count", "2"]
    train(tmp_path, task, head + "".join(rows[:10]) + more, *words, "--valid", str(tmp_path / "valid.txt"))
    assert not [warning for warning in recwarn if "in the training data, too" in str(warning.message)]


@pytest.mark.parametrize("suffix", ["txt", "jsonl"])
def test_no_line_that_is_held_out_is_trained_on(tmp_path: Path, suffix: str) -> None:
    lines = [f"a line {i % 100}" for i in range(300)]
    if suffix == "jsonl":
        lines = [json.dumps({"id": i, "text": line}) for i, line in enumerate(lines)]
    path = tmp_path / f"text.{suffix}"
    path.write_text("".join(f"{line}\n" for line in lines))
    task = new_task(seriatim.Config(task="lm", data={"train": str(path), "valid": "20%", "unit": "line"}))
    known, held_out = (set(read_lines(task.reader.sources(spec, "train"))) for spec in (str(path), "20%"))
    assert len(known) + len(held_out) == 100
    assert held_out


def test_a_list_of_very_many_labels_is_cut() -> None:
    found = listed(Counter({str(i): 1000 - i for i in range(500)}))
    assert (found[0], found[-1], len(found)) == ("0 1,000", "and 300 others", 201)


@pytest.mark.parametrize("size", [2, 22, 40, 70])
def test_batches_that_are_not_given_fit_any_text(tmp_path: Path, size: int) -> None:
    text = ("ab" * size)[: size - 1] + "\n"
    assert train(tmp_path, "lm", text, "--data.unit", "stream") == 0
    training = seriatim.load(tmp_path / "run").config.training
    assert training.sequence_length == min(64, size)
    assert 1 <= training.batch_size <= size
    assert main(["check", "lm", "--data", str(tmp_path / "data.txt")]) == 0


@pytest.mark.parametrize("given", ["sequence_length", "batch_size"])
def test_batches_that_are_given_and_do_not_fit_the_text_are_refused(
    tmp_path: Path, given: str, capsys: pytest.CaptureFixture[str]
) -> None:
    more = ["--data.unit", "stream", f"--training.{given}", "32"]
    assert train(tmp_path, "lm", "a line\n", *more) == 2
    assert main(["check", "lm", "--data", str(tmp_path / "data.txt"), *more]) == 2
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 2
    assert all(f"training.{given}: 32" in error and "give at most 7" in error for error in errors)

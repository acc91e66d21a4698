"""Labelled texts with defects: what has one meaning is read by every verb alike, and the rest is refused by line."""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import seriatim
from seriatim.cli.main import main
from seriatim.config import resolve
from seriatim.data.repairs import Repairs
from seriatim.data.sources import find_sources
from seriatim.data.tables import read_labelled, with_spellings
from seriatim.tasks import new_task

from ..refusals import refused

REGULAR = "label\ttext\nGood\tfine film\nbad\tdull film\nGood\ta joy\nbad\ta bore\nGood\tgreat\n"
MORE = "Good\tsuperb\nbad\tpoor\n" * 9
"""So that another spelling of a label in `REGULAR` is a slip."""
DEFECTS = {
    "another case": ("Good\ta joy", "good\ta joy", 4, "spelling of a label"),
    "a blank around a label": ("Good\ta joy", " Good \ta joy", 4, "spelling of a label"),
    "an invisible blank": ("bad\ta bore", "bad\u200b\ta bore", 5, "spelling of a label"),
    "a blank line": ("bad\tdull", "\nbad\tdull", 3, "blank lines"),
    "a line of tabs": ("bad\tdull", "\t\t\nbad\tdull", 3, "blank lines"),
    "a trailing tab": ("a joy\n", "a joy\t\n", 4, "trailing separators"),
    "a header in capitals": ("label\ttext", "Label\t TEXT ", 1, "spelling of the header"),
}
NO_DEFECTS = {
    "no final line end": ("great\n", "great"),
    "Windows line ends": ("\n", "\r\n"),
    "a byte-order mark": ("label\t", "\ufefflabel\t"),
}
SIZES = {"layer": "window", "embedding_size": 4, "hidden_size": 4}


def rows(path: Path, content: str, labels: list[str] | None = None) -> tuple[list[tuple[str, str]], Repairs]:
    path.write_bytes(content.encode())
    repairs = Repairs()
    found = with_spellings(lambda record: read_labelled(find_sources(str(path)), repairs=record), labels, repairs)
    return [(row.text, row.label) for row in found], repairs


def trained(folder: Path, content: str, **data: str) -> seriatim.Run:
    (folder / "train.tsv").write_text(content)
    settings = {"task": "classify", "data": {"train": str(folder / "train.tsv"), **data}, "model": dict(SIZES)}
    return seriatim.train(settings, overrides={"training.steps": 2, "out": str(folder / "run")})


@pytest.mark.parametrize("suffix", ["tsv", "csv"])
@pytest.mark.parametrize("defect", DEFECTS)
def test_a_defect_with_one_meaning_is_repaired_and_named(tmp_path: Path, defect: str, suffix: str) -> None:
    clean, damaged, line, kind = DEFECTS[defect]
    path, separator = tmp_path / f"a.{suffix}", "\t" if suffix == "tsv" else ","
    regular = REGULAR + MORE
    expected, nothing = rows(path, regular.replace("\t", separator))
    assert not list(nothing)
    content = regular.replace(clean, damaged).replace("\t", separator)
    for labels in (None, ["Good", "bad"]):
        found, repairs = rows(path, content, labels)
        assert found == expected
        count = 2 if "header" in kind else 1
        assert {each.kind: (each.line, each.count) for each in repairs} == {kind: (line, count)}
    strict, sources = Repairs(strict=True), find_sources(str(path))
    strictly = with_spellings(lambda record: read_labelled(sources, repairs=record), None, strict)
    with refused("malformed", f"a.{suffix}:{line}"):
        list(strictly)


@pytest.mark.parametrize("case", NO_DEFECTS)
def test_line_ends_and_marks_need_no_repair(tmp_path: Path, case: str) -> None:
    expected, _ = rows(tmp_path / "a.tsv", REGULAR)
    found, repairs = rows(tmp_path / "a.tsv", REGULAR.replace(*NO_DEFECTS[case]))
    assert (found, list(repairs)) == (expected, [])


@pytest.mark.parametrize("row", ["\ta text", " \ta text", "\u200b\ta text", "Good", "Good\ta\tb", "Good\ta\t\tb"])
def test_a_row_that_lacks_something_or_has_more_is_refused(tmp_path: Path, row: str) -> None:
    with refused("malformed", "a.tsv:7"):
        rows(tmp_path / "a.tsv", f"{REGULAR}{row}\n")


def test_every_verb_reads_the_same_file_alike(tmp_path: Path, capsys) -> None:
    path = tmp_path / "odd.tsv"
    path.write_text(
        "LABEL\ttext\t\nGood\tfine\t\n\nGood\ta joy\nbad\tdull\ngood \tgreat\nBAD\ta bore\nbad\tso so\n" + MORE
    )
    arguments = ["--data", str(path), "--layer", "window", "--embedding_size", "4", "--hidden_size", "4"]
    arguments += ["--steps", "2", "--out", str(tmp_path / "run"), "--quiet"]
    with pytest.warns(UserWarning, match=r"odd\.tsv:") as warned:
        assert main(["train", "classify", *arguments]) == 0
    assert any(
        "odd.tsv:6: the label 'good ' is another spelling of 'Good'; read as 'Good' (2 times" in str(one.message)
        for one in warned
    )
    run = seriatim.load(tmp_path / "run")
    assert list(run.vocabulary.labels) == ["Good", "bad"]
    capsys.readouterr()
    with pytest.warns(UserWarning, match=r"odd\.tsv:"):
        assert main(["evaluate", str(run.path), "--data", str(path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {repair["kind"]: (repair["line"], repair["count"]) for repair in found["repairs"]} == {
        "spelling of the header": (1, 1),
        "blank lines": (3, 1),
        "trailing separators": (4, 23),
        "spelling of a label": (6, 2),
    }
    assert (found["texts"], found["unseen_labels"]) == (24, 0)
    with pytest.warns(UserWarning, match=r"odd\.tsv:"):
        assert main(["predict", str(run.path), str(path)]) == 0
    assert capsys.readouterr().out.count("\n") == 24
    with pytest.warns(UserWarning, match=r"odd\.tsv:"):
        assert main(["check", "classify", "--data", str(path)]) == 0
    assert "spelling of a label 2 (first: odd.tsv:6)" in capsys.readouterr().out
    for verb in (["evaluate", str(run.path), "--data"], ["predict", str(run.path)], ["check", "classify", "--data"]):
        assert main([*verb, str(path), "--strict"]) == 2
        assert "odd.tsv:1: no column 'label'" in capsys.readouterr().err or verb[0] == "predict"


def test_a_held_out_share_counts_for_spellings_and_their_repairs(tmp_path: Path, capsys) -> None:
    path, rows = tmp_path / "a.tsv", [f"{label}\ttext {i} of {label}" for i in range(60) for label in ("good", "bad")]
    rows += [f"Good\tother text {i}" for i in range(3)] + [f"BAD\tother text {i}" for i in range(5)]
    path.write_text("\n".join(["label\ttext", *rows, ""]))
    for share in ("10%", "50%", "90%"):
        with pytest.warns(UserWarning, match=r"a\.tsv:122: "):
            assert main(["check", "classify", "--data", str(path), "--valid", share]) == 0
        found = capsys.readouterr().out
        assert "spelling of a label 3 (first: a.tsv:122)" in found
        assert "BAD" in found


def test_an_unseen_label_counts_as_wrong(tmp_path: Path) -> None:
    run = trained(tmp_path, REGULAR)
    path = tmp_path / "held-out.tsv"
    path.write_text(REGULAR + "ugly\tfine film\nodd\tdull\nugly\tx\n")
    with pytest.warns(UserWarning, match=r"held-out\.tsv:7: the label 'ugly' and 1 more do not .*; 3 of 8 texts count"):
        found = run.evaluate(str(path))
    known = run.evaluate(str(tmp_path / "train.tsv"))
    assert found["accuracy"] == pytest.approx(known["accuracy"] * 5 / 8)
    assert (found["unseen_labels"], found["loss"]) == (3, pytest.approx(known["loss"]))
    assert found["classes"]["ugly"] == {"precision": 0, "recall": 0, "f1": 0, "support": 2}
    assert np.sum(found["confusion"], 1).tolist() == [3, 2, 2, 1]
    scores = [found["classes"][label]["f1"] for label in found["classes"]]
    assert found["macro_f1"] == pytest.approx(np.mean(scores))


def test_data_with_unseen_labels_alone_are_refused(tmp_path: Path) -> None:
    run = trained(tmp_path, REGULAR)
    path = tmp_path / "other.tsv"
    path.write_text("label\ttext\nnew\tfine\nnewer\tdull\n")
    with refused("mismatch", "other.tsv:2"):
        run.evaluate(str(path))
    with refused("mismatch", "other.tsv:2"):
        trained(tmp_path / "run", REGULAR, valid=str(path))


def test_a_run_whose_labels_differ_in_case_only_still_tells_them_apart(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    found, repairs = rows(path, "label\ttext\nus\ta\nUS\tb\nUs\tc\n", ["US", "us"])
    assert [label for _, label in found] == ["us", "US", "Us"]
    assert not list(repairs)


def test_validation_with_an_unseen_label_trains(tmp_path: Path) -> None:
    path = tmp_path / "valid.tsv"
    path.write_text("label\ttext\nGOOD\tfine\nnew\tdull\n")
    with pytest.warns(UserWarning, match=r"valid\.tsv:"):
        run = trained(tmp_path, REGULAR, valid=str(path))
    assert run.summary["valid"]["texts"] == 2
    task = new_task(resolve(run.config))
    with pytest.warns(UserWarning, match=r"valid\.tsv:"):
        assert task.reader.count(str(path), "valid", run.vocabulary)["labels"] == ["Good 1", "new 1"]


def spelled(folder: Path, counts: dict[str, int], **options) -> dict[str, int]:
    """How often each label is read from a table with so many rows of each spelling; there are no other labels."""
    (folder / "a.tsv").write_text("text\tlabel\n" + "".join(f"x\t{label}\n" * n for label, n in counts.items()))
    sources = find_sources(str(folder / "a.tsv"))

    def read(record: Repairs):
        return read_labelled(sources, repairs=record)

    return dict(Counter(row.label for row in with_spellings(read, None, Repairs(), **options)))


@pytest.mark.parametrize(
    ("counts", "read"),
    [
        ({"a": 10, "A": 10}, {"a": 10, "A": 10}),
        ({"a": 900, "A": 5}, {"a": 900, "A": 5}),
        ({"a": 900, "A": 4}, {"a": 904}),
        ({"a": 9, "A": 1}, {"a": 10}),
        ({"a": 8, "A": 1}, {"a": 8, "A": 1}),
        ({"yes": 50, "Yes": 90, "YES": 2, " yes ": 9}, {"yes": 59, "Yes": 92}),
        ({"us": 50, "US": 90, "Us": 2}, {"us": 50, "US": 90, "Us": 2}),  # as similar to one as to the other
    ],
)
def test_frequent_spellings_are_labels_of_their_own(tmp_path: Path, counts: dict, read: dict) -> None:
    assert spelled(tmp_path, counts) == read
    assert spelled(tmp_path, counts, exact=True) == counts
    (tmp_path / "b.tsv").write_text("text\tlabel\n" + "".join(f"x\t{label}\n" for label in counts))
    held_out = with_spellings(
        lambda record: read_labelled(find_sources(str(tmp_path / "b.tsv")), repairs=record), list(read), Repairs()
    )
    assert {row.label for row in held_out} == set(read)  # the same mapping


@pytest.mark.parametrize("task", ["classify", "tag"])
def test_labels_that_differ_in_case_are_kept_apart_or_all_spelled_exactly(tmp_path: Path, task: str, capsys) -> None:
    rows = [("co", "NN"), ("ko", "Nn"), ("x", "VB")] * 20 + [("x", "vb")]
    if task == "tag":
        path, text = tmp_path / "train.conll", "".join(f"{word} {tag}\n\n" for word, tag in rows)
    else:
        path, text = tmp_path / "train.tsv", "text\tlabel\n" + "".join(f"{word}\t{tag}\n" for word, tag in rows)
    path.write_text(text)
    command = ["check", task, "--data", str(path), "--valid", "none"]
    with pytest.warns(UserWarning, match="'vb' is another spelling of 'VB'"):
        assert main(command) == 0
    assert {"NN", "Nn", "VB"} <= set(capsys.readouterr().out.split())
    assert main([*command, "--strict"]) == 2
    assert main([*command, "--strict", "--data.spellings", "exact"]) == 0
    layer = {"classify": "bag", "tag": "features"}[task]
    data = {"train": str(path), "valid": "none"}
    settings = {"task": task, "data": data, "model": {"layer": layer}, "out": str(tmp_path / "run")}
    with pytest.warns(UserWarning, match="another spelling"):
        run = seriatim.train(settings)
    assert sorted(run.vocabulary.labels) == ["NN", "Nn", "VB"]
    assert list(run.predict(["co", "ko", "x"])) == ["NN", "Nn", "VB"]
    with pytest.warns(UserWarning, match="another spelling"):
        assert run.evaluate(str(path))["accuracy"] == 1
    run = seriatim.train(settings, overrides={"data.spellings": "exact", "out": str(tmp_path / "exact")})
    assert sorted(run.vocabulary.labels) == ["NN", "Nn", "VB", "vb"]
    assert run.evaluate(str(path))["accuracy"] == pytest.approx(60 / 61)

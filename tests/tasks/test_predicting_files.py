"""Which part of a file is answered: one answer for each data row, read by the file's name as training reads it."""

import json
from pathlib import Path

import pytest

from seriatim.cli.main import main

SIZES = ["--model.layer", "window", "--model.embedding_size", "4", "--model.hidden_size", "4", "--training.steps", "2"]
ROWS = [("x", "good film"), ("y", ""), ("x", "bad film"), ("y", "no, not this")]


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("kinds"), "classify", "label\ttext\n" + lines_of(ROWS))


@pytest.fixture(scope="module")
def translator(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pairs = [("ab", "ba"), ("cd", "dc"), ("", "e")]
    return trained(tmp_path_factory.mktemp("pairs"), "seq2seq", lines_of(pairs), "--tokenizer.kind", "char")


def lines_of(rows: list[tuple[str, str]]) -> str:
    return "".join("\t".join(row) + "\n" for row in rows)


def trained(folder: Path, task: str, text: str, *options: str) -> Path:
    (folder / "train.tsv").write_text(text)
    data = ["--data", str(folder / "train.tsv"), "--out", str(folder / "run"), "--quiet"]
    assert main(["train", task, *data, *SIZES, *options]) == 0
    return folder / "run"


def answers(capsys, run: Path, path: Path, text: str, *options: str) -> list[str]:
    path.write_text(text)
    capsys.readouterr()
    assert main(["predict", str(run), str(path), *options]) == 0
    return capsys.readouterr().out.split("\n")[:-1]


def test_rows_of_a_table_are_answered_without_header_and_labels(classifier: Path, tmp_path: Path, capsys) -> None:
    texts = [text for _, text in ROWS]
    expected = answers(capsys, classifier, tmp_path / "a.txt", "".join(f"{text}\n" for text in texts))
    assert len(expected) == len(ROWS)
    quoted = "".join(f'{label};"{text}"\n' for label, text in ROWS)
    objects = "".join(json.dumps({"text": text, "label": "unseen"}) + "\n" for text in texts)
    for name, text in {
        "a.tsv": "label\ttext\n" + lines_of(ROWS),
        "b.TSV": "text\n" + "".join(f"{text}\n" for text in texts),
        "a.csv": f"label;text\n{quoted}",
        "a.jsonl": objects,
    }.items():
        assert answers(capsys, classifier, tmp_path / name, text) == expected, name
    table = "kind\twords\n" + lines_of(ROWS)
    assert answers(capsys, classifier, tmp_path / "c.tsv", table, "--data.text", "words") == expected
    assert len(answers(capsys, classifier, tmp_path / "c.tsv", table, "--format", "text")) == len(ROWS) + 1


def test_a_table_without_the_column_is_refused(classifier: Path, tmp_path: Path, capsys) -> None:
    (tmp_path / "a.tsv").write_text("good film\tx\n")
    assert main(["predict", str(classifier), str(tmp_path / "a.tsv")]) == 2
    error = capsys.readouterr().err
    assert "--data.text NAME, or read every line as a text with --format text" in error


def test_evaluate_takes_other_names_of_columns(classifier: Path, tmp_path: Path, capsys) -> None:
    (tmp_path / "a.tsv").write_text("kind\twords\nx\tgood film\n")
    data = ["--data", str(tmp_path / "a.tsv")]
    assert main(["evaluate", str(classifier), *data]) == 2
    assert "--data.text NAME" in capsys.readouterr().err
    assert main(["evaluate", str(classifier), *data, "--data.text", "words", "--data.label=kind", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["texts"] == 1


def test_sources_of_pairs_are_answered_without_targets(translator: Path, tmp_path: Path, capsys) -> None:
    sources = ["ab", "", "dd"]
    expected = answers(capsys, translator, tmp_path / "a.txt", "".join(f"{source}\n" for source in sources))
    assert len(expected) == 3
    objects = "".join(json.dumps({"source": source, "target": "?"}) + "\n" for source in sources)
    texts = "".join(json.dumps({"text": source}) + "\n" for source in sources)
    for name, text in {
        "a.tsv": lines_of([(source, "target") for source in sources]),
        "a.jsonl": objects,
        "b.jsonl": texts,
    }.items():
        assert answers(capsys, translator, tmp_path / name, text) == expected, name
    pairs = lines_of([(source, "x") for source in sources])
    assert answers(capsys, translator, tmp_path / "b.txt", pairs, "--format", "tsv") == expected
    with pytest.warns(UserWarning, match=r"b\.txt:1: the tab is read as part of the source; use --format tsv"):
        assert len(answers(capsys, translator, tmp_path / "b.txt", pairs)) == 3

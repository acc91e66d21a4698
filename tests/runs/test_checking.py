"""``seriatim check`` makes every check that ``train`` makes, and reports everything that is wrong in one go."""

from pathlib import Path

import pytest

import seriatim
from seriatim.cli.main import main
from seriatim.core.errors import InputError

GOOD = "label\ttext\nx\ta\ny\tb\n"
SMALL = ["--layer", "window", "--model.embedding_size", "4", "--model.hidden_size", "4"]


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    texts = {
        "good": GOOD,
        "empty_label": "label\ttext\nx\ta\n\tb\n",
        "no_column": "label\twords\nx\ta\n",
        "unseen": "label\ttext\nw\ta\nz\tb\n",
    }
    for name, text in texts.items():
        (tmp_path / f"{name}.tsv").write_text(text)
    return {name: str(tmp_path / f"{name}.tsv") for name in texts}


def problems(capsys, *arguments: str) -> list[str]:
    assert main(["check", *arguments]) == 2
    printed, errors = capsys.readouterr()
    assert printed == ""
    lines = errors.splitlines()
    assert all(line.startswith("seriatim: error: ") for line in lines)
    return [line.removeprefix("seriatim: error: ") for line in lines]


def test_every_part_of_the_data_is_read_even_where_another_is_bad(capsys, files: dict[str, str]) -> None:
    data = ["--data", files["empty_label"], "--valid", files["no_column"], "--data.test", "nothing.tsv"]
    found = problems(capsys, "classify", *data)
    assert [line.split(";")[0] for line in found] == [
        f"{files['empty_label']}:3: the label is empty",
        f"{files['no_column']}:1: no column 'text' in the header, which has 'label', 'words'",
        "nothing.tsv: no such file",
    ]


def test_configuration_and_data_are_reported_together(capsys, files: dict[str, str]) -> None:
    wrong = [
        "--model.hidden_size",
        "-3",
        "--training.schedule",
        "plateaus",
        "--init",
        "nowhere",
        "--out",
        files["good"],
    ]
    found = problems(capsys, "classify", "--data", files["empty_label"], *wrong)
    expected = ("model.hidden_size", "training.schedule", "nowhere is not a run", "is a file, not", ":3: the label is")
    for part in expected:
        assert sum(part in line for line in found) == 1, part
    assert len(found) == 5


def test_options_of_the_layer_and_the_held_out_data_are_checked(capsys, files: dict[str, str]) -> None:
    heads = ["--layer", "transformer", "--model.hidden_size", "8", "--model.options.num_heads", "3"]
    found = problems(capsys, "classify", "--data", files["good"], "--valid", files["unseen"], *heads)
    assert any("num_heads" in line for line in found)
    assert any("'w' and 1 more do not occur in the training data" in line for line in found)
    (line,) = problems(capsys, "classify", "--data", files["good"], "--training.patience", "2", *SMALL)
    assert "held-out" in line
    found = problems(capsys, "classify", "--data", files["good"], "--training.stepz", "2", "--model.hiden_size", "3")
    assert [line.split(";")[0] for line in found] == [
        "unknown option --training.stepz",
        "unknown option --model.hiden_size",
    ]


def test_a_configuration_file_is_checked(capsys, files: dict[str, str], tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(f"task: classify\ndata: {{train: {files['good']}}}\nmodel: {{layr: rnn, dropout: 2}}\n")
    found = problems(capsys, "--config", str(path))
    assert len(found) == 2
    assert all("c.yaml: " in line for line in found)
    path.write_text(f"task: classify\ndata: {{train: {files['good']}}}\n")
    assert main(["check", "--config", str(path), *SMALL]) == 0


@pytest.mark.parametrize(
    "wrong",
    [
        {"data.valid": "nothing.txt"},
        {"training.sequence_length": 100_000},
        {"training.batch_size": 100_000},
        {"training.init": "nowhere"},
        {"training.device": "tpu"},
        {"training.schedule": "plateau"},
        {"model.layer": "lstmm"},
        {"model.options.contxt": 3},
        {"model.dropout": 1.5},
        {"tokenizer.vocabulary_size": 1},
    ],
    ids=lambda wrong: next(iter(wrong)),
)
def test_what_train_refuses_check_refuses_alike(capsys, texts, tmp_path: Path, wrong: dict) -> None:
    """One problem at a time: the message is the same, and check says it before train does."""
    base = {"task": "lm", "data.train": texts["train"], "model.layer": "window", "model.hidden_size": 8}
    with pytest.raises(InputError) as refused:
        seriatim.train({}, overrides={**base, **wrong, "out": str(tmp_path / "run")})
    given = [part for name, value in {**base, **wrong}.items() if name != "task" for part in (f"--{name}", str(value))]
    assert problems(capsys, "lm", *given) == [str(refused.value)]

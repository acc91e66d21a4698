"""The command: its verbs, its exit codes, its one-line errors."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from seriatim.cli import dotted, main
from seriatim.errors import InputError


def call(capsys: pytest.CaptureFixture, *arguments: str) -> tuple[int, str, str]:
    code = main(arguments)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_train_evaluate_generate_resume(capsys, texts, tmp_path: Path) -> None:
    out = str(tmp_path / "run")
    sizes = ("--model.embedding_size", "8", "--model.hidden_size=12", "--training.batch_size", "4")
    code, _, errors = call(
        capsys, "train", "lm", "--data", texts["train"], "--valid", texts["valid"], "--layer", "rnn",
        "--out", out, "--training.steps", "12", "--training.learning_rate", "3e-3", *sizes,
    )  # fmt: skip
    assert code == 0
    assert "held-out perplexity" in errors
    assert "parameters" in errors

    code, printed, _ = call(capsys, "evaluate", out, "--data", texts["test"], "--json")
    metrics = json.loads(printed)
    assert code == 0
    assert {"loss", "perplexity", "word_perplexity", "bits_per_byte", "tokens", "unknown_tokens"} <= set(metrics)
    code, printed, _ = call(capsys, "evaluate", out, "--data", texts["test"])
    assert "perplexity per word" in printed

    code, printed, _ = call(capsys, "generate", out, "--prompt", "the", "--max-tokens", "20", "--seed", "1")
    assert code == 0
    assert printed.startswith("the")
    assert len(printed) == 3 + 20 + 1
    code, again, _ = call(
        capsys, "generate", out, "--prompt", "the", "--max-tokens", "20", "--seed", "0", "--samples", "2"
    )
    assert again.split("\n\n")[1] == printed.rstrip("\n")

    code, _, errors = call(capsys, "train", "--resume", out, "--training.steps", "20")
    assert code == 0
    assert "going on from step 12" in errors
    assert json.loads(Path(out, "summary.json").read_text())["steps"] == 20


def test_a_configuration_file_and_what_overrides_it(capsys, texts, tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(
        f"task: lm\ndata: {{train: {texts['train']}}}\nmodel: {{hidden_size: 8}}\n"
        "training: {steps: 3, batch_size: 2, learning_rate: 1e-3}\n"
    )
    out = tmp_path / "run"
    code, _, errors = call(
        capsys, "train", "--config", str(path), "--model.hidden_size", "9", "--out", str(out), "--quiet"
    )
    assert (code, errors) == (0, "")
    assert "hidden_size: 9" in (out / "config.yaml").read_text()


def test_check_and_layers(capsys, texts) -> None:
    code, printed, _ = call(capsys, "check", "lm", "--data", texts["train"], "--valid", texts["valid"], "--json")
    report = json.loads(printed)
    assert code == 0
    assert report["train"]["lines"] == 400
    assert report["valid"]["unknown_tokens"] == 0
    assert call(capsys, "check", "lm", "--data", texts["train"])[0] == 0
    code, printed, _ = call(capsys, "layers", "--json")
    assert {row["name"] for row in json.loads(printed)} >= {"rnn", "lstm", "gru"}
    assert "Elman 1990" in call(capsys, "layers")[1]


def test_options_by_dotted_name() -> None:
    found = dotted(
        ["--data", "1984", "--layer", "gru", "--training.learning_rate", "3e-4", "--model.tie_weights", "true",
         "--training.clip=null", "--model.options.activation", "relu", "--tokenizer.kind=word"]
    )  # fmt: skip
    assert found == {
        "data.train": "1984",
        "model.layer": "gru",
        "training.learning_rate": 3e-4,
        "model.tie_weights": True,
        "training.clip": None,
        "model.options.activation": "relu",
        "tokenizer.kind": "word",
    }
    with pytest.raises(InputError, match=r"did you mean '--training\.learning_rate'"):
        dotted(["--training.learning_rat", "1"])
    with pytest.raises(InputError, match="no value"):
        dotted(["--training.epochs"])


BAD = {
    "a verb": (["trian"], "did you mean 'train'"),
    "no verb": (["--bogus"], "--bogus"),
    "a task": (["train", "lmm", "--data", "x"], "task: 'lmm'"),
    "no task": (["train", "--data", "x"], "no task"),
    "no data": (["train", "lm", "--out", "OUT"], "data.train"),
    "no file": (["train", "lm", "--data", "nothing.txt", "--out", "OUT"], "nothing.txt: no such file"),
    "a type": (["train", "lm", "--data", "TRAIN", "--model.hidden_size", "big"], "model.hidden_size: 'big'"),
    "a size": (["train", "lm", "--data", "TRAIN", "--model.hidden_size", "-3"], "model.hidden_size: -3"),
    "a key": (["train", "lm", "--data", "TRAIN", "--model.hiden_size", "3"], "did you mean '--model.hidden_size'"),
    "a config": (["train", "lm", "--config", "nothing.yaml"], "nothing.yaml: cannot be read"),
    "a run": (["generate", "nothing"], "nothing: no such run"),
    "a number": (["generate", "RUN", "--max-tokens", "ten"], "--max-tokens"),
    "no tokens": (["generate", "RUN", "--max-tokens", "0"], "--max-tokens: 0"),
    "no samples": (["generate", "RUN", "--samples", "0"], "samples: 0"),
    "a seed": (["generate", "RUN", "--seed", "-1"], "--seed: -1"),
    "an option": (["evaluate", "RUN", "--data", "TRAIN", "--jsn"], "did you mean '--json'"),
    "a prompt": (["generate", "RUN", "--prompt", "Ü"], "never seen"),
    "a proc": (["train", "lm", "--data", "TRAIN", "--out", "/dev/null/run"], "/dev/null/run"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_line_and_exit_code_2(capsys, runs, texts, tmp_path: Path, name: str) -> None:
    arguments, message = BAD[name]
    places = {"TRAIN": texts["train"], "RUN": str(runs["char-line"].path), "OUT": str(tmp_path / "out")}
    code, printed, errors = call(capsys, *[places.get(argument, argument) for argument in arguments])
    assert code == 2
    assert printed == ""
    assert errors.startswith("seriatim: error: ")
    assert errors.count("\n") == 1
    assert message in errors


def test_a_closed_pipe_is_no_error(runs) -> None:
    command = (
        f"{sys.executable} -m seriatim generate {runs['char-stream'].path} --max-tokens 5000 --seed 1 | head -c 20"
    )
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, env=os.environ.copy()
    )
    assert len(done.stdout) == 20
    assert done.stderr == ""
    assert done.returncode == 0


def test_a_fault_of_the_program_is_one_line_too(capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(options) -> None:
        raise RuntimeError("first\nsecond")

    monkeypatch.setattr("seriatim.commands.layers", broken)
    code, _, errors = call(capsys, "layers")
    assert code == 1
    assert errors == "seriatim: error: RuntimeError: first; this is a fault of the program, --debug shows where\n"
    with pytest.raises(RuntimeError):
        main(["layers", "--debug"])


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (["train", "lm", "--data", "a", "--data", "b", "--out", "o"], "--data"),
        (["train", "lm", "--data=a", "--data.train", "b", "--out", "o"], "--data.train"),
        (["train", "lm", "--data", "a", "--out", "o", "--out=p"], "--out"),
        (["check", "lm", "--data", "a", "--tokenizer.kind", "word", "--tokenizer.kind=char"], "--tokenizer.kind"),
        (["evaluate", "run", "--data", "a", "--data", "b"], "--data"),
        (["generate", "run", "--seed", "1", "--seed", "2"], "--seed"),
        (["compare", "lm", "--data", "a", "--layers", "rnn", "--layers", "gru"], "--layers"),
        (["layers", "--json", "--json"], "--json"),
    ],
)
def test_a_repeated_option_is_refused(capsys, arguments: list[str], name: str) -> None:
    code, _, errors = call(capsys, *arguments)
    assert code == 2
    assert f"{name}: given twice" in errors
    assert ("folder" in errors) == name.startswith("--data")


def test_tables_and_warnings_hold_nothing_that_a_terminal_obeys(capsys, tmp_path: Path) -> None:
    path = tmp_path / "escapes.tsv"
    path.write_text("label\ttext\n\x1b[31mred\tone \x07\nb\ttwo \x9b2J\n")
    code, printed, _ = call(capsys, "check", "classify", "--data", str(path))
    assert code == 0
    assert "\\x1b[31mred 1" in printed
    assert all(line.isprintable() for line in printed.splitlines())


def test_fields_that_say_how_data_is_read_are_refused_elsewhere(capsys) -> None:
    code, _, errors = call(capsys, "evaluate", "run", "--data", "a", "--data.lable", "kind")
    assert code == 2
    assert "did you mean '--data.label'?" in errors
    assert call(capsys, "generate", "run", "--data.label", "kind")[0] == 2

"""The command: its verbs, its exit codes, its one-line errors."""

import io
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from seriatim.cli.main import main
from seriatim.cli.options import parse_fields, split
from seriatim.config import fields, resolve

from ..refusals import refused


def call(capsys: pytest.CaptureFixture, *arguments: str) -> tuple[int, str, str]:
    code = main(arguments)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_train_evaluate_generate_resume(capsys, texts, tmp_path: Path) -> None:
    out = str(tmp_path / "run")
    sizes = ("--model.embedding_size", "8", "--model.hidden_size=12", "--training.batch_size", "4")
    code, _, errors = call(
        capsys, "train", "lm", "--data", texts["train"], "--valid", texts["valid"], "--layer", "gru",
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
    assert again.endswith(f"\n\n--- sample 2 of 2, seed 1 ---\n{printed}")
    assert again.startswith("--- sample 1 of 2, seed 0 ---\nthe")

    code, _, errors = call(capsys, "train", "--resume", out, "--training.steps", "20")
    assert code == 0
    assert "resuming at step 12" in errors
    assert json.loads(Path(out, "summary.json").read_text())["steps"] == 20


def test_a_run_behind_its_baseline_names_the_command_that_answers_with_both(capsys, texts, tmp_path: Path) -> None:
    files = ("--data", texts["train"], "--valid", texts["valid"])
    _, _, errors = call(capsys, "train", "lm", *files, "--steps", "1", "--out", str(tmp_path / "run"))
    (command,) = [line.partition("both: seriatim ")[2] for line in errors.splitlines() if line.startswith("both: ")]
    code, _, _ = call(capsys, *shlex.split(command))
    (written,) = [folder for folder in tmp_path.iterdir() if folder.name != "run"]
    assert code == 0
    assert yaml.safe_load((written / "config.yaml").read_text())["training"]["baseline_weight"] > 0


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
    assert "Elman 1990" in call(capsys, "layers", "--layer", "rnn")[1]


def read_fields(*arguments: str) -> dict[str, object]:
    """The fields of the configuration that arguments of ``train`` set."""
    return parse_fields(split("train", arguments, [])[1])


def test_options_by_dotted_name() -> None:
    arguments = ["--data", "1984", "--layer", "gru", "--training.learning_rate", "3e-4", "--model.tie_weights", "true"]
    arguments += ["--training.clip=null", "--model.options.activation", "relu", "--tokenizer.kind=word"]
    assert read_fields(*arguments) == {
        "data.train": "1984",
        "model.layer": "gru",
        "training.learning_rate": 3e-4,
        "model.tie_weights": True,
        "training.clip": None,
        "model.options.activation": "relu",
        "tokenizer.kind": "word",
    }
    with refused("several"):
        read_fields("--training.learning_rat", "1")
    with refused("required", "--training.epochs"):
        read_fields("--training.epochs")


def test_numbers_are_read_as_a_person_writes_them(tmp_path: Path) -> None:
    """YAML 1.1 reads 010 as 8, 1:30 as 90, and yes, no and on as truth values."""
    values = {"010": 10, "+7": 7, "1:30": "1:30", "1_000": "1_000", "0x10": "0x10", "0b1": "0b1", "yes": "yes"}
    values |= {"no": "no", "on": "on", "1e-3": 1e-3, "-2.5E+3": -2500.0, ".5": 0.5, "true": True, "null": None}
    for text, value in values.items():
        assert read_fields(f"--model.options.x={text}") == {"model.options.x": value}
        path = tmp_path / "c.yaml"
        path.write_text(f"model: {{options: {{x: {text}, y: '{text}'}}}}\n")
        read = resolve(path)
        assert read.model.options == {"x": value, "y": text}
        path.write_text(read.to_yaml())
        assert resolve(path) == read, "what is written is read as it was"
        assert yaml.safe_load(path.read_text())["model"]["options"]["y"] == text, "by other readers, too"
    assert read_fields("--label", "no", "--column=3") == {"data.label": "no", "data.column": "3"}
    path.write_text("data: {column: 3}\n")
    assert resolve(path).data.column == "3"


def test_a_field_goes_by_its_last_part_with_either_dash() -> None:
    flags = ["--out", "--minutes", "--max-tokens"]
    names = [field for field in fields() if "." in field and field.rpartition(".")[2] != "minutes"]
    for field in names:
        leaf = field.rpartition(".")[2]
        for option in (f"--{leaf}", f"--{leaf.replace('_', '-')}", f"--{field}", f"--{field.replace('_', '-')}"):
            assert split("train", [option, "1", "--out", "x"], flags) == (["--out", "x"], {field: "1"})
            assert split("train", [f"{option}=a=b"], flags) == ([], {field: "a=b"})
    assert split("train", ["--minutes", "1"], flags) == (["--minutes", "1"], {}), "a verb's own option comes first"
    assert split("train", ["--steps", "-1", "--", "--steps"], flags) == (["--", "--steps"], {"training.steps": "-1"})
    assert split("evaluate", ["--label", "x"], flags) == ([], {"data.label": "x"})
    assert split("evaluate", ["--steps", "3"], flags) == (["--steps", "3"], {}), "which the parser refuses"
    assert split("generate", ["--max_tokens=5", "a_b", "--x_y"], flags) == (["--max-tokens=5", "a_b", "--x_y"], {})


def test_a_short_form_of_several_fields_lists_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("seriatim.config.fields", lambda: ["data.size", "model.size"])
    with refused("ambiguous", "--size"):
        split("train", ["--size", "1"], [])


def test_a_prompt_comes_from_standard_input(capsys, runs, monkeypatch: pytest.MonkeyPatch) -> None:
    def generated(prompt: str, *more: str) -> str:
        code, printed, _ = call(
            capsys, "generate", str(runs["char-line"].path), "--prompt", prompt, "--seed", "1", *more
        )
        assert code == 0
        return printed

    for count in ("1", "3"):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"the cat\r\n")))
        assert generated("-", "--samples", count) == generated("the cat", "--samples", count)


def test_samples_as_json_are_those_of_their_seeds(capsys, runs) -> None:
    given = ("generate", str(runs["char-stream"].path), "--prompt", "the", "--max-tokens", "9", "--json")
    rows = [json.loads(line) for line in call(capsys, *given, "--samples", "3", "--seed", "5")[1].splitlines()]
    assert [row["seed"] for row in rows] == [5, 6, 7]
    for row in rows:
        assert row["text"] == "".join(runs["char-stream"].generate("the", max_tokens=9, seed=row["seed"]))
    (row,) = (json.loads(line) for line in call(capsys, *given)[1].splitlines())
    assert json.loads(call(capsys, *given, "--seed", str(row["seed"]))[1]) == row, "a seed is named, to be given again"


def test_options_of_generated_text_may_be_given_several_times(capsys, runs) -> None:
    path = str(runs["char-stream"].path)
    biases = ("--logit-bias", "t=50", "--logit-bias", "h=50", "--frequency-penalty", "9")
    code, printed, _ = call(capsys, "generate", path, "--max-tokens", "9", "--seed", "1", *biases, "--stop", "x")
    settings = {"logit_bias": {"t": 50, "h": 50}, "frequency_penalty": 9}
    text = "".join(runs["char-stream"].generate(max_tokens=9, seed=1, **settings))
    assert (code, printed) == (0, text + "\n")
    stops = ("--stop", text[5:7], "--stop", text[3:7])
    code, printed, _ = call(capsys, "generate", path, "--max-tokens", "9", "--seed", "1", *biases, *stops)
    assert (code, printed) == (
        0,
        "".join(runs["char-stream"].generate(max_tokens=9, seed=1, stop=stops[1::2], **settings)) + "\n",
    )


def test_the_documentation_is_part_of_the_package(capsys) -> None:
    code, listed, _ = call(capsys, "docs")
    readme = Path(__file__).parents[2] / "README.md"
    assert call(capsys, "docs", "readme")[1] == readme.read_text(encoding="utf-8")
    assert code == 0
    for path in (Path(__file__).parents[2] / "docs").glob("*.md"):
        assert f"{path.stem} " in listed
        assert call(capsys, "docs", path.stem)[1] == path.read_text(encoding="utf-8")


BAD = {
    "a verb": (["trian"], "did you mean 'train'"),
    "a verb of another command": (["resume", "run"], "write: seriatim train --resume RUN"),
    "no verb": (["--bogus"], "--bogus"),
    "an early option": (["--steps", "5", "train", "lm"], "--steps: options come after the verb; write: seriatim train"),
    "an early flag": (["--quiet", "train", "lm"], "--quiet: options come after the verb; write: seriatim train"),
    "an early value": (["--steps=5", "train", "lm"], "options come after the verb; write: seriatim train"),
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
    "no tokens": (["generate", "RUN", "--max-tokens", "0"], "is out of range; give a number from 1 to"),
    "many tokens": (["generate", "RUN", "--max-tokens", "9" * 30], "is out of range; give a number from 1 to"),
    "no samples": (["generate", "RUN", "--samples", "0"], "--samples: 0 is too small"),
    "a bias": (["generate", "RUN", "--logit-bias", "a"], "--logit-bias: 'a' is not TOKEN=NUMBER"),
    "a bias in other digits": (["generate", "RUN", "--logit-bias", "a=٣"], "is not TOKEN=NUMBER"),
    "a bias with an underscore": (["generate", "RUN", "--logit-bias", "a=1_0"], "is not TOKEN=NUMBER"),
    "a bias twice": (["generate", "RUN", "--logit-bias", "a=1", "--logit-bias", "a=2"], "given twice"),
    "a bias of nothing": (["generate", "RUN", "--logit-bias", "Ü=1"], "logit_bias: 'Ü' is no token of the model"),
    "an empty stop": (["generate", "RUN", "--stop", ""], "stop: a stop string is empty"),
    "a penalty": (["generate", "RUN", "--repetition-penalty", "0"], "repetition_penalty: 0.0 is not"),
    "a seed": (["generate", "RUN", "--seed", "-1"], "--seed: -1 is out of range"),
    "an option": (["evaluate", "RUN", "--data", "TRAIN", "--jsn"], "did you mean '--json'"),
    "a field elsewhere": (
        ["evaluate", "RUN", "--data", "TRAIN", "--steps", "3"],
        "unknown option --steps of evaluate; --training.steps is an option of train, check and compare",
    ),
    "an option elsewhere": (["generate", "RUN", "--beam", "3"], "an option of evaluate, predict and inspect"),
    "a layer's option": (["train", "lm", "--num_heads", "3"], "did you mean '--model.options.num_heads'"),
    "no value": (["train", "lm", "--steps", "--out", "OUT"], "--steps: no value given"),
    "an octal number": (["train", "lm", "--data", "TRAIN", "--steps", "0o10"], "training.steps: '0o10'"),
    "a name of other programs": (["train", "lm", "--lr", "0.1"], "did you mean '--learning_rate'"),
    "a page": (["docs", "taks"], "did you mean 'tasks'"),
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

    monkeypatch.setattr("seriatim.cli.reference.layers", broken)
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


@pytest.mark.filterwarnings("ignore:.*C1 control")
def test_tables_and_warnings_hold_nothing_that_a_terminal_obeys(capsys, tmp_path: Path) -> None:
    path = tmp_path / "escapes.txt"
    path.write_text("\x1b[31mred one \x07\n\x9b2J\n" * 20)
    code, printed, _ = call(capsys, "check", "lm", "--data", str(path))
    assert code == 0
    assert "\\x1b[31mred" in printed
    assert all(line.isprintable() for line in printed.splitlines())


def test_fields_that_say_how_data_is_read_are_refused_elsewhere(capsys) -> None:
    code, _, errors = call(capsys, "evaluate", "run", "--data", "a", "--data.lable", "kind")
    assert code == 2
    assert "did you mean '--data.label'?" in errors
    assert call(capsys, "generate", "run", "--data.label", "kind")[0] == 2

"""The command `seriatim compare`: its processes, its output, and bad input."""

import json
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

import seriatim
from seriatim.cli.main import main
from seriatim.comparison import comparing, workers
from seriatim.comparison.worker import WorkerJob
from seriatim.core.errors import InputError, TrainingError

from ..refusals import refused
from .comparisons import small


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--widths", "8,x"), "--widths: invalid int value: 'x'"),
        (("--widths", "0"), "--widths: 0 is not a width"),
        (("--widths", ","), "--widths: no width is given"),
        (("--widths", "8,8"), "rnn@8 is named twice"),
        (("--widths", "8", "--parameters", "1M"), "--parameters: the widths of all layers are given"),
        (("--layers", "rnn@8", "--widths", "8"), "--layers: rnn@8 already has a width"),
        (("--layers", "rnn@"), "--layers: rnn@: '' is not a width"),
        (("--layers", "ngram@8"), "--layers: ngram@8: ngram has no width"),
        (("--layers", "transformer", "--widths", "7", "--model.options.num_heads", "2"), "does not accept the width 7"),
    ],
)
def test_widths_that_do_not_fit(capsys, texts, tmp_path: Path, monkeypatch, arguments: tuple, message: str) -> None:
    monkeypatch.chdir(tmp_path)
    layers = () if "--layers" in arguments else ("--layers", "rnn")
    assert main(["compare", "lm", "--data", texts["train"], "--valid", texts["valid"], *layers, *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("task", ["lm", "mlm"])
def test_a_built_in_task_needs_its_answers(capsys: pytest.CaptureFixture[str], tmp_path: Path, task: str) -> None:
    out = tmp_path / "out"
    assert (
        main(["compare", task, "--data", "builtin:copy", "--layers", "window", "--steps", "1", "--out", str(out)]) == 2
    )
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith(f"and {task} gives none; write: seriatim compare classify --data builtin:copy")
    assert not out.exists()


@pytest.mark.exhaustive
def test_the_command_and_its_processes(capsys, texts, tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    sizes = (
        "--model.hidden_size",
        "12",
        "--model.embedding_size=8",
        "--training.batch_size",
        "4",
        "--baseline",
        "none",
    )
    begin = ("compare", "lm", "--data", texts["train"], "--valid", texts["valid"], "--no-report", *sizes)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        assert main([*begin, "--layers", "window", "--steps", "3", "--out", out]) == 0
    printed = capsys.readouterr()
    assert "perplexity per token" in printed.out
    assert "1 of 1  window" in printed.err
    results = json.loads(Path(out, "results.json").read_text())
    assert results["command"].startswith("seriatim compare lm --data")
    assert results["rows"][0]["memory_bytes"] > 10**7
    assert results["rows"][0]["failed"] is None

    assert main(["compare", "--resume", out, "--json", "--quiet", "--no-report"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["rows"] == results["rows"]
    assert printed.err == ""
    assert main(["compare", "--resume", out, "--steps", "9"]) == 2
    assert "--resume: steps cannot change" in capsys.readouterr().err
    assert main([*begin, "--layers", "window", "--steps", "3", "--out", out]) == 2
    assert "not empty" in capsys.readouterr().err


def test_a_comparison_with_a_failed_layer_exits_with_1(capsys, texts, tmp_path: Path, gru_fails: Callable) -> None:
    out = str(tmp_path / "a")
    sizes = (
        "--model.hidden_size",
        "12",
        "--model.embedding_size=8",
        "--training.batch_size",
        "4",
        "--baseline",
        "none",
    )
    begin = ("compare", "lm", "--data", texts["train"], "--valid", texts["valid"], *sizes, "--steps", "2", "--out", out)
    assert main([*begin, "--layers", "rnn,gru", "--quiet"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "1 of 2 layers failed: gru (its process was ended by SIGKILL); to retry: seriatim compare --resume" in line
    assert Path(out, "report.html").exists()
    gru_fails()
    assert main(["compare", "--resume", out, "--quiet", "--no-report"]) == 0


@pytest.mark.parametrize("quiet", [True, False])
def test_when_all_layers_fail_each_reason_is_told_once(
    quiet: bool, capsys, texts, tmp_path: Path, monkeypatch, in_process: None
) -> None:
    def run(job: WorkerJob, listen: Callable, signalled: Callable) -> dict:
        raise TrainingError(f"no {job.layer} today")

    monkeypatch.setattr(workers, "run_worker", run)
    begin = ("compare", "lm", "--data", texts["train"], "--valid", texts["valid"], "--model.hidden_size", "12")
    layers = ("--layers", "rnn,gru", "--baseline", "none", "--steps", "1", "--out", str(tmp_path / "a"))
    assert main([*begin, *layers, *["--quiet"] * quiet]) == 1
    lines = capsys.readouterr().err
    assert "2 of 2 layers failed" in lines.splitlines()[-1]
    assert all(lines.count(f"no {layer} today") == 1 for layer in ("rnn", "gru"))
    assert not (tmp_path / "a" / "report.html").exists()


def test_a_budget_that_is_too_small_is_not_retried(
    capsys, texts, tmp_path: Path, monkeypatch, in_process: None
) -> None:
    def run(job: WorkerJob, listen: Callable, signalled: Callable) -> dict:
        if job.layer == "gru":
            raise InputError("--minutes: 1e-09 is too little, one step takes 1 s; give 1 or more")
        return usual(job, listen, signalled)

    usual = workers.run_worker
    monkeypatch.setattr(workers, "run_worker", run)
    begin = ("compare", "lm", "--data", texts["train"], "--valid", texts["valid"], "--layers", "gru,ngram", "--quiet")
    sizes = ("--model.hidden_size", "12", "--model.options.smoothing", "witten-bell", "--baseline", "none")
    assert main([*begin, *sizes, "--minutes", "1e-9", "--no-report", "--out", str(tmp_path / "a")]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("give 1 or more); start again with --overwrite")


def test_what_no_report_can_be_drawn_with_is_said_first(capsys, texts, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("seriatim.pages.find_spec", lambda name: None if name == "jinja2" else name)
    monkeypatch.setattr(comparing, "fit_plan", lambda plan: 1 / 0)
    begin = ("compare", "lm", "--data", texts["train"], "--valid", texts["valid"], "--layers", "rnn")
    assert main([*begin, "--out", str(tmp_path / "a")]) == 1
    assert capsys.readouterr().err.startswith(
        "report.html will not be written, because jinja2 cannot be imported; install"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--layers", "lstmm,rnn"), "--layers: unknown layer 'lstmm'; did you mean 'lstm'"),
        (("--layers", ","), "--layers: no layer is named"),
        ((), "compare: no layers"),
        (("--layers", "rnn,rnn"), "--layers: rnn is named twice"),
        (("--layers", "rnn+ngram"), "--layers: ngram is a whole model; use it alone"),
        (("--layers", "rnn", "--steps", "0"), "--steps: 0 is not a whole number above 0"),
        (("--layers", "rnn", "--steps", "5", "--minutes", "2"), "the budget is already given in"),
        (("--layers", "rnn", "--steps", "5", "--training.minutes", "2"), "the budget is already given in"),
        (("--layers", "rnn", "--tokens", "5"), "--tokens: 5 is too little, one step reads 2,048"),
        (("--layers", "rnn", "--training.epochs", "2"), "training.epochs: a comparison gives every layer the same"),
        (("--layers", "rnn", "--seeds", "0"), "--seeds: 0 is out of range; give a number from 1 to 100"),
        (("--layers", "rnn", "--tune", "1"), "--tune: 1 is out of range; give a number from 2 to 100"),
        (
            ("--layers", "rnn", "--tune", "3", "--steps", "5"),
            "--steps: 5 are too few to share with trials; give 6",
        ),
        (("--layers", "rnn", "--metric", "accuracy"), "--metric: lm has no 'accuracy'; choose from loss, perplexity"),
        (("--layers", "rnn", "--parameters", "5"), "--parameters: 5 is less than rnn can have"),
        (("--layers", "rnn", "--parameters", "many"), "--parameters: 'many' is not a number"),
        (("--layers", "rnn", "--layer", "gru"), "model.layer: a comparison has several"),
        (("--layers", "rnn", "--data.test", "/nothing/there"), "/nothing/there: no such file"),
        (("--resume", "/nothing/there"), "not a comparison"),
        (("--layers", "rnn", "--workers", "0"), "--workers: 0 is not a whole number above 0"),
        (("--layers", "rnn", "--workers", "x"), "--workers: invalid int value: 'x'"),
        (("--layers", "rnn", "--workers", "2", "--cluster", "tcp://a:1"), "leave one of them out"),
        (("--layers", "rnn", "--cluster", "there"), "--cluster: 'there' is not the address of a scheduler; write for"),
    ],
)
def test_bad_input_is_one_line(capsys, texts, tmp_path: Path, monkeypatch, arguments: tuple, message: str) -> None:
    monkeypatch.chdir(tmp_path)
    begin = () if "--resume" in arguments else ("lm", "--data", texts["train"], "--valid", texts["valid"])
    assert main(["compare", *begin, *arguments]) == 2
    errors = capsys.readouterr().err
    assert message in errors
    assert len(errors.splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_folders_that_are_no_comparisons_are_left_alone(texts, tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("dear")
    with refused("exists", "test_folders_that_are_no_compa0"):
        seriatim.compare(small(texts, tmp_path), layers=["rnn"], steps=1, overwrite=True)
    assert (tmp_path / "letter.txt").read_text() == "dear"


def test_a_comparison_is_replaced_once_a_layer_of_the_new_one_is_finished(
    texts, tmp_path: Path, gru_fails: Callable[[], None]
) -> None:
    out = tmp_path / "out"
    seriatim.compare(small(texts, out), layers=["window"], steps=1)
    (out / "notes.txt").write_text("mine")
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    with pytest.raises(TrainingError, match=f"gru: .*SIGKILL|--resume {out}"):
        seriatim.compare(small(texts, out), layers=["gru"], steps=1, overwrite=True)
    assert {path: path.read_bytes() for path in before} == before
    gru_fails()
    with pytest.warns(UserWarning, match="continues the comparison that is to replace the one there"):
        assert comparing.resume(out).folder == out
    assert [path.name for path in (out / "runs").iterdir()] == ["gru-1"]
    assert sorted(path.name for path in (out / "rows").iterdir()) == ["gru-1.json", "gru-1.safetensors"]
    assert json.loads((out / "results.json").read_text())["rows"][0]["layer"] == "gru"
    assert (out / "notes.txt").read_text() == "mine"

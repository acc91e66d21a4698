"""Training: it learns, it keeps its promises about seeds, resuming, schedules and budgets."""

import json
import math
import re
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

import seriatim
from seriatim.cli.main import main
from seriatim.comparison.comparison_settings import ComparisonSettings, make_plan
from seriatim.config import Training, resolve
from seriatim.core.contract import LEARNING_RATES
from seriatim.core.errors import InputError
from seriatim.storage.weights import load_tensors
from seriatim.tasks.classification import Classification
from seriatim.training.checkpoints import checkpoints
from seriatim.training.hardware import choose_precision
from seriatim.training.optimizers import default_rate, learning_rate
from seriatim.training.reporting import Reporter
from seriatim.training.training_state import Progress

from ..conftest import small_config


def weights(run: seriatim.Run) -> dict[str, torch.Tensor]:
    return load_tensors(run.path / "model.safetensors")


def same(first: seriatim.Run, second: seriatim.Run) -> bool:
    a, b = weights(first), weights(second)
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("name", [name for name in seriatim.layers.names() if name != "prior"])
@pytest.mark.parametrize("unit", ["stream", "line"])
def test_every_layer_beats_the_unigram(texts, tmp_path: Path, name: str, unit: str) -> None:
    config = small_config(texts, tmp_path / "run", model={"layer": name}, data={"unit": unit}, training={"steps": 150})
    run = seriatim.train(config)
    assert run.summary["valid"]["perplexity"] < 0.6 * run.summary["baseline"]["perplexity"]
    assert run.summary["best_valid"] == pytest.approx(run.summary["valid"]["loss"], abs=1e-6)


def test_the_prior_is_a_unigram_model(texts, tmp_path: Path) -> None:
    config = small_config(texts, tmp_path / "run", model={"layer": "prior"}, training={"steps": 200})
    summary = seriatim.train(config).summary
    assert summary["valid"]["perplexity"] == pytest.approx(summary["baseline"]["perplexity"], rel=0.02)


def test_a_former_name_of_a_layer_trains_the_same_model(texts, tmp_path: Path) -> None:
    """The run has the present name in its configuration, and opens without a warning."""
    runs = []
    for name in ("prior", "unigram"):
        config = small_config(texts, tmp_path / name, model={"layer": name}, training={"steps": 5})
        warned = pytest.warns(UserWarning, match="now called 'prior'") if name == "unigram" else nullcontext()
        with warned:
            runs.append(seriatim.train(config))
    assert same(*runs)
    assert seriatim.load(tmp_path / "unigram").config.model.layer == "prior"


def test_a_run_is_the_files_of_the_design(runs) -> None:
    run = runs["char-stream"]
    for name in ("config.yaml", "tokenizer.json", "model.safetensors", "metrics.jsonl", "summary.json", "README.md"):
        assert (run.path / name).stat().st_size > 0
    summary = json.loads((run.path / "summary.json").read_text())
    assert {"parameters", "tokens_per_second", "seconds", "best_valid"} <= set(summary)
    assert summary["parameters"] == sum(p.numel() for p in run.model.parameters())
    records = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    steps = [record["step"] for record in records if record["kind"] == "train"]
    assert steps == list(range(10, 121, 10))
    assert {"loss", "tokens_per_second", "learning_rate"} <= set(records[0])
    assert "gru" in (runs["char-line"].path / "README.md").read_text()
    assert resolve(run.path / "config.yaml").model_dump(exclude={"out"}) == run.config.model_dump(exclude={"out"})


RESUMED = {
    "growing-state": (
        {"layer": "transformer", "dropout": 0.1, "options": {"window": 40, "num_experts": 3}},
        {"unit": "stream"},
        {},
    ),
    "mixed": ({"layer": "mamba,attention,mgu", "options": {"position": "sinusoidal"}}, {"unit": "stream"}, {}),
    "learned-positions": (
        {"layer": "transformer", "options": {"position": "learned"}},
        {"unit": "line"},
        {"sequence_length": 5},
    ),
    "across-epochs": ({"layer": "gru", "num_layers": 2}, {"unit": "stream"}, {"batch_size": 64, "sequence_length": 64}),
}


@pytest.mark.parametrize("name", RESUMED)
def test_a_resumed_training_ends_with_the_same_bits(texts, tmp_path: Path, name: str) -> None:
    model, data, training = RESUMED[name]
    fixed = {"schedule": "constant", "steps": 20, **training}
    whole = seriatim.train(small_config(texts, tmp_path / "whole", model=model, data=data, training=fixed))
    config = small_config(texts, tmp_path / "cut", model=model, data=data, training={**fixed, "checkpoint_every": 7})

    class Cut(Reporter):
        def step(self, record) -> None:
            if record["step"] == 17:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        seriatim.train(config, reporter=Cut())
    assert checkpoints(tmp_path / "cut" / "checkpoints")[-1].name < "step-000000017"
    resumed = seriatim.resume(tmp_path / "cut")
    assert same(whole, resumed)

    def lines(run: seriatim.Run) -> list:
        records = map(json.loads, (run.path / "metrics.jsonl").read_text().splitlines())
        return [{k: v for k, v in r.items() if k not in ("seconds", "tokens_per_second")} for r in records]

    assert lines(whole) == lines(resumed)


def test_a_raised_budget_goes_on(texts, tmp_path: Path) -> None:
    run = seriatim.train(small_config(texts, tmp_path / "run"))
    more = seriatim.resume(run.path, overrides={"training.steps": 45})
    assert more.summary["steps"] == 45
    with pytest.raises(InputError, match="model: cannot change"):
        seriatim.resume(run.path, overrides={"model.hidden_size": 5})
    with pytest.raises(InputError, match=r"training\.batch_size: cannot change"):
        seriatim.resume(run.path, overrides={"training.batch_size": 5})
    path = Path(texts["train"])
    before = path.read_text()
    try:
        path.write_text(before + "the cat sees it .\n")
        with pytest.raises(InputError, match="not the text that the run began with"):
            seriatim.resume(run.path, overrides={"training.steps": 50})
    finally:
        path.write_text(before)
    more = {"training.learning_rate": None, "training.steps": 46}
    assert seriatim.resume(run.path, overrides=more).config.training.learning_rate > 0


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_train_and_compare_take_the_rate_that_the_layer_declares(texts, tmp_path: Path, optimizer: str) -> None:
    training = {"steps": 1, "learning_rate": None, "optimizer": optimizer}
    for layer in ("rnn", "transformer", "mgu,transformer"):
        config = small_config(texts, tmp_path / layer.replace(",", "+"), model={"layer": layer}, training=training)
        declared = min(seriatim.layers.find(name).learning_rate_for("lm") for name in layer.split(","))
        expected = declared if optimizer == "adamw" else 1.0
        seriatim.train(config)
        assert resolve(tmp_path / layer.replace(",", "+") / "config.yaml").training.learning_rate == expected
        compared = layer.replace(",", "+")
        config = {**config, "model": {"hidden_size": 24}}
        assert make_plan(config, ComparisonSettings([compared])).sized[compared].learning_rate == expected


def test_every_layer_declares_a_rate_for_every_task() -> None:
    for name in seriatim.layers.names():
        architecture = seriatim.layers.find(name)
        assert set(architecture.learning_rates) <= set(LEARNING_RATES)
        assert all(1e-4 <= architecture.learning_rate_for(task) <= 0.1 for task in LEARNING_RATES)


def test_a_translator_takes_the_smaller_rate_of_encoder_and_decoder() -> None:
    config = {"task": "seq2seq", "model": {"layer": "transformer", "options": {"decoder": "gru"}}}
    rates = [seriatim.layers.find(name).learning_rate_for("seq2seq") for name in ("transformer", "gru")]
    assert default_rate(resolve(config)) == min(rates)


def test_an_old_run_without_a_rate_keeps_the_former_default(texts, tmp_path: Path) -> None:
    run = seriatim.train(small_config(texts, tmp_path / "run", training={"steps": 2}))
    path = run.path / "config.yaml"
    path.write_text(re.sub(r"learning_rate: .*", "learning_rate: null", path.read_text()))
    assert seriatim.resume(run.path, overrides={"training.steps": 3}).config.training.learning_rate == 0.002


def test_schedules() -> None:
    def rate(schedule: str, step: int = 100, progress: float = 0.0, annealed: int = 0) -> float:
        config = Training(schedule=schedule, learning_rate=1.0, warmup_steps=10, anneal=4)
        return learning_rate(config, step=step, progress=progress, annealed=annealed)

    assert [rate("cosine", step=step) for step in (0, 4, 9)] == pytest.approx([0.1, 0.5, 1.0])
    assert rate("constant", progress=0.9) == 1.0
    assert rate("plateau", annealed=2) == 1 / 16
    assert rate("cosine", progress=0.0) == 1.0
    assert rate("cosine", progress=0.5) == pytest.approx(0.505)
    assert rate("cosine", progress=1.0) == pytest.approx(0.01)


def test_the_rate_rises_at_first_where_no_number_of_steps_is_given() -> None:
    def rate(progress: float, **settings: Any) -> float:
        return learning_rate(Training(learning_rate=1.0, **settings), step=0, progress=progress, annealed=0)

    rising = [rate(progress) for progress in (0.0, 0.01, 0.02, 0.04, 0.05)]
    assert rising == sorted(rising)
    assert rising[0] > 0
    assert rising[-1] == pytest.approx(1.0, rel=0.01)
    for settings in ({"optimizer": "sgd"}, {"schedule": "constant"}, {"warmup_steps": 0}):
        assert rate(0.0, **settings) == 1.0


def test_tolerance_stops_and_plateaus_anneal(texts, tmp_path: Path) -> None:
    training = {"steps": None, "epochs": 50, "tolerance": 10.0, "patience": 2}
    run = seriatim.train(small_config(texts, tmp_path / "tolerance", training=training))
    assert run.summary["epochs"] == 3
    training = {
        "steps": None,
        "epochs": 4,
        "optimizer": "sgd",
        "learning_rate": 400.0,
        "schedule": "plateau",
        "clip": 0.5,
    }
    run = seriatim.train(small_config(texts, tmp_path / "plateau", training=training))
    records = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    losses = [record["loss"] for record in records if record["kind"] == "valid"]
    worse = sum(loss >= min(losses[:i]) for i, loss in enumerate(losses) if i)
    expected = sum(loss >= min(losses[:i]) for i, loss in enumerate(losses[:-1]) if i)
    rates = {record["learning_rate"] for record in records if record["kind"] == "train"}
    assert worse
    assert rates == {400.0 / 4**k for k in range(expected + 1)}


class Judged:
    """A task's validations, one after another: accuracy that stays, and a loss that falls."""

    def __init__(self, losses: list[float]) -> None:
        self.losses = iter(losses)

    def __call__(self, model: object, data: object) -> dict[str, float]:
        return {"loss": next(self.losses), "accuracy": 0.5, "macro_f1": 0.5}


def labelled(folder: Path) -> str:
    """A file of labelled texts."""
    path = folder / "labelled.tsv"
    path.write_text("label\ttext\n" + "".join(f"{word[0]}\t{word} {word}\n" for word in ("a", "b", "ab", "ba")))
    return str(path)


@pytest.mark.parametrize(
    ("training", "validations"),
    [({"tolerance": 0.01}, 4), ({"patience": 2}, 6), ({"tolerance": 0.3, "patience": 2}, 3)],
)
def test_early_stopping_looks_at_the_held_out_loss(tmp_path: Path, monkeypatch, training, validations: int) -> None:
    """Not at accuracy, which selects the weights of a classifier, and has another unit."""
    losses = [2.0, 1.9, 1.8, 1.795, 1.796, 1.797, 1.798]
    monkeypatch.setattr(Classification, "validate", Judged(losses).__call__)
    data, sizes = labelled(tmp_path), {"layer": "rnn", "embedding_size": 4, "hidden_size": 4}
    config = {"task": "classify", "data": {"train": data, "valid": data}, "model": sizes, "out": str(tmp_path / "run")}
    run = seriatim.train({**config, "training": {"epochs": 7, **training}})
    assert run.summary["epochs"] == validations
    assert "held-out loss did not improve" in run.summary["ended"]


def test_plateaus_are_those_of_the_held_out_loss() -> None:
    config, progress = Training(schedule="plateau"), Progress()
    for loss in (2.0, 1.0, 1.5, 1.2, 0.9):
        progress.record_validation(0.5, loss, config, more_is_better=True)
    assert progress.annealed == 2


@pytest.mark.parametrize(
    ("training", "ended"),
    [({"epochs": 1}, "1 epoch is"), ({"steps": 2}, "2 steps is"), ({"tokens": 1500}, "1,500 tokens is")],
)
def test_a_training_says_why_it_ended(texts, tmp_path: Path, capsys, training, ended: str) -> None:
    run = seriatim.train(small_config(texts, tmp_path / "run", training={"steps": None, **training}))
    assert run.summary["ended"] == f"the budget of {ended} spent"
    assert json.loads((run.path / "summary.json").read_text())["ended"] == run.summary["ended"]
    capsys.readouterr()
    assert main(["train", "--resume", str(run.path)]) == 0
    assert f"nothing is left to do: the budget of {ended} spent; raise" in capsys.readouterr().err


@pytest.mark.parametrize("keep", ["best", "last"])
def test_the_best_or_the_last_weights_are_kept(texts, tmp_path: Path, keep: str) -> None:
    training = {"steps": 30, "evaluate_every": 3, "learning_rate": 2.0, "schedule": "constant", "keep": keep}
    run = seriatim.train(small_config(texts, tmp_path / "run", training=training))
    last = load_tensors(checkpoints(run.path / "checkpoints")[-1] / "model.safetensors")
    records = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    losses = [record["loss"] for record in records if record["kind"] == "valid"]
    assert losses[-1] > min(losses)
    assert all(torch.equal(value, last[name]) for name, value in weights(run).items()) == (keep == "last")
    expected = min(losses) if keep == "best" else losses[-1]
    assert run.summary["valid"]["loss"] == pytest.approx(expected, abs=1e-6)
    with pytest.raises(InputError, match=r"training\.keep: cannot change"):
        seriatim.resume(run.path, overrides={"training.keep": "last" if keep == "best" else "best"})


def test_zeros_cannot_break_symmetry(texts, tmp_path: Path) -> None:
    config = small_config(texts, tmp_path / "run", model={"layer": "lstm", "initial": "zeros"}, training={"steps": 5})
    with pytest.warns(UserWarning, match="zeros cannot break symmetry"):
        run = seriatim.train(config)
    moved = {name for name, value in weights(run).items() if value.any()}
    assert moved == {"output.bias"}


def test_minutes_end_a_training(texts, tmp_path: Path) -> None:
    run = seriatim.train(small_config(texts, tmp_path / "run", training={"steps": None, "minutes": 0.02}))
    assert run.summary["steps"] >= 1
    assert run.summary["seconds"] >= 1.2


def test_the_best_weights_are_kept(texts, tmp_path: Path) -> None:
    training = {"steps": 60, "evaluate_every": 10, "learning_rate": 0.3, "schedule": "constant", "clip": None}
    run = seriatim.train(small_config(texts, tmp_path / "run", training=training))
    records = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    losses = [record["loss"] for record in records if record["kind"] == "valid"]
    assert run.summary["valid"]["loss"] == pytest.approx(min(losses), abs=1e-6)


def test_without_held_out_text_the_last_weights_are_kept(texts, tmp_path: Path) -> None:
    config = small_config(texts, tmp_path / "run")
    config["data"] = {"train": texts["train"]}
    run = seriatim.train(config)
    assert run.summary["best_valid"] is None
    assert "unknown" in (run.path / "README.md").read_text()
    last = load_tensors(checkpoints(run.path / "checkpoints")[-1] / "model.safetensors")
    assert all(torch.equal(value, last[name]) for name, value in weights(run).items())


def test_bfloat16_learns_too(texts, tmp_path: Path) -> None:
    exact = seriatim.train(small_config(texts, tmp_path / "f", training={"precision": "float32", "steps": 100}))
    near = seriatim.train(small_config(texts, tmp_path / "b", training={"precision": "bfloat16", "steps": 100}))
    assert near.summary["precision"] == "bfloat16"
    assert near.summary["best_valid"] == pytest.approx(exact.summary["best_valid"], abs=0.1)
    assert choose_precision("auto", torch.device("cpu")) in ("float32", "bfloat16")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data.train": None}, "data.train: no text"),
        ({"training.sequence_length": 10**6}, "at most"),
        ({"training.batch_size": 10**6}, "at most"),
        ({"model.layer": "lsmt"}, "did you mean 'lstm'"),
        ({"model.options.activation": "relu"}, "no option 'activation'"),
        ({"tokenizer.kind": "word", "tokenizer.min_count": 10**6}, "only unknown words"),
        ({"training.device": "abacus"}, "not available"),
        ({"training.device": "meta"}, "not available"),
        ({"training.steps": True}, r"training\.steps: True"),
        ({"data.train": ""}, "empty"),
        ({"data.train": "-", "data.valid": "-"}, "standard input"),
        ({"data.valid": None, "training.schedule": "plateau"}, "needs held-out text"),
        ({"data.valid": None, "training.patience": 2}, "need held-out text"),
        ({"out": None}, "no folder"),
    ],
)
def test_bad_input_is_refused_before_anything_is_written(texts, tmp_path: Path, changes, message: str) -> None:
    out = tmp_path / "run"
    with pytest.raises(InputError, match=message):
        seriatim.train(small_config(texts, out), overrides=changes)
    assert not out.exists()


def test_a_validation_text_of_unknown_words_is_refused(texts, tmp_path: Path) -> None:
    path = tmp_path / "strange.txt"
    path.write_text("zwei drei\nvier\n")
    config = small_config({**texts, "valid": str(path)}, tmp_path / "run", tokenizer={"kind": "word"})
    with pytest.raises(InputError, match="only unknown words"):
        seriatim.train(config)


def test_a_folder_in_use_needs_overwrite(texts, tmp_path: Path) -> None:
    out = tmp_path / "run"
    out.mkdir()
    (out / "thesis.txt").write_text("mine")
    with pytest.raises(InputError, match="--overwrite"):
        seriatim.train(small_config(texts, out))
    seriatim.train(small_config(texts, out), overwrite=True)
    assert (out / "thesis.txt").read_text() == "mine"
    other = tmp_path / "other"
    other.mkdir()
    (other / "README.md").write_text("mine")
    with pytest.raises(InputError, match=r"README\.md would be lost"):
        seriatim.train(small_config(texts, other), overwrite=True)
    assert (other / "README.md").read_text() == "mine"
    before = weights(seriatim.load(out))
    with pytest.raises(InputError, match="no such file"):
        seriatim.train(small_config({**texts, "train": "gone.txt"}, out), overwrite=True)
    assert all(torch.equal(value, before[name]) for name, value in weights(seriatim.load(out)).items())
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="is a file, not a folder"):
        seriatim.train(small_config(texts, tmp_path / "file"))


def test_perplexity_is_the_exponential_of_the_loss(runs) -> None:
    valid = runs["char-stream"].summary["valid"]
    assert valid["perplexity"] == pytest.approx(math.exp(valid["loss"]))

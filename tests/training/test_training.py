"""Training: it learns, and keeps its promises about seeds, resuming, budgets and the weights that it saves."""

import json
import math
from pathlib import Path

import pytest
import torch

import seriatim
from seriatim.cli.main import main
from seriatim.config import SettledError, resolve
from seriatim.data.repairs import DataWarning
from seriatim.storage.weights import load_tensors
from seriatim.training.checkpoints import checkpoints
from seriatim.training.hardware import choose_precision
from seriatim.training.reporting import Reporter

from ..conftest import small_config
from ..exhaustive import parameters
from ..refusals import refused


def weights(run: seriatim.Run) -> dict[str, torch.Tensor]:
    return load_tensors(run.path / "model.safetensors")


def same(first: seriatim.Run, second: seriatim.Run) -> bool:
    a, b = weights(first), weights(second)
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


LAYERS = [name for name in seriatim.layers.names() if name != "prior"]
EVERYDAY = {f"{name}-{('stream', 'line')[i % 2]}" for i, name in enumerate(LAYERS) if "-" not in name}
"""Each family in one unit; the variants of cells are left to the exhaustive tests."""


@pytest.mark.parametrize(
    "job", parameters([f"{name}-{unit}" for name in LAYERS for unit in ("stream", "line")], everyday=EVERYDAY)
)
def test_every_layer_beats_the_unigram(texts, tmp_path: Path, job: str) -> None:
    name, _, unit = job.rpartition("-")
    config = small_config(texts, tmp_path / "run", model={"layer": name}, data={"unit": unit}, training={"steps": 150})
    run = seriatim.train(config)
    assert run.summary["valid"]["perplexity"] < 0.6 * run.summary["baseline"]["perplexity"]
    assert run.summary["best_valid"] == pytest.approx(run.summary["valid"]["loss"], abs=1e-6)


def test_the_prior_is_a_unigram_model(texts, tmp_path: Path) -> None:
    config = small_config(texts, tmp_path / "run", model={"layer": "prior"}, training={"steps": 200})
    summary = seriatim.train(config).summary
    assert summary["valid"]["perplexity"] == pytest.approx(summary["baseline"]["perplexity"], rel=0.02)


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
    "across-epochs": ({"layer": "gru", "num_layers": 2}, {"unit": "stream"}, {"batch_size": 16, "sequence_length": 64}),
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
    with refused("fixed", "model"):
        seriatim.resume(run.path, overrides={"model.hidden_size": 5})
    with refused("fixed", "training.batch_size"):
        seriatim.resume(run.path, overrides={"training.batch_size": 5})
    path = Path(texts["train"])
    before = path.read_text()
    try:
        path.write_text(before + "the cat sees it .\n")
        with refused("mismatch", "train.txt"):
            seriatim.resume(run.path, overrides={"training.steps": 50})
    finally:
        path.write_text(before)
    more = {"training.learning_rate": None, "training.steps": 46}
    assert seriatim.resume(run.path, overrides=more).config.training.learning_rate > 0


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
    """The letters of the held-out text come in the opposite order, so that more training soon makes the loss larger."""
    valid = tmp_path / "valid.txt"
    valid.write_text(Path(texts["valid"]).read_text()[::-1])
    training = {"steps": 60, "evaluate_every": 3, "learning_rate": 0.03, "schedule": "constant", "keep": keep}
    config = small_config({**texts, "valid": str(valid)}, tmp_path / "run", training=training)
    run = seriatim.train(config)
    last = load_tensors(checkpoints(run.path / "checkpoints")[-1] / "model.safetensors")
    records = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    losses = [record["loss"] for record in records if record["kind"] == "valid"]
    assert losses[-1] > min(losses)
    assert all(torch.equal(value, last[name]) for name, value in weights(run).items()) == (keep == "last")
    expected = min(losses) if keep == "best" else losses[-1]
    assert run.summary["valid"]["loss"] == pytest.approx(expected, abs=1e-6)
    with refused("fixed", "training.keep"):
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


@pytest.mark.exhaustive
def test_bfloat16_learns_too(texts, tmp_path: Path) -> None:
    exact = seriatim.train(small_config(texts, tmp_path / "f", training={"precision": "float32", "steps": 100}))
    near = seriatim.train(small_config(texts, tmp_path / "b", training={"precision": "bfloat16", "steps": 100}))
    assert near.summary["precision"] == "bfloat16"
    assert near.summary["best_valid"] == pytest.approx(exact.summary["best_valid"], abs=0.1)
    assert choose_precision("auto", torch.device("cpu")) == "float32"


@pytest.mark.parametrize(
    ("changes", "kind", "place", "value"),
    [
        ({"data.train": None}, "required", "data.train", ""),
        ({"training.sequence_length": 10**6}, "range", "training.sequence_length", ""),
        ({"training.batch_size": 10**6}, "range", "training.batch_size", ""),
        ({"model.layer": "lsmt"}, "unknown", "", "lstm"),
        ({"model.options.activation": "relu"}, "unknown", "", "activation"),
        ({"tokenizer.kind": "word", "tokenizer.min_count": 10**6}, "mismatch", "train.txt", ""),
        ({"training.device": "abacus"}, "unavailable", "training.device", ""),
        ({"training.device": "meta"}, "unavailable", "training.device", ""),
        ({"training.steps": True}, "range", "training.steps", ""),
        ({"data.train": ""}, "required", "", ""),
        ({"data.train": "-", "data.valid": "-"}, "conflict", "data.valid", ""),
        ({"data.valid": None, "training.schedule": "plateau"}, "required", "training.schedule", ""),
        ({"data.valid": None, "training.patience": 2}, "required", "training.patience", ""),
        ({"out": None}, "required", "out", ""),
    ],
)
def test_bad_input_is_refused_before_anything_is_written(
    texts, tmp_path: Path, changes, kind: str, place: str, value: str
) -> None:
    out = tmp_path / "run"
    with refused(kind, place, value):
        seriatim.train(small_config(texts, out), overrides=changes)
    assert not out.exists()


def test_a_validation_text_of_unknown_words_is_refused(texts, tmp_path: Path) -> None:
    path = tmp_path / "strange.txt"
    path.write_text("zwei drei\nvier\n")
    config = small_config({**texts, "valid": str(path)}, tmp_path / "run", tokenizer={"kind": "word"})
    with refused("mismatch", "strange.txt"):
        seriatim.train(config)


def test_a_folder_in_use_needs_overwrite(texts, tmp_path: Path) -> None:
    out = tmp_path / "run"
    seriatim.train(small_config(texts, out))
    (out / "thesis.txt").write_text("mine")
    with refused("exists", "run"):
        seriatim.train(small_config(texts, out))
    seriatim.train(small_config(texts, out), overwrite=True)
    assert (out / "thesis.txt").read_text() == "mine"
    before = weights(seriatim.load(out))
    with refused("missing", "gone.txt"):
        seriatim.train(small_config({**texts, "train": "gone.txt"}, out), overwrite=True)
    assert all(torch.equal(value, before[name]) for name, value in weights(seriatim.load(out)).items())
    (tmp_path / "file").write_text("")
    with refused("unwritable", "file"):
        seriatim.train(small_config(texts, tmp_path / "file"))


def test_perplexity_is_the_exponential_of_the_loss(runs) -> None:
    valid = runs["char-stream"].summary["valid"]
    assert valid["perplexity"] == pytest.approx(math.exp(valid["loss"]))


DECIDED = [
    '{"decisions": {"model.dropout": 1}, "counts": {}}',
    '{"decisions": {}, "counts": {"words": "many"}}',
    "[]",
    "{",
    '{"decisions": {}, "counts": {}',
]


def test_a_training_that_resumes_keeps_what_was_decided(texts, tmp_path: Path) -> None:
    config = small_config(texts, tmp_path / "run", training={"steps": 2})
    run = seriatim.train(config)
    path = run.path / "decisions.json"
    decided = json.loads(path.read_text())
    given = {f"{section}.{key}" for section in ("data", "model", "training") for key in config.get(section, {})}
    assert decided["decisions"].keys().isdisjoint(given)
    for name, one in decided["decisions"].items():
        section, _, key = name.rpartition(".")
        values = run.config.model_dump()
        assert (values[section] if section in values else values["model"]["options"])[key] == one["value"]
        assert one["reason"]
    seriatim.resume(run.path, overrides={"training.steps": 3})
    assert json.loads(path.read_text()) == decided
    for steps, damaged in enumerate(DECIDED, start=4):  # the record informs; a training goes on without it
        path.write_text(damaged)
        with pytest.warns(DataWarning, match=r"decisions\.json"):
            seriatim.resume(run.path, overrides={"training.steps": steps})
        assert "decisions" in json.loads(path.read_text())
    path.unlink()
    assert seriatim.resume(run.path, overrides={"training.steps": 20}).summary["steps"] == 20


def test_a_settled_configuration_cannot_be_changed(runs) -> None:
    config = runs["char-stream"].config
    before = config.model_dump()
    for change in (
        lambda: setattr(config, "task", "tag"),
        lambda: setattr(config.model, "dropout", 0.5),
        lambda: setattr(config.training, "steps", 10**6),
        lambda: config.model.options.update(a=1),
        lambda: config.model.options.__setitem__("a", 1),
        lambda: delattr(config.training, "steps"),
        lambda: delattr(config, "task"),
    ):
        with pytest.raises(SettledError):
            change()
    assert config.model_dump() == before
    assert config.replaced({"model.dropout": 0.5}).model.dropout == 0.5

"""Comparing: equal parameters, equal budgets, the same data, and what is made of finished rows."""

import json
import shlex
import signal
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import seriatim
from seriatim.cli import comparison_console as console_comparison
from seriatim.cli.main import main
from seriatim.comparison import budget, comparing, cost, distance, equal_parameters, runner, samples, worker
from seriatim.comparison.budget import VALIDATING, VALIDATIONS, Pace, evaluate_every, settle_budget
from seriatim.comparison.comparing import resume
from seriatim.comparison.comparison_page import report
from seriatim.comparison.comparison_settings import ComparisonSettings, make_plan, parse_parameters, share_options
from seriatim.comparison.distance import known_distances
from seriatim.comparison.metric import FIGURE_OF_SUMS, difference, higher_is_better
from seriatim.comparison.plan import Budget, read_plan
from seriatim.comparison.shared_data import fit_plan
from seriatim.comparison.worker import WorkerJob, work
from seriatim.comparison.worker_process import Stopped
from seriatim.config import resolve
from seriatim.core.errors import InputError, TrainingError
from seriatim.core.interruption import Interrupted
from seriatim.evaluation.intervals import paired
from seriatim.evaluation.label_metrics import classification_measures, tagging_measures
from seriatim.evaluation.translation import translation_measures
from seriatim.layers import find, names
from seriatim.recurrence.obstacles import uncompiled
from seriatim.storage.weights import load_tensors
from seriatim.tasks import TASKS
from seriatim.training.setup import learn

SMALL = {
    "model": {"embedding_size": 8, "hidden_size": 12},
    "training": {"batch_size": 4, "sequence_length": 16},
}
LINES = {
    "classify": "label\ttext\n" + "yes\tthis is good\nno\tthat is bad\n" * 6,
    "seq2seq": "ab\tba\ncd e\te dc\nabc\tcba\n" * 4,
    "tag": "the DET\ncat NOUN\nsees VERB\n\na DET\ndog NOUN\n\n" * 4,
}


def small(texts: dict[str, str], out: Path | str, **data: str) -> dict:
    return {**SMALL, "data": {"train": texts["train"], "valid": texts["valid"], **data}, "out": str(out)}


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trains without processes of their own, which take seconds to start."""

    def run(job: WorkerJob, listen: Callable, signalled: Callable) -> dict:
        events: list[dict] = []

        def tell(event: dict) -> None:
            events.append(json.loads(json.dumps(event)))
            listen(events[-1])

        with uncompiled():
            work(job, tell)
        return events[-1]

    monkeypatch.setattr(runner, "run_worker", run)
    monkeypatch.setattr(budget, "SHORTEST", 0.0)
    monkeypatch.setattr(budget, "ROUGH", 0.0)
    monkeypatch.setattr(cost, "STATE_AFTER", (1, 10, 100))
    monkeypatch.setattr(cost, "TEXT_LENGTHS", (16,))
    monkeypatch.setattr(samples, "CHARACTERS", 10)
    monkeypatch.setattr(distance, "POSITIONS", 10)
    monkeypatch.setattr(cost, "GENERATED", 5)
    monkeypatch.setattr(distance, "CONTEXTS", (1, 4))


# Equal parameters


@pytest.mark.parametrize("name", names())
def test_widths_are_solved_to_within_two_percent(name: str, texts: dict[str, str]) -> None:
    for target in (30_000, 400_000):
        plan = make_plan(
            {"data": {"train": texts["train"], "valid": texts["valid"]}}, ComparisonSettings([name], parameters=target)
        )
        vocabulary = fit_plan(plan)
        sized = plan.sized[name]
        assert abs(sized.parameters - target) <= equal_parameters.TOLERANCE * target
        made = seriatim.tasks.find(plan.config(name, 1)).make_model(vocabulary)
        assert sum(parameter.numel() for parameter in made.parameters()) == sized.parameters


@pytest.mark.parametrize("name", ["gru", "convolution", "transformer"])
@pytest.mark.parametrize("task", ["classify", "seq2seq"])
def test_widths_of_other_tasks(name: str, task: str, tmp_path: Path) -> None:
    path = tmp_path / "data.tsv"
    path.write_text(LINES[task])
    options = {"tokenizer": {"kind": "char"}, "model": {"layer": name}}
    config = resolve({"task": task, "data": {"train": str(path)}, **options})
    vocabulary, _ = learn(seriatim.tasks.find(config))
    _, _, parameters = equal_parameters.WidthSolver(config, vocabulary).solve(150_000, 32)
    assert abs(parameters - 150_000) <= equal_parameters.TOLERANCE * 150_000


def test_widths_are_round_where_that_is_near_enough(texts: dict[str, str]) -> None:
    plan = make_plan(
        {"data": {"train": texts["train"], "valid": texts["valid"]}}, ComparisonSettings(["rnn"], parameters="1M")
    )
    fit_plan(plan)
    assert plan.sized["rnn"].hidden_size % 8 == 0


def test_the_first_layer_says_how_many_parameters(texts: dict[str, str], tmp_path: Path) -> None:
    plan = make_plan(small(texts, tmp_path / "x"), ComparisonSettings(["ngram", "lstm", "rnn"]))
    fit_plan(plan)
    assert plan.sized["lstm"].hidden_size == 12
    assert plan.sized["lstm"].parameters == plan.parameters
    assert plan.sized["ngram"].parameters is None
    assert plan.sized["rnn"].hidden_size > 12


def test_a_large_vocabulary_narrows_the_embedding_of_all(texts: dict[str, str]) -> None:
    data = {"train": texts["train"], "valid": texts["valid"]}
    plan = make_plan(
        {"data": data, "tokenizer": {"kind": "word"}}, ComparisonSettings(["rnn", "transformer"], parameters=6_000)
    )
    fit_plan(plan)
    assert plan.base.model.embedding_size < 128
    assert len({sized.embedding_size for sized in plan.sized.values()}) == 1
    with pytest.raises(
        InputError, match=r"--parameters: 5 is less than .* can have with this vocabulary; give at least"
    ):
        fit_plan(make_plan({"data": data}, ComparisonSettings(["rnn", "lstm"], parameters=5)))


@pytest.mark.parametrize(("text", "number"), [("1M", 10**6), ("500k", 500_000), ("1_000_000", 10**6), (7, 7)])
def test_numbers_of_parameters(text: object, number: int) -> None:
    assert parse_parameters(text) == number


# Budgets


@pytest.mark.parametrize("step_seconds", [0.001, 0.3])
@pytest.mark.parametrize("share", [1.0, 0.5, 1 / 6])
def test_steps_fit_the_minutes(step_seconds: float, share: float) -> None:
    fields = settle_budget(resolve({}), Budget(minutes=0.5), Pace(step_seconds, 64, 0.1), share=share, automatic=[])
    steps = fields["training.steps"]
    assert steps * step_seconds <= 30 * share < (steps + 1) * step_seconds + 1e-9
    assert "training.evaluate_every" not in fields


@pytest.mark.parametrize("validation_seconds", [0.0, 0.1, 3.0, 1e3])
@pytest.mark.parametrize("steps", [1, 7, 1000])
def test_validations_are_worth_their_time(validation_seconds: float, steps: int) -> None:
    every = evaluate_every(steps, Pace(0.01, 64, validation_seconds))
    times = -(-steps // every)
    assert 1 <= every <= steps
    assert times <= VALIDATIONS[0]
    assert times == 1 or times * validation_seconds <= VALIDATING * steps * 0.01 + 1e-9


def test_a_budget_shorter_than_a_step() -> None:
    with pytest.raises(InputError, match=r"--minutes: 0\.01 is too little, one step takes 2 s; give 0\.034 or more"):
        settle_budget(resolve({}), Budget(minutes=0.01), Pace(2.0, 64, 0), share=1.0, automatic=[])


@pytest.mark.parametrize(("wrong", "trainings"), [(1.0, [10]), (1.4, [7]), (2.0, [5, 10]), (0.5, [20])])
def test_a_wrong_measurement_is_set_right(
    texts, tmp_path: Path, monkeypatch, in_process: None, wrong: float, trainings: list[int]
) -> None:
    kept, steps = Pace(wrong, 64, 0.0), []
    usual = worker.train

    def train(config, **settings) -> seriatim.Run:
        steps.append(config.training.steps)
        run = usual(config, **settings)
        run.summary["tokens_per_second"] = run.summary["tokens"] / run.summary["steps"]  # a second a step
        return run

    def keep(name: str, pace: Pace) -> None:
        nonlocal kept
        kept = pace

    monkeypatch.setattr(worker, "train", train)
    monkeypatch.setattr(worker, "pace_of", lambda *_: (kept, "pace"))
    monkeypatch.setattr(worker, "store_pace", keep)
    config = {**small(texts, tmp_path / "a"), "model": {**SMALL["model"], "options": {"smoothing": "witten-bell"}}}
    row, counted = seriatim.compare(config, layers=["rnn", "ngram"], minutes=1 / 6).results["rows"]
    assert steps[: len(trainings)] == trainings
    assert counted["note"] is None
    assert kept.step_seconds == (wrong if 0.7 <= 1 / wrong <= 1 / 0.7 else 1.0)  # the steps of a next comparison
    off = trainings[-1] != 10
    assert row["note"] == (
        f"trained for {trainings[-1]} s instead of 10 s, because its speed differed from the measured speed"
        if off
        else None
    )
    assert seriatim.load(tmp_path / "a" / "runs" / "rnn-1").summary["steps"] == trainings[-1]


# What is given to whom


def test_options_go_to_the_layers_that_know_them() -> None:
    shared = share_options(["ngram", "transformer", "rnn"], {"order": 3, "num_heads": 2}, "lm")
    assert shared == {"ngram": {"order": 3}, "transformer": {"num_heads": 2}, "rnn": {}}
    assert share_options(["rnn"], {"pooling": "mean"}, "classify") == {"rnn": {"pooling": "mean"}}
    with pytest.raises(InputError, match="none of rnn, gru has such an option; did you mean 'activation'"):
        share_options(["rnn", "gru"], {"activaton": "relu"}, "lm")


def test_rates_are_the_layers_own(texts: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(find("mamba"), "learning_rates", {"lm": 5e-4})
    config = {"data": {"train": texts["train"], "valid": texts["valid"]}}
    plan = make_plan(config, ComparisonSettings(["mamba", "mamba+gru", "gru"]))
    assert plan.sized["mamba"].learning_rate == plan.sized["mamba+gru"].learning_rate == 5e-4
    assert plan.sized["gru"].learning_rate == find("gru").learning_rate_for("lm")
    assert plan.config("mamba+gru", 1).model.layer == "mamba,gru"
    plan = make_plan({**config, "training": {"learning_rate": 1e-2}}, ComparisonSettings(["mamba", "gru"]))
    assert {sized.learning_rate for sized in plan.sized.values()} == {1e-2}


def test_a_plan_is_read_as_it_was_written(texts: dict[str, str], tmp_path: Path) -> None:
    plan = make_plan(small(texts, tmp_path), ComparisonSettings(["ngram", "mamba+gru"], tokens=5000, seeds=3, tune=2))
    (tmp_path / "comparison.yaml").write_text(plan.to_yaml())
    assert read_plan(tmp_path) == plan.model_copy(update={"base": plan.base.model_copy(update={"out": None})})


@pytest.mark.parametrize("task", TASKS)
def test_every_figure_has_a_direction(task: str) -> None:
    for figure in TASKS[task].figures:
        assert higher_is_better(figure.key) == ("loss" not in figure.name and "perplexity" not in figure.name and
                                              "bits" not in figure.name and "error" not in figure.name)  # fmt: skip


# Differences


def test_figures_of_sums_are_those_of_the_tasks() -> None:
    random = np.random.default_rng(0)
    probabilities = random.dirichlet(np.ones(3), size=20)
    tags = [[["B-X", "I-X", "O", "B-Y"][i] for i in random.integers(4, size=5)] for _ in range(8)]
    found = {
        **classification_measures(random.integers(3, size=20), probabilities, ["a", "b", "c"]),
        **tagging_measures(tags, tags[1:] + tags[:1]),
        **translation_measures(["a b c", "d"], ["a b d", "d e"]),
    }
    for name, measure in found.items():
        sums = measure.statistics.sum(0)
        assert FIGURE_OF_SUMS[name](sums) == measure.compute(sums)


def test_differences_are_paired() -> None:
    random = np.random.default_rng(1)
    first, second = (np.stack([random.random(50), np.ones(50)], 1) for _ in range(2))
    found = difference({"loss": first}, {"loss": second}, "bits_per_byte")
    assert found == {"key": "loss", **paired(first, second, FIGURE_OF_SUMS["loss"])._asdict()}
    assert difference({"loss": first}, {"loss": second}, "calibration_error") is None
    assert difference({"loss": first}, {"loss": second[1:]}, "loss") is None


def test_distances_of_tasks_go_to_twice_the_longest() -> None:
    assert known_distances("copy")[-1] == 200
    assert known_distances("adding")[0] == 4
    assert known_distances("reversal") == [2, 5, 10, 20]


# Costs


def test_what_is_measured_of_a_model(texts, tmp_path: Path, in_process: None) -> None:
    settings = {"model": {"embedding_size": 8, "hidden_size": 12, "options": {"num_heads": 2, "window": 20}}}
    found = seriatim.compare({**small(texts, tmp_path / "a"), **settings}, layers=["lstm", "transformer"], steps=1)
    for row in found.rows:
        assert list(row["state_bytes"]) == ["1", "10", "100"]
        assert all(value > 0 for value in row["step_milliseconds"].values())
        assert all(value > 0 for value in row["reading_milliseconds"].values())
        assert row["milliseconds_per_token"] > 0
        assert all(0 <= value <= 1 for value in row["distance"]["values"].values())
    lstm, transformer = found.results["rows"]
    assert set(lstm["state_bytes"].values()) == {2 * lstm["hidden_size"] * 4}
    sizes = transformer["state_bytes"]
    assert sizes["1"] < sizes["10"] < sizes["100"]


@pytest.mark.parametrize(
    ("text", "prompt"), [("* * * *\n____ The 3 cats — see\nit now", "The cats see it"), ("1 2 3", "1 2 3")]
)
def test_prompts_are_of_words(text: str, prompt: str) -> None:
    ids = np.array([1 + ord(letter) for letter in text])
    tokenizer = SimpleNamespace(
        unknown_id=1, ends_lines=False, decode=lambda ids: "".join(chr(token - 1) for token in ids)
    )
    assert samples.prompt_of(SimpleNamespace(tokenizer=tokenizer), SimpleNamespace(ids=ids)) == prompt


# From the beginning to the end


@pytest.mark.parametrize("task", ["lm", "classify"])
def test_train_and_compare_train_the_same(task: str, texts, tmp_path: Path, in_process: None) -> None:
    data = texts["train"]
    if task in LINES:
        path = tmp_path / "data.tsv"
        path.write_text(LINES[task])
        data = str(path)
    config = {"task": task, "data": {"train": data, "valid": data}, "model": SMALL["model"]}
    config["training"] = {"evaluate_every": 8, "keep": "last"}
    compared = seriatim.compare({**config, "out": str(tmp_path / "compared")}, layers=["gru"], steps=8)
    path = tmp_path / "compared" / compared.results["rows"][0]["runs"][0]["path"]
    overrides = {"model.layer": "gru", "training.steps": 8, "out": str(tmp_path / "alone")}
    with uncompiled():
        alone = seriatim.train(config, overrides=overrides)
    assert alone.config.training == resolve(path / "config.yaml").training
    assert alone.config.model == resolve(path / "config.yaml").model
    tensors = load_tensors(path / "model.safetensors")
    assert all(torch.equal(value, tensors[name]) for name, value in alone.model.named_parameters())


def test_a_comparison_goes_on_and_is_the_same_again(texts, tmp_path: Path, in_process: None) -> None:
    test = tmp_path / "test.txt"
    test.write_text(Path(texts["test"]).read_text())
    model = {**SMALL["model"], "options": {"smoothing": "witten-bell"}}
    first, again = (
        seriatim.compare(
            {**small(texts, tmp_path / out, test=str(test)), "model": model},
            layers=layers,
            steps=6,
            parameters=3000,
        )
        for out, layers in (("a", ["ngram", "rnn"]), ("b", ["rnn", "ngram"]))
    )
    results = first.results
    metrics = {row["layer"]: row["metrics"] for row in results["rows"]}
    assert metrics == {row["layer"]: row["metrics"] for row in again.results["rows"]}
    assert json.loads((tmp_path / "a" / "results.json").read_text()) == json.loads(json.dumps(results))
    assert results["metric"]["key"] == results["figures"][0]["key"] == "perplexity"
    assert results["data"]["measured_on"] == str(test)

    rnn = results["rows"][1]
    run = seriatim.load(tmp_path / "a" / rnn["runs"][0]["path"])
    assert run.evaluate(str(test))["perplexity"] == pytest.approx(rnn["metrics"]["perplexity"])
    assert rnn["parameters"] == sum(parameter.numel() for parameter in run.model.parameters())
    assert rnn["runs"][0]["steps"] == 6
    assert rnn["held_out"][-1]["step"] == 6
    assert rnn["difference"]["to"] == "ngram"
    assert [row["layer"] for row in first.rows] == ["ngram", "rnn"]

    more = resume(tmp_path / "a", layers=["ngram", "rnn", "rnn+gru"], seeds=2)
    assert [row["layer"] for row in more.results["rows"]] == ["ngram", "rnn", "rnn+gru"]
    kept = more.results["rows"][1]
    assert kept["runs"][0] == rnn["runs"][0]
    assert kept["spread"]["loss"] == sorted(one["metrics"]["loss"] for one in kept["runs"])
    assert kept["metrics"]["loss"] == pytest.approx(np.mean(kept["spread"]["loss"]))
    for wrong, what in (({"layers": ["rnn"]}, "--layers: ngram"), ({"seeds": 1}, "--seeds: the comparison has 2")):
        with pytest.raises(InputError, match=what):
            resume(tmp_path / "a", **wrong)

    test.write_text(Path(texts["valid"]).read_text())
    written = (tmp_path / "a" / "results.json").read_bytes()
    with pytest.raises(InputError, match=r"test\.txt has changed since this comparison began; restore it, or start"):
        resume(tmp_path / "a", seeds=3)
    assert (tmp_path / "a" / "results.json").read_bytes() == written
    assert resume(tmp_path / "a", seeds=2).results["rows"] == more.results["rows"]  # nothing is left to train
    test.write_text(Path(texts["test"]).read_text())
    assert len(resume(tmp_path / "a", seeds=3).results["rows"][1]["runs"]) == 3

    plan = tmp_path / "a" / "comparison.yaml"
    plan.write_text(plan.read_text().replace(f"version: {seriatim.__version__}", "version: 0.0.1"))
    with pytest.raises(InputError, match=r"made by Seriatim 0\.0\.1"):
        resume(tmp_path / "a")


def test_half_a_budget_goes_to_trials(texts, tmp_path: Path, in_process: None) -> None:
    found = seriatim.compare(small(texts, tmp_path / "a"), layers=["rnn"], steps=12, tune=3, metric="bits_per_byte")
    (row,) = found.rows
    tried = [one["learning_rate"] for one in row["tried"]]
    assert np.allclose(np.array(tried) / find("rnn").learning_rate_for("lm"), [1 / 3, 1, 3])
    assert row["learning_rate"] == min(row["tried"], key=lambda one: one["value"])["learning_rate"]
    assert row["runs"][0]["steps"] == 6
    assert found.results["metric"]["key"] == "bits_per_byte"


def test_a_signal_ends_it_and_it_goes_on(texts, tmp_path: Path, monkeypatch, in_process: None) -> None:
    usual = runner.run_worker

    def run(job: WorkerJob, listen: Callable, signalled: Callable) -> dict:
        if job.layer == "gru":
            signal.raise_signal(signal.SIGINT)
            assert signalled() == signal.SIGINT
            raise Stopped
        return usual(job, listen, signalled)

    with monkeypatch.context() as patch:
        patch.setattr(runner, "run_worker", run)
        with pytest.raises(Interrupted) as error:
            seriatim.compare(small(texts, tmp_path / "a b"), layers=["rnn", "gru"], steps=2)
    assert shlex.split(error.value.go_on) == ["seriatim", "compare", "--resume", str(tmp_path / "a b")]
    first, second = json.loads((tmp_path / "a b" / "results.json").read_text())["rows"]
    assert second["failed"] == "not trained yet"
    found = resume(tmp_path / "a b").results["rows"]
    assert found[0]["metrics"] == first["metrics"]
    assert found[1]["failed"] is None


def test_a_layer_that_fails_is_a_row(texts, tmp_path: Path, monkeypatch, in_process: None) -> None:
    usual = runner.run_worker

    def run(job: WorkerJob, listen: Callable, signalled: Callable) -> dict:
        if job.layer == "gru":
            raise TrainingError("its process was ended by SIGKILL")
        return usual(job, listen, signalled)

    monkeypatch.setattr(runner, "run_worker", run)
    found = seriatim.compare(small(texts, tmp_path / "a"), layers=["gru", "rnn"], steps=2)
    assert [row["layer"] for row in found.rows] == ["rnn", "gru"]
    assert found.rows[1]["failed"] == "its process was ended by SIGKILL"
    assert found.failures == [{"layer": "gru", "seed": 1, "reason": "its process was ended by SIGKILL"}]
    with pytest.raises(TrainingError, match="gru: its process"):
        seriatim.compare(small(texts, tmp_path / "b"), layers=["gru"], steps=2)


def test_a_changed_training_text_is_refused_before_anything_is_trained(texts, tmp_path: Path, in_process: None) -> None:
    train = tmp_path / "train.txt"
    original = Path(texts["train"]).read_text()
    train.write_text(original)
    config = {**small(texts, tmp_path / "a"), "data": {"train": str(train), "valid": texts["valid"]}}
    seriatim.compare(config, layers=["rnn"], steps=2)
    train.write_text(original.replace("moon", "noon"))  # the same characters, so that the tokenizer stays as it is
    for more in ({"seeds": 2}, {"layers": ["rnn", "gru"]}):
        with pytest.raises(InputError, match=r"data\.train: .*train\.txt has changed since this comparison began"):
            resume(tmp_path / "a", **more)
    assert [path.name for path in (tmp_path / "a" / "runs").iterdir()] == ["rnn-1"]
    train.write_text(original)
    assert [row["failed"] for row in resume(tmp_path / "a", layers=["rnn", "gru"]).results["rows"]] == [None, None]


def test_a_row_of_other_data_is_not_written(texts, tmp_path: Path, monkeypatch, in_process: None) -> None:
    """The training text changes after the check, while the training runs."""
    train = tmp_path / "train.txt"
    original = Path(texts["train"]).read_text()
    train.write_text(original)
    usual = runner.run_worker

    def run(job: WorkerJob, listen: Callable, signalled: Callable) -> dict:
        train.write_text(original.replace("moon", "noon") if job.layer == "gru" else original)
        return usual(job, listen, signalled)

    monkeypatch.setattr(runner, "run_worker", run)
    config = {**small(texts, tmp_path / "a"), "data": {"train": str(train), "valid": texts["valid"]}}
    found = seriatim.compare(config, layers=["rnn", "gru"], steps=2)
    assert "was trained on different data" in found.rows[1]["failed"]
    assert [path.name for path in (tmp_path / "a" / "rows").glob("*.json")] == ["rnn-1.json"]
    assert not (tmp_path / "a" / "runs" / "gru-1").exists()
    monkeypatch.setattr(runner, "run_worker", usual)
    train.write_text(original)
    assert resume(tmp_path / "a").results["rows"][1]["failed"] is None


@pytest.mark.parametrize("task", ["classify", "seq2seq", "tag"])
def test_other_tasks(task: str, tmp_path: Path, in_process: None) -> None:
    path = tmp_path / ("data.conll" if task == "tag" else "data.tsv")
    path.write_text(LINES[task])
    config = {**SMALL, "task": task, "data": {"train": str(path), "valid": str(path)}, "out": str(tmp_path / "out")}
    kind = "word" if task == "tag" else "char"
    found = seriatim.compare({**config, "tokenizer": {"kind": kind}}, layers=["rnn", "window"], steps=2)
    assert found.results["metric"]["key"] == {"classify": "accuracy", "seq2seq": "perplexity", "tag": "accuracy"}[task]
    for row in found.rows:
        assert row["failed"] is None
        assert row["milliseconds_per_token"] > 0
        assert row["distance"]["values"]
        assert {"input", "truth", "text"} <= row["samples"][0].keys()
    assert found.rows[1]["difference"]["to"] == found.rows[0]["layer"]


# Widths


def test_a_sweep_of_widths(texts, tmp_path: Path, in_process: None) -> None:
    """Each layer at each width is a row; the page shows the metric against the bytes of the state."""
    config = small(texts, tmp_path / "a") | {
        "model": {"embedding_size": 8, "options": {"order": 2, "smoothing": "witten-bell"}}
    }
    found = seriatim.compare(config, layers=["lstm", "ngram", "mingru"], widths=[4, 8], steps=2)
    assert sorted(row["layer"] for row in found.rows) == ["lstm@4", "lstm@8", "mingru@4", "mingru@8", "ngram"]
    rows = {row["layer"]: row for row in found.rows}
    for width in (4, 8):
        row = rows[f"lstm@{width}"]
        assert (row["architecture"], row["width"], row["hidden_size"]) == ("lstm", width, width)
        assert row["state_at_length"] == {"tokens": 1000, "bytes": 2 * 4 * width}
    assert rows["lstm@4"]["parameters"] < rows["lstm@8"]["parameters"]
    page = report(found.results)
    assert 'id="bottleneck"' in page
    assert "The widths are set" in page
    finished = resume(tmp_path / "a", widths=[4, 8, 16])
    assert [row["layer"] for row in finished.results["rows"] if row["width"] == 16] == ["lstm@16", "mingru@16"]
    assert {row["layer"]: row["metrics"] for row in finished.rows if row["layer"] in rows} == {
        name: row["metrics"] for name, row in rows.items()
    }
    with pytest.raises(InputError, match="--layers: lstm@8 is in the comparison already"):
        resume(tmp_path / "a", widths=[4])


def test_states_are_measured_at_the_longest_input(tmp_path: Path, in_process: None) -> None:
    """What grows with the text is measured where it is needed; classifiers of a sweep read in one direction."""
    path = tmp_path / "data.tsv"
    path.write_text("label\ttext\n" + "yes\ta b c d e\nno\tb a\n" * 6)
    config = {**SMALL, "task": "classify", "data": {"train": str(path), "valid": str(path)}, "out": str(tmp_path / "a")}
    found = seriatim.compare(config, layers=["gru", "self-attention"], widths=[8], steps=1)
    states = {row["architecture"]: row["state_at_length"] for row in found.rows}
    assert states["gru"] == {"tokens": 5, "bytes": 4 * 8}
    assert states["self-attention"]["tokens"] == 5
    assert 5 * 4 * 8 <= states["self-attention"]["bytes"] < 6 * 4 * 8


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--widths", "8,x"), "--widths: 'x' is not a width"),
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


# The command


def test_the_command_and_its_processes(capsys, texts, tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    sizes = ("--model.hidden_size", "12", "--model.embedding_size=8", "--training.batch_size", "4")
    begin = ("compare", "lm", "--data", texts["train"], "--valid", texts["valid"], "--no-report", *sizes)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        assert main([*begin, "--layers", "rnn", "--steps", "3", "--out", out]) == 0
    printed = capsys.readouterr()
    assert "perplexity per token" in printed.out
    assert "1 of 1  rnn" in printed.err
    results = json.loads(Path(out, "results.json").read_text())
    assert results["command"].startswith("seriatim compare lm --data")
    assert results["rows"][0]["memory_bytes"] > 10**7
    assert results["rows"][0]["failed"] is None

    assert main(["compare", "--resume", out, "--json", "--quiet", "--no-report"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["rows"] == results["rows"]
    assert printed.err == ""
    assert main(["compare", "--resume", out, "--steps", "9"]) == 2
    assert "--resume: steps stays as it is" in capsys.readouterr().err
    assert main([*begin, "--layers", "rnn", "--steps", "3", "--out", out]) == 2
    assert "not empty" in capsys.readouterr().err


def test_a_comparison_with_a_failed_layer_exits_with_1(capsys, texts, tmp_path: Path, monkeypatch, in_process) -> None:
    usual = runner.run_worker

    def run(job: WorkerJob, listen: Callable, signalled: Callable) -> dict:
        if job.layer == "gru":
            raise TrainingError("its process was ended by SIGKILL")
        return usual(job, listen, signalled)

    monkeypatch.setattr(runner, "run_worker", run)
    out = str(tmp_path / "a")
    sizes = ("--model.hidden_size", "12", "--model.embedding_size=8", "--training.batch_size", "4")
    begin = ("compare", "lm", "--data", texts["train"], "--valid", texts["valid"], *sizes, "--steps", "2", "--out", out)
    assert main([*begin, "--layers", "rnn,gru", "--quiet"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "1 of 2 layers failed: gru (its process was ended by SIGKILL); to retry: seriatim compare --resume" in line
    assert Path(out, "report.html").exists()
    monkeypatch.setattr(runner, "run_worker", usual)
    assert main(["compare", "--resume", out, "--quiet", "--no-report"]) == 0


def test_what_no_report_can_be_drawn_with_is_said_first(capsys, texts, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(console_comparison, "find_spec", lambda name: None if name == "jinja2" else name)
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
        (("--layers", "rnn", "--steps", "0"), "--steps: must be a whole number above 0, got 0"),
        (("--layers", "rnn", "--steps", "5", "--minutes", "2"), "the budget is already given in"),
        (("--layers", "rnn", "--steps", "5", "--training.minutes", "2"), "the budget is already given in"),
        (("--layers", "rnn", "--tokens", "5"), "--tokens: 5 is too little, one step reads 2,048"),
        (("--layers", "rnn", "--training.epochs", "2"), "training.epochs: a comparison gives every layer the same"),
        (("--layers", "rnn", "--seeds", "0"), "--seeds: must be from 1 to 100, got 0"),
        (("--layers", "rnn", "--tune", "1"), "--tune: must be from 2 to 100, got 1"),
        (
            ("--layers", "rnn", "--tune", "3", "--steps", "5"),
            "--steps: 5 is too little to be shared with trials; give 6",
        ),
        (("--layers", "rnn", "--metric", "accuracy"), "--metric: lm has no 'accuracy'; choose from loss, perplexity"),
        (("--layers", "rnn", "--parameters", "5"), "--parameters: 5 is less than rnn can have"),
        (("--layers", "rnn", "--parameters", "many"), "--parameters: 'many' is not a number"),
        (("--layers", "rnn", "--layer", "gru"), "model.layer: a comparison has several"),
        (("--layers", "rnn", "--data.test", "/nothing/there"), "/nothing/there: no such file"),
        (("--resume", "/nothing/there"), "not a comparison"),
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


def test_a_comparison_needs_something_to_measure_on(texts) -> None:
    with pytest.raises(InputError, match=r"no held-out data to measure on; give --valid FILE, or --data\.test FILE"):
        fit_plan(make_plan({"data": {"train": texts["train"]}}, ComparisonSettings(["rnn"])))


def test_folders_that_are_no_comparisons_are_left_alone(texts, tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(InputError, match=r"not a comparison, and its letter\.txt would be lost"):
        seriatim.compare(small(texts, tmp_path), layers=["rnn"], steps=1, overwrite=True)
    assert (tmp_path / "letter.txt").read_text() == "dear"


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (InputError("data.train: no such file"), "data.train: no such file"),
        (TrainingError("the loss is NaN"), "the loss is NaN"),
        (MemoryError(), "out of memory; lower training.batch_size, training.sequence_length or the sizes"),
        (
            RuntimeError("DefaultCPUAllocator: can't allocate memory\nmore"),
            "out of memory; lower training.batch_size, training.sequence_length or the sizes",
        ),
        (
            OSError(28, "No space left on device", "runs/a"),
            "runs/a: No space left on device; check space and permissions",
        ),
        (ZeroDivisionError("division by zero"), "the training process failed (ZeroDivisionError: division by zero)"),
    ],
)
def test_what_ends_a_process_is_one_plain_line(error: Exception, line: str) -> None:
    assert worker.one_line(error) == line

"""Plans of comparisons: equal parameters, budgets, options, learning rates and paired differences."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import seriatim
from seriatim.comparison import row
from seriatim.comparison.plan import FIGURE_OF_SUMS, Budget, difference, read_plan
from seriatim.comparison.planning import (
    TOLERANCE,
    ComparisonSettings,
    WidthSolver,
    divide_options,
    fit_plan,
    make_plan,
    parse_parameters,
)
from seriatim.comparison.row import known_distances
from seriatim.comparison.worker import SPARED, VALIDATING, VALIDATIONS, Pace, evaluate_every, settle_budget
from seriatim.config import resolve
from seriatim.evaluation.intervals import paired
from seriatim.evaluation.label_metrics import Predictions, measure_tags, prediction_measures
from seriatim.evaluation.translation import measure_translations
from seriatim.layers import find, names
from seriatim.tasks import TASKS, find_kind
from seriatim.tasks.defaults import rate_of
from seriatim.training.settle import settle_texts

from ..exhaustive import parameters
from ..refusals import refused
from .comparisons import LINES, small


@pytest.mark.parametrize("name", parameters(names(), everyday=("lstm", "transformer", "mamba", "window")))
def test_widths_are_solved_to_within_two_percent(name: str, texts: dict[str, str]) -> None:
    for target in (30_000, 400_000):
        plan = make_plan(
            {"data": {"train": texts["train"], "valid": texts["valid"]}}, ComparisonSettings([name], parameters=target)
        )
        vocabulary = fit_plan(plan)
        sized = plan.sized[name]
        assert abs(sized.parameters - target) <= TOLERANCE * target
        made = seriatim.tasks.new_task(plan.config(name, 1)).builder.build(vocabulary)
        assert sum(parameter.numel() for parameter in made.parameters()) == sized.parameters


@pytest.mark.parametrize("name", parameters(("gru", "convolution", "transformer"), everyday=("transformer",)))
@pytest.mark.parametrize("task", ["classify", "seq2seq"])
def test_widths_of_other_tasks(name: str, task: str, tmp_path: Path) -> None:
    path = tmp_path / "data.tsv"
    path.write_text(LINES[task])
    options = {"tokenizer": {"kind": "char"}, "model": {"layer": name}}
    config = resolve({"task": task, "data": {"train": str(path)}, **options})
    _, _, vocabulary = settle_texts(config)
    _, _, parameters = WidthSolver(config, vocabulary).solve(150_000, 32)
    assert abs(parameters - 150_000) <= TOLERANCE * 150_000


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
    assert len({plan.sized[row].embedding_size for row in ("rnn", "transformer")}) == 1
    with refused("range", "--parameters"):
        fit_plan(make_plan({"data": data}, ComparisonSettings(["rnn", "lstm"], parameters=5)))


@pytest.mark.parametrize(("text", "number"), [("1M", 10**6), ("500k", 500_000), ("1_000_000", 10**6), (7, 7)])
def test_numbers_of_parameters(text: object, number: int) -> None:
    assert parse_parameters(text) == number


@pytest.mark.parametrize("step_seconds", [0.001, 0.3])
@pytest.mark.parametrize("fraction", [1.0, 0.5, 1 / 6])
def test_steps_fit_the_minutes(step_seconds: float, fraction: float) -> None:
    fields = settle_budget(Budget(minutes=0.5), Pace(step_seconds, 64, 0.1), fraction=fraction, automatic=[])
    steps = fields["training.steps"]
    assert steps * step_seconds <= 30 * fraction < (steps + 1) * step_seconds + 1e-9
    assert "training.evaluate_every" not in fields


@pytest.mark.parametrize("validation_seconds", [0.0, 0.1, 3.0, 1e3])
@pytest.mark.parametrize("steps", [1, 7, 1000])
def test_validations_are_worth_their_time(validation_seconds: float, steps: int) -> None:
    every = evaluate_every(steps, Pace(0.01, 64, validation_seconds))
    times = -(-steps // every)
    assert 1 <= every <= steps
    assert times <= VALIDATIONS[0]
    assert times == 1 or times * validation_seconds <= max(SPARED, VALIDATING * steps * 0.01) + 1e-9
    if validation_seconds <= 1:
        assert times == min(steps, VALIDATIONS[0]), "eight short validations are worth their time in any training"


def test_a_budget_shorter_than_a_step() -> None:
    with refused("range", "--minutes"):
        settle_budget(Budget(minutes=0.01), Pace(2.0, 64, 0), fraction=1.0, automatic=[])


def test_options_go_to_the_layers_that_know_them() -> None:
    shared = divide_options(["ngram", "transformer", "rnn"], {"order": 3, "num_heads": 2}, "lm")
    assert shared == {"ngram": {"order": 3, "word_dropout": 0.8}, "transformer": {"num_heads": 2}, "rnn": {}}
    assert divide_options(["rnn"], {"pooling": "mean"}, "classify") == {"rnn": {"pooling": "mean"}}
    with refused("unknown", "model.options.activaton"):
        divide_options(["rnn", "gru"], {"activaton": "relu"}, "lm")


def test_rates_are_the_layers_own(texts: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(find("mamba"), "learning_rates", {"lm": 5e-4})
    config = {"data": {"train": texts["train"], "valid": texts["valid"]}}
    plan = make_plan(config, ComparisonSettings(["mamba", "mamba+gru", "gru"]))
    assert plan.sized["mamba"].learning_rate == plan.sized["mamba+gru"].learning_rate == 5e-4
    assert plan.sized["gru"].learning_rate == rate_of("gru", "lm", find_kind("lm").learning_rate)
    assert plan.config("mamba+gru", 1).model.layer == "mamba,gru"
    plan = make_plan({**config, "training": {"learning_rate": 1e-2}}, ComparisonSettings(["mamba", "gru"]))
    assert {sized.learning_rate for sized in plan.sized.values()} == {1e-2}


def test_a_plan_is_read_as_it_was_written(texts: dict[str, str], tmp_path: Path) -> None:
    plan = make_plan(small(texts, tmp_path), ComparisonSettings(["ngram", "mamba+gru"], tokens=5000, seeds=3, tune=2))
    (tmp_path / "comparison.yaml").write_text(plan.to_yaml())
    assert read_plan(tmp_path) == plan.model_copy(update={"base": plan.base.model_copy(update={"out": None})})


@pytest.mark.parametrize("task", TASKS)
def test_every_figure_has_a_direction(task: str) -> None:
    for figure in TASKS[task].evaluator.metrics:
        losses = ("loss", "perplexity", "bits", "error")
        assert figure.more_is_better == (not any(word in figure.name for word in losses))


def test_figures_of_sums_are_those_of_the_tasks() -> None:
    random = np.random.default_rng(0)
    predictions = Predictions.empty(random.integers(3, size=20))
    predictions.set(np.arange(20), random.dirichlet(np.ones(3), size=20))
    tags = [[["B-X", "I-X", "O", "B-Y"][i] for i in random.integers(4, size=5)] for _ in range(8)]
    found = {
        **prediction_measures(predictions, ["a", "b", "c"]),
        **measure_tags(tags, tags[1:] + tags[:1]).measures,
        **measure_translations(["a b c", "d"], ["a b d", "d e"]).measures,
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


@pytest.mark.parametrize(
    ("text", "prompt"),
    [
        ("* * * *\n____ The 3 cats — see\nit now", "The cats see it"),
        ("1 2 3", "1 2 3"),
        ("anna\nberta", "anna"),
        ("", ""),
    ],
)
def test_prompts_are_of_words(text: str, prompt: str) -> None:
    """A list of names, one a line, may have no space in its vocabulary."""
    ids = np.array([1 + ord(letter) for letter in text])
    tokenizer = SimpleNamespace(
        unknown_id=1,
        ends_lines=False,
        decode=lambda ids: "".join(chr(token - 1) for token in ids),
        find_unknown=lambda words: sorted({*words} - {*text}),
    )
    assert row.prompt_of(SimpleNamespace(tokenizer=tokenizer), SimpleNamespace(ids=ids)) == prompt


def test_a_comparison_needs_something_to_measure_on(texts) -> None:
    with refused("required", "data.valid"):
        fit_plan(make_plan({"data": {"train": texts["train"]}}, ComparisonSettings(["rnn"])))

"""Several ranks train what one process trains, to rounding, and what they save continues on any number of ranks."""

from pathlib import Path

import pytest
import torch

import seriatim

from ..promises.jobs import OPTIONS, configurations
from ..promises.test_07_accumulated_equals_together import exact_word_dropout
from .launched import errors, launch, losses, weights

EXACT = [name for name in OPTIONS if name != "masked"]  # which tokens are masked depends on the batch
STEPS = 12


def without_chance(config: dict, out: Path, **training: object) -> dict:
    """A configuration in which nothing is drawn that depends on how a batch is divided."""
    fixed = {"steps": STEPS, "optimizer": "sgd", "learning_rate": 0.3, "precision": "float32", "schedule": "constant"}
    config = {**config, "out": str(out), "training": {**config["training"], **fixed, "baseline": "none", **training}}
    if config["model"]["layer"] != "ngram":
        config = {**config, "model": {**config["model"], "dropout": 0.0}}
    return exact_word_dropout(config)


@pytest.fixture(scope="module")
def configs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict]:
    return configurations(tmp_path_factory.mktemp("data"), sequence_length=16, batch_size=5)


def check_equal(
    configs: dict[str, dict], names: list[str], folder: Path, ranks: int, parallel: str | dict[str, str]
) -> None:
    """Train on ranks and in one process; ``parallel`` is the same for all, or differs by name."""
    cases = []
    for name in names:
        kind = parallel if isinstance(parallel, str) else parallel[name]
        several = without_chance(configs[name], folder / f"{name} on ranks", parallel=kind)
        seriatim.train(without_chance(configs[name], folder / name))
        cases.append({"config": several})
    result = launch(ranks, cases, folder)
    assert result.returncode == 0, result.stderr[-6000:]
    for name in names:
        one, several = folder / name, folder / f"{name} on ranks"
        assert losses(several) == pytest.approx(losses(one), rel=2e-5), name
        expected = weights(one)
        assert weights(several).keys() == expected.keys()
        for key, value in weights(several).items():
            torch.testing.assert_close(
                value, expected[key], rtol=1e-3, atol=2e-5, msg=lambda text, key=key: f"{key}: {text}"
            )


def uneven(folder: Path) -> str:
    """Lines of which one rank has only short ones, so that it has windows without a token; and a last single line."""
    path = folder / "uneven.txt"
    path.write_text("\n".join("abcd " * (10 if i % 3 == 0 else 1) for i in range(31)) + "\n")
    return str(path)


@pytest.mark.exhaustive
def test_two_ranks(configs, tmp_path: Path) -> None:
    """With the whole model, with parts of it, and with ranks that have no token in a window."""
    data = {"train": uneven(tmp_path), "valid": "none", "unit": "line"}
    jobs = {**configs, "uneven": {**configs["cell"], "data": data, "model": {"layer": "gru"}}}
    kinds = {"lstm": "data", "state-space": "fsdp", "uneven": "fsdp"}
    check_equal(jobs, list(kinds), tmp_path, 2, kinds)


@pytest.mark.exhaustive
@pytest.mark.parametrize(("ranks", "parallel"), [(2, "fsdp"), (4, "data")])
def test_every_job(configs, tmp_path: Path, ranks: int, parallel: str) -> None:
    check_equal(configs, EXACT, tmp_path, ranks, parallel)


@pytest.mark.exhaustive
@pytest.mark.parametrize(("parallel", "unit"), [("data", "stream"), ("fsdp", "line")])
def test_every_layer(configs, tmp_path: Path, parallel: str, unit: str) -> None:
    base, layers = configs["lstm"], seriatim.layers.names()
    data = {"train": uneven(tmp_path), "valid": "none", "unit": "line"} if unit == "line" else base["data"]
    options = {"num_layers": 2, "hidden_size": 16}
    stacks = {name: {**base, "data": data, "model": {"layer": name, **options}} for name in layers}
    check_equal(stacks, layers, tmp_path, 2, parallel)


@pytest.mark.exhaustive
def test_ranks_whose_windows_have_different_lengths_can_read_their_own_predictions(configs, tmp_path: Path) -> None:
    """Each rank calls the layers once for each step, so that parts of a model cannot be gathered layer by layer."""
    data = {"train": uneven(tmp_path), "valid": "none", "unit": "line"}
    model = {"layer": "gru", "num_layers": 2, "options": {"scheduled_sampling": 0.5}}
    config = without_chance({**configs["cell"], "data": data, "model": model}, tmp_path / "run", parallel="fsdp")
    result = launch(2, [{"config": config}], tmp_path)
    assert result.returncode == 0, result.stderr[-6000:]
    assert len(set(errors(tmp_path / "run", 2))) == 1


@pytest.mark.exhaustive
def test_faults_of_one_rank(configs, tmp_path: Path) -> None:
    """A step that is not finite is skipped by all, a rank that hangs is named, and all ranks follow one clock."""
    base = configs["lstm"]
    several: dict[str, dict] = {}
    for name, training in {
        "nan": {"nonfinite": "skip", "checkpoint_every": 3},
        "hang": {"rank_timeout": 3.0, "checkpoint_every": 3},
        "clock": {"steps": None, "minutes": 0.05, "schedule": "cosine"},
    }.items():
        several[name] = {"config": without_chance(base, tmp_path / name, **training), "only": 1, "fault": name}
    with_held_out = {**base["data"], "valid": base["data"]["train"]}
    several["clock"]["config"]["data"] = with_held_out
    result = launch(2, [several["nan"], several["clock"]], tmp_path)
    assert result.returncode == 0, result.stderr[-6000:]
    for name in ("nan", "clock"):
        first, second = errors(tmp_path / name, 2)
        assert first == second
        assert "Error" not in first
    assert "rank 1 did not answer within 3 seconds" in launch(2, [several["hang"]], tmp_path).stderr


@pytest.mark.exhaustive
@pytest.mark.parametrize("parallel", ["data", "fsdp"])
def test_a_broken_training_resumes_with_the_same_bits(configs, tmp_path: Path, parallel: str) -> None:
    """On two ranks; on one rank it resumes with the same losses to rounding."""
    cases: list[dict] = []
    for name in ("lstm", "attention"):
        settings = {"parallel": parallel, "optimizer": "adamw", "learning_rate": 0.01, "checkpoint_every": 3}
        whole, broken, elsewhere = (
            without_chance(configs[name], tmp_path / f"{name} {state}", **settings)
            for state in ("whole", "broken", "elsewhere")
        )
        cases.append({"config": whole})
        cases += [{"config": each, "stop_at": 8, "may_fail": True} for each in (broken, elsewhere)]
        cases.append({"resume": broken["out"]})
    result = launch(2, cases, tmp_path)
    assert result.returncode == 0, result.stderr[-6000:]
    for name in ("lstm", "attention"):
        whole, resumed = weights(tmp_path / f"{name} whole"), weights(tmp_path / f"{name} broken")
        assert all(torch.equal(value, whole[key]) for key, value in resumed.items())
        with pytest.warns(UserWarning, match="resumes with ranks 1 \\(2 before\\)"):
            seriatim.resume(tmp_path / f"{name} elsewhere")
        assert losses(tmp_path / f"{name} elsewhere") == pytest.approx(losses(tmp_path / f"{name} whole"), rel=1e-4)


@pytest.mark.exhaustive
def test_one_rank_reports_the_others_stop_and_all_resume(configs, tmp_path: Path) -> None:
    config = without_chance(configs["lstm"], tmp_path / "run")
    different = {"config": {**config, "out": str(tmp_path / "different")}, "may_fail": True}
    cases = [
        {**different, "only": 1, "changes": {"training.learning_rate": 0.5}},
        {"config": {**config, "out": str(tmp_path / "broken")}, "stop_at": 5, "may_fail": True, "errors": "reason"},
        {"config": {**without_chance(configs["lstm"], tmp_path / "few"), "data": config["data"]}, "may_fail": True},
    ]
    cases[2]["config"]["training"] = {**config["training"], "batch_size": 1}
    cases += [{"config": {**config, "out": str(tmp_path / "whole")}}, {"resume": str(tmp_path / "broken")}]
    result = launch(2, cases, tmp_path)
    assert result.returncode == 0, result.stderr[-6000:]
    first, second = errors(tmp_path / "different", 2)
    assert "MismatchError: rank 1: training.learning_rate is 0.5, and 0.3 on rank 0; start every rank" in first
    assert ("[this process" in first) + ("[this process" in second) == 1
    assert "another process" in first + second
    first, second = errors(tmp_path / "reason", 2)
    assert "LookupError: this rank breaks [this process" in first
    assert "RankError: rank 0: LookupError: this rank breaks; step-000000000 is complete, resume" in second
    whole, resumed = weights(tmp_path / "whole"), weights(tmp_path / "broken")
    assert all(torch.equal(value, whole[key]) for key, value in resumed.items())
    assert "the largest batch has 1 sequence for 2 ranks; start at most 1, or raise" in errors(tmp_path / "few", 2)[0]
    assert not (tmp_path / "few").exists()

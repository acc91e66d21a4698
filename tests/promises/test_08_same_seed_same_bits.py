"""The same seed gives the same bits, on the same machine with as many threads; where those have changed, it is said."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import seriatim
from seriatim.training import hardware as module
from seriatim.training.hardware import environment

from ..exhaustive import parameters
from .jobs import OPTIONS, configurations
from .kills import outcome

THREADED = ("ngram", "cell", "attention")
PARTS = ("model.safetensors", "last/optimizer.safetensors", "metrics.jsonl")


@pytest.fixture(scope="module")
def configs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict]:
    return configurations(tmp_path_factory.mktemp("data"), steps=6, schedule="constant")


@pytest.fixture(autouse=True)
def _one_thread_afterwards() -> Iterator[None]:
    yield
    torch.set_num_threads(1)


@pytest.mark.parametrize(
    "job", parameters([*OPTIONS, *(f"{name} with 2 threads" for name in THREADED)], everyday=[*OPTIONS])
)
def test_twice_the_same_and_another_seed_something_else(configs, tmp_path: Path, job: str) -> None:
    name, threads = job.removesuffix(" with 2 threads"), 2 if job.endswith("threads") else 1
    torch.set_num_threads(threads)
    found = []
    for i, seed in enumerate((1, 1, 2)):
        torch.manual_seed(i)  # what was drawn before is of no account
        seriatim.train({**configs[name], "out": str(tmp_path / str(i))}, overrides={"training.seed": seed})
        found.append(outcome(tmp_path / str(i)))
    same = [part for part in found[0] if part != "config.yaml"]
    assert [found[0][part] for part in same] == [found[1][part] for part in same]
    if name != "ngram":  # which is counted
        assert all(found[0][part] != found[2][part] for part in PARTS)


def test_another_number_of_threads_is_said(configs, tmp_path: Path) -> None:
    seriatim.train({**configs["lstm"], "out": str(tmp_path / "run")})
    torch.set_num_threads(2)
    with pytest.warns(UserWarning, match=r"run: resumes with threads 2 \(1 before\); results will differ by rounding"):
        seriatim.resume(tmp_path / "run", overrides={"training.steps": 8})


@pytest.mark.parametrize("what", ["torch", "seriatim", "python", "processor", "device"])
def test_another_version_or_machine_is_said(configs, tmp_path: Path, what: str, monkeypatch) -> None:
    config = {**configs["convolution"], "out": str(tmp_path / "run")}
    before = environment(torch.device("cpu"))
    with monkeypatch.context() as patched:
        patched.setattr("seriatim.training.loop.environment", lambda device: {**before, what: "another"})
        seriatim.train(config)
    with pytest.warns(UserWarning, match=rf"resumes with {what} {re.escape(before[what])} \(another before\)"):
        seriatim.resume(tmp_path / "run", overrides={"training.steps": 8})


def test_what_changed_is_told_in_words() -> None:
    now = {"torch": "2", "threads": "4"}
    assert module.describe_changes(now, now) == module.describe_changes({}, now) == ""
    assert module.describe_changes({"torch": "1", "threads": "8"}, now) == "torch 2 (1 before), threads 4 (8 before)"

"""Killed by SIGKILL at 50 random moments, a training ends with the same bits as one never killed.

Equal are weights, what the optimizer keeps, the carried state, progress and metrics, but for what is timed; for every
family and task. `benchmarks/soak.py` does the same for as long as one likes.
"""

import random
import shutil
from pathlib import Path

import pytest

import seriatim

from ..exhaustive import parameters
from .death import Clock, Death
from .jobs import OPTIONS, configurations
from .kills import finish, outcome, survive

KILLS = 50
FEW = {"steps": 6, "checkpoint_every": 2, "evaluate_every": 4}


@pytest.fixture(scope="module")
def configs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict]:
    return configurations(tmp_path_factory.mktemp("data"), steps=24, checkpoint_every=4, evaluate_every=10)


@pytest.mark.parametrize("name", parameters(OPTIONS, everyday=("attention",)))
def test_killed_again_and_again(configs: dict[str, dict], tmp_path: Path, name: str) -> None:
    config, draw, kills = configs[name], random.Random(name), 0
    taken = min(finish(config, tmp_path / whole) for whole in ("whole", "again"))
    expected = outcome(tmp_path / "whole")
    assert outcome(tmp_path / "again") == expected
    while (left := -(-KILLS // len(OPTIONS)) - kills) > 0:
        out = tmp_path / f"{left} left"
        kills += survive(config, out, kills=left, within=0.8 * taken, draw=draw)
        assert outcome(out) == expected


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("held_out", "every"),
    [(True, 41), *(pytest.param(held_out, 13, marks=pytest.mark.exhaustive) for held_out in (True, False))],
)
def test_dead_at_every_touch_of_the_disk(
    configs: dict[str, dict], tmp_path: Path, held_out: bool, every: int, monkeypatch
) -> None:
    config = {**configs["cell"], "training": {**configs["cell"]["training"], **FEW}}
    if not held_out:
        config["data"] = {**config["data"], "valid": None}
    seriatim.train({**config, "out": str(tmp_path / "first")})  # fills the cache
    with monkeypatch.context() as patched:
        clock = Clock(patched, 10**9)
        seriatim.train({**config, "out": str(tmp_path / "whole")})
    assert clock.touches > 100
    for k in range(clock.touches, 0, -every):
        out = tmp_path / str(k)
        with monkeypatch.context() as patched:
            Clock(patched, k)
            with pytest.raises(Death):
                seriatim.train({**config, "out": str(out)})
        if (out / "config.yaml").exists():
            seriatim.resume(out)
        else:
            seriatim.train({**config, "out": str(out)}, overwrite=True)
        assert outcome(out) == outcome(tmp_path / "whole")


@pytest.mark.parametrize("name", ["ngram", "tagger"])
def test_dead_before_the_first_checkpoint(configs: dict[str, dict], tmp_path: Path, name: str) -> None:
    config = {**configs[name], "training": {**configs[name]["training"], **FEW}}
    seriatim.train({**config, "out": str(tmp_path / "whole")})
    (tmp_path / "begun").mkdir()
    for file in ("decisions.json", "config.yaml", "tokenizer.json"):
        shutil.copy(tmp_path / "whole" / file, tmp_path / "begun" / file)
    seriatim.resume(tmp_path / "begun")
    assert outcome(tmp_path / "begun") == outcome(tmp_path / "whole")


def test_dead_before_the_summary(configs: dict[str, dict], tmp_path: Path) -> None:
    config = {
        **configs["tagger"],
        "training": {**configs["tagger"]["training"], **FEW, "baseline": "simple", "baseline_weight": 0.5},
    }
    seriatim.train({**config, "out": str(tmp_path)})
    expected = outcome(tmp_path)
    assert '"network"' in (tmp_path / "summary.json").read_text()
    (tmp_path / "summary.json").unlink()
    seriatim.resume(tmp_path)
    assert outcome(tmp_path) == expected

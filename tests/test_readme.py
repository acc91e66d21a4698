"""The README, the page on the configuration and the page on the architectures agree with the code."""

import re
from pathlib import Path

import pytest
import torch

import seriatim
from seriatim.config import fields

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
CONFIGURATION = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
ARCHITECTURES = (ROOT / "docs" / "architectures.md").read_text(encoding="utf-8")
OPTIONS = (ROOT / "docs" / "options.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def test_every_field_is_listed() -> None:
    for field in fields():
        if field not in ("task", "out", "model.options", "model.bidirectional"):
            assert f"`{field.split('.')[-1]}`" in CONFIGURATION or f"`{field}`" in CONFIGURATION, field


def test_the_example_of_a_cell_runs() -> None:
    block = next(block for block in BLOCKS if "RecurrentCell" in block)
    names = {"torch": torch, "seriatim": seriatim}
    exec(compile(block, "README.md", "exec"), names)
    outputs, state = names["layer"](torch.randn(2, 5, 256), lengths=torch.tensor([5, 0]))
    assert outputs.shape == (2, 5, 512)
    assert torch.equal(state[0], outputs[0, -1])


def test_the_example_of_the_contract_runs() -> None:
    block = next(block for block in BLOCKS if "initial_state(batch_size=8)" in block)
    names = {"seriatim": seriatim, "inputs": torch.randn(8, 3, 256), "lengths": torch.tensor([3] * 8)}
    exec(compile(block, "README.md", "exec"), names)
    assert names["outputs"].shape == (8, 3, 512)


def test_every_architecture_and_option_is_named() -> None:
    for name in seriatim.layers.names():
        assert f"`{name}`" in README, name
        assert f"`{name}`" in ARCHITECTURES, name
        for option in seriatim.layers.options_of(name, {"block": True, "position": "learned"}):
            assert f"`{option}`" in OPTIONS, f"{name}: {option}"


@pytest.mark.exhaustive
def test_the_example_of_a_run_runs(tmp_path: Path, monkeypatch) -> None:
    """The example is run with fewer steps and a smaller model."""
    block = next(block for block in BLOCKS if "seriatim.train(" in block)
    monkeypatch.chdir(tmp_path)
    exec(compile(block.replace('"minutes": 2', '"steps": 3').replace("256", "8"), "README.md", "exec"), {})
    assert (tmp_path / "state.safetensors").exists()

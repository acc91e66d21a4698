"""Files of earlier versions hold parameters under former names."""

from pathlib import Path

import pytest
import torch
from torch import nn

import seriatim
from seriatim.storage.parameter_names import FORMER_NAMES, former_names, with_present_names
from seriatim.storage.weights import load_weights, save_tensors, save_weights
from seriatim.training.optimizers import optimizer_tensors, restore_optimizer

LAYERS = [
    *((name, {}) for name in seriatim.layers.names()),
    ("transformer", {"memory_size": 8, "num_experts": 2}),
    ("lstm", {"zoneout": 0.1, "num_layers": 2, "bidirectional": True}),
]


def build(name: str, options: dict) -> nn.Module:
    return nn.ModuleDict({"layer": seriatim.layer(name, 8, 8, **options)})


@pytest.mark.parametrize(("name", "options"), LAYERS)
def test_weights_under_former_names_can_be_read(name: str, options: dict, tmp_path: Path) -> None:
    before, after = build(name, options), build(name, options)
    names = former_names(before)
    assert len(set(names.values())) == len(names)
    save_tensors({names[key]: value.detach() for key, value in before.named_parameters()}, tmp_path / "former")
    save_weights(before, tmp_path / "present")
    for file in ("former", "present"):
        nn.init.zeros_(next(after.parameters(), torch.zeros(0)))
        load_weights(after, tmp_path / file)
        for (key, value), other in zip(before.named_parameters(), after.parameters(), strict=True):
            assert torch.equal(value, other), key


def test_the_state_of_an_optimizer_under_former_names_can_be_read() -> None:
    model, other = build("mamba,lstm", {}), build("mamba,lstm", {})
    first, second = (torch.optim.AdamW(each.parameters()) for each in (model, other))
    model["layer"](torch.randn(2, 3, 8))[0].sum().backward()
    first.step()
    tensors, names = optimizer_tensors(model, first), former_names(model)
    former = {f"{names[key.split('|')[0]]}|{key.split('|')[1]}": value for key, value in tensors.items()}
    assert former.keys() != tensors.keys()
    restore_optimizer(other, second, former, lambda _, value: value)
    restored = optimizer_tensors(other, second)
    assert restored.keys() == tensors.keys()
    assert all(torch.equal(restored[key], tensors[key]) for key in tensors)


def test_names_of_other_models_stay_as_they_are() -> None:
    entries = {"layer.enter.weight": 1, "gate|step": 2}
    assert with_present_names(nn.ModuleDict({"layer": nn.Linear(2, 2)}), entries) == entries


def test_every_present_name_belongs_to_a_class() -> None:
    classes = {
        cls.__name__: part
        for name, options in LAYERS
        for part in build(name, options).modules()
        for cls in type(part).__mro__
    }
    models = [build(name, options) for name, options in LAYERS]
    for cls, names in FORMER_NAMES.items():
        assert cls in classes
        attributes = {
            name
            for model in models
            for part in model.modules()
            if cls in {base.__name__ for base in type(part).__mro__}
            for name in dir(part)
        }
        assert names.keys() <= attributes

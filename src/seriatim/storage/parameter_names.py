"""Former names of parameters, so that files of earlier versions can be read."""

from collections.abc import Mapping
from typing import TypeVar

from torch import nn

T = TypeVar("T")

FORMER_NAMES: Mapping[str, Mapping[str, str]] = {
    "Attention": {"qkv_proj": "enter", "o_proj": "leave"},
    "CrossAttention": {"q_proj": "query", "kv_proj": "key_value", "o_proj": "leave"},
    "FeedForward": {"up_proj": "enter", "gate_proj": "gate", "down_proj": "leave"},
    "GatedConvolution": {"conv": "taps", "out_proj": "leave"},
    "Mamba": {
        "in_proj": "enter",
        "conv_weight": "taps",
        "conv_bias": "taps_bias",
        "x_proj": "select",
        "dt_proj": "rate",
        "A_log": "log_a",
        "D": "skip",
        "out_proj": "leave",
    },
    "StateSpace": {
        "log_A_real": "log_decay",
        "A_imag": "frequency",
        "P": "p",
        "B": "b",
        "C": "c",
        "D": "skip",
        "out_proj": "mix",
    },
}
"""For each class of modules, the present names of its parameters and submodules, and the former ones."""
FORMERLY_LAYERS = ("TorchCell",)  # classes of cells whose parameters belonged to the layer around the cell


def former_names(model: nn.Module) -> dict[str, str]:
    """Return, for the present name of every parameter of a model, the name that earlier versions gave it."""
    former = {name: name for name, _ in model.named_parameters()}
    for path, module in model.named_modules():
        classes = {cls.__name__ for cls in type(module).__mro__}
        prefix = f"{path}." if path else ""
        renamed = (pair for cls in classes & FORMER_NAMES.keys() for pair in FORMER_NAMES[cls].items())
        names = {prefix + new: prefix + old for new, old in renamed}
        if classes.intersection(FORMERLY_LAYERS):
            outside = path
            while outside.rpartition(".")[2] == "cell":
                outside = outside.rpartition(".")[0]
            names = {prefix + name: f"{outside}.{name}" if outside else name for name, _ in module.named_parameters()}
        for new, old in names.items():
            for name in former:
                if name == new or name.startswith(f"{new}."):
                    former[name] = old + name.removeprefix(new)
    return former


def with_present_names(model: nn.Module, entries: Mapping[str, T]) -> dict[str, T]:
    """Rename the entries of a file that belong to parameters of a model under their former names.

    The keys are names of parameters, with ``|`` and a further name in an optimizer's state. Others stay as they are.
    """
    present = {old: new for new, old in former_names(model).items() if old != new}
    known = {name for name, _ in model.named_parameters()}

    def renamed(entry: str) -> str:
        name, bar, key = entry.partition("|")
        return (name if name in known else present.get(name, name)) + bar + key

    return {renamed(name): value for name, value in entries.items()}

"""Finds the embedding, the recurrent layers and the output layer in a state dictionary of `torch.nn`.

Names outside the recurrent module may be any: the shapes say what a tensor is.
"""

import re
from pathlib import Path
from typing import NamedTuple, NoReturn

import torch

from ..core.errors import InputError
from ..layers.gated_cell import TorchCell
from ..layers.registry import REGISTRY
from .checkpoint_reader import CheckpointTensors

FIRST = "weight_ih_l0"
PART = re.compile(r"(weight|bias)_(ih|hh|hr)_l(\d{1,3})(_reverse)?")
EMBEDDING = re.compile("emb|encoder|wte", re.IGNORECASE)
"""Part of the name of an embedding; counts only if two tables have the same shape and neither has a bias."""
LAYERS = {cls.gates: name for name, cls in REGISTRY.items() if issubclass(cls, TorchCell)}
"""The layers by the number of their gates: the rows of ``weight_ih_l0`` for each unit."""
PARTS = "an embedding, one torch.nn.RNN, LSTM or GRU, and an output layer"


class StateTensors(CheckpointTensors):
    """The tensors of one safetensors file; raises InputError if it is damaged."""

    def __init__(self, path: Path) -> None:
        self.folder, self.files = path, {}
        self._add([path])

    def listed(self) -> str:
        """Return the names and shapes of all tensors, for messages."""
        return ", ".join(f"{name} {self.shape(name)}" for name in sorted(self.names())) or "no tensors"


class Recurrence(NamedTuple):
    """The recurrent module: its layer here, the prefix of its names, and its sizes."""

    layer: str
    prefix: str
    input_size: int
    hidden_size: int
    output_size: int  # less than hidden_size with a projection
    num_layers: int
    has_bias: bool


class Tables(NamedTuple):
    """The names of the tensors with one row for each token."""

    size: int  # the number of rows
    embedding: str
    output: str | None  # None if the output layer has the weights of the embedding
    bias: str | None


def find_recurrence(tensors: StateTensors) -> Recurrence:
    """Return the only recurrent module of a state dictionary.

    Raises:
        InputError: there is none, or there are several; or one reads in both directions, or a tensor is missing or has
            another shape.
    """
    where = tensors.folder
    prefixes = sorted(name.removesuffix(FIRST) for name in tensors.names() if name.endswith(FIRST))
    if len(prefixes) != 1:
        problem = f"{len(prefixes)} recurrent modules" if prefixes else f"no tensor {FIRST}"
        raise InputError(f"{where}: {problem}; a file needs {PARTS}, and has {tensors.listed()}")
    (prefix,) = prefixes
    parts = [name for name in tensors.names() if name.startswith(prefix) and PART.fullmatch(name[len(prefix) :])]
    shapes = {name.removeprefix(prefix): tensors.shape(name) for name in parts}
    if reverse := sorted(name for name in shapes if name.endswith("_reverse")):
        raise InputError(
            f"{where}: {prefix}{reverse[0]} reads backwards, and a language model must not see what it predicts; use a "
            "module with bidirectional=False"
        )
    inner = shapes.get("weight_hr_l0", shapes.get("weight_hh_l0"))
    first, recurrent = shapes[FIRST], shapes.get("weight_hh_l0", ())
    if inner is None or {2} != {*map(len, (inner, first, recurrent))} or not all((*inner, *first, *recurrent)):
        raise InputError(f"{where}: {prefix}weight_hh_l0 is missing or no matrix; a file needs {PARTS}")
    hidden, output = inner[1], recurrent[1]
    gates, rest = divmod(first[0], hidden)
    if rest or gates not in LAYERS:
        raise InputError(
            f"{where}: {prefix}{FIRST} has the shape {first} and {prefix}weight_hh_l0 {recurrent}; an RNN has as many "
            "rows as units, a GRU 3 times and an LSTM 4 times as many; check the file"
        )
    depth = 1 + max(int(match[3]) for match in map(PART.fullmatch, shapes) if match is not None)
    found = Recurrence(
        LAYERS[gates], prefix, first[1], hidden, output, depth, any(name.startswith("bias") for name in shapes)
    )
    expected = _shapes(found, gates * hidden)
    for name in sorted(expected.keys() | shapes.keys()):
        if name not in shapes:
            raise InputError(f"{where}: the tensor {prefix}{name} is missing; check the file")
        if shapes[name] != expected.get(name):
            needed = f"instead of {expected[name]}" if name in expected else "and should not be there"
            raise InputError(f"{where}: {prefix}{name} has the shape {shapes[name]} {needed}; check the file")
    return found


def _shapes(found: Recurrence, rows: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of all tensors of a recurrent module by name."""
    shapes: dict[str, tuple[int, ...]] = {}
    for depth in range(found.num_layers):
        shapes[f"weight_ih_l{depth}"] = (rows, found.output_size if depth else found.input_size)
        shapes[f"weight_hh_l{depth}"] = (rows, found.output_size)
        if found.has_bias:
            shapes |= {f"{name}_l{depth}": (rows,) for name in ("bias_ih", "bias_hh")}
        if found.output_size != found.hidden_size:
            shapes[f"weight_hr_l{depth}"] = (found.output_size, found.hidden_size)
    return shapes


def find_tables(tensors: StateTensors, found: Recurrence) -> Tables:
    """Return the embedding and the output layer around a recurrent module.

    Raises:
        InputError: one is missing, they cannot be told apart, or there is another tensor.
    """
    widths = (found.input_size, found.output_size)
    shapes = {
        name: tensors.shape(name)
        for name in sorted(tensors.names())
        if not (name.startswith(found.prefix) and PART.fullmatch(name[len(found.prefix) :]))
    }

    def refuse(problem: str) -> NoReturn:
        raise InputError(f"{tensors.folder}: {problem}; a file needs {PARTS}, and has {tensors.listed()}")

    size = max((shape[0] for shape in shapes.values() if len(shape) == 2 and shape[1] in widths), default=0)
    names = [name for name, shape in shapes.items() if shape in [(size, width) for width in widths]]
    biases = [name for name, shape in shapes.items() if shape == (size,)]
    own = [_bias_of(name) for name in names]
    bias = next(iter([*(name for name in biases if name in own), *biases]), None)
    if extra := sorted(shapes.keys() - {*names, bias}):
        refuse(f"the tensor {extra[0]} {shapes[extra[0]]} has no place in such a model")
    inputs = [name for name in names if shapes[name][1] == found.input_size]
    outputs = [name for name in names if shapes[name][1] == found.output_size]
    if not size or not inputs or not outputs or len(names) > 2:
        refuse(f"the embedding has {widths[0]} columns and the output layer {widths[1]}, and one of them is missing")
    if len(names) == 1:
        return Tables(size, names[0], None, bias)
    if widths[0] == widths[1]:
        if torch.equal(tensors.read(names[0]), tensors.read(names[1])):
            return Tables(size, names[0], None, bias)
        outputs = [name for name in names if _bias_of(name) == bias]
        outputs = outputs or [name for name in names if not EMBEDDING.search(name)]
        if len(outputs) != 1:
            refuse(f"{names[0]} and {names[1]} have the same shape; rename the embedding to embedding.weight")
        inputs = [name for name in names if name not in outputs]
    return Tables(size, inputs[0], outputs[0], bias)


def _bias_of(name: str) -> str:
    return name.removesuffix("weight") + "bias"

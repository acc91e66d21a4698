"""Saves several ONNX models whose weights are in one file, each weight once.

The weights are a safetensors file, in which an ONNX model names places by offset and length.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ..storage.weights import save_tensors

if TYPE_CHECKING:  # an optional package
    from onnx_ir import Graph, Model, Value

WEIGHTS = "weights.safetensors"
SMALL = 1024
"""Tensors of fewer bytes stay in the models."""


def write_models(models: "Mapping[str, Model]", folder: Path) -> None:
    """Write every model as ``NAME.onnx``, and the weights of all of them to `WEIGHTS`; the models are changed.

    A matrix is stored once for both of its orientations, which are used in products with vectors and with matrices.
    """
    import onnx_ir
    from onnx_ir.passes.common import ClearMetadataAndDocStringPass, RemoveUnusedNodesPass

    tensors: dict[str, Tensor] = {}
    names: dict[bytes, str] = {}  # by digest, so that models share their weights
    stored: list[tuple[Value, str]] = []
    for model in models.values():
        RemoveUnusedNodesPass()(model)
    for graph in (model.graph for model in models.values()):
        for name, value in list(graph.initializers.items()):
            array = _array(value)
            if array.nbytes < SMALL:
                continue
            digest = _digest(array)
            if array.ndim == 2 and (other := names.get(_digest(array.T))) is not None:
                stored.append((_transposed(graph, name), other))
                continue
            if digest not in names:
                names[digest] = name if name not in tensors else f"{name}.{len(tensors)}"
                tensors[names[digest]] = torch.from_numpy(array)
            stored.append((value, names[digest]))
    save_tensors(tensors, folder / WEIGHTS)
    places = places_in(folder / WEIGHTS)
    for value, name in stored:
        array, (offset, length) = _array(value), places[name]
        kind, shape = onnx_ir.DataType.from_numpy(array.dtype), onnx_ir.Shape(array.shape)
        value.const_value = onnx_ir.ExternalTensor(
            WEIGHTS, offset, length, kind, shape=shape, name=value.name or "", base_dir=folder
        )
    for name, model in models.items():
        ClearMetadataAndDocStringPass()(model)
        onnx_ir.save(model, folder / f"{name}.onnx")


def _array(value: "Value") -> np.ndarray:
    assert value.const_value is not None
    return value.const_value.numpy()


def _digest(array: np.ndarray) -> bytes:
    return hashlib.sha256(f"{array.dtype} {array.shape}".encode() + array.tobytes()).digest()


def _transposed(graph: "Graph", name: str) -> "Value":
    """Replace a matrix among the constants of a graph by the transpose of another, which is returned."""
    import onnx_ir

    value = graph.initializers.pop(name)
    tensor = onnx_ir.Tensor(np.ascontiguousarray(_array(value).T), name=f"{name}.T")
    other = onnx_ir.Value(name=f"{name}.T", shape=tensor.shape, type=value.type, const_value=tensor)
    node = onnx_ir.Node("", "Transpose", [other], attributes=[onnx_ir.AttrInt64s("perm", [1, 0])])
    (result,) = node.outputs
    result.name, result.shape, result.type = name, value.shape, value.type
    onnx_ir.convenience.replace_all_uses_with(value, result)
    graph.initializers.add(other)
    graph.insert_before(graph[0], node)
    return other


def places_in(path: Path) -> dict[str, tuple[int, int]]:
    """Return where the values of each tensor of a safetensors file are: offset and length in bytes."""
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
    header.pop("__metadata__", None)
    ranges = {name: entry["data_offsets"] for name, entry in header.items()}
    return {name: (8 + size + start, end - start) for name, (start, end) in ranges.items()}

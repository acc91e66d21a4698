"""Saves several ONNX models whose weights are in one file, each weight once.

The weights are a safetensors file, in which an ONNX model names places by offset and length.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..storage.weights import save_tensors

WEIGHTS = "weights.safetensors"
SMALL = 1024
"""Tensors of fewer bytes stay in the models."""


def write_models(models: Mapping[str, Any], folder: Path) -> None:
    """Write every model as ``NAME.onnx``, and the weights of all of them to `WEIGHTS`; the models are changed.

    A matrix is stored once for both of its orientations, which are used in products with vectors and with matrices.
    """
    import onnx_ir
    from onnx_ir.passes.common import ClearMetadataAndDocStringPass

    tensors: dict[str, Tensor] = {}
    names: dict[bytes, str] = {}  # by digest, so that models share their weights
    stored: list[tuple[Any, str]] = []
    for graph in (model.graph for model in models.values()):
        for value in list(graph.initializers.values()):
            array = value.const_value.numpy()
            if array.nbytes < SMALL:
                continue
            if array.ndim == 2 and (name := names.get(_digest(array.T))) is not None:
                value = _transposed(graph, value)
            elif (name := names.get(digest := _digest(array))) is None:
                name = names[digest] = value.name if value.name not in tensors else f"{value.name}.{len(tensors)}"
                tensors[name] = torch.from_numpy(array)
            stored.append((value, name))
    save_tensors(tensors, folder / WEIGHTS)
    places = places_in(folder / WEIGHTS)
    for value, name in stored:
        old, (offset, length) = value.const_value, places[name]
        value.const_value = onnx_ir.ExternalTensor(
            WEIGHTS, offset, length, old.dtype, shape=old.shape, name=value.name, base_dir=folder
        )
    for name, model in models.items():
        ClearMetadataAndDocStringPass()(model)
        onnx_ir.save(model, folder / f"{name}.onnx")


def _digest(array: np.ndarray) -> bytes:
    return hashlib.sha256(f"{array.dtype} {array.shape}".encode() + array.tobytes()).digest()


def _transposed(graph: Any, value: Any) -> Any:
    """Replace a matrix among the constants of a graph by the transpose of another, which is returned."""
    import onnx_ir

    tensor = onnx_ir.Tensor(np.ascontiguousarray(value.const_value.numpy().T), name=f"{value.name}.T")
    other = onnx_ir.Value(name=tensor.name, shape=tensor.shape, type=value.type, const_value=tensor)
    node = onnx_ir.Node("", "Transpose", [other], attributes=[onnx_ir.AttrInt64s("perm", [1, 0])])
    del graph.initializers[value.name]
    node.outputs[0].name, node.outputs[0].shape, node.outputs[0].type = value.name, value.shape, value.type
    onnx_ir.convenience.replace_all_uses_with(value, node.outputs[0])
    graph.initializers[other.name] = other
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

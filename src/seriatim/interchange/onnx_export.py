"""Writes a run as a folder of ONNX models, with a program that runs them without PyTorch.

A recurrence becomes an operator that other programs have: one step, and a loop over time around it. The body of the
loop is the graph of a single step. So the length of a sequence stays free, and every layer is exported by its `step`
alone, whatever its `forward` does to be fast.

The weights of all models are in one safetensors file, each weight once; an ONNX model names them by offset and length.
"""

import copy
import hashlib
import importlib.util
import io
import json
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, fx, nn

from ..core.contract import MemoryLayer, SequenceLayer
from ..core.errors import InputError, NotSupportedError, UnavailableError, first_line
from ..core.exporting import as_export, time_scan
from ..core.json_object import JsonObject
from ..core.state import OutputsAndState, State, state_leaves, with_leaves
from ..data.library_tokenizers import PretrainedTokenizer, library_fields
from ..data.tokenizers import END, END_TEXT, Tokenizer
from ..layers.positions import learned_positions
from ..models.base_models import TokenPredictor, input_embedding
from ..models.exported_forms import ExportedForm, ExportedModel
from ..recurrence import uncompiled
from ..runs.run import Run
from ..storage.files import write_whole
from ..storage.weights import save_tensors
from .checkpoints import token_rows
from .new_folders import check_new, new_folder

if TYPE_CHECKING:  # an optional package
    from onnx_ir import Graph, Model, Value

Operand: TypeAlias = Any
"""What an operator of a graph takes or returns: usually a tensor."""
ROWS = 3
"""Rows of the batch with which a step is traced; any number of rows may follow."""


class StepGraph:
    """The operators of a step of a layer, without those that only its parameters determine.

    Attributes:
        constants: what these operators read of parameters and constants, computed once.
    """

    def __init__(self, layer: SequenceLayer) -> None:
        state = layer.initial_state(ROWS)
        example = (layer.zeros(ROWS, layer.input_size), *(leaf.clone() for leaf in state_leaves(state)))
        sizes = {0: torch.export.Dim.DYNAMIC}
        step = _LayerStep(layer, state)
        program = torch.export.export(step, example, dynamic_shapes=(tuple(sizes for _ in example),), strict=False)
        program = program.run_decompositions({})  # without operators that write in place
        stored = {**program.state_dict, **program.constants}
        signature = program.graph_signature
        names = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
        names |= signature.inputs_to_lifted_tensor_constants

        # What depends on parameters alone is computed once here, so that the loop over time does not repeat it.
        known: dict[fx.Node, Operand] = {}
        self._inputs: list[fx.Node] = []
        self._operations: list[fx.Node] = []
        for node in program.graph.nodes:
            if node.op == "placeholder":
                if node.name in names:
                    known[node] = stored[names[node.name]].detach()
                else:
                    self._inputs.append(node)
            elif node.op == "call_function" and all(argument in known for argument in node.all_input_nodes):
                known[node] = _result(node, known)
            else:
                self._operations.append(node)

        # Only what the remaining operators read becomes an input of the loop; the rest was needed on the way.
        read = dict.fromkeys(n for node in self._operations for n in node.all_input_nodes if n in known)
        self._known = {node: known[node] for node in read if not isinstance(known[node], Tensor)}
        self._names = [node for node in read if isinstance(known[node], Tensor)]
        tensors = (known[node] for node in self._names)
        self.constants = [value.clone(memory_format=torch.contiguous_format) for value in tensors]  # none shares memory

    def run(self, inputs: Sequence[Tensor], constants: Sequence[Tensor]) -> list[Tensor]:
        """Return outputs and the leaves of the next state, given inputs and the leaves of the state."""
        values: dict[fx.Node, Operand] = dict(self._known)
        values |= zip(self._names, constants, strict=True)
        values |= zip(self._inputs, inputs, strict=True)
        for node in self._operations:
            if node.op == "output":
                results: Operand = node.args[0]
                return [values[result].clone(memory_format=torch.contiguous_format) for result in results]
            values[node] = _result(node, values)
        raise AssertionError("a graph has an output")


class ScannedLayer(SequenceLayer):
    """Runs the step of a causal layer, whose state has a fixed size, over a sequence in one operator.

    It has the contract of the layer, except that a sequence must have at least one input, and is for export only.
    """

    def __init__(self, layer: SequenceLayer) -> None:
        super().__init__()
        self.input_size, self.output_size, self.layer = layer.input_size, layer.output_size, layer
        self.graph = StepGraph(layer)
        for i, constant in enumerate(self.graph.constants):
            self.register_buffer(f"constant{i}", constant, persistent=False)

    def initial_state(self, batch_size: int) -> State:
        """Return the initial state of the layer."""
        return self.layer.initial_state(batch_size)

    def step(self, inputs: Tensor, state: State) -> OutputsAndState:
        """Compute one step of the layer."""
        outputs, *after = self.graph.run([inputs, *state_leaves(state)], self.constants)
        return outputs, with_leaves(state, after)

    @property
    def constants(self) -> list[Tensor]:
        """What the graph reads of parameters, as tensors of the module."""
        return [getattr(self, f"constant{i}") for i in range(len(self.graph.constants))]

    def forward(self, inputs: Tensor, state: State | None = None, *, lengths: Tensor | None = None) -> OutputsAndState:
        """Run over ``(batch, time, input_size)``; see `SequenceLayer.forward`."""
        state, lengths = self.validate_inputs(inputs, state, lengths)
        start = state_leaves(state)
        sequences = [inputs.transpose(0, 1)]
        if lengths is not None:
            sequences.append(torch.arange(inputs.shape[1], device=inputs.device).unsqueeze(1) < lengths)  # (T, B)

        # Padding must not change the state, so that a row keeps what it had when it ended.
        def advance(*values: Tensor) -> list[Tensor]:
            before, (x, *valid) = values[: len(start)], values[len(start) : len(start) + len(sequences)]
            outputs, *after = self.graph.run([x, *before], values[len(start) + len(sequences) :])
            for mask in valid:
                outputs = _where(mask, outputs, torch.zeros_like(outputs))
                after = [_where(mask, new, old) for new, old in zip(after, before, strict=True)]
            return [*after, outputs]

        carried = [leaf.clone(memory_format=torch.contiguous_format) for leaf in start]
        *end, outputs = time_scan(advance, carried, sequences, self.constants)
        return outputs.transpose(0, 1), with_leaves(state, end)


def scan_layers(module: nn.Module) -> None:
    """Replace every layer of a model that runs step by step by a `ScannedLayer`.

    These are the causal layers whose state has a fixed size. Attention, whose state grows, and layers without a state
    keep their own `forward`, and so do layers of the library that are made of others.
    """
    for name, child in module.named_children():
        if isinstance(child, SequenceLayer) and _runs_step_by_step(child):
            setattr(module, name, ScannedLayer(child))
        else:
            scan_layers(child)


def _runs_step_by_step(layer: SequenceLayer) -> bool:
    if not layer.causal or isinstance(layer, MemoryLayer):
        return False
    leaves = state_leaves(layer.initial_state(1))
    if not leaves or not all(leaf.numel() for leaf in leaves):
        return False
    if type(layer).__module__.partition(".")[0] != __name__.partition(".")[0]:
        return True  # a layer from outside the library
    inner = any(isinstance(module, SequenceLayer) for module in layer.modules() if module is not layer)
    return not inner and any(leaf.is_floating_point() for leaf in leaves)


class _LayerStep(nn.Module):
    """A step as a function of tensors."""

    def __init__(self, layer: SequenceLayer, like: State) -> None:
        super().__init__()
        self.layer, self.like = layer, like

    def forward(self, *values: Tensor) -> tuple[Tensor, ...]:
        inputs, *leaves = values
        outputs, state = self.layer.step(inputs, with_leaves(self.like, leaves))
        return outputs, *state_leaves(state)


def _result(node: fx.Node, values: dict[fx.Node, Operand]) -> Operand:
    """Compute a node of a graph from the values of other nodes."""
    arguments: Operand = fx.node.map_arg((node.args, node.kwargs), values.__getitem__)
    assert callable(node.target)
    return node.target(*arguments[0], **arguments[1])


def _where(mask: Tensor, new: Tensor, old: Tensor) -> Tensor:
    return torch.where(mask.view(-1, *[1] * (new.dim() - 1)), new, old)


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

    # Offsets are known once the file is written; until then the models hold the weights themselves.
    save_tensors(tensors, folder / WEIGHTS)
    locations = locations_in(folder / WEIGHTS)
    for value, name in stored:
        array, (offset, length) = _array(value), locations[name]
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


def locations_in(path: Path) -> dict[str, tuple[int, int]]:
    """Return where the values of each tensor of a safetensors file are: offset and length in bytes."""
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
    header.pop("__metadata__", None)
    ranges = {name: entry["data_offsets"] for name, entry in header.items()}
    return {name: (8 + size + start, end - start) for name, (start, end) in ranges.items()}


FACTS, PROGRAM = "model.json", "run.py"
PROGRAMS = Path(__file__).parent / "onnx_programs"
MODULES = ("onnx", "onnxscript")
TORCH = (2, 9)
"""The first version of PyTorch that writes loops over time as Scan."""
END_OF_LINE, IMPOSSIBLE = "\n", "\0"
"""What token 0 is called in a tokenizer of ours: a line end, or else what no text contains."""


def export_onnx(run: Run, out: str) -> None:
    """Write the folder ``out``, which must not exist: models, weights, tokenizers, `model.json` and `run.py`.

    Raises:
        InputError: the folder exists; the model has a layer that cannot be exported; or packages are missing.
    """
    if missing := [name for name in MODULES if importlib.util.find_spec(name) is None]:
        raise UnavailableError(f"--format onnx: needs {' and '.join(missing)}; run pip install 'seriatim[onnx]'")
    if tuple(map(int, torch.__version__.split(".")[:2])) < TORCH:
        raise UnavailableError(f"--format onnx: PyTorch is {torch.__version__}; install {TORCH[0]}.{TORCH[1]} or later")
    if run.config.data.features:
        raise NotSupportedError(f"{run.path}: reads columns (data.features), which are not exported; train it without")

    # Everything is traced before the folder is made: most models that cannot be exported fail there.
    folder = check_new(out)
    if run.answering is not run.model:
        warnings.warn(
            f"{run.path}: answers of the run are a mean of its network and its simple baseline, "
            f"{run.task.kind.reference_model}; the folder has the network alone, and may answer differently",
            stacklevel=2,
        )
    with quietly_exporting(), refusing_what_cannot(str(run.path)):
        exported = run.task.explainer(prepared(run.model, run.tokenizer), run.vocabulary).exported()
        models = {form.name: traced(form) for form in exported.forms}
    with new_folder(folder) as aside:
        write_models(models, aside)
        for name, tokenizer in run.vocabulary.tokenizers.items():
            content = json.dumps(plain_fields(tokenizer), ensure_ascii=False, indent=1)
            write_whole(aside / f"{name}.json", f"{content}\n")
        write_whole(aside / FACTS, json.dumps(facts(run, exported), ensure_ascii=False, indent=1) + "\n")
        write_whole(aside / PROGRAM, (PROGRAMS / f"{exported.program}.py").read_text(encoding="utf-8"))


def plain_fields(tokenizer: Tokenizer) -> JsonObject:
    """Return the content of a `tokenizer.json`, in which no text of a user stands for a special token of ours."""
    fields = library_fields(tokenizer)
    if isinstance(tokenizer, PretrainedTokenizer):
        return fields
    model: JsonObject = fields["model"]
    vocab = model["vocab"]
    is_table = isinstance(vocab, dict)
    names = set(vocab) if is_table else {subword for subword, _ in vocab}
    end = IMPOSSIBLE if END_OF_LINE in names else END_OF_LINE
    renamed = [(end if name == END_TEXT else name, value) for name, value in (vocab.items() if is_table else vocab)]
    return {**fields, "added_tokens": [], "model": {**model, "vocab": dict(renamed) if is_table else renamed}}


def prepared(model: nn.Module, tokenizer: Tokenizer | None) -> nn.Module:
    """Return a copy of a model whose recurrences are scans, and whose ids are those of `tokenizer.json`, if any."""
    model = copy.deepcopy(model).cpu().float().eval().requires_grad_(False)
    scan_layers(model)
    if isinstance(tokenizer, PretrainedTokenizer):
        rows, embedding = token_rows(tokenizer), input_embedding(model)
        tables = [] if embedding is None else [embedding.weight]
        if isinstance(model, TokenPredictor):
            tables += model.output_tables()
        for table in {id(table): table for table in tables}.values():  # tied tables once
            table.copy_(rows.exchanged(table))
    return model


def traced(form: ExportedForm) -> "Model":
    """Return the ONNX model of a form."""
    program = torch.onnx.export(
        _Values(form.module),
        tuple(form.inputs.values()),
        dynamo=True,
        verbose=False,
        input_names=list(form.inputs),
        output_names=list(form.outputs),
        dynamic_shapes=(tuple(dict(sizes) for sizes in form.sizes),),
    )
    assert program is not None
    return program.model


@contextmanager
def refusing_what_cannot(where: str) -> Iterator[None]:
    """Raise InputError where PyTorch cannot export a layer of a model."""
    try:
        yield
    except (InputError, MemoryError, OSError):
        raise
    except Exception as error:
        cause = error.__cause__ or error
        raise NotSupportedError(
            f"{where}: cannot be exported ({type(cause).__name__}: {first_line(cause)}); let no Python code of its "
            "layers depend on the values of inputs, or loop over time where the size of the state is not fixed"
        ) from None


class _Values(nn.Module):
    """A function whose inputs are one tuple, so that their number is free."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *values: Tensor) -> tuple[Tensor, ...]:
        outputs: tuple[Tensor, ...] = self.module(*values)
        return outputs


@contextmanager
def quietly_exporting() -> Iterator[None]:
    """Compute as the export needs it, without gradients or compiled code, and without the notes of PyTorch."""
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    notes = io.StringIO()  # where PyTorch prints graphs
    try:
        with warnings.catch_warnings(), redirect_stdout(notes), redirect_stderr(notes):
            warnings.simplefilter("ignore")
            with torch.no_grad(), uncompiled(), as_export():
                yield
    finally:
        logging.disable(disabled)


def facts(run: Run, exported: ExportedModel) -> dict[str, object]:
    """Return the content of `model.json`."""
    state = [
        {"input": name, "output": f"next_{name}", "type": str(leaf.dtype).removeprefix("torch."), **_values(leaf)}
        for name, leaf in (exported.state or {}).items()
    ]
    tokens: dict[str, object] = {}
    for name, ids in {"begin": [run.tokenizer.begin], "end": [END], **exported.tokens}.items():
        there = run.tokenizer.exchanged(list(ids)) if isinstance(run.tokenizer, PretrainedTokenizer) else np.array(ids)
        tokens[name] = int(there[0]) if name in ("begin", "end", "mask") else there.tolist()
    content = {"task": run.config.task, "layer": run.config.model.layer, **tokens}
    if run.task.kind.generates_text and run.stop is None:
        content["end"] = None  # a running text goes on after a line end
    content["positions"] = learned_positions(run.model)
    if run.vocabulary.labels:
        content["labels"] = list(run.vocabulary.labels)
    return content | dict(exported.facts) | ({"state": state} if state else {})


def _values(leaf: Tensor) -> dict[str, object]:
    """Return the shape of an initial state of one row, and its value: usually one number."""
    same = leaf.numel() == 0 or bool((leaf == leaf.flatten()[0]).all())
    value = leaf.flatten()[:1].sum().item() if same else leaf.tolist()
    return {"shape": list(leaf.shape), "value": value}

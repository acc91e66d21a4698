"""Writes a run as a folder of ONNX models, with a program that runs them without PyTorch."""

import copy
import importlib.util
import io
import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from ..config import Fields
from ..core.errors import InputError, first_line
from ..core.exporting import as_export
from ..data.pretrained_tokenizer import PretrainedTokenizer
from ..data.tokenizers import END, END_TEXT, Tokenizer
from ..layers.positions import learned_positions
from ..models.base_models import TokenPredictor, input_embedding
from ..models.exported_forms import ExportedForm, ExportedModel
from ..recurrence import uncompiled
from ..runs.run import Run
from ..storage.atomic_files import write_whole
from .checkpoint_import import token_rows
from .new_folder import check_new, new_folder
from .onnx_weights import write_models
from .scanned_layer import scan_layers
from .tokenizer_export import library_fields

if TYPE_CHECKING:  # an optional package
    from onnx_ir import Model

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
        InputError: the folder exists; the model has a part that cannot be exported; or packages are missing.
    """
    if missing := [name for name in MODULES if importlib.util.find_spec(name) is None]:
        raise InputError(f"--format onnx: needs {' and '.join(missing)}; run pip install 'seriatim[onnx]'")
    if tuple(map(int, torch.__version__.split(".")[:2])) < TORCH:
        raise InputError(f"--format onnx: needs PyTorch {TORCH[0]}.{TORCH[1]} or later, this is {torch.__version__}")
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


def plain_fields(tokenizer: Tokenizer) -> Fields:
    """Return the content of a `tokenizer.json`, in which no text of a user stands for a special token of ours."""
    fields = library_fields(tokenizer)
    if isinstance(tokenizer, PretrainedTokenizer):
        return fields
    model: Fields = fields["model"]
    pieces = model["vocab"]
    is_table = isinstance(pieces, dict)
    names = set(pieces) if is_table else {piece for piece, _ in pieces}
    end = IMPOSSIBLE if END_OF_LINE in names else END_OF_LINE
    renamed = [(end if name == END_TEXT else name, value) for name, value in (pieces.items() if is_table else pieces)]
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
def refusing_what_cannot(place: str) -> Iterator[None]:
    """Raise InputError where PyTorch cannot export a part of a model."""
    try:
        yield
    except (InputError, MemoryError, OSError):
        raise
    except Exception as error:
        cause = error.__cause__ or error
        raise InputError(
            f"{place}: cannot be exported ({type(cause).__name__}: {first_line(cause)}); its layers must not depend on "
            "the values of inputs in Python code, and only those with a state of fixed size may loop over time in it"
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

"""Writes a run as a folder of ONNX models, with a program that runs them without PyTorch."""

import copy
import importlib.util
import io
import json
import logging
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from ..core.errors import InputError, first_line
from ..data.pretrained_tokenizer import PretrainedTokenizer
from ..data.tokenizers import END, Tokenizer
from ..models.exported_forms import ExportedForm, ExportedModel
from ..models.masked_language_model import MaskedLanguageModel
from ..recurrence.obstacles import uncompiled
from ..runs.run import Run
from ..storage.atomic_files import write_whole
from .checkpoint_import import token_rows
from .onnx_weights import write_models
from .scanned_layer import scan_layers
from .tokenizer_export import library_fields

if TYPE_CHECKING:  # an optional package
    from onnx_ir import Model

FACTS, PROGRAM = "model.json", "run.py"
PROGRAMS = Path(__file__).parent / "onnx_programs"
MODULES = ("onnx", "onnxscript")


def export_onnx(run: Run, out: str) -> None:
    """Write the folder ``out``, which must not exist: models, weights, tokenizers, `model.json` and `run.py`.

    Raises:
        InputError: the folder exists; the model has a part that cannot be exported; or packages are missing.
    """
    if missing := [name for name in MODULES if importlib.util.find_spec(name) is None]:
        raise InputError(f"--format onnx: needs {' and '.join(missing)}; run pip install 'seriatim[onnx]'")
    folder = Path(out)
    if folder.exists():
        raise InputError(f"--out: {out} exists; choose another folder")
    if not folder.resolve().parent.is_dir():
        raise InputError(f"{out}: cannot be written there; give a folder in one that exists")
    if run.answering is not run.model:
        warnings.warn(
            f"{run.path}: answers of the run are a mean of its network and its simple baseline, "
            f"{run.task.simple_baseline}; the folder has the network alone, and may answer differently",
            stacklevel=2,
        )
    view = run.task.model_view(prepared(run.model, run.tokenizer), run.vocabulary)
    with exporting():
        exported = view.exported()
        models = {form.name: traced(form, str(run.path)) for form in exported.forms}
    with tempfile.TemporaryDirectory(prefix=".seriatim-export-", dir=folder.resolve().parent) as temporary:
        aside = Path(temporary) / "onnx"  # complete before it has its name
        aside.mkdir()
        write_models(models, aside)
        for name, tokenizer in run.vocabulary.tokenizers.items():
            content = json.dumps(library_fields(tokenizer), ensure_ascii=False, indent=1)
            write_whole(aside / f"{name}.json", f"{content}\n")
        write_whole(aside / FACTS, json.dumps(facts(run, exported), ensure_ascii=False, indent=1) + "\n")
        write_whole(aside / PROGRAM, (PROGRAMS / f"{exported.program}.py").read_text(encoding="utf-8"))
        aside.rename(folder)


def prepared(model: nn.Module, tokenizer: Tokenizer) -> nn.Module:
    """Return a copy of a model whose recurrences are scans, and whose ids are those of `tokenizer.json`."""
    model = copy.deepcopy(model).cpu().float().eval().requires_grad_(False)
    scan_layers(model)
    if isinstance(tokenizer, PretrainedTokenizer):
        rows = token_rows(tokenizer)
        tables = [part.weight for part in model.modules() if isinstance(part, nn.Embedding)]
        tables += model.output_tables() if isinstance(model, MaskedLanguageModel) else []
        for table in {*tables, *getattr(model, "output", nn.Module()).parameters()}:
            table.copy_(rows.exchanged(table))
    return model


def traced(form: ExportedForm, place: str) -> "Model":
    """Return the ONNX model of a form; raise InputError if a part of it cannot be exported."""
    try:
        program = torch.onnx.export(
            _Values(form.module),
            tuple(form.inputs.values()),
            dynamo=True,
            verbose=False,
            input_names=list(form.inputs),
            output_names=list(form.outputs),
            dynamic_shapes=(tuple(dict(sizes) for sizes in form.sizes),),
        )
    except Exception as error:
        cause = error.__cause__ or error
        raise InputError(
            f"{place}: {form.name} cannot be exported ({type(cause).__name__}: {first_line(cause)}); the layer must "
            "not depend on the values of its inputs in Python code"
        ) from None
    assert program is not None
    return program.model


class _Values(nn.Module):
    """A function whose inputs are one tuple, so that their number is free."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *values: Tensor) -> tuple[Tensor, ...]:
        outputs: tuple[Tensor, ...] = self.module(*values)
        return outputs


@contextmanager
def exporting() -> Iterator[None]:
    """Compute as the export needs it, without gradients or compiled code, and without the notes of PyTorch."""
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    notes = io.StringIO()  # where PyTorch prints graphs
    try:
        with warnings.catch_warnings(), redirect_stdout(notes), redirect_stderr(notes), torch.no_grad(), uncompiled():
            warnings.simplefilter("ignore")
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
    if run.vocabulary.labels:
        content["labels"] = list(run.vocabulary.labels)
    return content | dict(exported.facts) | ({"state": state} if state else {})


def _values(leaf: Tensor) -> dict[str, object]:
    """Return the shape of an initial state of one row, and its value: usually one number."""
    same = leaf.numel() == 0 or bool((leaf == leaf.flatten()[0]).all())
    value = leaf.flatten()[:1].sum().item() if same else leaf.tolist()
    return {"shape": list(leaf.shape), "value": value}

"""Makes a run of a state dictionary of `torch.nn`: an embedding, an RNN, LSTM or GRU, and an output layer."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..config import Fields, resolve
from ..core.errors import InputError, shown
from ..data.vocabulary import Vocabulary
from ..layers import options_of
from ..runs.run import Run
from ..storage.written_folders import is_run
from ..tasks import new_task
from ..training.run_files import check_out
from .checkpoint_reader import CONFIG, PICKLED
from .imported_run import write_run
from .torch_layout import Recurrence, StateTensors, Tables, find_recurrence, find_tables
from .torch_vocabulary import ADDED, SourceVocabulary, find_vocabulary, read_vocabulary

SUFFIX = ".safetensors"
PICKLED_BEGINNINGS = (b"PK\x03\x04", b"\x80")
"""How the files begin that `torch.save` writes, now and in early versions."""
NONLINEARITIES, UNITS = ("tanh", "relu"), ("stream", "line")
IMPROBABLE = 20.0
"""How far the logit of an added token is below the mean, in nats: its probability is below 3e-9, which changes no other
probability in float32, and is not so small that it could not be learned."""
PARTS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh", "weight_hr")


class TorchOptions(NamedTuple):
    """What a state dictionary does not say.

    ``vocabulary`` is a file; the default is one beside the weights. ``end`` is the token that ends a text, if its name
    does not say so. ``nonlinearity`` is that of a `torch.nn.RNN`. ``unit`` is that of the data, ``stream`` or ``line``.
    """

    vocabulary: str | None = None
    end: str | None = None
    nonlinearity: str | None = None
    unit: str | None = None


def state_file(source: Path) -> Path | None:
    """Return the safetensors file that a path names or that is alone in a folder without `config.json`, or None.

    Raises:
        InputError: the weights are pickled.
    """
    pickled = []
    if source.is_dir():
        if (source / CONFIG).exists() or is_run(source):
            return None
        files = sorted(source.glob(f"*{SUFFIX}"))
        if len(files) == 1:
            return files[0]
        pickled = [] if files else sorted(path for name in PICKLED for path in source.glob(name))
    elif source.suffix == SUFFIX:
        return source
    elif source.is_file():
        with source.open("rb") as file:
            pickled = [source] if file.read(4).startswith(PICKLED_BEGINNINGS) else []
    if not pickled:
        return None
    call = "save_file(torch.load(F, weights_only=True), G)"
    raise InputError(
        f"{pickled[0]}: pickled weights can run code and are not read; convert them with safetensors.torch.{call}"
    )


def import_torch(path: Path, out: str | None, options: TorchOptions, *, overwrite: bool = False) -> Run:
    """Make a run of a safetensors file and a vocabulary.

    Raises:
        InputError: a file is missing or damaged, the tensors are not those of one recurrent language model, or the
            vocabulary has other tokens.
    """
    check_out(out, overwrite=overwrite)
    if not path.is_file():
        raise InputError(f"{path}: no such file; give a state dictionary that safetensors wrote")
    tensors = StateTensors(path)
    found, metadata = find_recurrence(tensors), tensors.metadata(path)
    tables = find_tables(tensors, found)
    given = Path(options.vocabulary) if options.vocabulary is not None else find_vocabulary(path)
    source = read_vocabulary(given, tables.size, end=options.end)
    unit = options.unit or metadata.get("data.unit") or source.unit
    if unit not in UNITS:
        raise InputError(f"{path}: the unit of the data is {shown(unit)}; set it with --unit to {' or '.join(UNITS)}")
    config = {
        "task": "lm",
        "data": {"unit": unit},
        "tokenizer": {"kind": source.tokenizer.kind, "lowercase": source.tokenizer.lowercase},
        "model": _model(found, tables, source, options.nonlinearity or metadata.get("nonlinearity"), path),
    }
    task, vocabulary = new_task(resolve(config)), Vocabulary({"tokenizer": source.tokenizer})
    return write_run(out, task, vocabulary, _parameters(tensors, found, tables, source), overwrite=overwrite)


def _model(found: Recurrence, tables: Tables, source: SourceVocabulary, nonlinearity: str | None, path: Path) -> Fields:
    """Return the section ``model`` of the configuration."""
    options: Fields = {} if found.has_bias else {"bias": False}
    if found.output_size != found.hidden_size:
        options["projection_size"] = found.output_size
    if nonlinearity is not None:
        if "activation" not in options_of(found.layer, {}):
            raise InputError(f"--nonlinearity: {path} is no RNN but a layer {found.layer}, without it; leave it out")
        if nonlinearity not in NONLINEARITIES:
            raise InputError(f"--nonlinearity {shown(nonlinearity)}: torch.nn.RNN has {' and '.join(NONLINEARITIES)}")
        options["activation"] = nonlinearity
    return {
        "layer": found.layer,
        "embedding_size": found.input_size,
        "hidden_size": found.hidden_size,
        "num_layers": found.num_layers,
        "dropout": 0.0,
        "tie_weights": tables.output is None,
        "output_bias": tables.bias is not None or bool(source.added),
        "options": options,
    }


def _parameters(
    tensors: StateTensors, found: Recurrence, tables: Tables, source: SourceVocabulary
) -> Iterator[tuple[str, np.ndarray]]:
    """Yield every parameter by its name here."""
    yield "embedding.weight", _arranged(tensors.read(tables.embedding), source).numpy()
    for depth in range(found.num_layers):
        cell = "layer.cell" if found.num_layers == 1 else f"layer.layers.{depth}.cell"
        for part in PARTS:
            if (name := f"{found.prefix}{part}_l{depth}") in tensors.names():
                yield f"{cell}.{part}_l0", tensors.read(name).contiguous().numpy()
    if tables.output is not None:
        yield "output.weight", _arranged(tensors.read(tables.output), source).numpy()
    if tables.bias is not None or source.added:
        bias = torch.zeros(tables.size) if tables.bias is None else tensors.read(tables.bias)
        bias = _arranged(bias, source)
        bias[list(source.added)] -= IMPROBABLE
        yield "output.bias", bias.numpy()


def _arranged(table: Tensor, source: SourceVocabulary) -> Tensor:
    """Return the rows of a table in the order of the tokens here."""
    rows = torch.tensor(source.rows)
    arranged = table[rows.clamp(min=0)]
    arranged[rows == ADDED] = table.mean(0)
    return arranged.contiguous()

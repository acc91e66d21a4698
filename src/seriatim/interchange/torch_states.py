"""State dictionaries of `torch.nn`: made a run of, and written from a run.

A state dictionary of a language model holds an embedding, one RNN, LSTM or GRU, and an output layer. Names outside the
recurrent module may be any: the shapes say what a tensor is. The vocabulary is a file beside the weights; it says which
row of the tables is which token.
"""

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, NoReturn

import numpy as np
import torch
from torch import Tensor, nn

from ..config import resolve
from ..core import errors
from ..core.contract import SequenceLayer
from ..core.errors import is_text, nearest, shown
from ..core.json_object import JsonObject
from ..data.library_tokenizers import CHARACTER, PretrainedTokenizer
from ..data.tokenizers import END, LINE_END, MAX_FILE_BYTES, CharTokenizer, Spelling, Tokenizer, WordTokenizer
from ..data.vocabulary import Vocabulary, load_tokenizer
from ..layers import options_of, to_torch
from ..layers.gated_cell import TorchCell
from ..layers.registry import REGISTRY
from ..models.base_models import NeuralModel
from ..runs.run import Run
from ..storage.files import atomic, read_json, read_text
from ..storage.weights import write_safetensors
from ..storage.written_folders import is_run
from ..tasks import new_task
from ..training.run_files import Kind, check_file, check_out
from .checkpoints import CONFIG, PICKLED, CheckpointTensors
from .new_folders import write_run

FIRST = "weight_ih_l0"
PARAMETER = re.compile(r"(weight|bias)_(ih|hh|hr)_l(\d{1,3})(_reverse)?")
EMBEDDING = re.compile("emb|encoder|wte", re.IGNORECASE)
"""Part of the name of an embedding; counts only if two tables have the same shape and neither has a bias."""
LAYERS = {cls.gates: name for name, cls in REGISTRY.items() if issubclass(cls, TorchCell)}
"""The layers by the number of their gates: the rows of ``weight_ih_l0`` for each unit."""
NEEDED = "an embedding, one torch.nn.RNN, LSTM or GRU, and an output layer"


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
        raise errors.MalformedError(f"{where}: {problem}; give a file with {NEEDED} (this one has {tensors.listed()})")
    (prefix,) = prefixes
    given = [name for name in tensors.names() if name.startswith(prefix) and PARAMETER.fullmatch(name[len(prefix) :])]
    shapes = {name.removeprefix(prefix): tensors.shape(name) for name in given}
    if reverse := sorted(name for name in shapes if name.endswith("_reverse")):
        raise errors.NotSupportedError(
            f"{where}: {prefix}{reverse[0]} reads backwards, but a language model must not read what it predicts; use "
            "a module with bidirectional=False"
        )

    # With a projection, the recurrent matrix has fewer columns than units, and only the projection says how many
    # units.
    inner = shapes.get("weight_hr_l0", shapes.get("weight_hh_l0"))
    first, recurrent = shapes[FIRST], shapes.get("weight_hh_l0", ())
    if inner is None or {2} != {*map(len, (inner, first, recurrent))} or not all((*inner, *first, *recurrent)):
        raise errors.MalformedError(
            f"{where}: {prefix}weight_hh_l0 is missing or not a matrix; give a file with {NEEDED}"
        )
    hidden, output = inner[1], recurrent[1]

    # The three kinds of layers differ in nothing but the number of gates.
    gates, rest = divmod(first[0], hidden)
    if rest or gates not in LAYERS:
        raise errors.MismatchError(
            f"{where}: {prefix}{FIRST} has the shape {first} and {prefix}weight_hh_l0 {recurrent}, but an RNN has as "
            "many rows as units, a GRU 3 times and an LSTM 4 times as many; check the file"
        )
    depth = 1 + max(int(match[3]) for match in map(PARAMETER.fullmatch, shapes) if match is not None)
    found = Recurrence(
        LAYERS[gates], prefix, first[1], hidden, output, depth, any(name.startswith("bias") for name in shapes)
    )
    expected = _shapes(found, gates * hidden)
    for name in sorted(expected.keys() | shapes.keys()):
        if name not in shapes:
            raise errors.MissingError(f"{where}: the tensor {prefix}{name} is missing; check the file")
        if shapes[name] != expected.get(name):
            needed = f"instead of {expected[name]}" if name in expected else "and should not be there"
            raise errors.MismatchError(f"{where}: {prefix}{name} has the shape {shapes[name]} {needed}; check the file")
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
        if not (name.startswith(found.prefix) and PARAMETER.fullmatch(name[len(found.prefix) :]))
    }

    def refuse(problem: str) -> NoReturn:
        raise errors.MalformedError(
            f"{tensors.folder}: {problem}; give a file with {NEEDED} (this one has {tensors.listed()})"
        )

    # Names say little, since everybody names modules differently: the largest table of a fitting width has the
    # tokens.
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

    # Two tables of one shape can be tied, or be told apart by a bias, which only an output layer has, or by name.
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


VOCABULARY_NAMES = ("tokenizer.json", "vocab.json", "vocab.txt", "vocabulary.json", "vocabulary.txt")
"""The files in which a vocabulary is found without being named."""
KINDS = "tokenizer.json, a list in JSON, or a text with one token a line in the order of the ids"
REMEDY = f"give {KINDS}"
ENDS = ("<eos>", "</s>", "<|endoftext|>", "<end>", "<eot>", "[eos]", "\n")
BEGINS = ("<bos>", "<s>", "<sos>", "<start>", "[bos]")
UNKNOWNS = ("<unk>", "<unknown>", "<oov>", "[unk]")
SYMBOL = re.compile(r"<[^<>\s]+>|\[[^\[\]\s]+\]")
"""A special token in a list of characters."""
PRIVATE = 0xE000  # the first code point for private use, where characters stand for special tokens
ESCAPES = {r"\n": "\n", r"\r": "\r", r"\t": "\t"}
"""How a list with one character a line writes characters that would break the line, or that cannot be seen."""
ADDED = -1


class SourceVocabulary(NamedTuple):
    """A tokenizer, and the row there of each token here.

    Token 0 and the unknown token 1 must exist here. ``added`` are those that do not exist there: their row is a copy of
    another, or the mean of all rows (`ADDED`).
    """

    tokenizer: Tokenizer
    rows: Sequence[int]
    added: Sequence[int] = ()

    @property
    def unit(self) -> str:
        """The value of ``data.unit``: lines if a token begins each, or if no character is a line end."""
        one = self.tokenizer
        if one.kind == "char":
            return "line" if one.find_unknown("\n") else "stream"
        return "line" if one.kind == "word" and one.begin != END else "stream"


def find_vocabulary(weights: Path) -> Path:
    """Return the vocabulary beside a file of weights; raise InputError if there is none, or if there are several."""
    found = [name for name in VOCABULARY_NAMES if (weights.parent / name).is_file()]
    if len(found) == 1:
        return weights.parent / found[0]
    problem = f"{' and '.join(found)} are beside it" if found else "no vocabulary beside it"
    raise errors.MissingError(f"{weights}: {problem}; name the vocabulary with --vocabulary FILE: {KINDS}")


def read_vocabulary(path: Path, size: int, *, end: str | None = None) -> SourceVocabulary:
    """Read the vocabulary of a model whose tables have ``size`` rows; ``end`` is the token that ends a text.

    Raises:
        InputError: the file cannot be read, has another number of tokens, or does not say which token ends a text.
    """
    if path.suffix != ".json":
        lines = read_text(path, max_bytes=MAX_FILE_BYTES, remedy=REMEDY).removesuffix("\n").split("\n")
        return _listed(path, [ESCAPES.get(line, line) for line in lines], size, end)

    # Five kinds of files are JSON; what they contain tells them apart, because their names do not.
    content = read_json(path, max_bytes=MAX_FILE_BYTES, remedy=REMEDY)
    if isinstance(content, dict) and isinstance(content.get("kind"), str):
        if end is not None:
            raise errors.ConflictError(f"--end: {path} says which token ends a text; leave it out")
        tokenizer = load_tokenizer(path)
        _check_size(path, tokenizer.vocabulary_size, size)
        return SourceVocabulary(tokenizer, range(size))
    if isinstance(content, dict) and isinstance(content.get("model"), dict):
        return _from_library(path, content, size, end)
    if isinstance(content, dict):
        if sorted(content.values(), key=str) != sorted(range(len(content)), key=str):
            raise errors.MalformedError(f"{path}: the ids must be 0 to {len(content) - 1}, each of one token; {REMEDY}")
        content = sorted(content, key=content.__getitem__)
    if not isinstance(content, list):
        raise errors.MalformedError(f"{path}: not a list of tokens; {REMEDY}")
    return _listed(path, content, size, end)


def _check_size(path: Path, tokens: int, size: int) -> None:
    if tokens != size:
        raise errors.MismatchError(
            f"{path}: {tokens:,} tokens, but the tables have {size:,} rows; give the vocabulary of this model"
        )


def _from_library(path: Path, content: JsonObject, size: int, end: str | None) -> SourceVocabulary:
    """Return the vocabulary of a `tokenizer.json` of the ``tokenizers`` library."""
    import tokenizers

    # A vocabulary of words or characters becomes one of ours, which can also name what is unknown in a text.
    try:
        before, normalizer = content.get("pre_tokenizer") or {}, (content.get("normalizer") or {}).get("type")
        ids = tokenizers.Tokenizer.from_str(json.dumps(content)).get_vocab()
        if content["model"].get("type") == "WordLevel" and normalizer in (None, "Lowercase"):
            by_character = before.get("type") == "Split" and before["pattern"] == {"Regex": CHARACTER}
            if by_character or before.get("type") == "WhitespaceSplit":
                tokens = sorted(ids, key=ids.__getitem__)
                return _listed(path, tokens, size, end, is_characters=by_character, lowercase=normalizer is not None)

        # Any other tokenizer is kept as it is.
        ending = _ending(path, ids, end, ENDS[:-1])
        if ending is None:
            raise errors.RequiredError(f"{path}: no token ends a text; name it with --end TOKEN")
        begin = _special(path, ids, BEGINS, "begin a text")
        tokenizer = PretrainedTokenizer(content, end=ending, begin=ending if begin is None else begin, size=size)
    except errors.InputError:
        raise
    except Exception as error:  # the library raises Exception itself
        raise errors.MalformedError(f"{path}: {error}; {REMEDY}") from None
    return SourceVocabulary(tokenizer, tokenizer.exchanged(np.arange(size)).tolist())


def _special(path: Path, ids: Mapping[str, int], names: Collection[str], what: str) -> int | None:
    """Return the id of a special token, whose name may have any case; raise InputError if there are two."""
    found = [token for token in ids if token.lower() in names]
    if len(found) > 1:
        hint = "rename one of them" if names in (BEGINS, UNKNOWNS) else "name it with --end"
        raise errors.AmbiguousError(f"{path}: {shown(found[0])} and {shown(found[1])} could both {what}; {hint}")
    return ids[found[0]] if found else None


def _ending(path: Path, ids: Mapping[str, int], end: str | None, names: Collection[str]) -> int | None:
    """Return the id of the token that ends a text."""
    if end is None:
        return _special(path, ids, names, "end a text")
    end = ESCAPES.get(end, end)
    if end not in ids:
        raise errors.MalformedError(f"--end: {shown(end)} is not in {path}; {nearest(end, list(ids))}")
    return ids[end]


def _listed(
    path: Path,
    tokens: Sequence[object],
    size: int,
    end: str | None,
    *,
    is_characters: bool | None = None,
    lowercase: bool = False,
) -> SourceVocabulary:
    """Return the vocabulary of a list of words or characters in the order of their ids."""
    ids: dict[str, int] = {}
    for i, token in enumerate(tokens):
        if not isinstance(token, str) or not token or not is_text(token) or token in ids:
            problem = "a duplicate" if isinstance(token, str) and token in ids else "not a text"
            raise errors.MalformedError(
                f"{path}:{i + 1}: {shown(token) if token else 'an empty token'} is {problem}; {REMEDY}"
            )
        ids[token] = i
    _check_size(path, len(ids), size)
    if is_characters is None:
        is_characters = all(len(token) == 1 for token in ids if not SYMBOL.fullmatch(token) and token != end)

    # A line end can itself be the token that ends a text, but among characters it is one of the text.
    ending = _ending(path, ids, end, ENDS[:-1] if is_characters else ENDS)
    begin, unknown = _special(path, ids, BEGINS, "begin a text"), _special(path, ids, UNKNOWNS, "be the unknown token")
    if ending is not None and ending == unknown:
        raise errors.ConflictError(
            f"--end: {shown(end)} is the unknown token of {path}; name the token that ends a text"
        )
    if ending is None and not is_characters:
        raise errors.RequiredError(f"{path}: no token ends a line, such as <eos>; name it with --end TOKEN")

    # Tokens 0 and 1 have fixed meanings here, so the rows of the tables change their order.
    rows = [ids.get("\n", ADDED) if ending is None else ending, ADDED if unknown is None else unknown]
    others = [token for token, i in ids.items() if i not in (ending, unknown)]
    rows += [ids[token] for token in others]
    first = END if begin is None else rows.index(begin)
    added = [token for token, i in enumerate((ending, unknown)) if i is None]
    if is_characters:
        characters = "".join(token if len(token) == 1 else chr(PRIVATE + i) for i, token in enumerate(others))
        return SourceVocabulary(CharTokenizer(characters, Spelling(), lowercase=lowercase, begin=first), rows, added)
    for token in others:
        if token.split() != [token] or LINE_END in token:
            raise errors.MalformedError(
                f"{path}:{ids[token] + 1}: {shown(token)} has white space, and words are separated by it; {REMEDY}"
            )
    return SourceVocabulary(WordTokenizer(others, Spelling(), lowercase=lowercase, begin=first), rows, added)


SUFFIX = ".safetensors"
PICKLED_BEGINNINGS = (b"PK\x03\x04", b"\x80")
"""How the files begin that `torch.save` writes, now and in early versions."""
NONLINEARITIES, UNITS = ("tanh", "relu"), ("stream", "line")
IMPROBABLE = 20.0
"""How far the logit of an added token is below the mean, in nats: its probability is below 3e-9, which changes no other
probability in float32, and is not so small that it could not be learned."""
PARAMETERS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh", "weight_hr")


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
    # A folder with a configuration is a checkpoint or a run, which another function reads.
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

    # A user with pickled weights learns how to convert them, not only that nothing was found.
    if not pickled:
        return None
    call = "save_file(torch.load(F, weights_only=True), G)"
    raise errors.ForbiddenError(
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
        raise errors.MissingError(f"{path}: no such file; give a state dictionary that safetensors wrote")
    tensors = StateTensors(path)
    found, metadata = find_recurrence(tensors), tensors.metadata(path)
    tables = find_tables(tensors, found)
    given = Path(options.vocabulary) if options.vocabulary is not None else find_vocabulary(path)
    source = read_vocabulary(given, tables.size, end=options.end)

    # The state dictionary may have been exported from here, and then says what its tensors do not.
    unit = options.unit or metadata.get("data.unit") or source.unit
    if unit not in UNITS:
        raise errors.UnknownNameError(
            f"{path}: the unit of the data is {shown(unit)}; set it with --unit to {' or '.join(UNITS)}"
        )
    config = {
        "task": "lm",
        "data": {"unit": unit},
        "tokenizer": {"kind": source.tokenizer.kind, "lowercase": source.tokenizer.lowercase},
        "model": _model(found, tables, source, options.nonlinearity or metadata.get("nonlinearity"), path),
    }
    task, vocabulary = new_task(resolve(config)), Vocabulary({"tokenizer": source.tokenizer})
    return write_run(out, task, vocabulary, _parameters(tensors, found, tables, source), overwrite=overwrite)


def _model(
    found: Recurrence, tables: Tables, source: SourceVocabulary, nonlinearity: str | None, path: Path
) -> JsonObject:
    """Return the section ``model`` of the configuration."""
    options: JsonObject = {} if found.has_bias else {"bias": False}
    if found.output_size != found.hidden_size:
        options["projection_size"] = found.output_size

    # The shapes do not tell tanh from ReLU, so the user or the metadata must.
    if nonlinearity is not None:
        if "activation" not in options_of(found.layer, {}):
            raise errors.ConflictError(f"--nonlinearity: {path} is a layer {found.layer} and not an RNN; leave it out")
        if nonlinearity not in NONLINEARITIES:
            raise errors.UnknownNameError(
                f"--nonlinearity: {shown(nonlinearity)} is unknown; use {' or '.join(NONLINEARITIES)}"
            )
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
        for kind in PARAMETERS:
            if (name := f"{found.prefix}{kind}_l{depth}") in tensors.names():
                yield f"{cell}.{kind}_l0", tensors.read(name).contiguous().numpy()
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


MARK = "seriatim export of torch"
EXPORTED_STATE = Kind("a state dictionary that Seriatim exported", MARK.encode())


def export_torch(run: Run, out: str) -> None:
    """Write the parameters to a safetensors file; see `torch_state`.

    Raises:
        InputError: the model has no parameters of its own, such as n-grams; or the file exists and is of another kind.
    """
    data = run.config.data
    path = check_file(out, EXPORTED_STATE, (data.train, data.valid, data.test))
    if not isinstance(run.model, NeuralModel) or run.answering is not run.model:
        raise errors.NotSupportedError(
            f"{run.path}: has no parameters of a single network; give a run of a neural layer"
        )
    with atomic(path) as aside:
        write_safetensors(torch_state(run.model), aside, _facts(run))


def _facts(run: Run) -> dict[str, str]:
    """Return what the tensors do not say."""
    facts = {"format": "pt", "written by": MARK, "data.unit": run.config.data.unit}
    activation = run.config.model.options.get("activation")
    return facts | ({"nonlinearity": activation} if activation in ("tanh", "relu") else {})


def torch_state(model: nn.Module) -> dict[str, Tensor]:
    """Return all parameters by name; those of recurrent layers as `torch.nn.RNN`, `LSTM` and `GRU` call them.

    A stack of such layers in the attribute ``layer`` gives ``layer.weight_ih_l0`` and so on, as one module of
    `torch.nn` in that attribute has it. All other parameters keep their names. Tied parameters are written under each
    of their names.
    """
    tensors: dict[str, Tensor] = {}
    done: list[str] = []
    for name, module in model.named_modules():
        if not isinstance(module, SequenceLayer) or name.startswith(tuple(done)):
            continue
        try:
            twin = to_torch(module)
        except ValueError:  # torch.nn has no such module
            continue
        done.append(f"{name}.")
        tensors |= {f"{name}.{key}": value for key, value in twin.state_dict().items()}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if not name.startswith(tuple(done)):
            tensors[name] = parameter.detach()
    return {name: value.cpu().clone().contiguous() for name, value in tensors.items()}

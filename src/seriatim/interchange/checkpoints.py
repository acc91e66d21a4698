"""Checkpoints of the ``transformers`` library: read, made a run of, and written from a run.

Nothing is unpickled and no code is run. Tensors are read one at a time. `checkpoint_families` says which tensor is
which parameter here.
"""

import json
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Protocol, TypeVar, cast

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ..config import resolve
from ..core.errors import (
    DamagedError,
    ForbiddenError,
    MalformedError,
    MismatchError,
    MissingError,
    NotSupportedError,
    UnavailableError,
    first_line,
    shown,
)
from ..core.json_object import JsonObject
from ..data.library_tokenizers import PretrainedTokenizer, library_fields, special_tokens
from ..data.tokenizers import MAX_FILE_BYTES, Tokenizer
from ..data.vocabulary import Vocabulary
from ..models.language_model import LanguageModel
from ..models.masked_language_model import MaskedLanguageModel
from ..runs.run import Run
from ..storage.files import read_json, write_whole
from ..storage.weights import write_safetensors
from ..tasks import new_task
from ..training.run_files import check_out
from .checkpoint_families import FAMILIES, family_for, family_of
from .checkpoint_family import ConversionRule, Family, TokenRows
from .new_folders import check_new, new_folder, parameter_shapes, write_run

Result = TypeVar("Result")
CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
TOKENIZER, TOKENIZER_CONFIG = "tokenizer.json", "tokenizer_config.json"
PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
"""Names of files that may hold pickled weights."""
REMEDY = "check that the folder is complete"
MAX_CONFIG_BYTES = 1 << 24
HUB = "hf:"
ROLES = {"end": "ends a text", "begin": "begins a text", "mask": "stands for a gap"}
"""What special tokens do."""
DOWNLOADED = [CONFIG, "model*.safetensors", INDEX, TOKENIZER, TOKENIZER_CONFIG]


def located(source: str) -> Path:
    """Return the folder of a checkpoint; that of ``hf:NAME`` is downloaded first.

    InputError: the package ``huggingface_hub`` is missing, or the checkpoint cannot be downloaded.
    """
    if not source.startswith(HUB):
        return Path(source)
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise UnavailableError(
            f"{source}: needs the package huggingface_hub; install it: pip install 'seriatim[hub]'"
        ) from None
    try:
        return Path(snapshot_download(source.removeprefix(HUB), allow_patterns=DOWNLOADED))
    except Exception as error:  # the package raises errors of many kinds
        reason = first_line(error) or type(error).__name__
        raise UnavailableError(f"{source}: cannot be downloaded ({reason}); check the name and the network") from None


def read_fields(folder: Path) -> JsonObject:
    """Read `config.json`; raise InputError if it is missing or damaged, or names code of its own."""
    path = folder / CONFIG
    if not path.is_file():
        raise MissingError(f"{folder}: no {CONFIG}; give a folder that save_pretrained wrote, or an ARPA file")
    fields = _object(path)
    if fields.get("auto_map"):
        raise ForbiddenError(f"{path}: auto_map names code of the checkpoint, which is not run; use another checkpoint")
    if fields.get("quantization_config"):
        raise NotSupportedError(
            f"{path}: quantization_config says that the weights are rounded, which is not read; use the checkpoint in "
            "float32, float16 or bfloat16, and round the weights of the run with --weights int8"
        )
    return fields


def _object(path: Path) -> JsonObject:
    fields = read_json(path, max_bytes=MAX_CONFIG_BYTES, remedy=REMEDY)
    if not isinstance(fields, dict):
        raise MalformedError(f"{path}: not a JSON object; {REMEDY}")
    return fields


class _Slice(Protocol):
    def get_shape(self) -> list[int]: ...


class _File(Protocol):
    """What the safetensors library opens, whose methods have no types there."""

    def keys(self) -> list[str]: ...
    def metadata(self) -> dict[str, str] | None: ...
    def get_tensor(self, name: str) -> Tensor: ...
    def get_slice(self, name: str) -> _Slice: ...


class CheckpointTensors:
    """The tensors of a checkpoint, in one file or in several.

    Raises:
        InputError: there are no safetensors files, one is missing or damaged, or only pickled weights are there.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files: dict[str, Path] = {}

        # A folder can hold several forms of the same weights: the library takes the whole file first, and so do we.
        if (folder / WEIGHTS).is_file():
            self._add([folder / WEIGHTS])
        elif (folder / INDEX).is_file():
            index = _object(folder / INDEX).get("weight_map")
            if not isinstance(index, dict) or not {str}.issuperset(map(type, index.values())):
                raise MalformedError(f"{folder / INDEX}: no object weight_map; {REMEDY}")
            shards = sorted(set(index.values()))
            for shard in shards:
                if Path(shard).name != shard or not (folder / shard).is_file():
                    raise MissingError(f"{folder}: the file {shown(shard)} is missing, which {INDEX} names; {REMEDY}")
            self._add([folder / shard for shard in shards])
            if missing := sorted(index.keys() - self.files.keys()):
                raise MissingError(f"{folder}: {missing[0]} is in no file, although {INDEX} names it; {REMEDY}")
        else:
            for pattern in PICKLED:
                for path in sorted(folder.glob(pattern)):
                    raise ForbiddenError(
                        f"{path}: pickled weights can run code and are not read; load them with transformers "
                        "and write the model with save_pretrained, which writes safetensors"
                    )
            raise MissingError(f"{folder}: no {WEIGHTS} or {INDEX}; {REMEDY}")

    def _add(self, paths: Iterable[Path]) -> None:
        for path in paths:
            names: list[str] = self._with(path, lambda file: list(file.keys()))
            self.files.update(dict.fromkeys(names, path))

    def _with(self, path: Path, read: Callable[[_File], Result]) -> Result:
        try:
            with safe_open(path, framework="pt") as file:
                return read(cast(_File, file))
        except (SafetensorError, OSError, RuntimeError, ValueError) as error:
            raise DamagedError(f"{path}: damaged ({error}); {REMEDY}") from None

    def names(self) -> set[str]:
        """Return the names of all tensors."""
        return set(self.files)

    def metadata(self, path: Path) -> dict[str, str]:
        """Return the texts that one of the files has beside its tensors."""
        return self._with(path, lambda file: file.metadata()) or {}

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor."""
        return tuple(self._with(self.files[name], lambda file: file.get_slice(name).get_shape()))

    def read(self, name: str) -> Tensor:
        """Return a tensor in float32; raise InputError if it holds NaN or infinity, or whole numbers."""
        tensor: Tensor = self._with(self.files[name], lambda file: file.get_tensor(name))
        if tensor.dtype not in (torch.float32, torch.float16, torch.bfloat16, torch.float64):
            raise NotSupportedError(
                f"{self.files[name]}: {name} is {tensor.dtype}, a compressed format; use the original checkpoint"
            )
        tensor = tensor.float()
        if not bool(torch.isfinite(tensor).all()):
            raise DamagedError(f"{self.files[name]}: {name} holds NaN or infinity; use another checkpoint")
        return tensor


def read_tokenizer(folder: Path, family: Family, size: int) -> PretrainedTokenizer:
    """Read the tokenizer of a checkpoint whose embedding has ``size`` rows.

    Raises:
        InputError: `tokenizer.json` is missing or cannot be read, or a special token is missing.
    """
    path, settings = folder / TOKENIZER, {}
    if (folder / TOKENIZER_CONFIG).is_file():
        settings = _object(folder / TOKENIZER_CONFIG)
        if settings.get("auto_map"):
            raise ForbiddenError(
                f"{folder / TOKENIZER_CONFIG}: auto_map names code, which is not run; use another checkpoint"
            )
    if not path.is_file():
        raise MissingError(
            f"{folder}: no {TOKENIZER}; write one with AutoTokenizer.from_pretrained(...).save_pretrained(...)"
        )
    content = read_json(path, max_bytes=MAX_FILE_BYTES, remedy=REMEDY)
    if not isinstance(content, dict) or not isinstance(content.get("model"), dict):
        raise MalformedError(f"{path}: not a tokenizer of the tokenizers library; {REMEDY}")
    added = _added_tokens(path, content, size)

    # Checkpoints name a special token by its id in one file, by its text in the other, or not at all.
    def special(name: str) -> int | None:
        token = family.fields.get(f"{name}_token_id")
        token = token[0] if isinstance(token, list) and token else token
        if isinstance(token, int) and not isinstance(token, bool) and 0 <= token < size:
            return token
        text = settings.get(f"{name}_token", f"[{name.upper()}]")
        text = text.get("content") if isinstance(text, dict) else text
        found = added.get(text) if isinstance(text, str) else None
        return found if isinstance(found, int) else None

    # A masked model needs more tokens than one that predicts the next, so the family says which are missed.
    family.check_tokenizer(content, settings)
    tokens = {role: special(name) for role, name in family.special_tokens.items()}
    if missing := next((role for role in family.needed if tokens[role] is None), None):
        name = family.special_tokens[missing]
        raise MissingError(f"{folder / CONFIG}: no {name}_token_id, the token that {ROLES[missing]}; add it")
    end, begin = (tokens[role] for role in ("end", "begin"))
    try:
        return PretrainedTokenizer(
            content, end=end or 0, begin=end or 0 if begin is None else begin, size=size, mask=tokens.get("mask")
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise NotSupportedError(f"{path}: {error}; use another checkpoint") from None


def _added_tokens(path: Path, content: JsonObject, size: int) -> dict[str, object]:
    """Return the ids of the tokens that were added to a vocabulary by their texts.

    Raises:
        InputError: they are no list of tokens; or the model, whose embedding has ``size`` rows, could not read one.
    """
    listed = content.get("added_tokens") or []
    if not isinstance(listed, list) or not all(
        isinstance(token, dict) and isinstance(token.get("content"), str) for token in listed
    ):
        raise MalformedError(f"{path}: added_tokens must be a list of tokens; {REMEDY}")
    added = {token["content"]: token.get("id") for token in listed}
    for name, token in added.items():
        if isinstance(token, int) and token >= size:
            raise MismatchError(
                f"{path}: the token {shown(name)} has the id {token:,}, but the embedding has only the rows 0 to "
                f"{size - 1:,}; call model.resize_token_embeddings(len(tokenizer)) and save_pretrained, or take the "
                "token out of added_tokens"
            )
    return added


def import_checkpoint(source: str, out: str | None, *, overwrite: bool = False) -> Run:
    """Make a run of the folder of a checkpoint, or of ``hf:NAME``.

    Raises:
        InputError: the architecture, an option or a file is not supported, missing or damaged, or the disk is full.
    """
    check_out(out, overwrite=overwrite)
    source_folder = located(source)
    fields = read_fields(source_folder)
    family = family_of(fields, str(source_folder / "config.json"))
    family.model()  # names what is not supported before files are read

    # What a checkpoint ties decides which options and rules hold, so the tensors are compared before either is used.
    tensors = CheckpointTensors(source_folder)
    check_tied(family, tensors)
    settings, rules = family.model(), with_names(family, family.rules(), tensors)
    table = next(rule.theirs[0] for rule in rules if rule.ours == "embedding.weight")
    family.check_names(tensors.names(), str(source_folder))
    check_names(family, rules, tensors)
    if len(shape := tensors.shape(table)) != 2:
        raise MismatchError(f"{source_folder}: {table} has the shape {shape}, which is no table; check the files")

    # The rows of the embedding, and not the configuration, say how many tokens there are.
    tokenizer = read_tokenizer(source_folder, family, shape[0])
    config = {
        "task": family.task,
        "data": {"unit": family.unit},
        "tokenizer": {"kind": "pretrained"},
        "model": settings,
        "training": family.training(),
    }
    task, vocabulary = new_task(resolve(config)), Vocabulary({"tokenizer": tokenizer})

    # Every shape is compared before the first tensor is read, so that a large checkpoint is refused at once.
    parameters = parameter_shapes(task, vocabulary)
    assert parameters.keys() == {rule.ours for rule in rules}, parameters.keys() ^ {rule.ours for rule in rules}
    check_shapes(rules, tensors, parameters, token_rows(tokenizer))
    return write_run(out, task, vocabulary, converted(rules, tensors, tokenizer), overwrite=overwrite)


def check_tied(family: Family, tensors: CheckpointTensors) -> None:
    """Take the output layer of a checkpoint that stores it beside another embedding, whatever `config.json` says.

    Raises:
        InputError: a model here cannot hold both.
    """
    names = tensors.names()
    for first, second in family.tied.items() if family.is_tied else ():
        first = family.name_in(names, first)
        if not {first, second} <= names or torch.equal(tensors.read(first), tensors.read(second)):
            continue
        problem = (
            f"{tensors.folder}: {first} and {second} differ, but tie_word_embeddings says that they are one tensor"
        )
        if not family.can_untie:
            raise MismatchError(f"{problem}; write the checkpoint again with the one that is right")
        warnings.warn(f"{problem}; both are kept, as transformers does from version 5 on", stacklevel=3)
        family.fields = {**family.fields, "tie_word_embeddings": False}


def with_names(family: Family, rules: list[ConversionRule], tensors: CheckpointTensors) -> list[ConversionRule]:
    """Return the rules for the names of a checkpoint, which differ from those of others in some ways."""
    names = tensors.names()
    return [rule._replace(theirs=tuple(family.name_in(names, name) for name in rule.theirs)) for rule in rules]


def check_names(family: Family, rules: list[ConversionRule], tensors: CheckpointTensors) -> None:
    """Raise InputError for the first tensor that is missing, or that no rule reads."""
    expected = {name for rule in rules for name in rule.theirs}
    if missing := sorted(expected - tensors.names()):
        raise MissingError(f"{tensors.folder}: the tensor {missing[0]} is missing; check that the folder is complete")
    dropped = sorted(name for name in tensors.names() - expected if name.startswith(family.dropped))
    others = sorted(tensors.names() - expected - set(dropped))
    copies = set(family.tied.values()) if family.is_tied else set[str]()
    unread = [name for name in others if not name.endswith(family.ignored) and name not in copies]
    if unread:
        raise NotSupportedError(f"{tensors.folder}: no model here has the tensor {unread[0]}; use another checkpoint")
    if dropped:
        warnings.warn(f"{tensors.folder}: left out, as no model here has them: {', '.join(dropped)}", stacklevel=3)


def check_shapes(
    rules: list[ConversionRule], tensors: CheckpointTensors, parameters: dict[str, tuple[int, ...]], tokens: TokenRows
) -> None:
    """Raise InputError for the first tensor of another shape than the configuration says."""
    for rule in rules:
        given = [torch.empty(tensors.shape(name), device="meta") for name in rule.theirs]
        try:
            shape = tuple(rule.to_ours(given, tokens).shape)
        except (RuntimeError, ValueError, IndexError, TypeError):
            shape = ()
        if shape != parameters[rule.ours]:
            shapes = ", ".join(str(tuple(tensor.shape)) for tensor in given)
            raise MismatchError(
                f"{tensors.folder}: {rule.theirs[0]} has the shape {shapes}, unlike config.json; check the files"
            )


def converted(
    rules: list[ConversionRule], tensors: CheckpointTensors, tokenizer: PretrainedTokenizer
) -> Iterator[tuple[str, np.ndarray]]:
    """Yield every parameter, one at a time."""
    for rule in rules:
        given = [tensors.read(name) for name in rule.theirs]
        yield rule.ours, rule.to_ours(given, token_rows(tokenizer)).contiguous().numpy()


def token_rows(tokenizer: Tokenizer) -> TokenRows:
    """Return the order of the rows of tables for the ids of a tokenizer."""
    return TokenRows(tokenizer.end, tokenizer.mask) if isinstance(tokenizer, PretrainedTokenizer) else TokenRows()


MAX_LENGTH = 1 << 20
"""What `tokenizer_config.json` says of the length of a text where the positions of a model do not end."""


def export_checkpoint(run: Run, out: str) -> None:
    """Write the folder ``out``, which must not exist: `config.json`, `model.safetensors` and the tokenizer.

    Raises:
        InputError: the model has a part that no architecture of the library has; or the folder exists.
    """
    folder = check_new(out)
    if not isinstance(run.model, LanguageModel | MaskedLanguageModel) or run.answering is not run.model:
        raise NotSupportedError(f"{run.path}: only one language model can be a checkpoint; give a run of lm or mlm")
    tokenizer = run.tokenizer
    begin, end = tokenizer.begin, 0
    if isinstance(tokenizer, PretrainedTokenizer):
        begin, end = (int(tokenizer.exchanged([token])[0]) for token in (begin, end))

    # Any model that the checks below let pass can be written as a whole: nothing is on the disk until then.
    fields = family_for(run.config, run.model, str(run.path))
    kind = FAMILIES[fields["model_type"]]
    if "mask" in kind.special_tokens and not tokenizer.frames:
        raise NotSupportedError(
            f"{run.path}: its tokenizer has no token for masked words, such as [MASK]; start the training "
            "from an imported model, with --init"
        )
    fields |= {"vocab_size": tokenizer.vocabulary_size, **kind.token_ids(begin, end)}
    fields |= {"dtype": "float32", "tie_word_embeddings": run.config.model.tie_weights}
    family = kind(fields, str(run.path))

    # Rules take parameters away as they use them: what is left over would be missing in the checkpoint.
    parameters, tensors = dict(run.model.named_parameters()), dict[str, Tensor]()
    tokens = token_rows(tokenizer)
    for rule in family.rules():
        parameter = parameters.pop(rule.ours).detach().cpu()
        sizes = family.rows(len(rule.theirs)) if rule.kind == "joined" else []
        for name, tensor in zip(rule.theirs, rule.to_theirs(parameter, sizes, tokens), strict=True):
            tensors[name] = tensors[name] + tensor if name in tensors else tensor.contiguous().clone()
    assert not parameters, parameters
    with new_folder(folder) as aside:
        _write(aside, fields, tensors, run)


def _write(folder: Path, fields: JsonObject, tensors: dict[str, Tensor], run: Run) -> None:
    write_safetensors(tensors, folder / WEIGHTS, {"format": "pt"})
    names = special_tokens(run.tokenizer)
    length = fields.get("n_positions", fields.get("max_position_embeddings", MAX_LENGTH))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    settings |= {"model_max_length": length, **names}
    for name, content in ((CONFIG, fields), (TOKENIZER_CONFIG, settings), (TOKENIZER, library_fields(run.tokenizer))):
        write_whole(folder / name, json.dumps(content, ensure_ascii=False, indent=1) + "\n")

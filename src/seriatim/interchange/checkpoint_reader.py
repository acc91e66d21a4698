"""Reads the folder of a checkpoint of the ``transformers`` library: its fields, its tensors and its tokenizer.

Nothing is unpickled and no code is run. Tensors are read one at a time.
"""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol, TypeVar, cast

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ..config import Fields
from ..core.errors import InputError, first_line, shown
from ..data.pretrained_tokenizer import PretrainedTokenizer
from ..data.tokenizers import MAX_FILE_BYTES
from ..storage.safe_files import read_json
from .families.checkpoint_family import Family

Result = TypeVar("Result")
CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
TOKENIZER, TOKENIZER_CONFIG = "tokenizer.json", "tokenizer_config.json"
PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
"""Names of files that may hold pickled weights."""
WHOLE = "check that the folder is complete"
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
        raise InputError(
            f"{source}: needs the package huggingface_hub; install it: pip install 'seriatim[hub]'"
        ) from None
    try:
        return Path(snapshot_download(source.removeprefix(HUB), allow_patterns=DOWNLOADED))
    except Exception as error:  # the package raises errors of many kinds
        reason = first_line(error) or type(error).__name__
        raise InputError(f"{source}: cannot be downloaded ({reason}); check the name and the network") from None


def read_fields(folder: Path) -> Fields:
    """Read `config.json`; raise InputError if it is missing or damaged, or names code of its own."""
    path = folder / CONFIG
    if not path.is_file():
        raise InputError(f"{folder}: no {CONFIG}; give a folder that save_pretrained wrote, or an ARPA file")
    fields = _object(path)
    if fields.get("auto_map"):
        raise InputError(f"{path}: auto_map names code of the checkpoint, which is not run; use another checkpoint")
    if fields.get("quantization_config"):
        raise InputError(
            f"{path}: quantization_config says that the weights are rounded, which is not read; use the checkpoint in "
            "float32, float16 or bfloat16, and round the weights of the run with --weights int8"
        )
    return fields


def _object(path: Path) -> Fields:
    fields = read_json(path, max_bytes=MAX_CONFIG_BYTES, remedy=WHOLE)
    if not isinstance(fields, dict):
        raise InputError(f"{path}: not a JSON object; {WHOLE}")
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
        if (folder / WEIGHTS).is_file():
            self._add([folder / WEIGHTS])
        elif (folder / INDEX).is_file():
            index = _object(folder / INDEX).get("weight_map")
            if not isinstance(index, dict) or not {str}.issuperset(map(type, index.values())):
                raise InputError(f"{folder / INDEX}: no object weight_map; {WHOLE}")
            shards = sorted(set(index.values()))
            for shard in shards:
                if Path(shard).name != shard or not (folder / shard).is_file():
                    raise InputError(f"{folder}: the file {shown(shard)} is missing, which {INDEX} names; {WHOLE}")
            self._add([folder / shard for shard in shards])
            if missing := sorted(index.keys() - self.files.keys()):
                raise InputError(f"{folder}: {missing[0]} is in no file, although {INDEX} names it; {WHOLE}")
        else:
            for pattern in PICKLED:
                for path in sorted(folder.glob(pattern)):
                    raise InputError(
                        f"{path}: pickled weights can run code and are not read; load them with transformers "
                        "and write the model with save_pretrained, which writes safetensors"
                    )
            raise InputError(f"{folder}: no {WEIGHTS} or {INDEX}; {WHOLE}")

    def _add(self, paths: Iterable[Path]) -> None:
        for path in paths:
            names: list[str] = self._with(path, lambda file: list(file.keys()))
            self.files.update(dict.fromkeys(names, path))

    def _with(self, path: Path, read: Callable[[_File], Result]) -> Result:
        try:
            with safe_open(path, framework="pt") as file:
                return read(cast(_File, file))
        except (SafetensorError, OSError, RuntimeError, ValueError) as error:
            raise InputError(f"{path}: damaged ({error}); {WHOLE}") from None

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
            raise InputError(
                f"{self.files[name]}: {name} is {tensor.dtype}, a compressed format; use the original checkpoint"
            )
        tensor = tensor.float()
        if not bool(torch.isfinite(tensor).all()):
            raise InputError(f"{self.files[name]}: {name} holds NaN or infinity; use another checkpoint")
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
            raise InputError(
                f"{folder / TOKENIZER_CONFIG}: auto_map names code, which is not run; use another checkpoint"
            )
    if not path.is_file():
        raise InputError(
            f"{folder}: no {TOKENIZER}; write one with AutoTokenizer.from_pretrained(...).save_pretrained(...)"
        )
    content = read_json(path, max_bytes=MAX_FILE_BYTES, remedy=WHOLE)
    if not isinstance(content, dict) or not isinstance(content.get("model"), dict):
        raise InputError(f"{path}: not a tokenizer of the tokenizers library; {WHOLE}")
    listed = content.get("added_tokens") or []
    if not isinstance(listed, list) or not all(
        isinstance(token, dict) and isinstance(token.get("content"), str) for token in listed
    ):
        raise InputError(f"{path}: added_tokens must be a list of tokens; {WHOLE}")
    added = {token["content"]: token.get("id") for token in listed}
    for name, token in added.items():
        if isinstance(token, int) and token >= size:
            raise InputError(
                f"{path}: the token {shown(name)} has the id {token:,}, but the embedding has only the rows 0 to "
                f"{size - 1:,}; call model.resize_token_embeddings(len(tokenizer)) and save_pretrained, or take the "
                "token out of added_tokens"
            )

    def special(name: str) -> int | None:
        token = family.fields.get(f"{name}_token_id")
        token = token[0] if isinstance(token, list) and token else token
        if isinstance(token, int) and not isinstance(token, bool) and 0 <= token < size:
            return token
        text = settings.get(f"{name}_token", f"[{name.upper()}]")
        text = text.get("content") if isinstance(text, dict) else text
        found = added.get(text) if isinstance(text, str) else None
        return found if isinstance(found, int) else None

    family.check_tokenizer(content, settings)
    tokens = {role: special(name) for role, name in family.special_tokens.items()}
    if missing := next((role for role in family.needed if tokens[role] is None), None):
        name = family.special_tokens[missing]
        raise InputError(f"{folder / CONFIG}: no {name}_token_id, the token that {ROLES[missing]}; add it")
    end, begin = (tokens[role] for role in ("end", "begin"))
    try:
        return PretrainedTokenizer(
            content, end=end or 0, begin=end or 0 if begin is None else begin, size=size, mask=tokens.get("mask")
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path}: {error}; use another checkpoint") from None

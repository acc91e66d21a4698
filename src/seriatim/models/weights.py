"""Parameters in a safetensors file: nothing is unpickled, and every name and shape is checked."""

from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from ..errors import InputError


def save_weights(model: nn.Module, path: Path, metadata: dict[str, str] | None = None) -> None:
    """Writes every parameter once (tied ones under their first name), aside and then renamed."""
    save_tensors({name: value.detach() for name, value in model.named_parameters()}, path, metadata)


def load_weights(model: nn.Module, path: Path) -> None:
    """Reads what `save_weights` wrote into ``model``.

    Raises:
        InputError: missing, damaged, or the weights of another model.
    """
    found = load_tensors(path)
    expected = dict(model.named_parameters())
    if odd := sorted(set(found) ^ set(expected)):
        raise InputError(f"{path}: the weights of another model (they differ in {odd[0]}); restore the run's own file")
    for name, parameter in expected.items():
        if found[name].shape != parameter.shape:
            raise InputError(
                f"{path}: {name} has shape {tuple(found[name].shape)}, the model needs {tuple(parameter.shape)}; "
                "restore the run's own file"
            )
    with torch.no_grad():
        for name, parameter in expected.items():
            parameter.copy_(found[name])


def save_tensors(tensors: dict[str, Tensor], path: Path, metadata: dict[str, str] | None = None) -> None:
    """Writes named tensors aside and renames the file, so that it is whole or absent."""
    aside = path.with_name(path.name + ".partial")
    save_file({name: value.cpu().contiguous() for name, value in tensors.items()}, aside, metadata)
    aside.replace(path)


def load_tensors(path: Path) -> dict[str, Tensor]:
    """Reads named tensors.

    Raises:
        InputError: missing or damaged.
    """
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
    except OSError:
        raise InputError(f"{path}: missing or unreadable; is this the folder of a whole run?") from None
    except SafetensorError as error:
        raise InputError(f"{path}: damaged ({error}); restore it, or train again") from None


def read_metadata(path: Path) -> dict[str, str]:
    """The texts stored beside the tensors.

    Raises:
        InputError: missing or damaged.
    """
    try:
        with safe_open(path, framework="pt") as file:
            return dict(file.metadata() or {})
    except OSError:
        raise InputError(f"{path}: missing or unreadable; is this the folder of a whole run?") from None
    except SafetensorError as error:
        raise InputError(f"{path}: damaged ({error}); restore it, or train again") from None

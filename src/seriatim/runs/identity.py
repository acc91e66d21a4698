"""Which files belong to one run: what was trained, with what vocabulary."""

import hashlib
import json
from pathlib import Path

from ..config import Config, resolve
from ..core.errors import InputError
from ..data.vocabulary import Vocabulary
from ..storage.safe_files import is_text
from ..storage.weights import read_metadata

ADDED: dict[str, object] = {"initial": "usual", "output_bias": True}
"""Fields of ``model`` that earlier versions do not have, and the values with which a model is what it was."""


def run_folder(path: str | Path) -> Path:
    """The folder of a run, by its name.

    Raises:
        InputError: the name is empty, which would mean the current folder, or not UTF-8, which weights need.
    """
    if not is_text(str(path)):
        raise InputError(f"{path}: the name of the run is not UTF-8; rename the folder")
    if not str(path):
        raise InputError("the name of the run is empty; give the folder that seriatim train --out wrote")
    return Path(path)


def read_config(folder: Path) -> Config:
    """The resolved configuration of a run.

    Raises:
        InputError: there is none, or it is damaged.
    """
    if not (folder / "config.yaml").is_file():
        raise InputError(f"{folder}/config.yaml: missing; is {folder} the folder of a run?")
    return resolve(folder / "config.yaml")


def identity(config: Config, vocabulary: Vocabulary) -> dict[str, str]:
    """What must agree between the files of a run."""
    settings = config.model.model_dump()
    for name, default in ADDED.items():  # runs that were trained before a field was added are the same runs
        if settings[name] == default:
            del settings[name]
    model = json.dumps([config.task, settings], sort_keys=True)
    return {
        "format": "seriatim 1",
        "tokenizer": vocabulary.fingerprint(),
        "model": hashlib.sha256(model.encode()).hexdigest(),
    }


def check_belongs(weights: Path, config: Config, vocabulary: Vocabulary) -> None:
    """Raises InputError where the files of a run are not of one training."""
    found, expected = read_metadata(weights), identity(config, vocabulary)
    files = {"tokenizer": "tokenizer.json", "model": "config.yaml"}
    odd = [file for name, file in files.items() if found.get(name) != expected[name]]
    if len(odd) == len(files) or found.get("format") != expected["format"]:
        odd = [weights.name]  # two against one
    if odd:
        raise InputError(
            f"{weights.parent / odd[0]}: does not belong to the files beside it; restore the run's own, or train again"
        )

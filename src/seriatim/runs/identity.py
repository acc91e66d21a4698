"""The identity of a run, by which its files are checked to belong together."""

import hashlib
import json
from pathlib import Path

from ..config import Config, resolve
from ..core.errors import InputError
from ..data.vocabulary import Vocabulary
from ..storage.safe_files import is_text
from ..storage.weights import read_metadata

ADDED: dict[str, object] = {"initial": "usual", "output_bias": True}
"""Fields of ``model`` that earlier versions do not have, with the values that keep a model unchanged."""


def run_folder(path: str | Path) -> Path:
    """Return the folder of a run.

    Raises:
        InputError: the name is empty, which would mean the current folder, or not UTF-8, which weights need.
    """
    if not is_text(str(path)):
        raise InputError(f"{path}: the name of the run is not UTF-8; rename the folder")
    if not str(path):
        raise InputError("the name of the run is empty; give the folder that seriatim train --out wrote")
    return Path(path)


def read_config(folder: Path) -> Config:
    """Read the configuration of a run.

    Raises:
        InputError: there is none, or it is damaged.
    """
    if not (folder / "config.yaml").is_file():
        raise InputError(f"{folder}/config.yaml: missing; is {folder} the folder of a run?")
    return resolve(folder / "config.yaml")


def identity(config: Config, vocabulary: Vocabulary) -> dict[str, str]:
    """Return what must agree between the files of a run."""
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
    """Check that weights, configuration and vocabulary come from one training.

    Raises:
        InputError: they do not; the message names the file that differs.
    """
    metadata, expected = read_metadata(weights), identity(config, vocabulary)
    files = {"tokenizer": "tokenizer.json", "model": "config.yaml"}
    wrong = [file for name, file in files.items() if metadata.get(name) != expected[name]]
    if len(wrong) == len(files) or metadata.get("format") != expected["format"]:
        wrong = [weights.name]  # the two other files agree
    if wrong:
        raise InputError(
            f"{weights.parent / wrong[0]}: does not belong to the files beside it; restore it, or train again"
        )

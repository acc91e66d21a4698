"""The identity of a run, by which its files are checked to belong together."""

import hashlib
import json
from pathlib import Path

from torch import nn

from ..config import Config, resolve
from ..core.errors import InputError
from ..data.vocabulary import Vocabulary
from ..storage.files import is_text
from ..storage.weights import digest, read_metadata
from ..tasks import FITTED, TASKS


def read_config(path: str | Path) -> Config:
    """Read the configuration of a run, given its folder.

    Raises:
        InputError: there is none, or it is damaged; or the name of the folder is empty, which would mean the current
            one, or not UTF-8, which weights need.
    """
    if not is_text(str(path)):
        raise InputError(f"{path}: the name of the run is not UTF-8; rename the folder")
    if not str(path):
        raise InputError("the name of the run is empty; give the folder that seriatim train --out wrote")
    file = Path(path) / "config.yaml"
    if not file.parent.is_dir():
        raise InputError(f"{path}: no such run; give the folder that seriatim train --out wrote")
    if not file.is_file():
        raise InputError(f"{file}: missing; is {path} the folder of a run?")
    return resolve(file).settled()


def identity(config: Config, vocabulary: Vocabulary) -> dict[str, str]:
    """Return what must agree between the files of a run."""
    settings, kind = config.model.model_dump(), FITTED.get(config.model.layer) or TASKS.get(config.task)
    runtime = frozenset() if kind is None else kind.runtime_options
    settings["options"] = {name: value for name, value in settings["options"].items() if name not in runtime}
    model = json.dumps([config.task, settings], sort_keys=True)
    return {
        "format": "seriatim 1",
        "tokenizer": vocabulary.fingerprint(),
        "model": hashlib.sha256(model.encode()).hexdigest(),
    }


def weights_digest(model: nn.Module) -> str:
    """Return a digest of some values of each parameter of a model."""
    some = {name: values.detach().flatten() for name, values in model.named_parameters()}
    return digest({name: values[:: 1 + len(values) // 64] for name, values in some.items()})


def check_belongs(weights: Path, config: Config, vocabulary: Vocabulary) -> None:
    """Raise InputError if weights, configuration and vocabulary do not come from one training."""
    metadata, expected = read_metadata(weights), identity(config, vocabulary)
    files = {"tokenizer": "tokenizer.json", "model": "config.yaml"}
    wrong = [file for name, file in files.items() if metadata.get(name) != expected[name]]
    if len(wrong) == len(files) or metadata.get("format") != expected["format"]:
        wrong = [weights.name]  # the two other files agree
    if len(wrong) == 1 and wrong[0] != weights.name:
        raise InputError(
            f"{weights.parent / wrong[0]}: does not belong to {weights.name} beside it; one of both was changed, "
            "restore it, or train again"
        )
    if wrong:
        raise InputError(f"{weights}: does not belong to the files beside it; restore it, or train again")

"""The vocabulary of a run: its tokenizers and its labels."""

import functools
import hashlib
import json
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..core.errors import InputError, shown
from ..storage.atomic_files import write_whole
from ..storage.safe_files import is_text, read_json
from .tokenizer_factory import load_tokenizer
from .tokenizers import MAX_FILE_BYTES, Tokenizer

TOKENIZERS = ("tokenizer", "target", "characters")
"""The names of the tokenizers: of the inputs; of the targets, if it differs; of the letters of words."""
CONTROLS = {"Cc", "Zl", "Zp"}  # the Unicode categories of control characters, line separators and paragraph separators
FILES = (*(f"{name}.json" for name in TOKENIZERS), "labels.json")


@dataclass(frozen=True)
class Vocabulary:
    """Tokenizers by name, and labels in the order of a model's outputs.

    Attributes:
        tokenizers: by the names in `TOKENIZERS`; ``tokenizer`` is always present.
        labels: classes or tags; empty for a task without labels.
    """

    tokenizers: Mapping[str, Tokenizer]
    labels: Sequence[str] = field(default_factory=tuple)

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the inputs."""
        return self.tokenizers["tokenizer"]

    @property
    def target(self) -> Tokenizer:
        """The tokenizer of the targets; defaults to that of the inputs."""
        return self.tokenizers.get("target", self.tokenizer)

    def files(self) -> dict[str, str]:
        """Return the contents of the files of a run, by file name."""
        files = {f"{name}.json": tokenizer.to_json() for name, tokenizer in self.tokenizers.items()}
        return files | ({"labels.json": json.dumps(list(self.labels), ensure_ascii=False)} if self.labels else {})

    def save(self, folder: Path) -> None:
        """Write the files of a run."""
        for name, text in self.files().items():
            write_whole(folder / name, text)

    def fingerprint(self) -> str:
        """Return a digest that is equal exactly for equal vocabularies."""
        return self._fingerprint

    @functools.cached_property
    def _fingerprint(self) -> str:
        """The digest, computed once, because it takes milliseconds for a large vocabulary."""
        if len(self.tokenizers) == 1 and not self.labels:
            return self.tokenizer.fingerprint()
        return hashlib.sha256(json.dumps(self.files(), sort_keys=True).encode()).hexdigest()


def load_vocabulary(folder: Path) -> Vocabulary:
    """Read the vocabulary of a run; raise InputError if a file is missing or damaged."""
    tokenizers = {"tokenizer": load_tokenizer(folder / "tokenizer.json")}
    for name in TOKENIZERS[1:]:
        path = folder / f"{name}.json"
        if path.exists() or path.is_symlink():
            tokenizers[name] = load_tokenizer(path)
    return Vocabulary(tokenizers, _load_labels(folder / "labels.json"))


def check_label(label: str, where: str, remedy: str) -> None:
    """Raise InputError if a label cannot be printed on one line of its own; ``where`` and ``remedy`` are for it."""
    if any(unicodedata.category(character) in CONTROLS for character in label):
        raise InputError(f"{where}: the label {shown(label)} holds a line end or another control character; {remedy}")


def _load_labels(path: Path) -> tuple[str, ...]:
    if not path.exists() and not path.is_symlink():
        return ()
    remedy = "restore it from the run it belongs to"
    labels = read_json(path, max_bytes=MAX_FILE_BYTES, remedy=remedy)
    if not isinstance(labels, list) or not all(isinstance(label, str) and is_text(label) for label in labels):
        raise InputError(f"{path}: not a list of labels, or damaged; {remedy}")
    if len(set(labels)) < len(labels):
        raise InputError(f"{path}: duplicate labels; {remedy}")
    for label in labels:
        check_label(label, str(path), remedy)
    return tuple(labels)

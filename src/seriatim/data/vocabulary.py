"""Everything by which text becomes numbers, and numbers become answers: tokenizers and labels, kept with a run."""

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
from .tokenizers import MOST, Tokenizer

TOKENIZERS = ("tokenizer", "target", "characters")
"""Of the inputs (or of everything), of the targets where they have their own, of the letters of words."""
CONTROLS = {"Cc", "Zl", "Zp"}
"""Unicode's categories of control characters, and of the separators of lines and paragraphs."""
FILES = (*(f"{name}.json" for name in TOKENIZERS), "labels.json")


@dataclass(frozen=True)
class Vocabulary:
    """Tokenizers by name, and labels in the order of a model's outputs.

    Attributes:
        tokenizers: by the names in `TOKENIZERS`; ``tokenizer`` is always there.
        labels: classes or tags; empty where a task has none.
    """

    tokenizers: Mapping[str, Tokenizer]
    labels: Sequence[str] = field(default_factory=tuple)

    @property
    def tokenizer(self) -> Tokenizer:
        """That of the inputs."""
        return self.tokenizers["tokenizer"]

    @property
    def target(self) -> Tokenizer:
        """That of what is written, where it is not the inputs'."""
        return self.tokenizers.get("target", self.tokenizer)

    def files(self) -> dict[str, str]:
        """What a run keeps, by file name."""
        found = {f"{name}.json": tokenizer.to_json() for name, tokenizer in self.tokenizers.items()}
        return found | ({"labels.json": json.dumps(list(self.labels), ensure_ascii=False)} if self.labels else {})

    def save(self, folder: Path) -> None:
        """Writes the files of a run."""
        for name, text in self.files().items():
            write_whole(folder / name, text)

    def fingerprint(self) -> str:
        """The same for equal vocabularies, and only for them."""
        return self._fingerprint

    @functools.cached_property
    def _fingerprint(self) -> str:
        """Computed once, because a large vocabulary takes milliseconds."""
        if len(self.tokenizers) == 1 and not self.labels:
            return self.tokenizer.fingerprint()
        return hashlib.sha256(json.dumps(self.files(), sort_keys=True).encode()).hexdigest()


def load_vocabulary(folder: Path) -> Vocabulary:
    """Opens the vocabulary of a run.

    Raises:
        InputError: a file is missing or damaged.
    """
    tokenizers = {"tokenizer": load_tokenizer(folder / "tokenizer.json")}
    for name in TOKENIZERS[1:]:
        path = folder / f"{name}.json"
        if path.exists() or path.is_symlink():
            tokenizers[name] = load_tokenizer(path)
    return Vocabulary(tokenizers, _labels(folder / "labels.json"))


def check_label(label: str, where: str, remedy: str) -> None:
    """Refuses a label that would not be printed on one line of its own.

    Args:
        label: of a text, or the tag of a word.
        where: the file, and the line where that is known.
        remedy: what to do.

    Raises:
        InputError: the label holds a line end, a tab or another control character.
    """
    if any(unicodedata.category(character) in CONTROLS for character in label):
        raise InputError(f"{where}: the label {shown(label)} holds a line end or another control character; {remedy}")


def _labels(path: Path) -> tuple[str, ...]:
    if not path.exists() and not path.is_symlink():
        return ()
    hint = "restore it from the run it belongs to"
    found = read_json(path, most=MOST, hint=hint)
    if not isinstance(found, list) or not all(isinstance(label, str) and is_text(label) for label in found):
        raise InputError(f"{path}: not a list of labels, or damaged; {hint}")
    if len(set(found)) < len(found):
        raise InputError(f"{path}: a label stands there twice; {hint}")
    for label in found:
        check_label(label, str(path), hint)
    return tuple(found)

"""The subject of an inspection: a run, and a text prepared for its task."""

import warnings
from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from ..core.errors import InputError
from ..data.arguments import check_text
from ..data.corpus import Corpus
from ..data.encoding import Statistics
from ..data.paths import check_named_by_run
from ..data.tokenizers import Tokenizer
from ..layers.origins import AllowCode
from ..runs.run import Run, load
from ..runs.summary import LARGEST as LARGEST_SUMMARY
from ..storage.safe_files import read_json
from ..version import __version__
from .predictions import encode_text

READ = {"lm": 10_000, "mlm": 400}
"""Tokens of a text that are inspected for a language model, by task."""
LINE = 400
"""Tokens of a line that are inspected for the other tasks."""


@dataclass(frozen=True)
class Subject:
    """A run and a text.

    Attributes:
        run: of any task.
        text: the whole text for language models, its first line that is not blank for the other tasks.
        notes: sentences on what is not inspected.
        beam: width of beam search, where answers are generated.
        data: labelled data to find errors in; None for the run's own.
        file_format: format of that data.
        permutations: number of other word orders to try; 0 for none.
    """

    run: Run
    text: str
    notes: tuple[str, ...]
    beam: int
    data: str | None = None
    file_format: str | None = None
    permutations: int = 0

    @property
    def models_text(self) -> bool:
        """Whether the run predicts the tokens of the text itself."""
        return self.run.config.task in READ

    @cached_property
    def corpus(self) -> Corpus:
        """The beginning of a language model's text, encoded."""
        return beginning(encode_text(self.run, self.text), READ[self.run.config.task])

    def held_out(self) -> str | None:
        """The data to find errors in: those that were named, or the run's own test or held-out data."""
        named = self.data or self.run.config.data.test or self.run.task.validation_spec()
        return named if self.data or named != "-" else None

    def check_own_data(self) -> None:
        """Raises InputError where the run's own configuration names data that must not be read unasked."""
        spec = self.held_out()
        if spec is not None and not self.data:
            check_named_by_run(spec, f"{self.run.path}/config.yaml")

    def chose_weights(self) -> bool:
        """Whether these data selected the weights of the run."""
        valid = self.run.config.data.valid
        return valid is not None and self.held_out() == valid


def beginning(corpus: Corpus, tokens: int) -> Corpus:
    """The first tokens of a text; of lines only whole ones, or the beginning of the first if it is longer."""
    if corpus.ends is None:
        return Corpus(corpus.ids[:tokens], None, Statistics())
    ends = corpus.ends[corpus.ends <= tokens]
    ends = ends if len(ends) else np.array([tokens])
    return Corpus(corpus.ids[: ends[-1]], ends, Statistics())


def prepare(
    run: Run, text: str, *, beam: int, data: str | None, file_format: str | None, permutations: int = 0
) -> Subject:
    """Checks a run and a text, and cuts the text to the size that is inspected.

    Raises:
        InputError: the text is empty, or the run cannot read it; a beam below 1.
    """
    if beam < 1:
        raise InputError(f"--beam must be at least 1, got {beam}")
    check_text(text, "text")
    text = text.replace("\r\n", "\n")
    if not text.strip():
        raise InputError("the text is empty; give some with --text or --text-file")
    notes = []
    if run.config.task in READ:
        whole, most = encode_text(run, text), READ[run.config.task]
        if len(whole.ids) > most:
            notes.append(f"The text has {len(whole.ids):,} tokens; only the first {most:,} are inspected.")
        unknown = int((whole.ids == run.tokenizer.unknown_id).sum()) if run.tokenizer.unknown_id is not None else 0
        if unknown:
            notes.append(f"Tokens outside the vocabulary, which are read as <unk>: {unknown:,}.")
    else:
        lines = [line.strip() for line in text.split("\n") if line.strip()]
        if len(lines) > 1:
            notes.append(
                f"The text has {len(lines):,} lines; only the first is inspected, since the run reads one line."
            )
        text, tokens = _first(lines[0], run.tokenizer), len(run.tokenizer.encode(lines[0]))
        if tokens > LINE:
            notes.append(f"The line has {tokens:,} tokens; only the first {LINE:,} are inspected.")
        if tokens and run.tokenizer.unknown_id is not None:
            unknown = int((run.tokenizer.encode(text) == run.tokenizer.unknown_id).sum())
            if unknown:
                notes.append(f"Tokens outside the vocabulary, which are read as <unk>: {unknown:,}.")
    return Subject(run, text, tuple(notes), beam, data, file_format, permutations)


def _first(line: str, tokenizer: Tokenizer) -> str:
    """The beginning of a line, at most `LINE` tokens."""
    if tokenizer.ends_lines:
        words = line.split()
        return line if len(words) <= LINE else " ".join(words[:LINE])
    return line[: bisect_right(range(1, len(line) + 1), LINE, key=lambda size: len(tokenizer.encode(line[:size])))]


def open_run(path: str | Path, *, allow_code: AllowCode = False) -> tuple[Run, tuple[str, ...]]:
    """Opens a run, and warns if another version of Seriatim made it.

    Returns:
        The run, and sentences on what may differ; each is also a warning.

    Raises:
        InputError: there is no such run, it is damaged, or this version cannot read it.
    """
    made_by = _version(Path(path))
    other = made_by is not None and made_by != __version__
    said = f"{path}: made by seriatim {made_by}, and this is {__version__}"
    try:
        run = load(path, allow_code=allow_code)
    except InputError as error:
        raise InputError(f"{error} ({said})" if other else error) from None
    if not other:
        return run, ()
    warnings.warn(f"{said}; its results may differ from those of that version", stacklevel=3)
    return run, (f"The run was made by seriatim {made_by}, and this page by {__version__}.",)


def _version(folder: Path) -> str | None:
    """The version of Seriatim that made a run, if its summary says so."""
    path = folder / "summary.json"
    if not path.is_file():
        return None
    try:
        found = read_json(path, max_bytes=LARGEST_SUMMARY, remedy="")
        return str(found["versions"]["seriatim"])
    except (InputError, LookupError, TypeError):  # `load` says what is wrong with it
        return None

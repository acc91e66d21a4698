"""Runs to files of other programs, and back."""

from pathlib import Path

from ..config import Config, resolve
from ..core.errors import InputError, nearest
from ..data.tokenizers import Spelling
from ..data.vocabulary import Vocabulary
from ..data.word_tokenizer import WordTokenizer
from ..models.ngram import NGram
from ..models.ngrams.table import pieces_of
from ..runs.identity import identity
from ..runs.run import Run, load
from ..storage.lock import locked
from ..tasks import find
from ..training.run_files import ARPA, begin_run, check_file, check_out
from .arpa import write_arpa
from .arpa_reader import read_arpa

FORMATS = ("arpa",)


def export_run(run: Run, file_format: str, out: str) -> None:
    """Write the model of a run in the format of another program.

    Args:
        run: of a model that the format can hold.
        file_format: one of `FORMATS`; ``arpa`` for n-grams.
        out: the file; ARPA is compressed where its name ends in ``.gz``.

    Raises:
        InputError: an unknown format, or a model that it cannot hold.
    """
    if file_format not in FORMATS:
        raise InputError(f"--format {file_format}: no such format; {nearest(file_format, list(FORMATS))}")
    if not isinstance(run.model, NGram):
        what = "a cache beside its n-grams" if run.config.model.layer == "ngram" else f"layer {run.config.model.layer}"
        raise InputError(f"{run.path}: has {what}, which an ARPA file cannot hold; give a run of n-grams alone")
    data = run.config.data
    check_file(out, ARPA, (data.train, data.valid, data.test))
    path = Path(out).resolve()  # so that a link stays one
    if not path.parent.is_dir() or (path.exists() and not path.is_file()):
        raise InputError(f"{out}: cannot be written there; give a file in a folder that exists")
    write_arpa(run.model.table.orders, run.tokenizer, path)


def sizes(run: Run) -> str:
    """Describe the n-grams of a run in one line: how many of each order, and of how many words."""
    counts = [len(order.probability) for order in run.model.table.orders]
    listed = ", ".join(f"{count:,} {n}-grams" for n, count in enumerate(counts, 1))
    return f"order {len(counts)}, {sum(counts):,} n-grams ({listed})"


def import_run(source: str, out: str | None, *, overwrite: bool = False) -> Run:
    """Make a run of an ARPA file: a language model of lines whose tokens are words.

    Raises:
        InputError: the file is not what it should be, or ``out`` cannot be written.
    """
    path, folder = Path(source), check_out(out, overwrite=overwrite)
    if path.is_dir():
        raise InputError(f"{source}: a folder; give an ARPA file")
    found = read_arpa(path)
    options = {"order": len(found.orders)}
    config: Config = resolve(
        {
            "task": "lm",
            "data": {"unit": "line"},
            "tokenizer": {"kind": "word"},
            "model": {"layer": "ngram", "options": options},
        }
    )
    task = find(config)
    vocabulary = Vocabulary({"tokenizer": WordTokenizer(found.words, Spelling())})
    with locked(folder):
        check_out(out, overwrite=overwrite)  # another process may have been quicker
        begin_run(folder, task.config, vocabulary)
        NGram.write(pieces_of(found.orders), folder / "model.safetensors", identity(task.config, vocabulary))
        return load(folder)

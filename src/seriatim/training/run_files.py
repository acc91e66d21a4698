"""Where commands write: the folder of a run or a comparison, or a file; and that they write over nothing they read."""

import glob
import hashlib
import json
import os
import shlex
import shutil
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from torch import nn

from ..config import Config, resolve
from ..core.errors import (
    ExistsError,
    MalformedError,
    MismatchError,
    MissingError,
    RangeError,
    RequiredError,
    TrainingError,
    UnwritableError,
    is_text,
    shown,
)
from ..data.vocabulary import Vocabulary
from ..layers.outside_code import stacks_of, write_origins
from ..storage.files import LOCK, PARTIAL, remove, write_whole
from ..storage.weights import digest, read_metadata
from ..storage.written_folders import (
    COMPARISON,
    OWN,
    PAGE_MARK,
    RUN,
    SESSION,
    Form,
    begin,
    has_mark,
    is_run,
    record,
    refuse_strangers,
)
from ..tasks import FITTED, TASKS


class Kind(NamedTuple):
    """A kind of file that a command writes, and may therefore replace."""

    name: str  # for messages
    mark: bytes  # near the beginning of every such file, compressed (gzip) or not


PAGE = Kind("a page that Seriatim wrote", PAGE_MARK)
BASELINE = "baseline"
"""The folder of the simple baseline in that of a run."""
DECISIONS = "decisions.json"
"""The file of a run that says which values nobody gave, and what decided them."""
PAGES = ("inspect.html", "report.html")
"""Pages in the folders of runs and comparisons, which are written again."""
ARPA_MARK = "# written by Seriatim"
ARPA = Kind("an ARPA file that Seriatim wrote", ARPA_MARK.encode())


def check_name(out: str) -> None:
    """Raise InputError for the name of a folder that cannot be passed to other commands.

    Commands accept several runs with commas between them, and files of weights need names in UTF-8.
    """
    _check_text(out)
    if not out.isprintable():
        raise UnwritableError(f"{out}: the name holds a line end or another control character; choose another --out")
    if "," in out:
        raise UnwritableError(f"{out}: a comma separates runs on the command line; choose an --out without one")
    if out.startswith("-"):
        raise UnwritableError(
            f"{out}: a name that begins with - is read as an option; choose another --out, or ./{out}"
        )


def _check_text(out: str) -> None:
    if not is_text(out):
        raise UnwritableError(f"{out}: the name is not UTF-8; choose another --out")


def check_file(out: str | Path, kind: Kind, reads: Iterable[str | None] = (), *, of_run: Path | None = None) -> Path:
    """Return where to write a file, which is where links lead to, if it can be written without loss.

    Args:
        out: the file.
        kind: the kind of file to write. An existing file is replaced only if it is of this kind, or empty.
        reads: what is read; see `refuse_overwriting`.
        of_run: a run whose folder the file may lie in, even if the run is part of a comparison.

    Raises:
        InputError: the file is part of a run or a comparison, is read, or is of another kind; its name is not UTF-8;
            or there can be no file of this name.
    """
    if not isinstance(out, str | Path) or "\0" in str(out):
        raise RangeError(f"--out: {shown(out)} is not the path of a file; give one")
    _check_text(str(out))
    path = _real(out)
    if not (kind is PAGE and path.name in PAGES):
        refuse_inside(out, of_run=of_run)
    refuse_overwriting(out, reads)

    # The file can be written, and what it replaces is of its kind.
    if path.is_dir():
        raise UnwritableError(f"--out: {out} is a folder; name a file in it")
    if not path.parent.is_dir():
        raise MissingError(f"--out: the folder {path.parent} does not exist; create it, or name another file")
    if not os.access(path.parent, os.W_OK):
        raise UnwritableError(f"--out: {path.parent} is not writable; change its permissions, or name another file")
    if os.path.lexists(path) and not has_mark(path, kind.mark):
        raise ExistsError(f"--out: {out} exists and is not {kind.name}; remove it, or choose another file")
    return path


def _real(path: str | Path) -> Path:
    """Return where a path leads to; of links in a circle, one of them."""
    return Path(os.path.realpath(path))


def refuse_inside(out: str | Path, *, of_run: Path | None = None) -> None:
    """Raise InputError if a file or folder would be written among those of a run or a comparison; see `check_file`."""
    path = _real(out)
    is_within_run = of_run is not None and path.parent == _real(of_run)
    for folder in path.parents:
        form = _form_of(folder)
        if form is None or (is_within_run and form is COMPARISON):
            continue
        if path.relative_to(folder).parts[0] in _names_in(form):
            raise ExistsError(f"--out: {out} lies inside the {form.kind} {folder}; choose another file or folder")


def refuse_overwriting(out: str | Path, reads: Iterable[str | None]) -> None:
    """Raise InputError if a command that writes a file or a folder would overwrite what it reads.

    Files and folders are compared by what they are, not by their names, so that links make no difference.

    Args:
        out: the file, or the folder of a run or a comparison, to write.
        reads: what is read: files, folders, globs, or several with commas between them.
    """
    written = _form_of(_real(out)) or RUN
    for path in (path for source in reads if source for path in _files_named(source)):
        form = _form_of(path)
        belongs = _belongs_to(path, out, written) or (form is not None and _belongs_to(out, path, form))
        if belongs or _is_same(path, out):
            what = "one of the folders" if path.is_dir() else "one of the files"
            raise ExistsError(f"--out: {out} would be written over {path}, {what} that are read; choose another --out")


def files_read(config: Config, *, resuming: bool = False) -> list[str]:
    """Return the data, the vectors and, unless it resumes, the initial run of a training, as they are named."""
    data, initial = config.data, None if resuming else config.training.init
    sources = (data.train, data.valid, data.test, config.model.options.get("vectors"), initial)
    return [source for source in sources if isinstance(source, str)]


def _files_named(source: str) -> Iterator[Path]:
    """Yield the files and folders that exist among those that the name of some data or of a run may stand for."""
    for name in dict.fromkeys((source, *source.split(","))):
        with suppress(OSError, ValueError):
            if os.path.exists(name):
                yield Path(name)
            elif glob.has_magic(name):
                yield from map(Path, glob.iglob(name, recursive=True))


def _is_same(first: str | Path, second: str | Path) -> bool:
    try:  # `realpath` also removes ``x/..`` where x does not exist yet
        return os.path.samefile(os.path.realpath(first), os.path.realpath(second))
    except (OSError, ValueError):
        return False


def _belongs_to(path: str | Path, folder: str | Path, form: Form) -> bool:
    """Return whether a path is that of a file or folder that a folder of some form has, or lies in one."""
    path = _real(path)
    return any(
        ancestor.name in _names_in(form) and _is_same(ancestor.parent, folder) for ancestor in (path, *path.parents)
    )


def _form_of(folder: Path) -> Form | None:
    """Return the form of a folder that holds the first files of a run or a comparison, whatever is in them."""
    return RUN if is_run(folder) else COMPARISON if (folder / COMPARISON.first).is_file() else None


def _names_in(form: Form) -> set[str]:
    """Return the names in the folder of a run or a comparison."""
    return {*form.files, *form.folders, *OWN}


def check_folder(out: str | None) -> Path:
    """Return a folder that can be written, or created; raise InputError if it cannot."""
    if not out:
        raise RequiredError("out: no folder for the run; give one, for instance --out runs/first")
    check_name(out)
    folder = Path(out)
    try:
        existing = nearest_existing(folder)
    except OSError as error:
        raise UnwritableError(f"{out[:80]}: cannot be a folder ({error.strerror}); choose another --out") from None

    # What a link or .. leads to may be created only later, and was then not checked.
    broken = next((path for path in (folder, *folder.parents) if path.is_symlink() and not path.exists()), None)
    if broken is not None:
        raise UnwritableError(f"{folder}: {broken} is a link to nothing; remove it, or choose another --out")
    components = folder.parts
    before = (Path(*components[:i]) for i, component in enumerate(components) if component == "..")
    missing = next((path for path in before if not path.exists()), None)
    if missing is not None:
        raise MissingError(f"--out: {missing} in {folder} does not exist; remove it and the .. after it from the path")

    # The nearest folder that exists decides whether the rest can be created.
    if existing == folder and not folder.is_dir():
        raise UnwritableError(f"{folder}: is a file, not a folder; choose another --out")
    if not existing.is_dir():
        raise UnwritableError(f"{folder}: {existing} is a file, not a folder; choose another --out")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise UnwritableError(f"{folder}: cannot be written (no permission in {existing}); choose another --out")
    return folder


def check_out(out: str | None, *, overwrite: bool, form: Form = RUN) -> Path:
    """Return the folder to write a run or a comparison into.

    Raises:
        InputError: it cannot be written; or it is not empty, and nothing may be overwritten, or not all of it is ours.
    """
    folder = check_folder(out)
    if folder.is_dir() and any(path.name not in (LOCK, SESSION) for path in folder.iterdir()):
        if not overwrite:
            continued = f"continue with --resume {shlex.quote(str(folder))}, " if form is COMPARISON else ""
            remedies = f"choose another --out, {continued}or replace the {form.kind} there"
            raise ExistsError(f"{folder}: not empty; {remedies} with --overwrite")
        refuse_strangers(folder, form)
    return folder


def nearest_existing(folder: Path) -> Path:
    """Return a folder, or the nearest one around it that exists."""
    return next(path for path in (folder, *folder.absolute().parents) if path.exists())


def check_space(folder: Path, needed: int, *, written: Path | None = None) -> None:
    """Raise TrainingError if fewer than ``needed`` bytes are free for a run.

    Those of the run ``written``, which a resumed training replaces, count as free.
    """
    files = [] if written is None else [file for file in written.rglob("*") if file.is_file()]
    free = shutil.disk_usage(nearest_existing(folder)).free + sum(file.stat().st_size for file in files)
    if needed > free:
        kept = " (the run that is there stays until the new one has weights)" * (written is None and has_begun(folder))
        raise TrainingError(
            f"{folder}: {needed / 1e6:,.1f} MB are needed for the run, {free / 1e6:,.1f} MB are free{kept}; "
            "make room, or train elsewhere (--out)"
        )


def begin_run(folder: Path, config: Config, vocabulary: Vocabulary, decisions: str = "") -> Path:
    """Begin a new run in a folder that this process has locked, and return where to write it; see `begin`.

    A run there that has weights or checkpoints stays until the new one has weights. ``decisions`` is the content of
    `DECISIONS`, empty for models that are not trained here. From the moment at which the configuration is written, a
    training that is killed can resume, so that only the decisions are written before.
    """
    try:
        stage = begin(folder, RUN, has_begun)
        record(stage, RUN, "config.yaml", *vocabulary.files())
        if decisions:
            record(stage, RUN, DECISIONS)
            write_whole(stage / DECISIONS, decisions)
        write_whole(stage / "config.yaml", config.to_yaml())
        write_origins(stage, stacks_of(config))
        vocabulary.save(stage)
    except PermissionError as error:
        raise UnwritableError(f"{folder}: cannot be written ({error.strerror}); choose another --out") from None
    return stage


def remove_partial_files(folder: Path) -> None:
    """Remove files of a run that a process was killed while writing."""
    for name in RUN.files:
        for partial in folder.glob(f"{name}.*{PARTIAL}"):
            remove(partial)


def has_begun(folder: Path) -> bool:
    """Return whether a run has weights, checkpoints or metrics, which a new training would lose."""
    with suppress(OSError):
        if (folder / "metrics.jsonl").stat().st_size > 0:
            return True
    saved = any(path.suffix != PARTIAL for path in folder.glob("checkpoints/step-*"))
    return saved or (folder / "summary.json").exists() or (folder / "model.safetensors").exists()


# The identity of a run


def read_config(path: str | Path) -> Config:
    """Read the configuration of a run, given its folder.

    Raises:
        InputError: there is none, or it is damaged; or the name of the folder is empty, which would mean the current
            one, or not UTF-8, which weights need.
    """
    if not is_text(str(path)):
        raise MalformedError(f"{path}: the name of the run is not UTF-8; rename the folder")
    if not str(path):
        raise RequiredError("the name of the run is empty; give the folder that seriatim train --out wrote")
    file = Path(path) / "config.yaml"
    if not file.parent.is_dir():
        raise MissingError(f"{path}: no such run; give the folder that seriatim train --out wrote")
    if not file.is_file():
        raise MissingError(f"{file}: missing; check that {path} is the folder of a run")
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
        raise MismatchError(
            f"{weights.parent}: {wrong[0]} does not belong to {weights.name}; restore the one that was changed, or "
            "train again, also where an earlier version trained the run"
        )
    if wrong:
        raise MismatchError(f"{weights}: does not belong to the files beside it; restore it, or train again")

"""A table of surprisals: several language models side by side."""

import itertools
import os
from collections.abc import Iterable, Iterator, Sequence

from ..core.errors import InputError
from ..evaluation.word_surprisal import By
from .run import Run

COLUMNS = ("bits", "entropy", "rank", "tokens", "unknown")
"""The columns of each run; the first one of a masked language model is ``pseudo_bits``."""


def surprisal_table(
    runs: Sequence[Run], lines: Iterable[str], *, by: By = "word", carry_context: bool = False
) -> Iterator[list[object]]:
    """Yield the rows of a table for several runs, the headings first; arguments as in `Run.surprisal`.

    Columns: the number of the line and of the unit, both from 1; the unit; and for each run those of `COLUMNS`, with
    the name of the run before them if there are several.

    Raises:
        InputError: as in `Run.surprisal`; or tokens of runs that split the text differently.
    """
    if by == "token" and len({run.vocabulary.fingerprint() for run in runs}) > 1:
        raise InputError("--by token: the runs have different tokens; use --by word")
    if len({os.path.abspath(run.path) for run in runs}) < len(runs):
        raise InputError(f"{runs[-1].path}: a run is given twice; give it once")
    names = run_names(runs)
    headings = [f"{name}{column}" for name in names for column in COLUMNS]
    for i, run in enumerate(runs):
        if run.config.task == "mlm":
            headings[i * len(COLUMNS)] = f"{names[i]}pseudo_bits"
    yield ["line", "index", by, *headings]
    parts = itertools.tee(lines, len(runs))
    each = [run.surprisal(part, by=by, carry_context=carry_context) for run, part in zip(runs, parts, strict=True)]
    for number, rows in enumerate(zip(*each, strict=True), start=1):
        if len({tuple(unit.text for unit in row) for row in rows}) > 1:
            raise InputError(f"line {number}: the runs read different {by}s of it (one in lower case); use --by word")
        for index, row in enumerate(zip(*rows, strict=True), start=1):
            yield [number, index, row[0].text, *(value for unit in row for value in unit[1:])]


def run_names(runs: Sequence[Run]) -> list[str]:
    """Return what precedes the columns of each run: nothing for a single one, else the shortest names that differ."""
    if len(runs) == 1:
        return [""]
    parts = [os.path.abspath(run.path).split(os.sep) for run in runs]
    for length in range(1, max(map(len, parts)) + 1):
        names = ["/".join(part[-length:]) for part in parts]
        if len(set(names)) == len(names):
            break
    return [f"{name}." for name in names]

"""Inspecting the runs of a comparison on the same text: one page for each layer, with links to all the others."""

import warnings
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ..core.errors import InputError
from ..inspection.inspection import PAGE, Inspection, inspect
from ..report.page import Link
from ..storage.safe_files import read_json
from .comparison_page import write_report
from .plan import MAX_BYTES, REPORT, read_plan
from .run_pages import first_runs

RESULTS = "results.json"


def is_comparison(folder: str | Path) -> bool:
    """Return whether a folder holds a comparison."""
    return (Path(folder) / "comparison.yaml").is_file()


def inspect_rows(folder: str | Path, text: str, **settings: Any) -> list[Inspection]:
    """Inspect the first run of each layer of a comparison on the same text, and link the pages with each other.

    The pages are `PAGE` in the folders of the runs. The report of the comparison is written again, with links.

    Args:
        folder: of a finished comparison.
        text: the text that every run reads.
        settings: arguments of `seriatim.inspect`, except ``out`` and ``links``.

    Raises:
        InputError: there is no finished comparison in the folder, or no run can be inspected.

    Warns:
        UserWarning: a run cannot be inspected.
    """
    folder = Path(folder)
    read_plan(folder)  # refuses a folder of another version
    if not (folder / RESULTS).is_file():
        raise InputError(f"{folder}: the comparison is not finished; continue it with compare --resume {folder}")
    remedy = f"write it again with seriatim compare --resume {folder}"
    results = read_json(folder / RESULTS, max_bytes=MAX_BYTES, remedy=remedy)
    try:
        runs = first_runs(results)
    except (AttributeError, KeyError, TypeError):
        raise InputError(f"{folder / RESULTS}: is damaged, or not the results of a comparison; {remedy}") from None
    inspected, last = list[Inspection](), InputError(f"{folder}: no layer was trained; see {RESULTS}")
    for layer, run in runs.items():
        others = [Link(other, f"../{quote(name)}/{PAGE}") for other, name in runs.items() if other != layer]
        links = [Link("the comparison", f"../../{REPORT}"), *others]
        try:
            inspected.append(inspect(folder / "runs" / run, text, links=links, **settings))
        except InputError as error:
            warnings.warn(f"{layer} is left out: {error}", stacklevel=2)
            last = error
    if not inspected:
        raise last
    write_report(folder, results)
    return inspected

"""Inspecting the runs of a comparison on the same text: one page for each layer, with links to all the others."""

import shlex
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.parse import quote

from ..core.errors import DamagedError, EmptyError, InputError, MissingError
from ..core.json_object import JsonMapping
from ..inspection.together import PAGE, Inspection, write_together
from ..pages.page import Link, with_links, write_page
from ..storage.files import read_json
from .comparison_page import first_runs, inspected_pages, write_report
from .plan import MAX_BYTES, REPORT, read_plan

RESULTS = "results.json"


def is_comparison(folder: str | Path) -> bool:
    """Return whether a folder holds a comparison."""
    return (Path(folder) / "comparison.yaml").is_file()


def inspect_rows(folder: str | Path, inspect: Callable[[Path], Inspection]) -> list[Path]:
    """Inspect the first run of each layer of a comparison, and link the pages with each other.

    The pages are `PAGE` in the folders of the runs, and one on all of them in that of the comparison, whose report is
    written again, with links.

    Args:
        folder: of a finished comparison.
        inspect: `seriatim.inspect` with all arguments but the run; called with the folder of each run.

    Returns:
        The pages, that on all of the runs last.

    Raises:
        InputError: there is no finished comparison in the folder, or no run can be inspected.

    Warns:
        UserWarning: a run cannot be inspected.
    """
    folder = Path(folder)
    read_plan(folder)  # refuses a folder of another version
    if not (folder / RESULTS).is_file():
        raise MissingError(f"{folder}: the comparison is not finished; continue it with {_resume(folder)}")
    results, runs = _results(folder)
    inspected: dict[str, Inspection] = {}
    last: InputError = EmptyError(f"{folder}: no layer was trained; see {RESULTS}")
    for layer, run in runs.items():
        try:
            inspected[layer] = inspect(folder / "runs" / run)
        except InputError as error:
            warnings.warn(f"{layer} is left out: {error}", stacklevel=2)
            last = error
    if not inspected:
        raise last

    # The report leads to the pages that exist, so that it is written again.
    write_report(folder, results, is_inspected=True)
    for layer, page in inspected.items():  # once it is known which pages there are
        others = {other: runs[other] for other in inspected if other != layer}
        write_page(page.path, with_links(page.path.read_text(encoding="utf-8"), _links(folder, others)))
    together = write_together(
        [screen for page in inspected.values() for screen in page.screens],
        list(inspected),
        folder / PAGE,
        pages=[f"runs/{runs[layer]}/{PAGE}" for layer in inspected],
        links=[Link("the comparison", REPORT)] if (folder / REPORT).is_file() else [],
    )
    return [*(page.path for page in inspected.values()), together.path]


def _resume(folder: Path) -> str:
    """Return the command that finishes a comparison."""
    return f"seriatim compare --resume {shlex.quote(str(folder))}"


def _results(folder: Path) -> tuple[JsonMapping, dict[str, str]]:
    """Return the results of a comparison, and the first run of each layer; raise InputError if they are damaged."""
    remedy = f"write it again with {_resume(folder)}"
    results: JsonMapping = read_json(folder / RESULTS, max_bytes=MAX_BYTES, remedy=remedy)
    try:
        return results, first_runs(results)
    except (AttributeError, KeyError, TypeError):
        raise DamagedError(f"{folder / RESULTS}: is damaged, or not the results of a comparison; {remedy}") from None


def links_of_run(run: str | Path) -> list[Link]:
    """Return the links of a run's page if the run belongs to a comparison: to its report and to existing pages."""
    path = Path(run).absolute()
    folder = path.parent.parent
    if path.parent.name != "runs" or not (is_comparison(folder) and (folder / RESULTS).is_file()):
        return []
    try:
        read_plan(folder)
        results, runs = _results(folder)
    except InputError:  # of another version, or damaged, which is no matter of this run
        return []
    pages = inspected_pages(folder, results)
    return _links(folder, {layer: name for layer, name in runs.items() if layer in pages and name != path.name})


def _links(folder: Path, runs: Mapping[str, str]) -> list[Link]:
    """Return the links from the page of a run to the report, if there is one, and to other runs by their layer."""
    return [
        *([Link("the comparison", f"../../{REPORT}")] if (folder / REPORT).is_file() else []),
        Link("all of them", f"../../{PAGE}"),
        *(Link(layer, f"../{quote(name)}/{PAGE}") for layer, name in runs.items()),
    ]

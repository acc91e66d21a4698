"""Inspecting the runs of a comparison on the same text: one page for each layer, with links to all the others."""

import warnings
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

from ..core.errors import InputError
from ..inspection.inspection import PAGE, Inspection, inspect
from ..layers.origins import AllowCode
from ..report.page import Link
from ..storage.safe_files import read_json
from .comparison_page import write_report
from .plan import MAX_BYTES, REPORT, read_plan
from .run_pages import first_runs

RESULTS = "results.json"


def is_comparison(folder: str | Path) -> bool:
    """Return whether a folder holds a comparison."""
    return (Path(folder) / "comparison.yaml").is_file()


def inspect_rows(
    folder: str | Path,
    text: str,
    *,
    data: str | None = None,
    file_format: str | None = None,
    fields: Mapping[str, object] | None = None,
    beam: int = 5,
    permute: int | bool = 0,
    allow_code: AllowCode = False,
) -> list[Inspection]:
    """Inspect the first run of each layer of a comparison on the same text, and link the pages with each other.

    The pages are `PAGE` in the folders of the runs. The report of the comparison is written again, with links.

    Args:
        folder: of a finished comparison.
        text: the text that every run reads; the other arguments are as in `seriatim.inspect`.
        data: labelled data to find mistakes in.
        file_format: format of the data.
        fields: fields of the configuration that say how data is read.
        beam: width of beam search.
        permute: number of other orders of the words to try.
        allow_code: whether code outside the library may be imported; see `seriatim.load`.

    Raises:
        InputError: there is no finished comparison in the folder, or no run can be inspected.

    Warns:
        UserWarning: a run cannot be inspected.
    """
    folder = Path(folder)
    read_plan(folder)  # refuses a folder of another version
    if not (folder / RESULTS).is_file():
        raise InputError(f"{folder}: the comparison is not finished; continue it with compare --resume {folder}")
    results = read_json(folder / RESULTS, max_bytes=MAX_BYTES, remedy=f"write it with compare --resume {folder}")
    runs = first_runs(results)
    inspected, last = list[Inspection](), InputError(f"{folder}: no layer was trained; see {RESULTS}")
    for layer, run in runs.items():
        others = [Link(other, f"../{quote(name)}/{PAGE}") for other, name in runs.items() if other != layer]
        links = [Link("the comparison", f"../../{REPORT}"), *others]
        try:
            inspected.append(
                inspect(
                    folder / "runs" / run,
                    text,
                    data=data,
                    file_format=file_format,
                    fields=fields,
                    beam=beam,
                    permute=permute,
                    allow_code=allow_code,
                    links=links,
                )
            )
        except InputError as error:
            warnings.warn(f"{layer} is left out: {error}", stacklevel=2)
            last = error
    if not inspected:
        raise last
    write_report(folder, results)
    return inspected

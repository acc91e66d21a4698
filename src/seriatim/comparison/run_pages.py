"""The runs of a comparison's rows, and the pages that inspect them."""

from pathlib import Path
from urllib.parse import quote

from ..inspection.inspection import PAGE
from .results import Json, Results


def first_runs(values: Json) -> dict[str, str]:
    """Return the name of the first run of each layer that did not fail, best layer first, from ``results.json``."""
    rows = [row for row in Results(values).ranked if row.runs]
    return {row.layer: f"{row.layer}-{row.runs[0]['seed']}" for row in rows}


def inspected_pages(folder: Path, values: Json) -> dict[str, str]:
    """Return the address of the page that inspects the first run of a layer, by layer, relative to the report."""
    runs = first_runs(values).items()
    return {layer: f"runs/{quote(run)}/{PAGE}" for layer, run in runs if (folder / "runs" / run / PAGE).is_file()}

"""Tables in Markdown, and how they are written into a page of the documentation."""

from collections.abc import Mapping
from pathlib import Path


def table(heads: list[str], rows: list[tuple[str, list[str]]]) -> list[str]:
    """Return a table in Markdown."""
    lines = [f"| {' | '.join(heads)} |".replace("|  |", "| |"), "|" + "---|" * len(heads)]
    return lines + [f"| {' | '.join([name, *cells])} |" for name, cells in rows]


def write_page(page: Path, found: Mapping[str, list[str]]) -> None:
    """Replace the tables of the page."""
    text = page.read_text(encoding="utf-8")
    for name, lines in found.items():
        begin, end = f"<!-- table: {name} -->\n", "<!-- end of table -->"
        before, after = text.split(begin)
        text = "\n".join([before + begin, *lines, "", after[after.index(end) :]])
    page.write_text(text, encoding="utf-8")

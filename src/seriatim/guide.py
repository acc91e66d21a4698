"""The pages of the documentation, as they are installed with the package."""

from pathlib import Path

from .errors import InputError, nearest

FOLDER = Path(__file__).with_name("docs")


def pages() -> dict[str, str]:
    """The title of every page, by its name without ``.md``."""
    found = {}
    for path in sorted(FOLDER.glob("*.md")):
        lines = path.read_text(encoding="utf-8").splitlines()
        found[path.stem] = next((line.lstrip("# ") for line in lines if line.startswith("#")), "")
    return found


def page(name: str) -> str:
    """The text of a page, in Markdown.

    Raises:
        InputError: there is no such page.
    """
    known = list(pages())
    stem = name.removesuffix(".md").removeprefix("docs/")
    if stem not in known:
        raise InputError(f"{name}: no such page of the documentation; {nearest(stem, known)}")
    return (FOLDER / f"{stem}.md").read_text(encoding="utf-8")

"""The pages of the documentation, as they are installed with the package, and the README."""

from importlib import metadata
from pathlib import Path

from ..core.errors import InputError, nearest

FOLDER = Path(__file__).parent.with_name("docs")
README = "readme"


def pages() -> dict[str, str]:
    """The title of every page, by its name without ``.md``."""
    found = {path.stem: _title(path.read_text(encoding="utf-8")) for path in sorted(FOLDER.glob("*.md"))}
    return {README: _title(_readme()), **found}


def page(name: str) -> str:
    """The text of a page, in Markdown.

    Raises:
        InputError: there is no such page.
    """
    known = list(pages())
    stem = name.removesuffix(".md").removeprefix("docs/")
    if stem.lower() == README:
        return _readme()
    if stem not in known:
        raise InputError(f"{name}: no such page of the documentation; {nearest(stem, known)}")
    return (FOLDER / f"{stem}.md").read_text(encoding="utf-8")


def _title(text: str) -> str:
    return next((line.lstrip("# ") for line in text.splitlines() if line.startswith("#")), "")


def _readme() -> str:
    """The README: of a checkout the file itself, else what the metadata of the installed package holds."""
    beside = FOLDER.resolve().parent / "README.md"
    if beside.is_file():
        return beside.read_text(encoding="utf-8")
    try:
        return str(metadata.metadata("seriatim").get_payload())  # type: ignore[attr-defined]
    except metadata.PackageNotFoundError:
        return "# Seriatim\n\nThe README is part of the installed package, and this copy is not installed.\n"

"""Files that are whole or not there at all."""

from pathlib import Path


def write_whole(path: Path, text: str) -> None:
    """Writes UTF-8 text aside and renames it into place."""
    aside = path.with_name(path.name + ".partial")
    aside.write_text(text, encoding="utf-8")
    aside.replace(path)

"""Display a page that is a file in a notebook."""

from collections.abc import Sequence
from html import escape
from pathlib import Path

HEIGHT = 700  # height of a page in a notebook, in pixels


def framed(path: Path, lines: Sequence[str] = ()) -> str:
    """Return HTML that shows a page in a frame, so that its styles and scripts do not affect the notebook.

    Args:
        path: file of the page.
        lines: the main results, which are shown instead if the page cannot be read.
    """
    try:
        page = path.read_text(encoding="utf-8")
    except OSError:
        items = "".join(f"<li>{escape(line)}</li>" for line in lines)
        return f"<p>{escape(str(path))} cannot be read.</p><ul>{items}</ul>"
    return (
        f'<iframe title="{escape(str(path))}" srcdoc="{escape(page)}" '
        f'style="width: 100%; height: {HEIGHT}px; border: 1px solid #d5d8db"></iframe>'
    )

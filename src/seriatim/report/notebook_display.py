"""Display a page that is a file in a notebook."""

from collections.abc import Sequence
from html import escape
from pathlib import Path

from ..core.errors import InputError
from ..storage.files import read_text

HEIGHT = 700  # height of a page in a notebook, in pixels
MAX_BYTES = 1 << 28  # size of a page


def framed(path: Path, lines: Sequence[str] = ()) -> str:
    """Return HTML that shows a page in a frame, so that its styles and scripts do not affect the notebook.

    Args:
        path: file of the page.
        lines: the main results, which are shown instead if the page cannot be read.
    """
    try:
        page = read_text(path, max_bytes=MAX_BYTES, remedy="write it again")
    except InputError:
        items = "".join(f"<li>{escape(line)}</li>" for line in lines)
        return f"<p>{escape(str(path))} cannot be read.</p><ul>{items}</ul>"
    return (
        f'<iframe title="{escape(str(path))}" srcdoc="{escape(page)}" '
        f'style="width: 100%; height: {HEIGHT}px; border: 1px solid #d5d8db"></iframe>'
    )

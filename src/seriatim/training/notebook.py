"""Progress of a training inside a notebook."""

import sys
import time
from typing import Any

from .lines import LineReporter
from .reporting import Record, Reporter

SECONDS = 0.5
"""Between two updates of the cell's output, at least."""


def default_reporter() -> Reporter:
    """The reporter of a training that is given none: it shows progress inside a notebook, and nothing elsewhere."""
    return NotebookReporter() if in_notebook() else Reporter()


def in_notebook() -> bool:
    """Whether this is the kernel of a notebook (Jupyter and its relatives), not a terminal and not a script."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return getattr(shell, "kernel", None) is not None


class NotebookReporter(LineReporter):
    """Shows a training in the output of a notebook's cell; the last line changes in place."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.last = ""
        self.shown = 0.0
        self.handle: Any = None

    def say(self, text: str) -> None:
        """Adds a line that stays."""
        self.lines.append(text)
        self._update()

    def show(self, text: str, share: float) -> None:
        """Changes the last line, a few times a second at most."""
        self.last = f"{text}  ({share:.0%})"
        if time.monotonic() - self.shown >= SECONDS:
            self._update()

    def end(self, record: Record) -> None:
        """The figures of the run, in place of the changing line."""
        self.last = ""
        super().end(record)

    def close(self) -> None:
        """Takes the changing line away."""
        self.last = ""
        if self.handle is not None:
            self._update()

    def _update(self) -> None:
        self.shown = time.monotonic()
        text = {"text/plain": "\n".join([*self.lines, *([self.last] if self.last else [])])}
        if self.handle is None:
            from IPython.display import display

            self.handle = display(text, raw=True, display_id=True)
        else:
            self.handle.update(text, raw=True)

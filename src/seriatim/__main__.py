"""``python -m seriatim``, and the command ``seriatim``."""

import os
import signal
import sys
from types import FrameType


def run() -> int:
    """Run the command. Ctrl-C ends it with one line, even while modules are imported.

    Returns:
        The exit code; see `seriatim.cli.main.main`.
    """
    handled = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # else it is ignored, and stays so
    if handled:
        signal.signal(signal.SIGINT, _leave)
    from .cli.main import main

    try:
        if handled:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        return main()
    except KeyboardInterrupt:  # outside the part of `main` that handles it
        _leave(signal.SIGINT, None)
    return 128 + signal.SIGINT


def _leave(number: int, _: FrameType | None) -> None:
    """End the process while there is nothing to save."""
    os.write(2, b"seriatim: error: interrupted\n")
    os._exit(128 + number)


if __name__ == "__main__":
    sys.exit(run())

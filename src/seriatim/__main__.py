"""``python -m seriatim``, and the command ``seriatim``."""

import os
import signal
import sys
from types import FrameType


def run() -> int:
    """Runs the command. Ctrl-C ends it with one line, even while modules are imported.

    Returns:
        The exit code; see `seriatim.cli.main.main`.
    """
    usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # it stays ignored where it is
    if usual:
        signal.signal(signal.SIGINT, _leave)
    from .cli.main import main

    try:
        if usual:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        return main()
    except KeyboardInterrupt:  # before or after the part of `main` that handles it
        _leave(signal.SIGINT, None)
    return 128 + signal.SIGINT


def _leave(number: int, _: FrameType | None) -> None:
    """Ends the process while there is nothing to save."""
    os.write(2, b"seriatim: error: interrupted\n")
    os._exit(128 + number)


if __name__ == "__main__":
    sys.exit(run())

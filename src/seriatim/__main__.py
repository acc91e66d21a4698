"""``python -m seriatim``, and the command ``seriatim``."""

import atexit
import contextlib
import os
import signal
import sys
from types import FrameType
from typing import NoReturn


def run() -> NoReturn:
    """Run the command, and end the process with the exit code that `seriatim.cli.main.main` returns.

    Ctrl-C ends it with one line, even while modules are imported.
    """
    handled = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # else it is ignored, and stays so
    if handled:
        signal.signal(signal.SIGINT, _leave)
    from .cli.main import main

    try:
        if handled:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        code = main()
    except KeyboardInterrupt:  # outside the part of `main` that handles it
        _leave(signal.SIGINT, None)
    # The work is done and reported, and files are closed. What would follow runs code of many libraries: destructors,
    # and the ends of threads. If one crashes, or if a signal comes meanwhile, the exit code must not change.
    with contextlib.suppress(Exception):
        atexit._run_exitfuncs()  # removes temporary folders
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(code)


def _leave(number: int, _: FrameType | None) -> NoReturn:
    """End the process while there is nothing to save."""
    os.write(2, b"seriatim: error: interrupted\n")
    os._exit(128 + number)


if __name__ == "__main__":
    run()

"""List the files of the package that a command enters, in the order in which it enters them.

    python scripts/files_of_a_command.py [--until FUNCTION] VERB ...

A file counts when one of its functions is called; importing it, with the decorators and constants that this computes,
does not count. ``--until`` ends the list at the first
call of a function of that qualified name, such as `Trainer.step`, after which nothing is recorded.
"""

import sys
import threading
from pathlib import Path
from types import FrameType

import seriatim
from seriatim.cli.main import main

ROOT = Path(seriatim.__file__).parent


def is_importing(frame: FrameType | None) -> bool:
    """Return whether a call is part of the import of a module of the package."""
    while frame is not None:
        if frame.f_code.co_name == "<module>" and frame.f_code.co_filename.startswith(str(ROOT)):
            return True
        frame = frame.f_back
    return False


def record(arguments: list[str], until: str | None) -> list[str]:
    """Run a command, and return the files that it enters, relative to the package."""
    entered: dict[str, None] = {}
    ended = False

    def profile(frame: FrameType, event: str, _: object) -> None:
        nonlocal ended
        if ended or event != "call":
            return
        code = frame.f_code
        if code.co_filename.startswith(str(ROOT)) and code.co_name not in ("<module>", "<lambda>"):
            is_class_body = code.co_flags & 0x2 == 0  # neither a function nor a comprehension
            file = str(Path(code.co_filename).relative_to(ROOT))
            if not is_class_body and file not in entered and not is_importing(frame):
                entered[file] = None
        if until is not None and code.co_qualname == until:
            ended = True

    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        main(arguments)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
    return list(entered)


if __name__ == "__main__":
    given, last = sys.argv[1:], None
    if given[:1] == ["--until"]:
        last, given = given[1], given[2:]
    files = record(given, last)
    print(f"\n{len(files)} files", *files, sep="\n", file=sys.stderr)

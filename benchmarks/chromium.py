"""An installed Chromium, without a window, for the scripts that check and photograph pages with Playwright."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, sync_playwright

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
# No pointer hovers, as on a telephone: what else appears below a pointer only is always shown, and so checked, too.
NO_POINTER = "--blink-settings=primaryHoverType=1,availableHoverTypes=1,primaryPointerType=1,availablePointerTypes=1"


def find_chromium(program: str | None) -> str:
    """Return the path of Chromium; end the program with one line if there is none."""
    path = shutil.which(program) if program else next(filter(None, map(shutil.which, PROGRAMS)), None)
    if path is None:
        raise SystemExit("Chromium was not found; install it, or name it with --chromium")
    return path


@contextmanager
def start_browser(program: str | None = None) -> Iterator[Browser]:
    """Start Chromium with a new profile, which is deleted when the browser ends."""
    path = find_chromium(program)
    with (
        sync_playwright() as playwright,
        playwright.chromium.launch(executable_path=path, args=[NO_POINTER]) as browser,
    ):
        yield browser

"""Use the playground of a server in Chromium, and check what a reader would notice.

    seriatim serve RUN ... --port 8000
    python benchmarks/playground.py --address http://127.0.0.1:8000 [--axe axe.min.js] [--screenshots FOLDER]

Needs Chromium on the PATH (or --chromium PROGRAM). Every model is used in each of its tabs: at 320 and 1,200 pixels, in
light and dark. The page must

- write nothing to the console, and send requests to its own server only;
- show text while it is written, and end the request when it is stopped;
- show what a model writes as text, whatever it is: the script answers some requests itself, with markup, parts of
  characters, text from right to left, very long words, errors and streams that break off;
- be usable with the keyboard, not be wider than the window, and have a contrast of at least 4.5;
- give commands that send the request that the page sends.

The script prints one line for each check. The exit code is 1 if one of them fails. With --axe, a file of axe-core, the
rules of axe-core are checked, too.
"""

import argparse
import sys
from pathlib import Path

from chromium import start_browser
from playground_checks import check


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--address", default="http://127.0.0.1:8000", help="of the server")
    parser.add_argument("--axe", type=Path, metavar="FILE", help="axe.min.js of axe-core")
    parser.add_argument("--screenshots", type=Path, metavar="FOLDER")
    parser.add_argument("--chromium", metavar="PROGRAM", help="path of Chromium; by default searched on the PATH")
    arguments = parser.parse_args()
    axe = arguments.axe.read_text(encoding="utf-8") if arguments.axe else ""
    failed = 0
    with start_browser(arguments.chromium) as browser:
        for name, problem in check(browser, arguments.address.rstrip("/"), pictures=arguments.screenshots, axe=axe):
            print(f"{'failed' if problem else 'ok':8}{name}{f' {problem}' if problem else ''}", flush=True)
            failed += bool(problem)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())

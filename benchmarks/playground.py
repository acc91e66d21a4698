"""Use the playground of a server in Chromium, and check what a reader would notice.

    python benchmarks/playground.py [--axe axe.min.js] [--screenshots FOLDER]
    python benchmarks/playground.py --address http://127.0.0.1:8000    # of `seriatim serve RUN ...`

Without --address, a server is started with small runs: two language models, a classifier and a tagger. Needs Chromium
on the PATH (or --chromium PROGRAM). Every model is used in each of its tabs: at 320 and 1,200 pixels, in light and
dark. The page must

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
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import page_data
import record
import server_processes
from chromium import start_browser
from playground_checks import check

import seriatim

RUNS = {"lstm": "lm", "mamba": "lm", "classifier": "classify", "tagger": "tag"}
"""The names and the tasks of the runs that are served."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--address", help="of a server that runs")
    parser.add_argument("--axe", type=Path, metavar="FILE", help="axe.min.js of axe-core")
    parser.add_argument("--screenshots", type=Path, metavar="FOLDER")
    parser.add_argument("--chromium", metavar="PROGRAM", help="path of Chromium; by default searched on the PATH")
    arguments = parser.parse_args()
    axe = arguments.axe.read_text(encoding="utf-8") if arguments.axe else ""
    rows: list[list[object]] = [["check", "problem"]]
    with (
        tempfile.TemporaryDirectory() as folder,
        served(arguments.address, Path(folder)) as address,
        start_browser(arguments.chromium) as browser,
    ):
        for name, problem in check(browser, address.rstrip("/"), pictures=arguments.screenshots, axe=axe):
            print(f"{'failed' if problem else 'ok':8}{name}{f' {problem}' if problem else ''}", flush=True)
            rows.append([name, problem.replace("|", "/").replace("\n", " ")])
    failed = [row for row in rows[1:] if row[1]]
    claim = record.Claim(
        text="the playground of a server passes every check in a browser",
        reached=not failed,
        peer="what a reader would notice",
        ours=f"{len(rows) - 1 - len(failed)} checks",
        theirs=f"{len(failed)} problems",
    )
    record.save(
        "playground",
        claims=[claim],
        settings={"axe-core": bool(axe), "runs": "given" if arguments.address else RUNS},
        figures={"problems": len(failed)},
        tables=[rows],
        notes="Headless Chromium at 320 and 1,200 pixels, light and dark, in each tab of each model. "
        + ("Serious violations of axe-core are problems." if axe else "Accessibility was not checked."),
    )
    return int(bool(failed))


@contextmanager
def served(address: str | None, folder: Path) -> Iterator[str]:
    """Yield the address of a server: that which is given, or one with small runs until the end of the context."""
    if address:
        yield address
        return
    data = page_data.made_up(folder / "data")
    for name, task in RUNS.items():
        layer = name if task == "lm" else "gru"
        tokenizer = {"tokenizer": {"kind": "byte"}} if task == "lm" else {}
        files = {"train": data[task].files["data"], "valid": data[task].files["valid"]}
        model = {"layer": layer, "hidden_size": 64}
        training = {**record.TRAINING, "steps": 60}
        config = {"task": task, "data": files, "model": model, "training": training, "out": str(folder / name)}
        seriatim.train({**config, **tokenizer})
    runs = [folder / name for name in RUNS]
    place = server_processes.Place(threads=1, logs=folder)
    with server_processes.running("playground", server_processes.seriatim(*runs), place) as server:
        yield f"http://127.0.0.1:{server.port}"


if __name__ == "__main__":
    sys.exit(main())

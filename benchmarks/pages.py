"""Open the pages of every task in a browser, and check what a reader would notice.

    python benchmarks/pages.py --axe axe-core/axe.min.js [--data FOLDER] [--out FOLDER] [--screenshots FOLDER]
    python benchmarks/pages.py --axe axe-core/axe.min.js --pages report.html inspect.html

Needs Chromium on the PATH (or --chromium PROGRAM), and a file of axe-core: ``npm install axe-core`` writes
``node_modules/axe-core/axe.min.js``. Without --axe, accessibility is not checked.

The script compares the layers of all five tasks with a small budget, and inspects LSTM, Transformer, Mamba and n-gram
runs of the language models and one run of each other task. The data are made on the spot, or are the corpora in the
folder --data. Each page is opened at 360 and at 1,400 pixels, in light and dark, and as on paper. It must

- write nothing to the console, and request nothing but itself;
- have no serious or critical violation of axe-core, and not be wider than the window or the paper;
- have at most 3 MB, and be loaded and painted within 1 s (medians of 5 loads);
- answer clicks on legends, headings of tables, tokens and folded parts; zoom; and save all figures and tables.

The script prints one line for each page, with its problems below it. The exit code is 1 if a
page has a problem. Labels that overlap in a figure, and lesser violations, are remarks, which --verbose shows.
"""

import argparse
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

import record
from chromium import start_browser
from page_checks import check_page
from page_data import corpora, made_up, make_pages


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, metavar="FOLDER", help="the folder of corpora")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="keep the runs and pages; existing pages are reused")
    parser.add_argument("--steps", type=int, default=60, help="training steps of each layer")
    parser.add_argument("--task", action="append", help="only this task; may be repeated")
    parser.add_argument("--pages", type=Path, nargs="+", metavar="FILE", help="check these pages instead")
    parser.add_argument("--axe", type=Path, metavar="FILE", help="axe.min.js of axe-core")
    parser.add_argument("--screenshots", type=Path, metavar="FOLDER")
    parser.add_argument("--chromium", metavar="PROGRAM", help="path of Chromium; by default searched on the PATH")
    parser.add_argument("--verbose", action="store_true", help="print remarks, too")
    arguments = parser.parse_args()
    axe = arguments.axe.read_text(encoding="utf-8") if arguments.axe else ""
    failed, rows, figures = 0, [["page", "MB", "loaded, ms", "painted, ms", "problems"]], {}
    with tempfile.TemporaryDirectory() as temporary, start_browser(arguments.chromium) as browser:
        for name, page in pages(arguments, Path(temporary)):
            plain_name = name.replace(" ", "-").replace("/", "-")
            verdict = check_page(browser, page, axe=axe, pictures=arguments.screenshots, name=plain_name)
            print(f"{name:28}{verdict.line()}", flush=True)
            for text in [*verdict.problems, *(verdict.remarks if arguments.verbose else ())]:
                print(f"    {text}", flush=True)
            failed += bool(verdict.problems)
            times = {"load": 1000 * verdict.load, "paint": 1000 * verdict.paint}
            rows.append([name, f"{verdict.size / 1e6:.2f}", *(f"{one:.0f}" for one in times.values())])
            rows[-1].append(str(len(verdict.problems)))
            figures[name] = {key: record.Figure(value, 0.5 * value, 1.5 * value) for key, value in times.items()}
            figures[name]["MB"] = verdict.size / 1e6
    record.save(
        "pages",
        claims={"every page of compare and inspect is loaded within 1 s, has at most 3 MB and no problem": not failed},
        settings={"steps": arguments.steps, "axe-core": bool(axe)},
        figures=figures,
        tables=[rows],
        notes="Headless Chromium at 360 and 1,400 pixels, light, dark and on paper; medians of 5 loads. A problem is a "
        "request to elsewhere, a message in the console, a page wider than its window, or a control that does nothing; "
        + ("and a serious violation of axe-core." if axe else "accessibility was not checked."),
    )
    return int(failed > 0)


def pages(arguments: argparse.Namespace, temporary: Path) -> Iterable[tuple[str, Path]]:
    if arguments.pages:
        return [(str(page.relative_to(page.parent.parent)), page) for page in arguments.pages]
    out = arguments.out or temporary
    data = corpora(arguments.data) if arguments.data else made_up(out / "data")
    chosen = {task: each for task, each in data.items() if not arguments.task or task in arguments.task}
    return make_pages(chosen, out, arguments.steps)


if __name__ == "__main__":
    sys.exit(main())

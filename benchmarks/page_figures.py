"""Recompute every number on pages of comparisons and runs, and check that pages do not contradict each other.

    python benchmarks/page_figures.py [FOLDER ...] [--verbose]
    python benchmarks/page_figures.py [--steps 60] [--task TASK]

Claim: no number on a page is wrong, pages of one run do not contradict each other, and a report has at most 1,200 words
unfolded. Without FOLDER, the comparisons and pages of `pages.py` are made, and one page of several runs.

A folder is a comparison (its ``report.html``, and ``inspect.html`` of it and of its runs) or a single run (its
``inspect.html``). Numbers are read out of the HTML, and recomputed from ``results.json``, ``rows/`` and the run by code
that calls nothing that writes pages; see ``page_compared.py``, ``page_drawn.py`` and ``page_inspected.py``. Ends of
intervals are compared with other resamples, and may differ by a fifth of the width.

The script prints one line for each page: how many numbers were recomputed; how many were only found among the results,
because they are a fact there, such as a size; how many it cannot recompute; the words unfolded; and what is wrong, each
with the number that is shown and the recomputed one. With --verbose it names what it cannot recompute: gradients by
lag and shares of open gates need the states within layers, and of these only what follows from other numbers of the
page is checked, such as an equation from its factors; P of a search, and how many tokens a sample has, are not told
elsewhere. The exit code is 1 if a number is wrong, if two pages of one run contradict each other, or if the page of a
comparison has over 1,200 words unfolded, and 2 if a FOLDER has no such page.
"""

import argparse
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import page_data
import record
from page_compared import Comparison, check_compared
from page_inspected import Inspected, check_inspected
from page_text import Checked, Node, numbers, read_page, words_unfolded

REPORT, PAGE = "report.html", "inspect.html"
MAX_WORDS = 1200


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="*", metavar="FOLDER", help="a comparison or a run")
    parser.add_argument("--steps", type=int, default=60, help="training steps of each layer, without FOLDER")
    parser.add_argument("--task", action="append", help="only this task, without FOLDER; may be repeated")
    parser.add_argument("--verbose", action="store_true", help="name the numbers that cannot be recomputed")
    arguments = parser.parse_args()
    for folder in arguments.folders:
        if not any((folder / name).is_file() for name in (REPORT, PAGE)):
            print(f"{folder}: no folder with {REPORT} or {PAGE}", file=sys.stderr)
            return 2
    with tempfile.TemporaryDirectory() as temporary:
        folders = arguments.folders or made(Path(temporary), arguments)
        found = [(page, report(page, is_verbose=arguments.verbose)) for folder in folders for page in checked(folder)]
    failed = [page for page, _ in found if page.wrong]
    recomputed, wrong = (
        sum(each) for each in ([page.count for page, _ in found], [len(page.wrong) for page in failed])
    )
    claim = record.Claim(
        text="every number on pages of comparisons and runs follows from the results",
        reached=not failed,
        peer="code of its own",
        ours=f"{recomputed:,} numbers recomputed on {len(found)} pages",
        theirs=f"{wrong} wrong",
    )
    record.save(
        "page_figures",
        claims=[claim],
        settings={"steps": arguments.steps, "folders": [folder.name for folder in folders]},
        figures={"wrong": wrong},
        tables=[
            [["page", "recomputed", "found", "not recomputed", "words unfolded", "wrong"], *(row for _, row in found)]
        ],
        notes="Recomputed by code that calls nothing that writes pages. Found: a number that is a fact of the results, "
        "such as a size. Gradients by lag and shares of open gates are not recomputed.",
    )
    return int(bool(failed))


def made(folder: Path, arguments: argparse.Namespace) -> list[Path]:
    """Make comparisons of all tasks with the pages of some runs, and return their folders."""
    data = page_data.made_up(folder / "data")
    data = {task: each for task, each in data.items() if not arguments.task or task in arguments.task}
    runs: dict[str, list[str]] = {task: [] for task in data}
    for name, page in page_data.make_pages(data, folder / "made", arguments.steps):
        kind, task, *layer = name.split()
        if kind == "inspect":
            run = folder / "made" / task / "runs" / f"{layer[0]}-1"
            shutil.copy(page, run / PAGE)
            runs[task].append(str(run))
    for task, several in runs.items():
        if len(several) > 1:
            out = str(folder / "made" / task / PAGE)
            page_data.run_command("inspect", *several, f"--text={data[task].text}", "--out", out)
    return [folder / "made" / task for task in data]


def report(page: Checked, *, is_verbose: bool) -> list[object]:
    """Print what was found on a page, and return its row."""
    words = words_unfolded(page.body)
    if page.name.endswith(REPORT) and words > MAX_WORDS:
        page.wrong.append(("words unfolded", words, MAX_WORDS))
    unknown = sum(page.unknown.values())
    counts = f"{page.count:7,} recomputed {page.found:4,} found {unknown:6,} unknown"
    print(f"{page.name:34}{counts} {words:6,} words; {len(page.wrong)} wrong", flush=True)
    for where, shown, right in page.wrong:
        print(f"    {where}: {shown}, and not {right}")
    for what, count in page.unknown.items() if is_verbose else ():
        print(f"    unknown: {what}" + f" ({count:,} numbers)" * (count > 1))
    return [page.name, f"{page.count:,}", f"{page.found:,}", f"{unknown:,}", f"{words:,}", len(page.wrong)]


def checked(folder: Path) -> Iterator[Checked]:
    """Yield the pages in a folder after they were checked."""
    if not (folder / REPORT).is_file():
        yield of_run(folder, folder.name)
        return
    page, comparison = Checked(f"{folder.name}/{REPORT}", read_page(folder / REPORT)), Comparison(folder)
    check_compared(page, comparison)
    yield page
    bodies: dict[str, Node] = {}
    for layer, row in comparison.rows.items():
        for run in row["runs"][:1]:
            path = folder / run["path"]
            if (path / PAGE).is_file():
                page = of_run(path, f"{folder.name}/{path.name}/{PAGE}")
                bodies[layer] = bodies[path.name] = page.body
                yield page
    if (folder / PAGE).is_file():
        page = Checked(f"{folder.name}/{PAGE}", read_page(folder / PAGE))
        heads = page.body.all("table")[-1].all("tbody")[0].all("tr")
        names = [next(each for each in row.children if isinstance(each, Node)).text.strip() for row in heads]
        check_together(page, {name: bodies[name] for name in names if name in bodies})
        yield page


def of_run(folder: Path, name: str) -> Checked:
    """Return the page of a run after it was checked."""
    page = Checked(name, read_page(folder / PAGE))
    check_inspected(page, Inspected(folder, page.body))
    return page


def check_together(page: Checked, pages: Mapping[str, Node]) -> None:
    """Compare a page on several runs with the pages of these runs, given by the names in its table."""
    values, kept = [], page.body.data("lenses")
    for body in pages.values():
        lenses = [each for found in body.data("lenses") for each in found]
        values += lenses[0]["values"] if lenses else []
    if kept and "values" in kept[0][0] and len(values) == len(kept[0][0]["values"]):
        for i, (a, b) in enumerate(zip(kept[0][0]["values"], values, strict=True)):
            page.same(f"strip: token {i}, against the page of its run", a, b)
    elif kept:
        page.unknown["strip of runs whose pages do not have the same lens"] += 1
    table = page.body.all("table")[-1]
    heads = [each.text for each in table.all("thead")[0].all("th")]
    for row in table.all("tbody")[0].all("tr"):
        cells = [each for each in row.children if isinstance(each, Node)]
        body = pages.get(cells[0].text.strip())
        if body is None:
            continue
        tiles = {
            each.all("dt")[0].text: each.all("dd")[0] for tile in body.all("dl", "tiles") for each in tile.all("div")
        }
        text = tiles["Bits of this text"].text if "Bits of this text" in tiles else ""
        answers = [each.all("p")[0].text for each in body.all("article")][:1]
        for head, cell in zip(heads[1:], cells[1:], strict=True):
            where = f"{cells[0].text.strip()}: {head}, against the page of its run"
            shown = [value for value, _, _ in numbers(cell.text.replace("95 % interval", ""))]
            if head in tiles:
                page.same(
                    where, shown, [value for value, _, _ in numbers(tiles[head].text.replace("95 % interval", ""))]
                )
            elif head in ("Bits a byte", "Bits in all", "Bits a token") and text:
                pattern = {
                    "Bits a byte": r"([\d.]+) bits a byte",
                    "Bits in all": r"([\d.,]+) bits for",
                    "Bits a token": r"([\d.]+) bits a token",
                }[head]
                page.same(where, cell.text.split()[0], re.search(pattern, text)[1])
            elif head in ("Label", "Answer") and answers:
                page.same(
                    where,
                    cell.text.replace("✓", "")
                    .replace("✗", "")
                    .strip()
                    .removesuffix("(right)")
                    .removesuffix("(wrong)")
                    .strip()[:40],
                    answers[0].strip()[:40],
                )
        page.done |= {id(each) for each in row.walk()}
    page.rest([number for body in pages.values() for number, _, _ in numbers(body.text)])


if __name__ == "__main__":
    sys.exit(main())

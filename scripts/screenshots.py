"""Take the screenshots of the README and the guide.

Usage::

    python scripts/screenshots.py [--out docs/images] [--tokens 1000000] [--only NAME] [--chromium PROGRAM]

The script trains eight architectures on the documentation of Python, each with the same number of tokens and
parameters, two taggers on sentences of a small grammar, and a translator of `builtin:reversal`. It inspects three of
the language models together, the translator and a tagger, and photographs the pages in Chromium. The pages are in
`comparisons/screenshots`; those that exist are not made again, and an interrupted comparison is continued. A budget in
tokens gives the same quality on every machine; the columns for speed and memory describe the machine that ran the
script.
"""

import argparse
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from playwright.sync_api import Browser

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))

from chromium import start_browser  # noqa: E402 (in the folder of the benchmarks)
from page_data import made_up  # noqa: E402

FOLDER = ROOT / "comparisons" / "screenshots"
LAYERS = "prior,ngram,window,rnn,lstm,gru,transformer,mamba"
TEXT = "Return the number of items in the list, or raise an error if the list is empty."
MAX_BYTES = 300_000


class Shot(NamedTuple):
    """A picture: the page, the first and the last element in it, the width of the window, and the theme.

    Without a first element, the picture begins at the top of the page; it has at most ``height`` CSS pixels.
    """

    page: str
    first: str = ""
    last: str = ""
    width: int = 1040
    height: int = 1400
    dark: bool = False
    scale: float = 1.25


SHOTS = {
    "comparison": Shot("lm/report.html", height=900),
    "pareto": Shot("lm/report.html", "#cost", "#cost .chart", height=900),
    "narrow": Shot("lm/report.html", width=360, height=1000, dark=True, scale=2),
    "surprisal": Shot("together.html", height=900),
    "attention": Shot("reversal.html", "#alignment", "#alignment .chart", height=900, dark=True),
    "tagger": Shot("tagger.html", "#errors", "#errors .confusion", height=1200),
}
"""`comparison` and `surprisal` are in the README, `pareto` and `narrow` in comparing.md, and the others in
inspecting.md."""


def make_pages(tokens: int) -> None:
    """Write the pages that do not exist yet."""
    language, tags = FOLDER / "lm", FOLDER / "tag"
    budget = ["--tokens", str(tokens), "--parameters", "500k"]
    words = ["--tokenizer.kind", "bpe", "--tokenizer.vocabulary_size", "1000"]
    _compare(language, "lm", "--data", "builtin:python-docs", "--layers", LAYERS, *budget, *words)
    data = made_up(FOLDER / "data")["tag"]
    files = [part for name, file in data.files.items() for part in (f"--{name}", file)]
    _compare(
        tags, "tag", *files, "--layers", "lstm,transformer", "--tokens", str(min(tokens, 2_500))
    )  # it still makes errors
    together = [str(language / f"runs/{layer}-1") for layer in ("ngram", "lstm", "transformer")]
    if not (FOLDER / "reversal").exists():
        settings = ["--layer", "gru", "--training.steps", "1600", "--out", str(FOLDER / "reversal")]
        _seriatim("train", "seq2seq", "--data", "builtin:reversal", *settings)
    for name, runs, text in (
        ("together", together, TEXT),
        ("reversal", [str(FOLDER / "reversal")], "sxeqrviaxtliym"),
        ("tagger", [str(tags / "runs/lstm-1")], data.text),
    ):
        page = FOLDER / f"{name}.html"
        if not page.exists():
            _seriatim("inspect", *runs, f"--text={text}", "--out", str(page))


def _compare(folder: Path, *arguments: str) -> None:
    if not (folder / "report.html").exists():
        resumed = (folder / "comparison.yaml").exists()
        _seriatim("compare", *(["--resume", str(folder)] if resumed else [*arguments, "--out", str(folder)]))


def _seriatim(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "seriatim", *arguments], check=True, cwd=ROOT)


def take(browser: Browser, shot: Shot, path: Path) -> None:
    """Save a picture."""
    theme, window = "dark" if shot.dark else "light", {"width": shot.width, "height": shot.height}
    with browser.new_page(viewport=window, color_scheme=theme, device_scale_factor=shot.scale) as page:
        page.goto((FOLDER / shot.page).as_uri())
        top, bottom = 0.0, float(shot.height)
        if shot.first:
            top = page.locator(shot.first).bounding_box()["y"]
            bottom += top
        if shot.last:
            last = page.locator(shot.last).first.bounding_box()
            bottom = min(bottom, last["y"] + last["height"])
        clip = {"x": 0, "y": top, "width": shot.width, "height": max(1, bottom - top)}
        page.screenshot(path=path, full_page=True, clip=clip)


def main() -> int:
    """Make the pages, take the pictures and return the exit code."""
    parser = argparse.ArgumentParser(description="Take the screenshots of the README and the guide.")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "images", metavar="FOLDER")
    parser.add_argument("--tokens", type=int, default=1_000_000, metavar="N", help="training tokens of each layer")
    parser.add_argument("--only", action="append", choices=SHOTS, help="take this picture; may be repeated")
    parser.add_argument("--chromium", metavar="PROGRAM", help="path of Chromium; by default searched on the PATH")
    options = parser.parse_args()
    large = []
    with start_browser(options.chromium) as browser:
        make_pages(options.tokens)
        for name in options.only or SHOTS:
            path = options.out / f"{name}.png"
            take(browser, SHOTS[name], path)
            print(f"{path} {path.stat().st_size / 1000:.0f} kB")
            large += [name] * (path.stat().st_size > MAX_BYTES)
    if large:
        print(f"larger than {MAX_BYTES / 1000:.0f} kB: {', '.join(large)}", file=sys.stderr)
    return int(bool(large))


if __name__ == "__main__":
    sys.exit(main())

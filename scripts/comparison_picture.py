"""Take the picture of a comparison report that the README shows.

Usage::

    python scripts/comparison_picture.py [--out docs/images/comparison.png] [--tokens 1000000] [--chromium PROGRAM]

The script trains eight architectures on the documentation of Python, each with the same number of tokens and
parameters, and writes the report to `comparisons/picture`. Headless Chromium then takes a picture of the top of the
report. A budget in tokens gives the same quality on every machine; the columns for speed and memory describe the
machine that ran the script. If the comparison exists already, the script continues it, or only takes the picture.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "comparisons" / "picture"
LAYERS = "prior,ngram,window,rnn,lstm,gru,transformer,mamba"
CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
WIDTH, HEIGHT = 1040, 1385
"""Size of the picture in CSS pixels."""
SCALE = 1.25
"""Pixels of the picture for one CSS pixel."""


def compare(tokens: int) -> Path:
    """Run the comparison, or continue it, and return the path of its report."""
    command = [sys.executable, "-m", "seriatim", "compare"]
    if (FOLDER / "comparison.yaml").exists():
        command += ["--resume", str(FOLDER)]
    else:
        command += ["lm", "--data", "builtin:python-docs", "--layers", LAYERS, "--tokens", str(tokens)]
        command += ["--parameters", "500k", "--tokenizer.kind", "bpe", "--tokenizer.vocabulary_size", "1000"]
        command += ["--out", str(FOLDER)]
    subprocess.run(command, check=True)
    return FOLDER / "report.html"


def take_picture(page: Path, out: Path, program: str) -> None:
    """Save a picture of the top of ``page`` as the PNG file ``out``."""
    out.parent.mkdir(parents=True, exist_ok=True)
    command = [program, "--headless", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
    command += ["--disable-component-update", "--disable-sync", "--hide-scrollbars"]
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        command.append("--no-sandbox")  # Chromium refuses to run its sandbox as root
    command += [f"--window-size={WIDTH},{HEIGHT}", f"--force-device-scale-factor={SCALE}", "--virtual-time-budget=5000"]
    with tempfile.TemporaryDirectory() as profile:
        command += [f"--user-data-dir={profile}", f"--screenshot={out.resolve()}", page.resolve().as_uri()]
        subprocess.run(command, check=True, stderr=subprocess.DEVNULL, timeout=120)


def main() -> int:
    """Run the comparison, take the picture and return the exit code."""
    parser = argparse.ArgumentParser(description="Take the picture of a comparison report that the README shows.")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "images" / "comparison.png", metavar="FILE")
    parser.add_argument(
        "--tokens", type=int, default=1_000_000, metavar="N", help="training tokens of each architecture"
    )
    parser.add_argument("--chromium", metavar="PROGRAM", help="path of Chromium; by default searched on the PATH")
    options = parser.parse_args()
    program = options.chromium or next(filter(None, map(shutil.which, CHROMIUM)), None)
    if program is None:
        print("Chromium was not found; install it, or name it with --chromium", file=sys.stderr)
        return 1
    take_picture(compare(options.tokens), options.out, program)
    print(options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Compare the recipe ``builtin:awd-lstm`` with the plain command on the same text in the same time.

    python benchmarks/regularization.py --train FILE --valid FILE --test FILE [--minutes 10] [--seeds 3] [--min-count 2]

Both train on words. The plain command has no options but the tokens and the minutes; the recipe has no others. The
script prints the perplexity of each on the test text beside that of the n-gram baseline, and the mean ratio.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from machine import describe

import seriatim

RECIPE = "builtin:awd-lstm"


def perplexities(arguments: argparse.Namespace, folder: Path, name: str, seed: int) -> dict[str, float]:
    """Train a run and return its perplexity on the test text, and that of its baseline."""
    out = folder / f"{name}-{seed}"
    start = ["lm", "--kind", "word"] if name == "plain" else ["--config", RECIPE]
    options = {
        "--data": arguments.train,
        "--valid": arguments.valid,
        "--out": out,
        "--min_count": arguments.min_count,
        "--minutes": arguments.minutes,
        "--seed": seed,
    }
    given = [str(part) for pair in options.items() for part in pair]
    subprocess.run([sys.executable, "-m", "seriatim", "train", *start, *given, "--quiet"], check=True)
    runs = {name: seriatim.load(out), "ngram": seriatim.load(out / "baseline")}
    return {key: run.evaluate(arguments.test)["perplexity"] for key, run in runs.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("train", "valid", "test"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--min-count", type=int, default=2)
    arguments = parser.parse_args()
    print(describe(), flush=True)
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        for seed in range(1, arguments.seeds + 1):
            row = perplexities(arguments, Path(temporary), "plain", seed)
            row |= perplexities(arguments, Path(temporary), "recipe", seed)
            rows.append(row)
            print(json.dumps({"seed": seed, **row}), flush=True)
    means = {name: statistics.fmean(row[name] for row in rows) for name in rows[0]}
    print(f"perplexity after {arguments.minutes:g} minutes, mean of {arguments.seeds} seeds:", end=" ")
    print(", ".join(f"{name} {value:.2f}" for name, value in means.items()))
    print(f"recipe / plain: {means['recipe'] / means['plain']:.3f}")


if __name__ == "__main__":
    main()

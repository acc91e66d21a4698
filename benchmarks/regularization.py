"""Compare the recipe ``builtin:awd-lstm`` with the plain command on the same text in the same time.

Claim: on a text that is read many times, the recipe has a lower perplexity than the plain command.

    python benchmarks/regularization.py --train FILE --valid FILE --test FILE [--seeds 1] [--jobs 6:84000,8:]

Both train on words. The plain command has no options but the tokens and the minutes; the recipe has no others. A job is
the minutes and the number of words of the training text that are read; without a number, all. The figures are the
perplexities on the test text, beside that of the n-gram baseline.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import record

import seriatim

RECIPE = "builtin:awd-lstm"


def perplexities(
    arguments: argparse.Namespace, folder: Path, minutes: str, name: str, seed: int
) -> tuple[dict[str, float], dict[str, Any]]:
    """Train a run; return its perplexity on the test text with that of its baseline, and its settings."""
    out = folder / f"{name}-{seed}"
    start = ["lm", "--kind", "word"] if name == "plain" else ["--config", RECIPE]
    options = {
        "--data": folder / "train.txt",
        "--valid": arguments.valid,
        "--out": out,
        "--min_count": arguments.min_count,
        "--minutes": minutes,
        "--seed": seed,
    }
    given = [str(part) for pair in options.items() for part in pair]
    subprocess.run([sys.executable, "-m", "seriatim", "train", *start, *given, "--quiet"], check=True)
    runs = {name: seriatim.load(out), "ngram": seriatim.load(out / "baseline")}
    found = {key: run.evaluate(arguments.test)["perplexity"] for key, run in runs.items()}
    return found, record.plain(runs[name])


def write_text(source: Path, words: str, file: Path) -> int:
    """Write the first lines of a text with about so many words; return how many these are."""
    lines, count = [], 0
    for line in source.read_text(encoding="utf-8").splitlines(keepends=True):
        if words and count >= int(words):
            break
        lines.append(line)
        count += len(line.split())
    file.write_text("".join(lines), encoding="utf-8")
    return count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("train", "valid", "test"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--jobs", default="6:84000,8:", help="MINUTES:WORDS with commas between them")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--min-count", type=int, default=2)
    arguments = parser.parse_args()
    rows = [["words", "minutes", "plain command", "recipe", "recipe / plain", "n-gram baseline"]]
    figures, settings = {}, {}
    for job in arguments.jobs.split(","):
        minutes, _, words = job.partition(":")
        found: dict[str, list[float]] = {}
        with tempfile.TemporaryDirectory() as temporary:
            count = write_text(arguments.train, words, Path(temporary) / "train.txt")
            for seed in range(1, arguments.seeds + 1):
                for name in ("plain", "recipe"):
                    one, settings[name] = perplexities(arguments, Path(temporary), minutes, name, seed)
                    for key, value in one.items():
                        found.setdefault(key, []).append(value)
        figures[f"{minutes} minutes, {words or 'all'} words"] = found
        plain, recipe, ngram = (statistics.fmean(found[name]) for name in ("plain", "recipe", "ngram"))
        rows.append([f"{count:,}", minutes, f"{plain:.2f}", f"{recipe:.2f}", f"{recipe / plain:.3f}", f"{ngram:.2f}"])
        print(*rows[-1], sep="  ", flush=True)
    plain, recipe = (float(cell) for cell in rows[1][2:4])
    claim = record.Claim(
        text="on a text that is read many times, `builtin:awd-lstm` has a lower perplexity than the plain command",
        reached=recipe < plain,
        peer="the plain command",
        ours=f"{recipe:.1f}",
        theirs=f"{plain:.1f}",
        ratio=plain / recipe,
    )
    record.save(
        "regularization",
        claims=[claim],
        settings=settings,
        figures=figures,
        tables=[rows],
        notes="Perplexities on the test part of masc-lm, words that occur at least twice, after the same minutes.",
    )


if __name__ == "__main__":
    main()

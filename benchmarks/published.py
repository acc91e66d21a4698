"""Put the figures of papers beside those of the plain command, on the same corpus with the same split.

    python benchmarks/published.py NAME --data FOLDER [--keep FOLDER] [--seeds 1,2,3] [--only PART,PART] [--record]

NAME is a row of the table: one corpus, one configuration. "Plain" is `seriatim train` without options; what a row sets
beside that stands in its record. The figures are those of `seriatim evaluate` on the test part, on which nothing was
chosen unless a note says so. A row of several parts (languages, folds) has the mean over them. Every training takes one
process and one thread, unless OMP_NUM_THREADS says otherwise; runs are kept in the folder of `--keep`, so that the
script can be interrupted, and be called for a few parts at a time. `--record` needs all of them.

The spread is the standard deviation of single runs over the seeds. Several runs that answer together, by the mean of
their probabilities, stand in a row of their own.
"""

import argparse
import hashlib
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import published_labels
import published_pairs
import published_texts
import record
from published_row import Part, Row

import seriatim as library

ROWS: dict[str, Row] = {**published_pairs.ROWS, **published_labels.ROWS, **published_texts.ROWS}


def seriatim(*arguments: str) -> str:
    """Run the command, and return what it prints; end the script with its error."""
    done = subprocess.run([sys.executable, "-m", "seriatim", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr.strip().splitlines()[-1])
    return done.stdout


def train(row: Row, part: Part, seed: int, out: Path) -> dict[str, Any]:
    """Train a run, unless it is there; return its minutes, and the commit and the defaults it was trained with."""
    command = ["train", row.task, *part.arguments(), *row.options, "--seed", str(seed)]
    key = " ".join(
        [*map(record.without_folder, command), *map(digest, filter(None, (part.train, part.valid, part.test)))]
    )
    kept = out / "trained.json"
    known: dict[str, Any] = json.loads(kept.read_text(encoding="utf-8")) if kept.exists() else {}
    if known and known["key"] != key:
        sys.exit(f"{out}: was trained with other options or other data; remove it, or give another folder to --keep")
    if known:
        return known
    begin = time.perf_counter()
    seriatim(*command, "--out", str(out), "--overwrite")
    minutes = round((time.perf_counter() - begin) / 60, 1)
    defaults = record.plain(library.load(out))["defaults"]
    found = {"minutes": minutes, "commit": record.commit(), "defaults": defaults, "key": key}
    kept.write_text(json.dumps(found), encoding="utf-8")
    return found


def digest(path: Path) -> str:
    """Return a digest of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:12]


def evaluate(runs: list[Path], row: Row, part: Part) -> float:
    """Return the metric of one run, or of several that answer together, on the test part."""
    name = ",".join(map(str, runs))
    kept = runs[0] / f"test-{len(runs)}.json"
    if not kept.exists():
        kept.write_text(seriatim("evaluate", name, "--data", str(part.test), "--json"), encoding="utf-8")
    return float(json.loads(kept.read_text(encoding="utf-8"))[row.metric]) * row.scale


def measure(row: Row, parts: list[Part], seeds: list[int], keep: Path) -> dict[str, Any]:
    """Train and evaluate all parts with all seeds; return the figures, and print each as it comes."""
    single: dict[str, list[float]] = {part.name: [] for part in parts}
    together: dict[str, float] = {}
    minutes, parameters, ended, trained = [], [], [], []
    for seed in seeds:
        for part in parts:
            out = keep / f"{part.name}-{seed}"
            trained.append(train(row, part, seed, out))
            single[part.name].append(evaluate([out], row, part))
            minutes.append(trained[-1]["minutes"])
            summary = json.loads((out / "summary.json").read_text(encoding="utf-8"))
            parameters.append(summary["parameters"])
            ended.append(summary["ended"].endswith("minutes is spent"))
            print(f"{part.name}, seed {seed}: {single[part.name][-1]:.2f}, {minutes[-1]} minutes", flush=True)
    if row.asked_together is not None and len(seeds) >= 3:
        for part in parts:
            together[part.name] = evaluate([keep / f"{part.name}-{seed}" for seed in seeds[:3]], row, part)
    means = [statistics.fmean(found) for found in zip(*single.values(), strict=True)]
    return {
        "parts": single,
        "seeds": means,
        "mean": statistics.fmean(means),
        "spread": statistics.stdev(means) if len(means) > 1 else None,
        "together": together,
        "together_mean": statistics.fmean(together.values()) if together else None,
        "minutes": statistics.fmean(minutes),
        "parameters": round(statistics.fmean(parameters)),
        "ended_by_time": sum(ended),
        "trained": trained,
    }


def table(row: Row, found: dict[str, Any]) -> list[list[str]]:
    """Return the published figures and ours as rows of a table."""
    spread = "" if found["spread"] is None else f" ± {found['spread']:.2f}"
    count = len(found["seeds"])
    runs = f"mean of {count} seeds" if count > 1 else "one seed"
    rows = [["corpus", "model", "figure", "runs", "parameters", "minutes"]]
    rows += [[row.title, name, f"{value:g}", "", "", ""] for name, value in row.published.items()]
    ours = f"{found['mean']:.2f}{spread}"
    rows.append([row.title, row.name, f"**{ours}**", runs, f"{found['parameters']:,}", f"{found['minutes']:.0f}"])
    if found["together_mean"] is not None:
        together = f"**{found['together_mean']:.2f}**"
        rows.append([row.title, f"{row.name}, three runs together", together, "one ensemble", "", ""])
    return rows


def numbers(text: str) -> list[int]:
    """Return the numbers that an option lists."""
    try:
        return [int(word) for word in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no list of whole numbers; write 1,2,3") from None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=sorted(ROWS))
    parser.add_argument("--data", type=Path, required=True, help="a folder with one folder for each corpus")
    parser.add_argument("--keep", type=Path, default=Path("runs/published"), help="a folder for the runs")
    parser.add_argument("--seeds", type=numbers, help="numbers separated by commas (default: those of the row)")
    parser.add_argument("--only", help="parts of the row, separated by commas")
    parser.add_argument("--record", action="store_true", help="write the record")
    arguments = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    row = ROWS[arguments.name]
    seeds = arguments.seeds or list(row.seeds)
    keep = arguments.keep / arguments.name
    try:
        (keep / "data").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(f"--keep: {error.filename}: {error.strerror}; give a folder")
    try:
        parts = row.parts(arguments.data, keep / "data")
        for path in (path for part in parts for path in (part.train, part.valid, part.test) if path):
            path.stat()
    except OSError as error:
        parser.error(
            f"{error.filename}: {error.strerror}; --data needs the folder that has the corpus of {arguments.name}"
        )
    except (ValueError, IndexError) as error:
        parser.error(f"--data: the corpus of {arguments.name} is damaged: {error}")
    if arguments.only:
        names, wanted = {part.name for part in parts}, arguments.only.split(",")
        if unknown := set(wanted) - names:
            parser.error(f"--only: no part is called {', '.join(unknown)}; choose from {', '.join(sorted(names))}")
        parts = [part for part in parts if part.name in wanted]
    found = measure(row, parts, seeds, keep)
    commits, defaults = (sorted({one[key] for one in found["trained"]}) for key in ("commit", "defaults"))
    del found["trained"]
    if arguments.record and len(defaults) > 1:
        sys.exit(f"{keep}: its runs were trained with different defaults; remove the older ones")
    rows = table(row, found)
    for line in rows:
        print(" | ".join(line))
    if arguments.record:
        late = f"{arguments.name}: {found['ended_by_time']} of {len(parts) * len(seeds)} trainings ended by their time."
        several = [f"Trained at the commits {', '.join(commits)}."] if len(commits) > 1 else []
        first = keep / f"{parts[0].name}-{seeds[0]}"
        claims = [claim(row, row.name, found["mean"], row.asked)]
        if row.asked_together is not None:
            claims.append(claim(row, "three runs together", found["together_mean"], row.asked_together))
        record.save(
            f"published-{arguments.name}",
            claims=claims,
            settings={parts[0].name: {**record.plain(library.load(first)), "defaults": defaults[0]}},
            figures=found,
            tables=[rows],
            notes=" ".join([row.differences, *([late] if found["ended_by_time"] else []), *several]),
            minutes=found["minutes"] * len(parts) * len(seeds),
        )


def claim(row: Row, name: str, ours: float, asked: float) -> record.Claim:
    """Return the claim that a configuration reaches what is asked, beside the best published model."""
    peer, theirs = (min if row.is_error else max)(row.published.items(), key=lambda one: one[1])
    return record.Claim(
        text=f"{name}: {row.title} {row.sign} {asked:g}",
        reached=row.reaches(ours, asked),
        peer=f"{peer}, as published",
        ours=f"{ours:.2f}",
        theirs=f"{theirs:g}",
        ratio=theirs / ours if row.is_error else ours / theirs,
    )


if __name__ == "__main__":
    main()

"""Measure whether the source of one commit is slower than that of another, before and after in turn.

Claim: no interval of a ratio of speeds, after to before, lies wholly below 0.97.

    python benchmarks/two_trees.py COMMIT --data FILE [--turns 12]

The source before is that of COMMIT; the source after is that of this script. FILE is a running text. Each turn starts
one process for each of them, in alternating order, which prints the seconds of each job. The ratio of a turn is that of
the seconds, before to after; above 1, the later source is faster. Shown is the median over the turns, with the 95 %
interval of the median (bootstrap over the turns).
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import record
import torch

import seriatim

LAYERS = ("lstm", "transformer", "mamba")
WIDTH, BATCH, LENGTH = 128, 16, 64
LIMIT = 0.97
"""The ratio that an interval must reach."""


def jobs(data: Path, folder: Path) -> Iterator[tuple[str, float]]:
    """Measure every job with the package that is imported; yield its name and its seconds."""
    torch.set_num_threads(1)
    torch.manual_seed(0)

    # One layer alone: what a training step and a step of decoding cost without what is around them.
    inputs = torch.randn(BATCH, LENGTH, WIDTH)
    for name in LAYERS:
        layer = seriatim.layer(name, WIDTH, WIDTH)
        yield f"{name}: forward and backward", _median(lambda layer=layer: layer(inputs)[0].sum().backward(), 12)
        with torch.inference_mode():
            yield f"{name}: 200 steps", _median(lambda layer=layer: _steps(layer, 200), 5)

    # Commands: a training with its checkpoints, counting, scoring, and generation by the run that was trained.
    for command in ("--help", "train --help"):
        arguments = [sys.executable, "-m", "seriatim", *command.split()]
        yield (
            command,
            _median(lambda arguments=arguments: subprocess.run(arguments, capture_output=True, check=True), 3),
        )
    trained = folder / "lstm"
    common = {"task": "lm", "data": {"train": str(data)}}
    network = {"layer": "lstm", "hidden_size": WIDTH, "embedding_size": WIDTH}
    budget = {"steps": 60, "batch_size": 16, "sequence_length": 64, "learning_rate": 0.003, "baseline": "none"}
    yield (
        "train lm --layer lstm, 60 steps",
        _seconds(lambda: seriatim.train({**common, "model": network, "training": budget, "out": str(trained)})),
    )
    yield (
        "train lm --layer ngram",
        _seconds(lambda: seriatim.train({**common, "model": {"layer": "ngram"}, "out": str(folder / "ngram")})),
    )
    yield "load a run", _median(lambda: seriatim.load(str(trained)), 5)
    run = seriatim.load(str(trained))
    yield (
        "generate 500 tokens",
        _median(lambda: sum(1 for _ in run.generate("The", max_tokens=500, seed=1)), 5),
    )
    lines = data.read_text(encoding="utf-8").splitlines()[:400]
    yield "score 400 lines", _median(lambda: list(run.score(lines)), 3)


def _steps(layer: seriatim.SequenceLayer, count: int) -> None:
    state, inputs = layer.initial_state(1), torch.ones(1, WIDTH)
    for _ in range(count):
        _, state = layer.step(inputs, state)


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _median(work: Callable[[], object], repeats: int) -> float:
    """Return the median seconds of some calls, the first two left out, which compile."""
    _seconds(work), _seconds(work)
    return statistics.median(_seconds(work) for _ in range(repeats))


def measure(tree: Path, data: Path, cache: Path) -> dict[str, float]:
    """Return the seconds of each job with the package of a checkout, in a process of its own."""
    environment = os.environ | {
        "PYTHONPATH": str(tree / "src"),
        "SERIATIM_CACHE": str(cache / tree.name),
        "OMP_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "",
        "PYTHONPYCACHEPREFIX": str(cache / "bytecode"),  # neither tree has an advantage from earlier calls
    }
    command = [sys.executable, __file__, "--measure", "--data", str(data)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{tree}: {done.stderr[-2000:]}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def interval(ratios: list[float]) -> tuple[float, float, float]:
    """Return the median of ratios and the ends of its 95 % interval."""
    drawn = np.random.default_rng(0).choice(ratios, (4000, len(ratios)))
    low, high = np.quantile(np.median(drawn, axis=1), (0.025, 0.975))
    return float(np.median(ratios)), float(low), float(high)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commit", nargs="?")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--turns", type=int, default=12)
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()

    if given.measure:
        with tempfile.TemporaryDirectory() as folder:
            print(json.dumps(dict(jobs(given.data, Path(folder)))))
        return
    if given.commit is None:
        parser.error("name the commit to compare with")

    found: dict[str, list[dict[str, float]]] = {"before": [], "after": []}
    with tempfile.TemporaryDirectory() as cache:
        trees = {"before": Path(cache) / "tree", "after": Path(__file__).resolve().parents[1]}
        archive = subprocess.run(["git", "archive", given.commit, "src"], cwd=trees["after"], stdout=-1, check=True)
        trees["before"].mkdir()
        subprocess.run(["tar", "-x"], cwd=trees["before"], input=archive.stdout, check=True)
        for turn in range(given.turns + 1):
            for name in list(found)[:: 1 if turn % 2 else -1]:
                seconds = measure(trees[name], given.data, Path(cache) / name)
                if turn:  # the first turn fills the caches of compiled code
                    found[name].append(seconds)

    rows, reached = [["job", "before (s)", "after (s)", "ratio (95 % interval)"]], True
    figures = {}
    for job in found["before"][0]:
        before, after = ([turn[job] for turn in found[name]] for name in found)
        ratio, low, high = interval([b / a for b, a in zip(before, after, strict=True)])
        reached &= high >= LIMIT
        figures[job] = {"before": before, "after": after, "ratio": record.Figure(ratio, low, high)}
        medians = [f"{statistics.median(values):.4g}" for values in (before, after)]
        rows.append([job, *medians, f"{ratio:.2f} ({low:.2f} to {high:.2f})"])
    record.save(
        "two_trees",
        claims={f"no interval of a ratio, before to after, lies wholly below {LIMIT}": reached},
        settings=vars(given),  # those of the one training stand in `jobs`
        figures=figures,
        tables=[rows],
        notes="""
            The same jobs with the source of that commit and with the one of the record, in turn; medians over turns.
        """,
    )


if __name__ == "__main__":
    main()

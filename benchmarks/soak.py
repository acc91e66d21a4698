"""Kill trainings at random moments, for any length of time, and compare their results.

Claim: a training that is killed by SIGKILL at any moment can be resumed and ends with the same bits as one that was
never killed: weights, optimizer, carried state, progress, metrics (except for timings), configuration and vocabulary.

    python benchmarks/soak.py --minutes 60

For each family and task in turn, one training runs without a kill. Another one is killed repeatedly, at moments drawn
uniformly from most of the time that the first one took, until it was killed often enough or ends before the next kill.
The jobs are those of the tests of this guarantee, with longer trainings.
"""

import argparse
import os
import random
import sys
import tempfile
import time
from pathlib import Path

import record

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.promises.jobs import configurations
from tests.promises.kills import finish, outcome, survive

KILLS = 8
"""Of one training."""
SHARE = 0.7
"""Of the time that a training takes, in which each kill falls: later ones would come when it has ended."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--steps", type=int, default=120, help="steps of each training")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    until, draw = time.monotonic() + 60 * options.minutes, random.Random(options.seed)
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        os.environ["SERIATIM_CACHE"] = f"{folder}/cache"
        counts = soak(Path(folder), options.steps, until, draw)
    kills, trainings, mismatches = (sum(column) for column in zip(*counts.values(), strict=True))
    claim = record.Claim(
        text="a training that is killed at any moment and resumed ends with the same bits",
        reached=mismatches == 0 if kills else None,
        peer="a training that was never killed",
        ours=f"{kills} kills and resumes",
        theirs=f"{mismatches} of {trainings} trainings differ",
    )
    rows = [[name, *one] for name, one in counts.items()]
    record.save(
        "soak",
        claims=[claim],
        settings=vars(options),
        figures={},  # how many kills there are depends on the machine; none of them may lead to another result
        tables=[[["training", "kills", "compared", "differ"], *rows, ["all", kills, trainings, mismatches]]],
        notes="Weights, optimizer, carried state, progress, metrics except for timings, configuration and vocabulary "
        "are compared. Each kill is SIGKILL at a moment that is drawn.",
    )
    sys.exit(mismatches > 0)


def soak(folder: Path, steps: int, until: float, draw: random.Random) -> dict[str, list[int]]:
    """Return for each training the numbers of kills, of comparisons, and of different results."""
    jobs = configurations(folder, steps=steps, checkpoint_every=9, evaluate_every=20)
    for name, config in jobs.items():  # what is made once, compiled cells among it, is no part of the times below
        finish(config, folder / f"{name} first")
    counts = {name: [0, 0, 0] for name in jobs}
    rounds = 0
    while time.monotonic() < until:
        rounds += 1
        for name, config in jobs.items():
            if time.monotonic() > until:
                break
            whole, killed = (folder / f"{name} {rounds} {what}" for what in ("whole", "killed"))
            taken = finish(config, whole)
            kills = survive(config, killed, kills=KILLS, within=SHARE * taken, draw=draw)
            expected, found = outcome(whole), outcome(killed)
            odd = sorted(part for part in expected.keys() | found.keys() if expected.get(part) != found.get(part))
            counts[name] = [sum(pair) for pair in zip(counts[name], (kills, 1, bool(odd)), strict=True)]
            if odd:
                print(f"{name}: {', '.join(odd)} differ", flush=True)
        print(f"round {rounds}: {sum(kills for kills, _, _ in counts.values())} kills so far", flush=True)
    return counts


if __name__ == "__main__":
    main()

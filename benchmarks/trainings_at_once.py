"""Measure two trainings at once on all processors, and what the second thread gives to one alone.

Claims: with the defaults, two trainings at once take at most 2.2 times as long as one alone; and one alone with the
defaults is at least 1.15 times as fast as with one thread.

    python benchmarks/trainings_at_once.py [--repeats 3] [--steps 300] [--data FILE]

A round trains a language model of an LSTM of 256 units on characters: alone with one thread, alone with the defaults,
two at once with one thread each, and two at once with the defaults; the library is also called from a program that has
imported PyTorch before. No variable of the environment tells threads how to wait. The time is that of the whole
command, of the slower one where there are two. What others computed meanwhile is stated beside it: where that is much,
the figures mean nothing. The limit of the second claim is the number of processors.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import machine
import record

MOST, SECOND = 2.2, 1.15
"""How many times as long two at once may take as one alone, and what the second thread must give."""
TUNING = ("OMP_", "GOMP_", "MKL_")
"""How variables begin that tell libraries how many threads to use, or how they wait."""
SETTINGS = {
    "task": "lm",
    "tokenizer": {"kind": "char"},
    "model": {"layer": "lstm", "embedding_size": 256, "hidden_size": 256, "num_layers": 1, "dropout": 0.0},
    "training": {
        **record.TRAINING,
        "learning_rate": 0.002,
        "batch_size": 32,
        "sequence_length": 64,
        "evaluate_every": 1_000_000,
        "checkpoint_every": 1_000_000,
        "validate_tokens": 20_000,
    },
}
"""Of all trainings; the data and the number of steps follow from the arguments."""
PROGRAM = "import json, sys, torch, seriatim\ntorch.ones(100_000).add_(1)\nseriatim.train(json.loads(sys.argv[1]))\n"
WAYS = {  # trainings at once, one thread each, from a program
    "one alone, one thread": (1, True, False),
    "one alone, default": (1, False, False),
    "two at once, one thread each": (2, True, False),
    "two at once, default": (2, False, False),
    "two at once, default, in a program": (2, False, True),
}


def train(way: str, data: str, steps: int) -> dict[str, float]:
    """Return the seconds of some trainings at once, and the processors that others used meanwhile."""
    count, is_single, is_program = WAYS[way]
    surroundings = {name: value for name, value in os.environ.items() if not name.startswith(TUNING)}
    surroundings |= {"OMP_NUM_THREADS": "1"} if is_single else {}
    with tempfile.TemporaryDirectory() as folder:
        commands = []
        for i in range(count):
            training = {**SETTINGS["training"], "steps": steps}
            config = {**SETTINGS, "training": training, "data": {"train": data}, "out": f"{folder}/{i}"}
            file = Path(folder) / f"{i}.yaml"
            file.write_text(json.dumps(config), encoding="utf-8")
            command = ["-c", PROGRAM, json.dumps(config)] if is_program else ["-m", "seriatim", "train"]
            commands.append([sys.executable, *command, *([] if is_program else ["--config", str(file)])])
        busy, own, began = busy_seconds(), child_seconds(), time.perf_counter()
        running = [
            subprocess.Popen(command, env=surroundings, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
            for command in commands
        ]
        for process in running:
            _, errors = process.communicate()
            if process.returncode:
                sys.exit(errors)
        taken = time.perf_counter() - began
        return {"seconds": taken, "others": (busy_seconds() - busy - child_seconds() + own) / taken}


def busy_seconds() -> float:
    """Return the seconds that all processes have computed since the machine began."""
    fields = Path("/proc/stat").read_text(encoding="ascii").split()
    return (sum(map(int, fields[1:4])) + sum(map(int, fields[6:8]))) / os.sysconf("SC_CLK_TCK")


def child_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--data", default="builtin:python-docs", help="a text (default: that which ships with Python)")
    arguments = parser.parse_args()
    print(machine.describe())
    # Not measured: this fills the cache with compiled code and the text.
    train("one alone, one thread", arguments.data, 1)
    found: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    for turn in range(arguments.repeats):
        for way, rounds in found.items():
            rounds.append(train(way, arguments.data, arguments.steps))
            seconds, others = rounds[-1].values()
            print(f"round {turn + 1}, {way:36} {seconds:6.1f} s; others used {others:.2f} processors", flush=True)

    times = {way: [each["seconds"] for each in rounds] for way, rounds in found.items()}
    single, alone, _, together, program = times.values()
    table = [["", "seconds (median)", "all rounds", "others used, processors"]]
    for way, rounds in found.items():
        shown = ", ".join(f"{each:.1f}" for each in times[way])
        busy = f"{max(each['others'] for each in rounds):.2f}"
        table.append([way, f"{statistics.median(times[way]):.1f}", shown, busy])
    asked = {
        f"two trainings at once take at most {MOST} times as long as one alone": (together, alone, 1 / MOST),
        "so do two programs that call seriatim.train": (program, alone, 1 / MOST),
        f"one alone is at least {SECOND} times as fast as with one thread": (alone, single, SECOND),
    }
    claims = [
        record.compared(
            text,
            ours,
            theirs,
            peer="one thread" if theirs is single else "one alone",
            unit="s",
            least=least,
            limit=f"{statistics.median(single) / (os.cpu_count() or 1 if theirs is single else 1):.3g} s",
        )
        for text, (ours, theirs, least) in asked.items()
    ]
    record.save(
        "trainings_at_once",
        claims=claims,
        settings={"every training": {**SETTINGS, **vars(arguments), "data": Path(arguments.data).name}},
        figures={
            "seconds": times,
            "others": {way: [each["others"] for each in rounds] for way, rounds in found.items()},
            "second thread": record.ratios(alone, single),
            "two at once": record.ratios(alone, together),
            "two programs": record.ratios(alone, program),
        },
        tables=[table],
        notes="An LSTM of 256 units on characters; the time of the whole command, of the slower one where there are "
        "two. A ratio of 1 / 2.2, about 0.45, is asked of two at once; 0.5 is one training after the other. The limit "
        "of one alone is the time of one thread over the number of processors, that of two the time of one thread.",
    )


if __name__ == "__main__":
    main()

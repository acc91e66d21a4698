"""Measure a long stream, one token at a time: size of the state, memory and speed.

Claim: for every layer whose state does not grow, 100,000 tokens through `step` need constant memory and constant time
per token.

    python benchmarks/streaming.py [--tokens 100000]

Layers whose state would grow have a window of 256, if they support one. Each layer runs in a process of its own, with
batch 1 and without gradients. Times are measured from the state after the first hundredth of the tokens and from the
final state, in turn, so that other load affects both equally. Memory is the growth of the resident memory from after
the first tenth to the end. Full attention, whose state grows, is the counterexample: at every step it reads all that it
keeps, without copying it.
"""

import argparse
import gc
import json
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import machine
import record
import torch
from torch import Tensor

import seriatim
from seriatim.core.state import State, state_bytes
from seriatim.layers import describe, names, options_of

BLOCKS, WINDOW, POOL = 100, 256, 256
MOST, REPEATS = 500, 21
MARKS = (0.25, 0.5, 1.0)
STATUS = Path("/proc/self/status")


def resident_megabytes() -> float:
    gc.collect()
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


def constant() -> dict[str, dict[str, Any]]:
    """Return layers whose state does not grow, with the options that keep it constant."""
    found: dict[str, dict[str, Any]] = {}
    for name in names():
        sizes = describe(name)["state_bytes"]
        if sizes["1000"] == sizes["100000"]:
            found[name] = {}
        elif "window" in options_of(name):
            found[name] = {"window": WINDOW}
    return found


class Stream:
    """A layer and its state, with vectors prepared in advance as inputs."""

    def __init__(self, name: str, width: int, options: dict[str, Any]) -> None:
        torch.manual_seed(0)
        self.layer = seriatim.layer(name, width, width, **options).eval()
        self.state: State = self.layer.initial_state(1)
        self.inputs: list[Tensor] = list(torch.randn(POOL, 1, width))
        self.read = 0

    @torch.inference_mode()
    def block(self, tokens: int) -> float:
        """Read a number of tokens and return the microseconds for each."""

        def work() -> None:
            for t in range(self.read, self.read + tokens):
                _, self.state = self.layer.step(self.inputs[t % POOL], self.state)

        taken = machine.seconds(work)
        self.read += tokens
        return 1e6 * taken / tokens


def even(name: str, width: int, options: dict[str, Any], tokens: int) -> dict[str, Any]:
    """Measure one stream through a layer with a state of constant size."""
    stream, size = Stream(name, width, options), tokens // BLOCKS
    stream.block(size)
    early = stream.state
    for _ in range(BLOCKS // 10 - 1):
        stream.block(size)
    before = resident_megabytes()
    for _ in range(BLOCKS - BLOCKS // 10):
        stream.block(size)
    grown, late = resident_megabytes() - before, stream.state

    def go_on(state: State) -> None:
        stream.state = state
        stream.block(min(size, MOST))

    found = machine.times_in_turn({"early": lambda: go_on(early), "late": lambda: go_on(late)}, REPEATS)
    paces = {when: [1e6 * one / min(size, MOST) for one in seconds] for when, seconds in found.items()}
    return {**paces, "grown": grown, "state": state_bytes(late)}


def growing(width: int, tokens: int) -> list[dict[str, float]]:
    """Measure full attention: its speed just before each mark, and the size of its state there."""
    stream, found = Stream("attention", width, {}), []
    size = max(1, tokens // 200)
    for mark in MARKS:
        until, times = int(mark * tokens), []
        while stream.read < until:
            times.append(stream.block(min(size, until - stream.read)))
        found.append({"tokens": until, "pace": statistics.median(times[-10:]), "state": state_bytes(stream.state)})
    return found


def apart(work: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function of this file in a fresh process."""
    command = [sys.executable, __file__, "--call", work.__name__, json.dumps(arguments)]
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=100_000)
    parser.add_argument("--growing-tokens", type=int, default=4000)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--call", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.call:
        work, given = arguments.call
        print(json.dumps({"even": even, "growing": growing}[work](*json.loads(given))))
        return
    if arguments.tokens < BLOCKS:
        parser.error(f"--tokens must be at least {BLOCKS}")
    rows, figures = [["", "µs a token, at 1 %", "at the end", "ratio", "grown MB", "state bytes"]], {}
    for name, options in constant().items():
        label = f"{name}, window {WINDOW}" if options else name
        figures[label] = found = apart(even, name, arguments.width, options, arguments.tokens)
        ratios = [late / early for early, late in zip(found["early"], found["late"], strict=True)]
        found["ratio"] = ratios
        shown = [f"{statistics.median(found[when]):.1f}" for when in ("early", "late")]
        rows.append([label, *shown, f"{statistics.median(ratios):.2f}", f"{found['grown']:.2f}", f"{found['state']:,}"])
        print(*rows[-1], sep="  ", flush=True)
    full = [
        [f"{row['tokens']:,} tokens", f"{row['pace']:.1f}", f"{row['state']:,}"]
        for row in apart(growing, arguments.width, arguments.growing_tokens)
    ]
    worst = max(statistics.median(one["ratio"]) for one in figures.values())
    most = max(one.pop("grown") for one in figures.values())
    claims = [
        record.Claim(
            text=f"{arguments.tokens:,} tokens through every layer with a constant state: no token takes longer",
            reached=worst <= 1.1,
            ours=f"at most {worst:.2f} of the time at the start",
        ),
        record.Claim(text="the same: no memory is gained", reached=most <= 1.0, ours=f"at most {most:.2f} MB"),
    ]
    record.save(
        "streaming",
        claims=claims,
        settings=vars(arguments),
        figures={**figures, "most": record.Figure(most, 0.0, 1.0)},
        tables=[rows, [["attention without a window, after", "µs a token", "state bytes"], *full]],
        notes="One layer of width 64, each in its own process; times of both states in turn. Full attention reads its "
        "whole state at every step, which grows.",
    )


if __name__ == "__main__":
    main()

"""Train on several processes that torchrun starts: the same losses as one process, and the speed.

    python benchmarks/ranks.py [--steps 40] [--turns 3]

Claims: several processes have the losses of one; a training whose rank was killed resumes to the same bits; two
processes with one thread are at least 1.6 times as fast as one.

The losses are those of one, 2 and 4 processes with the same global batch, with data parallelism and fully sharded. The
speeds are tokens per second with one thread for each process, in turns.
"""

import argparse
import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import record
import torch
from safetensors.torch import load_file

LAYERS = ("lstm", "transformer", "mamba")
COMMON = ("--data", "builtin:python-docs", "--valid", "none", "--tokenizer.kind", "byte", "--training.baseline", "none")
SIZES = ("--model.num_layers", "2", "--model.embedding_size", "256", "--model.hidden_size", "256")
EXACT = ("--model.dropout", "0", "--training.batch_size", "8", "--training.sequence_length", "32")
RATE = ("--training.learning_rate", "0.001", "--training.warmup_steps", "20")
"""With a large rate Mamba's first steps amplify any rounding a thousandfold."""


def command(ranks: int, *options: str) -> list[str]:
    """Return a training on so many processes."""
    start = [sys.executable, "-m", "seriatim"]
    if ranks > 1:
        start = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
        start += ["-m", "seriatim"]
    return [*start, "train", "lm", *COMMON, "--quiet", *options]


def environment(threads: int) -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": str(threads)}


def train(ranks: int, out: Path, *options: str, threads: int = 1) -> Path:
    subprocess.run(
        [*command(ranks, *options), "--out", str(out)], env=environment(threads), check=True, capture_output=True
    )
    return out


def losses(run: Path) -> list[float]:
    records = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [record["loss"] for record in records if record["kind"] == "train"]


def rate(run: Path) -> float:
    """Return the tokens per second of a training after its first ten steps, in which programs are loaded."""
    first, *_, last = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return float((last["tokens"] - first["tokens"]) / (last["seconds"] - first["seconds"]))


def equality(folder: Path, steps: int) -> dict[str, float]:
    """Return the largest relative difference of losses from those of one process, means of ten steps, for each job."""
    found = {}
    for layer in LAYERS:
        options = ("--layer", layer, *SIZES, *EXACT, *RATE, "--training.steps", str(steps))
        one = losses(train(1, folder / layer, *options))
        for ranks, parallel in itertools.product((2, 4), ("data", "fsdp")):
            out = folder / f"{layer}-{ranks}-{parallel}"
            several = losses(train(ranks, out, *options, "--training.parallel", parallel))
            found[f"{layer}, {ranks}, {parallel}"] = max(abs(a - b) / b for a, b in zip(several, one, strict=True))
    return found


def killed(folder: Path, steps: int) -> dict[str, tuple[bool, float]]:
    """Kill a rank in the middle, and resume.

    Returns:
        For each job, whether the weights on two ranks are those of a training that was not killed, and by how much
        those on one rank differ.
    """
    found = {}
    for layer in LAYERS:
        for parallel in ("data", "fsdp"):
            options = ("--layer", layer, *SIZES, *EXACT, *RATE, "--training.steps", str(steps))
            options += ("--training.checkpoint_every", "5", "--training.parallel", parallel)
            whole = train(2, folder / f"whole-{layer}-{parallel}", *options)
            out = folder / f"killed-{layer}-{parallel}"
            with subprocess.Popen(
                [*command(2, *options), "--out", str(out)],
                env=environment(1),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            ) as process:
                while not (out / "checkpoints" / "step-000000010").exists() and process.poll() is None:
                    time.sleep(0.01)
                os.kill(rank_process(process.pid, 1), signal.SIGKILL)
                process.communicate()
            other = folder / f"one-{layer}-{parallel}"
            subprocess.run(["cp", "-r", str(out), str(other)], check=True)
            resume = ["train", "--resume", str(out), "--quiet"]
            start = [
                sys.executable,
                "-m",
                "torch.distributed.run",
                "--standalone",
                "--nproc-per-node=2",
                "-m",
                "seriatim",
            ]
            subprocess.run([*start, *resume], env=environment(1), check=True, capture_output=True)
            resume[2] = str(other)
            subprocess.run(
                [sys.executable, "-m", "seriatim", *resume], env=environment(1), check=True, capture_output=True
            )
            expected, same, one = (load_file(run / "model.safetensors") for run in (whole, out, other))
            equal = all(torch.equal(same[name], value) for name, value in expected.items())
            distance = max(float((one[name] - value).abs().max()) for name, value in expected.items())
            found[f"{layer}, {parallel}"] = equal, distance
    return found


def rank_process(launcher: int, rank: int) -> int:
    """Return the process of a rank that a launcher has started."""
    for path in Path("/proc").glob("[0-9]*"):
        try:
            variables = dict(pair.split("=", 1) for pair in (path / "environ").read_text().split("\0") if "=" in pair)
            parent = int((path / "stat").read_text().rsplit(")", 1)[1].split()[1])
        except (OSError, ValueError):
            continue
        if parent == launcher and variables.get("LOCAL_RANK") == str(rank):
            return int(path.name)
    raise ProcessLookupError(rank)


def speed(folder: Path, steps: int, turns: int) -> dict[str, dict[str, list[float]]]:
    """Return tokens per second of one process and of two, each with one thread, for each layer."""
    contestants = {
        "1 process, 1 thread": (1, 1, "data"),
        "2 processes, data": (2, 1, "data"),
        "2 processes, fsdp": (2, 1, "fsdp"),
        "1 process, 2 threads": (1, 2, "data"),
    }
    wide = ("--model.num_layers", "2", "--model.embedding_size", "512", "--model.hidden_size", "512")
    batch = ("--training.batch_size", "32", "--training.sequence_length", "64", "--training.steps", str(steps))
    rates: dict[str, dict[str, list[float]]] = {layer: {name: [] for name in contestants} for layer in LAYERS}
    for turn in range(turns):
        for layer in LAYERS:
            for i, (name, (ranks, threads, parallel)) in enumerate(contestants.items()):
                out = folder / f"speed-{layer}-{turn}-{i}"
                options = ("--layer", layer, *wide, *batch, "--training.parallel", parallel)
                train(ranks, out, *options, threads=threads)
                rates[layer][name].append(rate(out))
    return rates


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--turns", type=int, default=3)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        differences = equality(Path(name), arguments.steps)
        resumed = killed(Path(name), arguments.steps)
        rates = speed(Path(name), arguments.steps, arguments.turns)
    first, *others = rates[LAYERS[0]]
    rows, slowest = [["", f"{first}, tokens/s", *others]], float("inf")
    for layer, found in rates.items():
        median = {name: statistics.median(values) for name, values in found.items()}
        ratios = {name: median[name] / median[first] for name in others}
        cells = (f"{median[name]:,.0f} ({ratio:.2f} times)" for name, ratio in ratios.items())
        rows.append([layer, f"{median[first]:,.0f}", *cells])
        slowest = min(slowest, ratios["2 processes, data"])
    worst, far = max(differences.values()), max(distance for _, distance in resumed.values())
    claims = [
        record.Claim(
            text="2 and 4 processes have the losses of one, with `data` and `fsdp`",
            reached=worst <= 1e-6,
            ours=f"differ by at most {worst:.1e} (relative)",
        ),
        record.Claim(
            text="a training whose rank was killed resumes to the same bits on 2 ranks",
            reached=all(is_equal for is_equal, _ in resumed.values()),
            ours=f"on one rank the weights differ by at most {far:.1e}",
        ),
        record.Claim(
            text="two processes with one thread each are at least 1.6 times as fast as one, with `data`",
            reached=slowest >= 1.6,
            ours=f"at least {slowest:.2f} times",
            limit="2 times",
        ),
    ]
    record.save(
        "ranks",
        claims=claims,
        settings=vars(arguments),
        figures={**rates, "difference": record.Figure(worst, 0.0, 1e-6)},
        tables=[rows],
        notes="Two layers of 512, 32 sequences of 64 bytes, gloo on loopback; medians after the first ten steps.",
    )


if __name__ == "__main__":
    main()

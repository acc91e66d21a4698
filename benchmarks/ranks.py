"""Train on several processes that torchrun starts: the same losses as one process, and the speed.

    python benchmarks/ranks.py                  # all parts
    python benchmarks/ranks.py --only speed

Part ``equality``: the largest relative difference of the training losses between one process and 2 and 4 processes
with the same global batch, with data parallelism and fully sharded; and whether a training whose rank was killed
resumes to the same weights. Part ``speed``: tokens per second with one thread for each process, in turns.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import machine
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


def equality(folder: Path, steps: int) -> None:
    print(f"losses of {steps} steps (means of 10), largest relative difference from one process")
    for layer in LAYERS:
        options = ("--layer", layer, *SIZES, *EXACT, *RATE, "--training.steps", str(steps))
        one = losses(train(1, folder / layer, *options))
        for ranks in (2, 4):
            for parallel in ("data", "fsdp"):
                out = folder / f"{layer}-{ranks}-{parallel}"
                several = losses(train(ranks, out, *options, "--training.parallel", parallel))
                difference = max(abs(a - b) / b for a, b in zip(several, one, strict=True))
                print(
                    f"{layer:12} {ranks} processes, {parallel:4}: {difference:.1e}, last loss {several[-1]:.4f}",
                    flush=True,
                )


def killed(folder: Path, steps: int) -> None:
    """Kill a rank in the middle, resume on two ranks and on one, and compare with a training that was not killed."""
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
                lines = process.communicate()[1].splitlines()
            message = next(line for line in lines if line.startswith("seriatim: error:"))
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
            print(f"{layer:12} {parallel:4}: {message.removeprefix('seriatim: error: ')}")
            print(
                f"    same bits on 2 ranks: {equal}; on 1 rank the weights differ by at most {distance:.1e}", flush=True
            )


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


def speed(folder: Path, steps: int, turns: int) -> None:
    """Print tokens per second of one process and of two, each with one thread."""
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
    for layer, found in rates.items():
        medians = {name: statistics.median(values) for name, values in found.items()}
        for name, median in medians.items():
            each = ", ".join(f"{value:,.0f}" for value in found[name])
            print(f"{layer:12} {name:22} {median:8,.0f} tokens/s ({each})")
        first = medians["1 process, 1 thread"]
        ratios = ", ".join(f"{name} {median / first:.2f}" for name, median in medians.items())
        print(f"{layer:12} ratio to one process with one thread: {ratios}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=["equality", "killed", "speed"])
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--turns", type=int, default=3)
    arguments = parser.parse_args()
    print(machine.describe())
    torch.set_num_threads(1)
    print(f"one thread: {machine.product_rate(torch.float32):.3g} GF/s")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if arguments.only in (None, "equality"):
            equality(folder, arguments.steps)
        if arguments.only in (None, "killed"):
            killed(folder, arguments.steps)
        if arguments.only in (None, "speed"):
            speed(folder, arguments.steps, arguments.turns)


if __name__ == "__main__":
    main()

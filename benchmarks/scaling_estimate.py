"""Print the tables of `docs/scaling.md`: what large models and texts would take on many machines.

    python benchmarks/scaling_estimate.py             # from the figures in scaling_figures.json
    python benchmarks/scaling_estimate.py --measure   # measure this machine first, and write its figures there
    python benchmarks/scaling_estimate.py --write     # write the tables into docs/scaling.md

The figures are measured on one machine; assumptions about other machines are the constants below.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import counting_simulation
import machine
import numpy as np
import ranks
import torch
from scaling_simulation import Layer, Network, memory_of_rank, simulate_step

import seriatim
from seriatim.models.ngrams.shard_counting import count_shard
from seriatim.models.ngrams.shard_files import Shard
from seriatim.models.ngrams.shard_merging import merge_shards
from seriatim.storage.weights import save_tensors

FIGURES = Path(__file__).with_name("scaling_figures.json")
PAGE = Path(__file__).parent.parent / "docs" / "scaling.md"
GPUS, MACHINES, TOKENS = 64, 100, 1e12
"""What is asked: a Mamba on so many GPUs, and a 5-gram model of so many tokens on so many machines."""
WIDTH, LAYERS, VOCABULARY = 2048, 48, 50_280
"""The Mamba of 1.3 B parameters (A. Gu and T. Dao 2023), with tied embeddings."""
STEP_TOKENS, TRAINING_TOKENS, MICRO_TOKENS = 2**19, 26e9, 4096
"""Tokens of a step, of the whole training (20 a parameter), and those that a GPU reads at once."""
PEAK, REACHED = 989e12, 0.7
"""Assumed: products of an H100 in bfloat16 a second (its data sheet), and the share that large products reach."""
LINK = Network(bandwidth=50e9, latency=20e-6)
"""Assumed: the network between machines of eight GPUs, 400 Gbit/s for each GPU."""
GPU_BYTES = 80e9
FAILURE_HOURS = 5_000.0
"""Assumed: mean hours between two failures of one GPU and what belongs to it."""
STORAGE = 2e9
"""Assumed: bytes a second to the shared file system."""
SERVER = counting_simulation.Machine(cores=32, disk=2e9, network=25e9 / 8)
"""Assumed: a machine for counting, with an NVMe disk and 25 Gbit/s."""
TEXT = {"windows_per_token": 0.727, "ngrams_per_token": 2.126, "window_bytes": 15.7, "ngram_bytes": 21.4}
"""As in 17,750,005 tokens of `masc-lm`, which have 12,906,616 windows and 37,732,163 n-grams (`ngram_shards.py`)."""
SMALL = 512


def mamba(width: int) -> torch.nn.Module:
    torch.manual_seed(0)
    return seriatim.layer("mamba", width, width)


def measure_training() -> dict[str, float]:
    """Measure a Mamba layer, a collective, a checkpoint, and a training in one and in two processes."""
    torch.set_num_threads(1)
    best, layer = machine.product_rate(torch.float32) * 1e9, mamba(SMALL)
    inputs = torch.randn(8, 256, SMALL, requires_grad=True)
    saved: dict[int, int] = {}
    own = {parameter.untyped_storage().data_ptr() for parameter in layer.parameters()}

    def remember(value: torch.Tensor) -> torch.Tensor:
        storage = value.untyped_storage()
        if storage.data_ptr() not in own:
            saved[storage.data_ptr()] = storage.nbytes()
        return value

    with torch.autograd.graph.saved_tensors_hooks(remember, lambda value: value):
        layer(inputs)
    multiplied = sum(parameter.numel() for parameter in layer.parameters() if parameter.dim() > 1)

    def step() -> None:
        layer(inputs)[0].sum().backward()

    step()
    seconds = machine.in_turn({"step": step}, 7)["step"]
    size, tensors = 400e6, {"values": torch.zeros(100_000_000)}
    with tempfile.TemporaryDirectory() as folder:
        written = machine.seconds(lambda: save_tensors(tensors, Path(folder) / "checkpoint.safetensors"))
    return {
        "best_product": best,
        "share_of_product": 6 * multiplied * 8 * 256 / seconds / best,
        "activation_bytes": sum(saved.values()) / (8 * 256 * SMALL),
        "checkpoint_rate": size / written,
        **measure_network(),
        **measure_ranks(),
    }


def measure_network() -> dict[str, float]:
    """Measure an all-gather between two processes of this machine."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "gather.py"
        script.write_text(
            "import json, statistics, time, torch, torch.distributed as dist\n"
            "dist.init_process_group('gloo')\n"
            "def seconds(count):\n"
            "    own, whole = torch.zeros(count), torch.zeros(2 * count)\n"
            "    times = []\n"
            "    for _ in range(15):\n"
            "        dist.barrier(); started = time.perf_counter()\n"
            "        dist.all_gather_into_tensor(whole, own); times.append(time.perf_counter() - started)\n"
            "    return statistics.median(times)\n"
            "found = {'latency': seconds(16), 'bandwidth': 4 * 2**21 / seconds(2**21)}\n"
            "if dist.get_rank() == 0: print(json.dumps(found))\n"
            "dist.destroy_process_group()\n"
        )
        start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script)]
        done = subprocess.run(start, env=ranks.environment(1), check=True, capture_output=True, text=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def measure_ranks() -> dict[str, float]:
    """Measure a step of a small Mamba language model in one process and in two."""
    options = ("--layer", "mamba", "--model.num_layers", "4", "--model.embedding_size", "512")
    options += ("--model.hidden_size", "512", "--training.sequence_length", "128", "--training.steps", "30")
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, count, parallel in (
            ("one", 1, "data"),
            ("data", 2, "data"),
            ("fsdp", 2, "fsdp"),
            ("half", 1, "data"),
        ):
            rows = 8 if name == "half" else 16
            more = ("--training.parallel", parallel, "--training.batch_size", str(rows))
            run = ranks.train(count, Path(folder) / name, *options, *more)
            found[f"step_{name}"] = rows * 128 / ranks.rate(run)
            found["small_parameters"] = json.loads((run / "summary.json").read_text())["parameters"]
    return found


def measure_counting() -> dict[str, float]:
    """Measure one core that counts, merges and smooths n-grams of a text drawn from Zipf's law."""
    torch.set_num_threads(1)
    generator, count, size, order = np.random.default_rng(1), 4_000_000, 100_000, 5
    ids = np.minimum(generator.zipf(1.2, count), size - 1).astype(np.int32)
    ids[::20] = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shards = [str(folder / f"{i}.shard") for i in range(2)]
        started = time.process_time()
        for i, path in enumerate(shards):
            start, stop = count * i // 2, count * (i + 1) // 2
            count_shard(ids, path, order=order, vocabulary_size=size, start=start, stop=stop, threads=1)
        counted = time.process_time() - started
        started = time.process_time()
        merge_shards(shards, str(folder / "merged.shard"))
        merged = time.process_time() - started
        (folder / "text.txt").write_text(
            "\n".join(" ".join(map(str, line)) for line in ids.reshape(-1, 20)[:, 1:].tolist()) + "\n"
        )
        config = {"data": {"train": str(folder / "text.txt"), "valid": "none", "unit": "line"}}
        config |= {"tokenizer": {"kind": "word"}, "model": {"layer": "ngram", "options": {"order": order}}}
        run = seriatim.train({**config, "out": str(folder / "run")})
        table = run.model.table
        grams = sum(len(level.probability) for level in table.orders)
        windows = sum(Shard(Path(path)).totals[0] for path in shards)
        whole = run.summary["tokens"] / run.summary["tokens_per_second"]
    return {
        "counted_per_second": count / counted,
        "merged_per_second": windows / merged,
        "smoothed_per_second": grams / whole,
    }


def training_tables(figures: Mapping[str, float]) -> list[str]:
    """Return the tables of the Mamba."""
    layer_parameters = sum(parameter.numel() for parameter in mamba(WIDTH).parameters())
    rate = PEAK * REACHED * figures["share_of_product"]
    tokens = STEP_TOKENS / GPUS
    embedding = Layer(VOCABULARY * WIDTH, 2 * VOCABULARY * WIDTH * tokens / rate)
    layers = [Layer(layer_parameters, 2 * layer_parameters * tokens / rate) for _ in range(LAYERS)]
    model = [*layers, embedding]
    parameters = sum(layer.parameters for layer in model)
    steps = TRAINING_TOKENS / STEP_TOKENS
    lines = [
        f"A Mamba of {parameters / 1e9:.2f} B parameters ({LAYERS} layers of {WIDTH:,}), {GPUS} GPUs, "
        f"{STEP_TOKENS:,} tokens a step, {TRAINING_TOKENS / 1e9:g} · 10⁹ tokens ({steps:,.0f} steps):",
        "",
        "| | `parallel: data` | `parallel: fsdp` |",
        "|---|---|---|",
    ]
    found = {kind: simulate_step(model, GPUS, LINK, kind) for kind in ("data", "fsdp")}
    activations = LAYERS * WIDTH * figures["activation_bytes"]
    memory = {kind: memory_of_rank(model, GPUS, kind, MICRO_TOKENS, activations) for kind in found}
    lines += [
        row(f"memory of a GPU: {part}", [f"{memory[kind][part] / 1e9:.1f} GB" for kind in found])
        for part in memory["data"]
    ]
    totals = {kind: sum(parts.values()) for kind, parts in memory.items()}
    lines.append(row("memory in all", [f"{size / 1e9:.1f} GB" for size in totals.values()]))
    lines.append(
        row(f"fits in {GPU_BYTES / 1e9:.0f} GB", ["yes" if size < GPU_BYTES else "no" for size in totals.values()])
    )
    lines += [
        row(
            "bytes through the link of a GPU, a step", [f"{step.network_bytes / 1e9:.1f} GB" for step in found.values()]
        ),
        row("communication alone, a step", [f"{step.network_seconds:.2f} s" for step in found.values()]),
        row("computation alone, a step", [f"{step.compute_seconds:.2f} s" for step in found.values()]),
        row("both, overlapped", [f"{step.seconds:.2f} s" for step in found.values()]),
        row("share of the time that computes", [f"{step.efficiency:.0%}" for step in found.values()]),
    ]
    checkpoint = 3 * 4 * parameters
    wait = checkpoint / min(STORAGE, figures["checkpoint_rate"])
    hours = {kind: step.seconds * steps / 3600 for kind, step in found.items()}
    between = FAILURE_HOURS / GPUS
    lines += [
        row("the whole training", [f"{time:.1f} hours" for time in hours.values()]),
        row("GPU hours", [f"{time * GPUS:,.0f}" for time in hours.values()]),
        row("a checkpoint: size, time to write", [f"{checkpoint / 1e9:.1f} GB, {wait:.0f} s"] * 2),
        row("hours between failures", [f"{between:.0f}"] * 2),
        row("best time between checkpoints", [f"{(2 * wait * between * 3600) ** 0.5 / 60:.0f} minutes"] * 2),
        "",
        "The same with half or twice the link, `fsdp`:",
        "",
        "| link of a GPU | step | share of the time that computes |",
        "|---|---|---|",
    ]
    for factor in (0.5, 1.0, 2.0):
        step = simulate_step(model, GPUS, Network(LINK.bandwidth * factor, LINK.latency), "fsdp")
        lines.append(
            row(f"{LINK.bandwidth * factor / 1e9:g} GB/s", [f"{step.seconds:.2f} s", f"{step.efficiency:.0%}"])
        )
    return lines


def check_table(figures: Mapping[str, float]) -> list[str]:
    """Return the prediction of the simulation for two processes of the measured machine, beside the measured steps."""
    seconds, count = figures["step_half"] / 3 / 4, figures["small_parameters"] / 4
    model, link = [Layer(count, seconds)] * 4, Network(figures["bandwidth"], figures["latency"])
    lines = [
        "| two processes of this machine | predicted step | measured step | measured / predicted |",
        "|---|---|---|---|",
    ]
    for kind in ("data", "fsdp"):
        predicted, measured = simulate_step(model, 2, link, kind).seconds, figures[f"step_{kind}"]
        cells = [f"{1000 * predicted:.0f} ms", f"{1000 * measured:.0f} ms", f"{measured / predicted:.2f}"]
        lines.append(row(f"`parallel: {kind}`", cells))
    return lines


def counting_table(figures: Mapping[str, float], smoothers: int) -> list[str]:
    """Return the phases of counting the text."""
    lines = [
        "| phase | machines | disk of each | network of each | minutes | limited by |",
        "|---|---|---|---|---|---|",
    ]
    total = 0.0
    for phase in counting_simulation.phases(TOKENS, MACHINES, {**figures, **TEXT}, smoothers):
        seconds = phase.seconds(SERVER)
        total += seconds
        sizes = [f"{size / 1e12:.2f} TB" for size in (phase.disk_bytes, phase.network_bytes)]
        lines.append(row(phase.name, [str(phase.machines), *sizes, f"{seconds / 60:,.1f}", phase.limit(SERVER)]))
    lines.append(row("all", ["", "", "", f"{total / 60:,.1f}", ""]))
    return lines


def row(name: str, cells: list[str]) -> str:
    return f"| {name} | {' | '.join(cells)} |"


def tables(figures: Mapping[str, float]) -> dict[str, list[str]]:
    """Return the tables by the name under which `docs/scaling.md` shows them."""
    return {
        "training": training_tables(figures),
        "check": check_table(figures),
        "counting, smoothed on one machine": counting_table(figures, 1),
        "counting, smoothed on all machines": counting_table(figures, MACHINES),
    }


def write_page(found: Mapping[str, list[str]]) -> None:
    """Replace the tables of the page."""
    text = PAGE.read_text(encoding="utf-8")
    for name, lines in found.items():
        begin, end = f"<!-- table: {name} -->\n", "<!-- end of table -->"
        before, after = text.split(begin)
        text = "\n".join([before + begin, *lines, "", after[after.index(end) :]])
    PAGE.write_text(text, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", action="store_true")
    parser.add_argument("--write", action="store_true", help="write the tables into docs/scaling.md")
    arguments = parser.parse_args()
    if arguments.measure:
        known = json.loads(FIGURES.read_text()) if FIGURES.exists() else {}
        figures = {**known, **measure_training(), **measure_counting(), "machine": machine.describe()}
        FIGURES.write_text(json.dumps(figures, indent=1) + "\n")
    figures = json.loads(FIGURES.read_text())
    print(figures["machine"])
    if arguments.write:
        write_page(tables(figures))
    for name, lines in tables(figures).items():
        print(f"\n{name}\n")
        print("\n".join(lines))


if __name__ == "__main__":
    main()

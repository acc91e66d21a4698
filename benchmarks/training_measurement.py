"""Measure one machine for `docs/scaling.md`: a Mamba layer, a collective, a checkpoint, and steps of two processes."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import machine
import ranks
import torch

import seriatim
from seriatim.storage.weights import save_tensors

SMALL = 512
"""The width of the layer that is measured."""


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

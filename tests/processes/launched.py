"""Starts ranks with torchrun, and compares what they train with what one process trains."""

import json
import os
import subprocess
import sys
from pathlib import Path

from safetensors.torch import load_file
from torch import Tensor

SCRIPT = Path(__file__).with_name("rank_script.py")
SECONDS = 300


def launch(ranks: int, cases: list[dict], folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Do some cases of `rank_script` one after another on so many ranks."""
    path = folder / f"cases-{ranks}.json"
    path.write_text(json.dumps(cases), encoding="utf-8")
    return torchrun(ranks, [str(SCRIPT), str(path)], *options)


def torchrun(ranks: int, command: list[str], *options: str) -> subprocess.CompletedProcess[str]:
    """Run a Python program on so many ranks."""
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", *options]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [*start, *command], env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
    )


def losses(folder: Path) -> list[float]:
    """The training losses that a run has recorded."""
    records = map(json.loads, (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    return [record["loss"] for record in records if record["kind"] == "train"]


def weights(folder: Path) -> dict[str, Tensor]:
    return load_file(folder / "model.safetensors")


def errors(out: Path, ranks: int) -> list[str]:
    """The error of each rank; an empty text if it had none."""
    return [Path(f"{out}.rank{rank}").read_text(encoding="utf-8") for rank in range(ranks)]

"""Trainings in processes of their own that are killed and go on, and what must be equal at their ends."""

import hashlib
import json
import multiprocessing
import random
import time
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import torch

import seriatim
from seriatim.training.checkpoints import checkpoints

TIMED = ("seconds", "training_seconds", "tokens_per_second")
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["seriatim.runs.train", "torch._dynamo"])  # which an optimizer imports, for a second


def begin(config: dict[str, Any], out: Path) -> ForkServerProcess:
    """A process that trains, or goes on with what one before it left."""
    process = PROCESSES.Process(target=_train, args=(config, str(out)))
    process.start()
    return process


def _train(config: dict[str, Any], out: str) -> None:
    torch.set_num_threads(1)
    if (Path(out) / "config.yaml").exists():
        seriatim.resume(out)
    else:
        seriatim.train({**config, "out": out}, overwrite=True)


def finish(config: dict[str, Any], out: Path) -> float:
    """Trains to the end; returns the seconds it took."""
    started = time.perf_counter()
    process = begin(config, out)
    process.join()
    assert process.exitcode == 0, "the training failed by itself; its traceback is above"
    return time.perf_counter() - started


def survive(config: dict[str, Any], out: Path, *, kills: int, within: float, draw: random.Random) -> int:
    """Trains to the end though it is killed; returns how often it was.

    Args:
        config: of the training.
        out: its folder.
        kills: as often as that, unless it is quicker.
        within: seconds; each time after some of them, all equally likely.
        draw: what draws them.
    """
    done = 0
    while done < kills:
        process = begin(config, out)
        process.join(draw.uniform(0, within))
        if process.exitcode is not None:
            assert process.exitcode == 0, "the training failed by itself; its traceback is above"
            return done
        process.kill()
        process.join()
        done += 1
    finish(config, out)
    return done


def outcome(out: Path) -> dict[str, str]:
    """SHA-256 of all that a training leaves behind, but for how long it took."""
    files = [out / "model.safetensors", out / "config.yaml", *out.glob("*.json")]
    for last in checkpoints(out / "checkpoints")[-1:]:
        files += last.glob("*.safetensors")
        files.append(last / "progress.json")
    found = {path.name if path.parent == out else f"last/{path.name}": _sum(_content(path)) for path in files}
    lines = (out / "metrics.jsonl").read_text().splitlines()
    return {**found, "metrics.jsonl": _sum("\n".join(_untimed(line) for line in lines).encode())}


def _content(path: Path) -> bytes:
    timed = path.name in ("summary.json", "progress.json")
    return _untimed(path.read_text()).encode() if timed else path.read_bytes()


def _untimed(text: str) -> str:
    return json.dumps({name: value for name, value in json.loads(text).items() if name not in TIMED})


def _sum(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()

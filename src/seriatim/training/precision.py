"""Where and how precisely to compute."""

import hashlib
import math
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from ..core.errors import InputError
from ..storage.disk_cache import cached
from .environment import environment

PROBE, ROUNDS = 512, 20
WORTH = 1.3
"""How much faster bfloat16 products must be before their lower precision is worth it."""


def choose_device(wanted: str) -> torch.device:
    """The device of that name; ``auto`` is CUDA where there is one, else the CPU.

    Raises:
        InputError: no such device here.
    """
    if wanted == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(wanted)
        if device.type not in ("cpu", "cuda", "mps"):
            raise RuntimeError(wanted)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError):
        raise InputError(f"training.device: {wanted!r} is not to be had on this machine; use auto or cpu") from None
    return device


def choose_precision(wanted: str, device: torch.device) -> str:
    """``float32`` or ``bfloat16``; ``auto`` times a matrix product in both and takes the faster.

    Not every processor that knows bfloat16 multiplies in it faster than in float32. What was found is kept in the
    cache: a choice that hung on what else the machine was doing would make two equal trainings differ.
    """
    if wanted != "auto":
        return wanted
    if device.type == "cuda":
        return "bfloat16" if torch.cuda.is_bf16_supported() else "float32"
    here = "\n".join(environment(device).values())
    folder = cached(f"precision-{hashlib.blake2b(here.encode(), digest_size=16).hexdigest()}", _write_faster)
    return "bfloat16" if (folder / "bfloat16").exists() else "float32"


def _write_faster(folder: Path) -> None:
    """A file called after the faster of the two."""
    best = _best_seconds((torch.float32, torch.bfloat16))
    faster = "bfloat16" if best[torch.float32] > WORTH * best[torch.bfloat16] else "float32"
    (folder / faster).touch()


def _best_seconds(dtypes: Sequence[torch.dtype]) -> dict[torch.dtype, float]:
    """The best of some timings of a matrix product in each type, in turn: other work on the machine meets them all."""
    factors = {dtype: torch.ones(PROBE, PROBE, dtype=dtype) for dtype in dtypes}
    best = dict.fromkeys(dtypes, math.inf)
    for _ in range(ROUNDS):
        for dtype, a in factors.items():
            start = time.perf_counter()
            torch.mm(a, a)
            best[dtype] = min(best[dtype], time.perf_counter() - start)
    return best

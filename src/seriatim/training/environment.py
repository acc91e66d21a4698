"""What the last bits of a training hang on, beside its configuration and data."""

import functools
import platform
from pathlib import Path

import torch

from ..compiler.cpp.toolchain import compiler
from ..version import __version__


def environment(device: torch.device) -> dict[str, str]:
    """Versions, processor, device and threads, in words."""
    return {
        "seriatim": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "processor": _processor(),
        "compiler": " ".join(compiler() or ["none"]),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else str(device),
        "threads": str(torch.get_num_threads()),
    }


def changes(before: dict[str, str], now: dict[str, str]) -> str:
    """What differs, in words: ``threads 1 (2 before)``; empty where nothing does, or nothing is known of before."""
    return ", ".join(
        f"{name} {now[name]} ({before[name]} before)" for name in now if before.get(name, now[name]) != now[name]
    )


@functools.cache
def _processor() -> str:
    """Its name, and the instructions that torch uses of it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    named = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), None)
    return f"{named or platform.processor() or platform.machine()} {torch.backends.cpu.get_cpu_capability()}"

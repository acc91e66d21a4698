"""Measure the memory of trainings on a text that is larger than it.

Claim: `seriatim train lm` on a text of 2 GB takes at most 1 GB of memory beyond the model, whatever tokenizer and unit.

    python benchmarks/large_corpus.py [--gb 2] [--kinds byte,bpe,word] [--units stream,line] [--folder /tmp]

The text is made on the spot, and the model is small. Each training begins with an empty cache, in a process of its
own, which is watched from outside 20 times a second. The figures are the seconds before the first step and in all, the
disk space of the cache, and in MB: the peak of the resident memory as the system counts it (with pages of the mapped
text, which it can drop at any time), the peak of the anonymous memory of the command, and that of the command and its
worker processes together. The same training on a text of 1 MB, whose memory is the libraries and the model, is
measured first.
"""

import argparse
import itertools
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import record
from large_text import make_text

SMALL = 1_000_000
"""The size of the text whose training is compared with."""


PEAKS = {"resident": "resident", "anonymous": "anonymous", "with_workers": "with worker processes"}


class Memory(NamedTuple):
    """Peaks in MB, and seconds."""

    resident: float
    anonymous: float
    with_workers: float
    reading: float
    seconds: float


def field(process: int, name: str) -> float:
    """Return a field of the status of a process in MB; 0 if it has ended."""
    try:
        found = re.search(rf"{name}:\s+(\d+) kB", Path(f"/proc/{process}/status").read_text())
    except OSError:
        return 0.0
    return int(found[1]) / 1000 if found else 0.0


def children(process: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{process}/task/{process}/children").read_text().split()] + [
            int(child)
            for task in Path(f"/proc/{process}/task").iterdir()
            if task.name != str(process)
            for child in (task / "children").read_text().split()
        ]
    except OSError:
        return []


def train(data: Path, folder: Path, kind: str, unit: str, steps: int) -> Memory:
    """Train in a process of its own and watch it."""
    command = [sys.executable, "-m", "seriatim", "train", "lm", "--data", str(data), "--out", str(folder / "run")]
    command += ["--tokenizer.kind", kind, "--data.unit", unit, "--training.steps", str(steps), "--overwrite"]
    command += ["--model.hidden_size", "32", "--model.embedding_size", "32"]
    command += ["--tokenizer.vocabulary_size", "30000"] if kind == "word" else []
    environment = {**os.environ, "SERIATIM_CACHE": str(folder / "cache")}
    began, reading = time.monotonic(), 0.0
    messages = folder / "messages.txt"
    with messages.open("w") as file:
        process = subprocess.Popen(command, env=environment, stderr=file)
    resident = anonymous = together = 0.0
    while process.poll() is None:
        own = field(process.pid, "RssAnon")
        anonymous = max(anonymous, own)
        together = max(together, own + sum(field(child, "RssAnon") for child in children(process.pid)))
        resident = max(resident, field(process.pid, "VmHWM"))
        if not reading and (folder / "run" / "config.yaml").exists():
            reading = time.monotonic() - began
        time.sleep(0.05)
    if process.returncode:
        sys.exit(messages.read_text())
    return Memory(resident, anonymous, together, reading, time.monotonic() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--gb", type=float, default=2.0)
    parser.add_argument("--kinds", default="byte,bpe,word")
    parser.add_argument("--units", default="stream,line")
    parser.add_argument("--folder", default=None, help="where the text and the caches are written")
    parser.add_argument("--steps", type=int, default=50)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as place:
        texts = {
            "small": make_text(Path(place) / "small.txt", SMALL),
            "large": make_text(Path(place) / "large.txt", int(options.gb * 1e9)),
        }
        rows = [["tokenizer", "unit", "text", "s until the first step", "s", "cache MB", *PEAKS.values()]]
        figures, larger = {}, 0.0
        for kind, unit in itertools.product(options.kinds.split(","), options.units.split(",")):
            found = {}
            for name, text in texts.items():
                with tempfile.TemporaryDirectory(dir=place) as folder:
                    found[name] = memory = train(text, Path(folder), kind, unit, options.steps)
                    cache = sum(path.stat().st_size for path in Path(folder, "cache").rglob("*") if path.is_file())
                peaks = [f"{getattr(memory, peak):,.0f}" for peak in PEAKS]
                rows.append([kind, unit, name, f"{memory.reading:.0f}", f"{memory.seconds:.0f}", f"{cache / 1e6:,.0f}"])
                rows[-1] += peaks
                print(*rows[-1], sep="  ", flush=True)
                figures[f"{kind} {unit} {name}"] = {
                    key: record.Figure(value, 0.8 * value, 1.2 * value) for key, value in memory._asdict().items()
                }
            larger = max(larger, found["large"].with_workers - found["small"].anonymous)
    claim = record.Claim(
        text="training on 2 GB of text takes at most 1,000 MB beyond libraries and model, whatever tokenizer and unit",
        reached=larger <= 1000,
        ours=f"{larger:,.0f} MB",
        limit="1,000 MB",
    )
    record.save(
        "large_corpus",
        claims=[claim],
        settings=vars(options),
        figures={**figures, "more": larger},
        tables=[rows],
        notes="""
            Peaks are MB. The small text has 1 MB. The resident memory counts pages of the mapped encoded text, which
            the system drops when it needs memory; the claim is about the anonymous memory, worker processes included.
        """,
    )


if __name__ == "__main__":
    main()

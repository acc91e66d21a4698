"""Measure the time and memory of a token in training as sequences grow.

Claim: for recurrent, state-space, convolutional and windowed layers, the cost of a token does not depend on the length.

    python benchmarks/length.py [--longest 16384]

One layer runs forward and backward with batch 1 in float32. Each length of each layer runs in two processes of its own.
Memory is the peak of the resident memory in one run above the resident memory just before it, when the gradients of the
parameters already existed, with an allocator that returns free memory. Memory that does not depend on the length is
distributed over more tokens as the length grows. Time is the median of several runs. A window is full only beyond its
length, so that the ratios begin there.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import machine
import record
import torch

import seriatim

WINDOW, BEYOND = 256, 1024
LAYERS: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in ("rnn", "lstm", "gru", "mingru", "s4d", "mamba", "window", "convolution")},
    f"attention, window {WINDOW}": ("attention", {"window": WINDOW}),
    "attention, full": ("attention", {}),
}
GROWS = "attention, full"
KINDS = {"mingru": "scan", "s4d": "scan", "mamba": "scan", "rnn": "loop", "lstm": "loop", "gru": "loop"}
COLOURS = {"loop": "#0072B2", "scan": "#009E73", "local": "#E69F00", "full": "#D55E00"}  # Okabe and Ito
LOOKS = (("o", "-"), ("s", "--"), ("^", ":"))
WARM_UP = 64
FRUGAL = {"MALLOC_TRIM_THRESHOLD_": "65536", "MALLOC_TOP_PAD_": "0"}
"""Environment in which glibc returns free memory at once: slow, but what is resident is in use."""
STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def status(field: str) -> int:
    """Return a memory figure of this process in bytes, by its name in Linux: `VmRSS` (now) or `VmHWM` (maximum)."""
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) * 1024


def measure(label: str, length: int, width: int, seconds: float) -> dict[str, float]:
    """Return time and memory of a token, measured in this process."""
    torch.manual_seed(0)
    name, options = LAYERS[label]
    layer = seriatim.layer(name, width, width, **options)

    def train(inputs: torch.Tensor) -> None:
        layer(inputs)[0].square().mean().backward()
        inputs.grad = None

    inputs = torch.randn(1, length, width, requires_grad=True)
    train(torch.randn(1, WARM_UP, width, requires_grad=True))  # kernels load, gradients take their place
    CLEAR.write_text("5")  # forgets the peak so far
    before = status("VmRSS")
    train(inputs)
    extra = status("VmHWM") - before
    times: list[float] = []
    start = time.perf_counter()
    while not times or (len(times) < 3 and seconds) or time.perf_counter() - start < seconds:
        times.append(machine.seconds(lambda: train(inputs)))
    return {"microseconds": 1e6 * statistics.median(times) / length, "bytes": extra / length}


def apart(label: str, length: int, width: int, seconds: float) -> dict[str, float]:
    """Run `measure` in fresh processes: one for the time and one for the memory."""
    command = [sys.executable, __file__, "--one", label, str(length), "--width", str(width), "--seconds"]
    found: dict[str, float] = {}
    for what, limit, environment in (("microseconds", seconds, {}), ("bytes", 0.0, FRUGAL)):
        run = [*command, str(limit)]
        done = subprocess.run(run, stdout=subprocess.PIPE, text=True, check=True, env={**os.environ, **environment})
        found[what] = json.loads(done.stdout)[what]
    return found


def spread(places: list[float], gap: float) -> list[float]:
    """Return the values in the same order, moved as little as possible so that neighbours differ by ``gap``."""
    order = sorted(range(len(places)), key=lambda i: places[i])
    groups: list[tuple[float, list[int]]] = []  # (middle, members), each group evenly spaced
    for i in order:
        groups.append((places[i], [i]))
        while len(groups) > 1 and _overlap(groups[-2], groups[-1], gap):
            (_, last), (_, before) = groups.pop(), groups.pop()
            members = before + last
            groups.append((sum(places[m] for m in members) / len(members), members))
    moved = list(places)
    for middle, members in groups:
        for k, member in enumerate(members):
            moved[member] = middle + gap * (k - (len(members) - 1) / 2)
    return moved


def _overlap(low: tuple[float, list[int]], high: tuple[float, list[int]], gap: float) -> bool:
    return high[0] - low[0] < gap * (len(low[1]) + len(high[1])) / 2


def style(label: str, labels: list[str]) -> dict[str, Any]:
    """Return colour by kind, marker and dashes within a kind; the line that rises is emphasized."""
    kinds = {each: "full" if each == GROWS else KINDS.get(each, "local") for each in labels}
    kind = kinds[label]
    place = [each for each in labels if kinds[each] == kind].index(label)
    marker, dashes = LOOKS[place % len(LOOKS)]
    heavy = label == GROWS
    return {
        "color": COLOURS[kind],
        "marker": marker,
        "linestyle": dashes,
        "linewidth": 3.2 if heavy else 1.6,
        "markersize": 7 if heavy else 5,
        "zorder": 3 if heavy else 2,
    }


def panel(axes: Any, rows: dict[str, list[float]], lengths: list[int], title: str, unit: str) -> None:
    """Draw lines, each with a label at its right end."""
    from matplotlib import ticker

    labels = list(rows)
    for label in labels:
        axes.plot(lengths, rows[label], **style(label, labels))
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(lengths, [f"{length:,}" for length in lengths], rotation=35, ha="right")
    axes.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))
    axes.minorticks_off()
    axes.set_xlabel("length of the sequence (tokens)")
    axes.set_ylabel(unit)
    axes.set_title(title, loc="left", fontsize=10.5, fontweight="bold")
    axes.grid(color="#dddddd", linewidth=0.7)
    axes.spines[["top", "right"]].set_visible(False)
    label_ends(axes, {label: rows[label][-1] for label in labels}, labels)


def label_ends(axes: Any, ends: dict[str, float], labels: list[str]) -> None:
    """Write names beside the last points, moved apart where they would overlap."""
    places = [axes.transAxes.inverted().transform(axes.transData.transform((1, end)))[1] for end in ends.values()]
    for label, place, moved in zip(ends, places, spread(places, 0.052), strict=True):
        colour, weight = style(label, labels)["color"], "bold" if label == GROWS else "normal"
        axes.plot([0.97, 1.03], [place, moved], color=colour, linewidth=0.7, transform=axes.transAxes, clip_on=False)
        axes.text(
            1.04, moved, label, color=colour, transform=axes.transAxes, va="center", fontsize=9.5, fontweight=weight
        )


def growth(rows: dict[str, list[float]], start: int) -> str:
    """Describe the cost of a token at the end relative to the cost at position ``start``."""
    longer = {label: row[-1] / row[start] for label, row in rows.items()}
    full = longer.pop(GROWS)
    return f"full attention {full:.1f} times, the others {min(longer.values()):.1f} to {max(longer.values()):.1f}"


def plot(found: dict[str, dict[str, list[float]]], lengths: list[int], width: int, path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from PIL import Image

    start = lengths.index(beyond(lengths))
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(13, 5.6), layout="constrained")
    panel(left, found["microseconds"], lengths, f"Time: {growth(found['microseconds'], start)}", "µs a token")
    kilobytes = {label: [value / 1024 for value in row] for label, row in found["bytes"].items()}
    panel(right, kilobytes, lengths, f"Memory: {growth(kilobytes, start)}", "peak of training (KiB a token)")
    figure.suptitle(
        f"Training one layer of width {width}: the cost of a token by the length of its sequence "
        f"(how many times as much at {lengths[-1]:,} as at {lengths[start]:,})",
        fontsize=11,
    )
    figure.savefig(path, dpi=110)
    Image.open(path).convert("RGB").quantize(64).save(path, optimize=True)  # a third of the bytes


def beyond(lengths: list[int]) -> int:
    """Return the length from which every window is full."""
    return min(lengths[-1], max(lengths[0], BEYOND))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--shortest", type=int, default=256)
    parser.add_argument("--longest", type=int, default=16_384)
    parser.add_argument("--seconds", type=float, default=1.0, help="seconds of timing at each length (at least 3 runs)")
    parser.add_argument("--one", nargs=2, metavar=("LAYER", "LENGTH"), help="measure one in this process")
    arguments = parser.parse_args()
    if arguments.one:
        label, length = arguments.one
        print(json.dumps(measure(label, int(length), arguments.width, arguments.seconds)))
        return
    lengths = [arguments.shortest]
    while lengths[-1] < arguments.longest:
        lengths.append(2 * lengths[-1])
    labels = [label for label, (name, _) in LAYERS.items() if name in seriatim.layers.names()]
    runs = {label: [apart(label, length, arguments.width, arguments.seconds) for length in lengths] for label in labels}
    found = {
        what: {label: [run[what] for run in row] for label, row in runs.items()} for what in ("microseconds", "bytes")
    }
    start = lengths.index(beyond(lengths))
    growths = {label: {what: rows[label][-1] / rows[label][start] for what, rows in found.items()} for label in labels}
    rows = [["", f"time a token at {lengths[-1]:,} beside {lengths[start]:,}", "memory"]]
    rows += [[label, f"{one['microseconds']:.2f}", f"{one['bytes']:.2f}"] for label, one in growths.items()]
    worst = max(one["microseconds"] for label, one in growths.items() if label != GROWS)
    claim = record.Claim(
        text=f"from {lengths[start]:,} to {lengths[-1]:,} tokens a token costs the same, full attention left out",
        reached=worst <= 1.25,
        ours=f"at most {worst:.2f} times",
        theirs=f"{growths[GROWS]['microseconds']:.1f} times",
        peer="full attention",
    )
    record.save(
        "length",
        claims=[claim],
        settings={key: value for key, value in vars(arguments).items() if key != "one"},
        figures={
            label: {what: record.Figure(value, 0.75 * value, 1.25 * value) for what, value in one.items()}
            for label, one in growths.items()
        },
        tables=[rows],
        notes="One layer of width 256, forward and backward, batch 1; the claim allows a quarter for noise.",
        draw=lambda file: plot(found, lengths, arguments.width, file),
    )


if __name__ == "__main__":
    main()

"""Compare compiled cells with the kernels of torch and with the plain loop over the same equations.

    python benchmarks/unroll.py [--part training] [--repeats 15]

The parts are:

- `training`: forward and backward in float32, with gradients of inputs and all parameters under a fixed cotangent of
  the outputs: a peephole LSTM as a user writes one, against `torch.nn.LSTM` and the loop over the same cell;
- `layers`: our layers against the corresponding layers of torch;
- `bfloat16`: the training under autocast, against float32; nn.LSTM likewise;
- `steps`: one input at a time, without gradients;
- `memory`: the peak of the resident memory in a training, above the resident memory before its first step;
- `start`: the first training step in a process, cold (with an empty disk cache) and warm.

Memory and start are measured in processes of their own. Ratios of time are theirs over ours, so that a ratio above 1
means that we are faster; ratios of memory are ours over theirs. The last table holds all figures, and the claims name
the worst of them.
"""

import argparse
import statistics
import tempfile
from collections.abc import Callable
from typing import Any

import machine
import record
import torch
from torch import Tensor, nn
from unrolled import SIZES, TRAINED, Gradients, Size, apart, looped, peephole, theirs, training

import seriatim
from seriatim.recurrence import uncompiled

STEPS, PROCESSES, SIDES = 200, 3, ("ours", "theirs")
ASKED = (Size(20, 35, 650, 650), Size(16, 64, 256, 256))
"""The sizes at which an own cell must be as fast as nn.LSTM; at others, nearly."""
TWINS: dict[str, tuple[type[nn.RNNBase], int, float | None]] = {
    "gru": (nn.GRU, 3, 1.3),
    "gru-original": (nn.GRU, 3, 1.3),
    "rnn": (nn.RNN, 1, 1.2),
    "lstm": (nn.LSTM, 4, None),
}
CELLS = {"lstm": nn.LSTMCell, "gru": nn.GRUCell}


Times = dict[str, list[float]]


class Report:
    """The claims, the figures, and a table of the claims."""

    def __init__(self) -> None:
        self.claims: dict[tuple[str, float, bool], dict[str, record.Claim]] = {}
        self.figures: dict[str, dict[str, object]] = {}
        self.best = {name: machine.product_rate(dtype) for name, dtype in machine.TYPES.items()}

    def add(
        self, claim: str, wanted: float, where: object, found: Times, sides: tuple[str, str], peer: str, limit: str = ""
    ) -> None:
        """Claim that the second of two sides takes at least ``wanted`` times as long as the first."""
        ours, theirs = (found[side] for side in sides)
        self.figures.setdefault(claim, {})[str(where)] = record.ratios(ours, theirs)
        one = record.compared(claim, *([1e3 * each for each in side] for side in (ours, theirs)), peer=peer, unit="ms",
                              least=wanted, limit=limit)  # fmt: skip
        self.claims.setdefault((claim, wanted, False), {})[str(where)] = one

    def most(self, claim: str, limit: float, where: object, found: list[float], theirs: str = "") -> None:
        """Claim that a figure is at most ``limit``."""
        self.figures.setdefault(claim, {})[str(where)] = found
        figure = statistics.median(found)
        one = record.Claim(text=claim, reached=figure <= limit, peer=theirs, ours=f"{figure:.3g}", limit=f"{limit:g}")
        self.claims.setdefault((claim, limit, True), {})[str(where)] = one

    def save(self, name: str, repeats: int) -> None:
        """Write the record: every figure, and each claim where it is furthest from being reached."""
        claims = []
        table: list[list[object]] = [["claim", "wanted", "where", "figure"]]
        for (claim, wanted, is_most), found in self.claims.items():
            shown = {where: float(one.ours) if is_most else one.ratio for where, one in found.items()}
            worst = (max if is_most else min)(shown, key=lambda where: shown[where])
            stated = f"{'at most' if is_most else 'at least'} {wanted:g}"
            table += [[claim, stated, where, f"{each:.3f}"] for where, each in shown.items()]
            text = f"{claim}: {stated}" + (f" (worst: {worst})" if len(found) > 1 else "")
            claims.append(found[worst].model_copy(update={"text": text}))
        record.save(
            name,
            claims=claims,
            settings={"repeats": repeats, "best_products": self.best},
            figures=self.figures,
            tables=[table],
            notes="Sizes are batch × time, width of the inputs → width of the state. Medians in turn, after three runs "
            "of each side that are not counted. The share is our rate beside the best matrix product of the machine.",
        )


def timed(works: dict[str, Callable[[], object]], repeats: int) -> Times:
    """Return the seconds of each turn, after each side has run three times."""
    for work in works.values():
        for _ in range(3):
            work()
    return machine.times_in_turn(works, repeats)


def middle(found: Times) -> dict[str, float]:
    """Return the medians."""
    return {side: statistics.median(each) for side, each in found.items()}


def part_training(report: Report, repeats: int) -> None:
    head("peephole LSTM", "ours ms", "LSTM ms", "ratio", "loop ms", "ratio", "GF/s", "LSTM's", "of best")
    for size in SIZES:
        layer = peephole(size)
        works = {"ours": training(layer, size, layer), "theirs": theirs(nn.LSTM, size)}
        works["loop"] = training(layer, size, looped(layer, size))
        for mine, plain in zip(works["ours"](), works["loop"](), strict=True):
            torch.testing.assert_close(mine, plain, rtol=1e-3, atol=1e-3 * float(plain.abs().max()))
        turns = timed(works, repeats)
        found = middle(turns)
        ratios = found["theirs"] / found["ours"], found["loop"] / found["ours"]
        rates = [size.flops() / found[name] / 1e9 for name in ("ours", "theirs")]
        ms = [1e3 * found[name] for name in ("ours", "theirs", "loop")]
        row(size, ms[0], ms[1], ratios[0], ms[2], ratios[1], *rates, percent(rates[0] / report.best["float32"]))
        share = f"{percent(rates[0] / report.best['float32'])} of the best product"
        if size in ASKED:
            report.add(f"own cell {size}, time of nn.LSTM over ours", 1, size, turns, SIDES, "nn.LSTM", share)
        else:
            report.add("own cell of other sizes, time of nn.LSTM over ours", 0.95, size, turns, SIDES, "nn.LSTM", share)
        report.add("own cell, time of the loop over ours", 2.5, size, turns, ("ours", "loop"), "the plain loop")


def part_layers(report: Report, repeats: int) -> None:
    for name, (kind, gates, wanted) in TWINS.items():
        head(f"{name} against nn.{kind.__name__}", "ours ms", "theirs ms", "ratio", "GF/s", "theirs", "of best")
        for size in SIZES:
            layer = seriatim.layer(name, size.inputs, size.hidden, num_layers=1)
            turns = timed({"ours": training(layer, size, layer), "theirs": theirs(kind, size)}, repeats)
            found = middle(turns)
            ratio = found["theirs"] / found["ours"]
            rates = [size.flops(gates) / taken / 1e9 for taken in found.values()]
            ms = [1e3 * taken for taken in found.values()]
            row(size, *ms, ratio, *rates, percent(rates[0] / report.best["float32"]))
            if wanted is not None:
                peer = f"nn.{kind.__name__}"
                report.add(f"{name}, time of {peer} over ours", wanted, size, turns, SIDES, peer)


def narrowed(work: Callable[[], Gradients]) -> Callable[[], Gradients]:
    def run() -> Gradients:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return work()

    return run


def part_bfloat16(report: Report, repeats: int) -> None:
    limit = report.best["bfloat16"] / report.best["float32"]
    print("\nnn.LSTM: its own float32 over its own bfloat16, under autocast and with everything in bfloat16")
    columns = ("float32", "bfloat16", "ratio", "GF/s", "of best", "LSTM's", "outright")
    head(f"peephole LSTM, limit {limit:.1f}", *columns)
    for size in (size for size in SIZES if size.hidden >= 512):
        layer = peephole(size)
        work, twin = training(layer, size, layer), theirs(nn.LSTM, size)
        works = {"float32": work, "bfloat16": narrowed(work), "LSTM": twin, "autocast": narrowed(twin)}
        turns = timed({**works, "outright": theirs(nn.LSTM, size, torch.bfloat16)}, repeats)
        found = middle(turns)
        ratio, rate = found["float32"] / found["bfloat16"], size.flops() / found["bfloat16"] / 1e9
        others = [found["LSTM"] / found[name] for name in ("autocast", "outright")]
        ms = (1e3 * found[name] for name in ("float32", "bfloat16"))
        row(size, *ms, ratio, rate, percent(rate / report.best["bfloat16"]), *others)
        sides = "bfloat16", "float32"
        report.add("own cell, time of float32 over bfloat16", 1.6, size, turns, sides, "float32", f"{limit:.1f} times")


def read_rate(count: float, repeats: int = 8) -> float:
    """Return the best rate in GB/s of repeatedly adding up this many numbers."""
    values, rounds = torch.ones(int(count)), max(1, int(2**25 / count))
    taken = min(machine.seconds(lambda: [values.sum() for _ in range(rounds)]) for _ in range(repeats))
    return 4 * values.numel() * rounds / taken / 1e9


def steps(one: Callable[[Tensor, Any], Any], batch: int, width: int, state: Any) -> Callable[[], None]:
    inputs = torch.randn(batch, width)

    @torch.inference_mode()
    def work() -> None:
        kept = state
        for _ in range(STEPS):
            kept = one(inputs, kept)

    return work


def part_steps(report: Report, repeats: int) -> None:
    print(f"\nmemory is read at {read_rate(2**28):.0f} GB/s; cached: the weights alone, again and again, in GB/s")
    head("one step, of batch × width", "ours µs", "theirs µs", "ratio", "MB read", "GB/s", "cached", "GF/s")
    for name, kind in CELLS.items():
        for width in (512, 1024):
            layer, cell = seriatim.layer(name, width, width, num_layers=1).eval(), kind(width, width).eval()
            numbers = sum(parameter.numel() for parameter in layer.parameters())
            cached = read_rate(numbers)
            for batch in (1, 8, 64):
                state = layer.initial_state(batch)
                works = {"ours": steps(lambda x, s, layer=layer: layer.step(x, s)[1], batch, width, state)}
                works["theirs"] = steps(cell, batch, width, state)
                turns = timed(works, repeats)
                found = middle(turns)
                ratio, us = found["theirs"] / found["ours"], [1e6 * taken / STEPS for taken in found.values()]
                where = f"{name}, {batch} × {width}"
                row(where, *us, ratio, numbers * 4e-6, numbers * 4e-3 / us[0], cached, 2e-3 * batch * numbers / us[0])
                if batch <= 8:
                    peer = f"nn.{kind.__name__}"
                    report.add(f"{name}, time of {STEPS} steps of {peer} over ours", 2, where, turns, SIDES, peer)
    stack_steps(repeats)


def stack_steps(repeats: int) -> None:
    """Measure the step of a stack, which is one call; also with matrices in bfloat16, which need half the bandwidth."""
    head("one step, 3 layers of 256", "ours µs", "written µs", "ratio", "bfloat16", "ratio")
    for name in ("lstm-peephole", "gru", "lstm"):
        for batch in (1, 8, 64):
            layer = seriatim.layer(name, 256, 256, num_layers=3).eval()
            ours = steps(lambda x, s, layer=layer: layer.step(x, s)[1], batch, 256, layer.initial_state(batch))

            def written(work: Callable[[], None] = ours) -> None:
                with uncompiled():
                    work()

            def narrow(work: Callable[[], None] = ours) -> None:
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    work()

            found = middle(timed({"ours": ours, "written": written, "bfloat16": narrow}, repeats))
            us = {side: 1e6 * taken / STEPS for side, taken in found.items()}
            ratios = [found["written"] / found["ours"], found["ours"] / found["bfloat16"]]
            row(f"{name}, batch {batch}", us["ours"], us["written"], ratios[0], us["bfloat16"], ratios[1])


def part_memory(report: Report, repeats: int) -> None:
    head(f"peak of {TRAINED} training steps", "ours MB", "LSTM MB", "ratio", "smallest")
    for i, size in enumerate(SIZES):
        apart("ours", i)  # fills the cache on disk
        found: dict[str, list[float]] = {"ours": [], "theirs": []}
        for _ in range(min(repeats, PROCESSES)):
            for side, peaks in found.items():
                peaks.append(apart(side, i)["peak"])
        ours, other = (statistics.median(peaks) for peaks in found.values())
        row(size, ours, other, ours / other, size.kept() / 1e6)
        shares = [mine / its for mine, its in zip(*found.values(), strict=True)]
        report.most("own cell, memory over that of nn.LSTM", 1.2, size, shares, "nn.LSTM")


def part_start(report: Report, repeats: int) -> None:
    head("first training step, 8 × 256", "first s", "second s", "imports s", "all s")
    firsts: dict[str, float] = {}
    for length in (16, 1024):
        runs: dict[str, list[dict[str, float]]] = {"cold": [], "warm": []}
        for _ in range(min(repeats, PROCESSES)):
            with tempfile.TemporaryDirectory() as folder:
                for found in runs.values():
                    found.append(apart("start", length, SERIATIM_CACHE=folder))
        for kind, found in runs.items():
            first, second, imports, whole = (statistics.median(run[key] for run in found) for key in found[0])
            row(f"{kind}, {length} steps", first, second, imports, whole)
            firsts[f"{kind}, {length} steps"] = first
            limit = {"cold": 20, "warm": 2}[kind]
            report.most(
                f"first training step, {kind}, seconds", limit, f"{length} steps", [run["first"] for run in found]
            )
    print(f"cold, 1024 steps over 16: {firsts['cold, 1024 steps'] / firsts['cold, 16 steps']:.2f}")


def head(title: str, *columns: str) -> None:
    print(f"\n{title:28}" + "".join(f"{column:>10}" for column in columns))


def row(title: object, *figures: float | str) -> None:
    shown = (figure if isinstance(figure, str) else f"{figure:.{2 if figure < 100 else 0}f}" for figure in figures)
    print(f"{title!s:28}" + "".join(f"{figure:>10}" for figure in shown), flush=True)


def percent(share: float) -> str:
    return f"{share:.0%}"


PARTS: dict[str, Callable[[Report, int], None]] = {
    "training": part_training,
    "layers": part_layers,
    "bfloat16": part_bfloat16,
    "steps": part_steps,
    "memory": part_memory,
    "start": part_start,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--part", choices=PARTS, action="append", help="run this part only (can be repeated)")
    arguments = parser.parse_args()
    print(machine.describe())
    report = Report()
    print(f"best matrix products of this run: {', '.join(f'{n} {r:.0f} GF/s' for n, r in report.best.items())}")
    peephole(SIZES[0])  # says at once where nothing can be compiled
    for part in arguments.part or PARTS:
        torch.manual_seed(0)
        PARTS[part](report, arguments.repeats)
    report.save("-".join(["unroll", *(arguments.part or ())]), arguments.repeats)


if __name__ == "__main__":
    main()

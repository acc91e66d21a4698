"""Compare the decoding of a run with that of its ONNX export in onnxruntime, in tokens a second.

    python benchmarks/onnx_decoding.py [--only lstm,mamba,transformer] [--repeats 5]

Models with random weights generate greedily from an empty text, ours with compiled steps, onnxruntime with the loop of
the exported `run.py`. Both choose the same tokens. They take turns, and the medians and their ratio are printed, with
one row and with 16, and how many bytes of weights are read in a second beside what a sum reads from memory in large
pages. This share exceeds 1 where a part of the weights stays in the processor's cache. PyTorch's products with the same
matrices, and nothing else, take turns, too.

Claims: with one row, an LSTM and a GRU each decode at least 1.1 times as fast as in onnxruntime; the limit is the rate
of the products alone. Without onnxruntime or the packages of the export, nothing is measured.
"""

import argparse
import functools
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import numpy as np
import record
import torch
from machine import describe, read_rate, times_in_turn

import seriatim
from seriatim.models import LanguageModel
from seriatim.models.exported_forms import language_forms

TOKENS, ASKED, PEER = 200, 1.1, "onnxruntime"
PAUSE = 0.3
"""Seconds between two turns: threads of onnxruntime spin for a while after their last step."""
NEEDED = ("onnx", "onnxscript", PEER)
SIZES = {
    "lstm": ("lstm", 650, 2, 10_000),
    "gru": ("gru", 650, 2, 10_000),
    "mamba": ("mamba", 384, 6, 10_000),
    "transformer": ("transformer", 384, 6, 10_000),
}
"""The layer, its width and number, and the tokens of each model."""


class Exported:
    """The step of a model in onnxruntime."""

    def __init__(self, model: LanguageModel, folder: Path) -> None:
        import onnxruntime

        from seriatim.interchange.onnx_export import prepared, quietly_exporting, traced, write_models

        with quietly_exporting():
            exported = language_forms(prepared(model, None))
            write_models({form.name: traced(form) for form in exported.forms}, folder)
        assert exported.state is not None
        self.start = {name: leaf.numpy() for name, leaf in exported.state.items()}
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        self.session = onnxruntime.InferenceSession(str(folder / "step.onnx"), options)

    def generate(self, rows: int) -> np.ndarray:
        """Return the most probable tokens ``(rows, TOKENS)``."""
        state = {name: leaf.repeat(rows, axis=0) for name, leaf in self.start.items()}
        tokens, written = np.zeros(rows, np.int64), []
        for _ in range(TOKENS):
            logits, *after = self.session.run(None, {"tokens": tokens, **state})
            state = dict(zip(state, after, strict=True))
            tokens = logits.argmax(1)
            written.append(tokens)
        return np.stack(written, axis=1)


@torch.no_grad()
def generate(model: LanguageModel, rows: int) -> np.ndarray:
    """Return the most probable tokens ``(rows, TOKENS)``, with compiled steps; NumPy finds a maximum faster."""
    state, tokens, written = model.initial_state(rows), torch.zeros(rows, dtype=torch.long), []
    for _ in range(TOKENS):
        logits, state = model.step(tokens, state)
        tokens = torch.from_numpy(logits.numpy().argmax(1))
        written.append(tokens)
    return torch.stack(written, dim=1).numpy()


@torch.no_grad()
def multiply(matrices: Sequence[torch.Tensor], rows: int) -> None:
    """Compute the products of all tokens with the matrices of a step ``(outputs, inputs)``, and nothing else."""
    inputs = [torch.ones(matrix.shape[1], rows) for matrix in matrices]
    for _ in range(TOKENS):
        for matrix, columns in zip(matrices, inputs, strict=True):
            matrix @ columns


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(SIZES))
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    absent = [package for package in NEEDED if not record.is_installed(package)]
    limit = read_rate()
    print(f"{describe()}; a sum reads {limit / 1e9:.1f} GB/s", flush=True)
    table = [("model", "rows", "ours, tokens/s", "onnxruntime, tokens/s", "ratio", "ours, of the memory rate")]
    figures: dict[str, dict[str, object]] = {}
    claims = []
    for name in arguments.only.split(","):
        layer, size, count, tokens = SIZES[name]
        torch.manual_seed(0)
        model = LanguageModel(seriatim.layer(layer, size, size, num_layers=count), tokens).eval()
        weights = sum(value.nbytes for value in model.parameters()) - model.embedding.weight.nbytes
        for rows in (1, 16):
            rates, same = measure(model, rows, arguments.repeats, has_peer=not absent)
            ratio = record.ratios(rates["ours"], rates["theirs"], are_rates=True) if "theirs" in rates else []
            shares = [rate / rows * weights / limit for rate in rates["ours"]]
            figures[f"{name}, {rows} rows"] = {**rates, "ratio": ratio, "share": shares, "equal tokens": same}
            shown = [f"{median(rates[side]):,.0f}" if side in rates else "" for side in ("ours", "theirs")]
            shown += [f"{median(ratio):.2f}" if ratio else "", f"{median(shares):.2f}"]
            table.append((f"{name} {count} x {size}", str(rows), *shown))
            print(" | ".join(table[-1]), flush=True)
            if rows == 1 and name in ("lstm", "gru"):
                claims.append(
                    record.compared(
                        f"a row of {layer.upper()} {count} × {size}, {tokens:,} tokens: at least {ASKED} times as fast",
                        rates["ours"],
                        rates.get("theirs"),
                        peer=PEER,
                        unit="tokens/s",
                        least=ASKED,
                        are_rates=True,
                        limit=f"{median(rates['products']):,.0f} tokens/s of PyTorch's products alone",
                        absent=f"{', '.join(absent)} not installed",
                    )
                )
    record.save(
        "onnx_decoding",
        claims=claims,
        settings={"tokens": TOKENS, "sizes": SIZES, "repeats": arguments.repeats, "memory_rate": limit},
        figures=figures,
        tables=[table],
        peers=NEEDED,
        notes="Random weights, greedy, in float32; medians in turn. The memory rate is that at which a sum reads.",
    )


def measure(model: LanguageModel, rows: int, repeats: int, *, has_peer: bool) -> tuple[dict[str, list[float]], float]:
    """Return the tokens a second of each turn of both sides, and the share of the tokens that are equal."""
    matrices = [
        value.detach() for value in model.parameters() if value.dim() == 2 and value is not model.embedding.weight
    ]
    works = {"ours": functools.partial(generate, model, rows), "products": functools.partial(multiply, matrices, rows)}
    with tempfile.TemporaryDirectory() as folder:
        if has_peer:
            works["theirs"] = functools.partial(Exported(model, Path(folder)).generate, rows)
        first = [works[side]() for side in ("ours", "theirs") if side in works]  # also compiles the step
        times = times_in_turn(works, repeats, PAUSE)
    same = float((first[0] == first[-1]).mean())
    return {side: [rows * TOKENS / one for one in taken] for side, taken in times.items()}, same


if __name__ == "__main__":
    main()

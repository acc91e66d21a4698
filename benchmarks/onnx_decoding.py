"""Compare the decoding of a run with that of its ONNX export in onnxruntime, in tokens a second.

    python benchmarks/onnx_decoding.py [--only lstm,mamba,transformer] [--repeats 5]

Models with random weights generate greedily from an empty text, ours with compiled steps, onnxruntime with the loop of
the exported `run.py`. Both choose the same tokens. They take turns, and the medians and their ratio are printed, with
one row and with 16, and how many bytes of weights are read in a second beside what a sum reads from memory in large
pages. This share exceeds 1 where a part of the weights stays in the processor's cache.

Claim: with one row, an LSTM and a GRU decode at least 1.1 times as fast as in onnxruntime.
"""

import argparse
import functools
import tempfile
from pathlib import Path

import numpy as np
import onnxruntime
import record
import torch
from machine import describe, in_turn, read_rate

import seriatim
from seriatim.interchange.onnx_export import prepared, quietly_exporting, traced, write_models
from seriatim.models import LanguageModel
from seriatim.models.exported_forms import language_forms

TOKENS = 200
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
    """Return the most probable tokens ``(rows, TOKENS)``, with compiled steps."""
    state, tokens, written = model.initial_state(rows), torch.zeros(rows, dtype=torch.long), []
    for _ in range(TOKENS):
        logits, state = model.step(tokens, state)
        tokens = logits.argmax(1)
        written.append(tokens)
    return torch.stack(written, dim=1).numpy()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(SIZES))
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    limit = read_rate()
    print(f"{describe()}; a sum reads {limit / 1e9:.1f} GB/s; onnxruntime {onnxruntime.__version__}", flush=True)
    rows_shown = [("model", "rows", "ours, tokens/s", "onnxruntime, tokens/s", "ratio", "ours, of the memory rate")]
    print(" | ".join(rows_shown[0]))
    figures: dict[str, dict[str, float]] = {}
    for name in arguments.only.split(","):
        layer, size, count, tokens = SIZES[name]
        torch.manual_seed(0)
        model = LanguageModel(seriatim.layer(layer, size, size, num_layers=count), tokens).eval()
        weights = sum(value.nbytes for value in model.parameters()) - model.embedding.weight.nbytes
        with tempfile.TemporaryDirectory() as folder:
            exported = Exported(model, Path(folder))
            for rows in (1, 16):
                works = {
                    "ours": functools.partial(generate, model, rows),
                    "theirs": functools.partial(exported.generate, rows),
                }
                same = float((works["ours"]() == works["theirs"]()).mean())  # also compiles the step
                if same < 1:
                    print(f"  {same:.1%} of the tokens are equal", flush=True)
                ours, theirs = (rows * TOKENS / median for median in in_turn(works, arguments.repeats).values())
                share = ours / rows * weights / limit
                figures[f"{name}, {rows} rows"] = {
                    "ours": ours,
                    "onnxruntime": theirs,
                    "ratio": ours / theirs,
                    "share": share,
                }
                shown = (f"{ours:,.0f}", f"{theirs:,.0f}", f"{ours / theirs:.2f}", f"{share:.2f}")
                rows_shown.append((f"{name} {count} x {size}", str(rows), *shown))
                print(" | ".join(rows_shown[-1]), flush=True)
    ratios = [figures[f"{name}, 1 rows"]["ratio"] for name in ("lstm", "gru") if f"{name}, 1 rows" in figures]
    record.save(
        "onnx_decoding",
        claims={"an LSTM and a GRU of one row decode at least 1.1 times as fast as in onnxruntime": min(ratios) >= 1.1}
        if ratios
        else {},
        settings={"tokens": TOKENS, "sizes": SIZES, "repeats": arguments.repeats, "memory_rate": limit},
        figures=figures,
        tables=[rows_shown],
    )


if __name__ == "__main__":
    main()

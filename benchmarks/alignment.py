"""Measure what attention learns on the task of reversing: reading backwards, a letter at a time.

Claim: at least nine tenths of the attention is on the letter that is written and on its two neighbours. The encoder
reads in one direction, so that its output at the next position, a random letter, still holds the letter before it.

    python benchmarks/alignment.py [--steps 4000]

The script trains a GRU with dot-product attention on `builtin:reversal`, without copying and without attention to
where the step before looked, so that nothing but the scores can find the letter. The sources are words
with a random letter after each letter; the targets are the reversed words without the random letters. The plot shows
the attention of four answers. The figures are the shares of attention on the letter that is written, on its two
neighbours and on all noise, and how many answers of the test part are exactly right.
"""

import argparse
import tempfile
from pathlib import Path
from typing import Any

import record
from matplotlib.figure import Figure
from reversal import ATTENTION, LEFT_OPEN

import seriatim
from seriatim.data.synthetic import generate
from seriatim.inspection.alignment import Aligned, align
from seriatim.pages.palette import HEAT

TEST = 500


def config(folder: str, steps: int) -> dict[str, Any]:
    return {
        "task": "seq2seq",
        "data": {"train": "builtin:reversal", "valid": "builtin:reversal:valid"},
        "tokenizer": {"kind": "char"},
        "model": {
            "layer": "gru",
            "embedding_size": 32,
            "hidden_size": 64,
            "num_layers": 1,
            "dropout": 0.0,
            "bidirectional": False,
            "options": ATTENTION,
        },
        "training": {
            **record.TRAINING,
            "steps": steps,
            "batch_size": 64,
            "learning_rate": 0.005,
            "warmup_steps": steps // 20,
            "keep": "last",
        },
        "out": folder,
    }


def places(answer: str) -> tuple[list[list[int]], list[list[int]], list[list[int]]]:
    """Return, for each target letter, the positions of the letter in the noisy word, its neighbours and all noise."""
    at = [2 * (len(answer) - 1 - i) for i in range(len(answer))]
    beside = [[place for place in (own - 1, own + 1) if 0 <= place < 2 * len(answer)] for own in at]
    return [[own] for own in at], beside, [list(range(1, 2 * len(answer), 2))] * len(answer)


def mass(aligned: Aligned, positions: list[list[int]]) -> float:
    """Return the mean attention on ``positions`` of the source, given for each of the first target tokens."""
    masses = [sum(row[i] for i in chosen) for row, chosen in zip(aligned.weights, positions, strict=False)]
    return sum(masses) / len(masses)


def draw(found: list[Aligned], file: Path) -> None:
    figure = Figure(figsize=(3.2 * len(found), 2.7), layout="constrained")
    axes = figure.subplots(1, len(found), squeeze=False)
    for plot, one in zip(axes[0], found, strict=True):
        plot.imshow(one.weights, cmap=HEAT, vmin=0, vmax=1, aspect="auto")
        plot.grid(visible=False)
        plot.set_title(f"{''.join(one.source_tokens)} to {one.text}", fontsize=9)
        plot.set_xticks(range(len(one.source_tokens)), one.source_tokens, fontsize=9)
        plot.set_yticks(range(len(one.target_tokens)), one.target_tokens, fontsize=9)
        for i, label in enumerate(plot.get_xticklabels()):
            label.set_alpha(0.4 if i % 2 else 1)
    axes[0, 0].set_ylabel("written")
    figure.supxlabel("read; noise is pale", fontsize=10)
    figure.savefig(file, dpi=140, facecolor="white")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=4000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        stated = config(folder, options.steps)
        run = seriatim.train(stated)
        settings = record.settled(run, stated, but=LEFT_OPEN)
        pairs = list(generate("reversal", "test", TEST))
        found = [align(run, source, beam=1)[0] for source, _ in pairs]
    long = [one for one in found if len(one.source_tokens) >= 12]
    shares = [[mass(one, part) for part in places(answer)] for one, (_, answer) in zip(found, pairs, strict=True)]
    means = [sum(column) / len(column) for column in zip(*shares, strict=True)]
    right = sum(one.text == answer for one, (_, answer) in zip(found, pairs, strict=True))
    claims = {
        "at least 0.9 of the attention is on the letter that is written and its two neighbours": means[0] + means[1]
        >= 0.9
    }
    head = ["words", "exactly right", "attention on the letter that is written", "on its neighbours", "on all noise"]
    row = [len(pairs), right, *(f"{100 * mean:.1f} %" for mean in means)]
    figures = {"right": right, **dict(zip(("written", "beside", "noise"), means, strict=True))}
    record.save(
        "alignment",
        claims=claims,
        settings={"gru": settings},
        figures=figures,
        tables=[[head, row]],
        notes="""
            A GRU with dot-product attention that writes `builtin:reversal` backwards; the plot shows four answers.
        """,
        draw=lambda file: draw(long[:4], file),
    )


if __name__ == "__main__":
    main()

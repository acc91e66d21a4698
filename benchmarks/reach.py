"""Measure the reach of gradients before and after training: the lag at which the gradient falls to 1 %.

Claims: a layer whose gradient does not reach the noun before training learns nothing, unless gates open; with shorter
texts in training every layer learns it.

    python benchmarks/reach.py [--distance 20] [--mixed] [--steps 1500] [--plot plots/reach.png]

The task is `builtin:agreement`: is or are, if the noun that decides it is a number of words back. The model is trained
and measured at this distance, or trained at 3 to 30 words (`--mixed`), where short texts show what to keep. There is
one layer, in one direction, without dropout, and the label is read from the last output by the network alone; see
`seriatim.inspection.gradient_flow`.
"""

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import record
from distance import READING

import seriatim
from seriatim.data.synthetic import generate
from seriatim.inspection.gradient_flow import LayerFlow, gradient_flow

LAYERS = {"rnn": "Elman", "lstm": "LSTM", "gru": "GRU", "transformer": "Transformer"}
TEXTS = 32

REACH_FRACTION = 0.01  # of the norm at lag 1, below which the gradient no longer counts


def config(layer: str, data: str, steps: int, out: Path) -> dict[str, Any]:
    options = {"causal": True, "position": "rotary"} if layer == "transformer" else {}
    return {
        "task": "classify",
        "data": {"train": data.format("train"), "valid": data.format("valid")},
        "tokenizer": {"kind": "word"},
        "model": {
            "layer": layer,
            "embedding_size": 64,
            "hidden_size": 64,
            "num_layers": 1,
            "dropout": 0.0,
            "bidirectional": False,
            "options": {**options, **READING},
        },
        "training": {
            **record.TRAINING,
            "metric": "accuracy",
            "steps": steps,
            "batch_size": 64,
            "learning_rate": 0.003,
            "warmup_steps": steps // 20,
        },
        "out": str(out),
    }


def draw(found: dict[str, tuple[LayerFlow, float]], distance: int, path: Path) -> None:
    """Plot the norms as shares of the first, before and after training, with one plot for each layer."""
    from seriatim.pages.palette import COLOURS, SOFT
    from seriatim.pages.theme import new_figure

    figure, grid = new_figure(1, len(found), width=10.5, height=3.4, is_shared=True)
    for axes, (name, (flow, right)), colour in zip(grid[0], found.items(), COLOURS, strict=False):
        for norms, dashes, when in (
            (flow.fresh.norms, "--", "before training"),
            (flow.trained.norms, "-", "after training"),
        ):
            axes.plot(range(1, len(norms) + 1), [norm / norms[0] for norm in norms], dashes, color=colour, label=when)
        axes.axhline(REACH_FRACTION, color=SOFT, linewidth=0.8, linestyle=":")
        axes.axvline(distance, color=SOFT, linewidth=0.8, linestyle=":")
        axes.set(yscale="log", xlabel="k, words back", ylim=(1e-5, 1e2))
        before, after = reaches(flow)
        axes.set_title(f"{name}\nreach {before} before, {after} after\ntest accuracy {right:.2f}", fontsize=9)
        axes.legend(frameon=False, loc="lower left", fontsize=8)
    grid[0, 0].set_ylabel("norm, share of that at k = 1")
    grid[0, 0].annotate("1 %", (0.5, REACH_FRACTION), fontsize=8, va="bottom")
    grid[0, 0].annotate("the noun", (distance, 40), fontsize=8, ha="right")
    figure.savefig(path, dpi=150, facecolor="white")


def reach(norms: Sequence[float]) -> int | None:
    """Return the lag from which on all norms are below a fraction of that at lag 1; None if the last one is not."""
    above = [lag for lag, norm in enumerate(norms, 1) if norm >= REACH_FRACTION * norms[0] > 0]
    return None if above and above[-1] == len(norms) else max(above, default=0) + 1


def reaches(flow: LayerFlow) -> tuple[str, str]:
    """Return the reach before and after training; "over" if it exceeds the length of the texts."""
    after, before = (
        str(lag or f"over {len(flow.trained.norms)}") for lag in (reach(flow.trained.norms), reach(flow.fresh.norms))
    )
    return before, after


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--distance", type=int, default=20)
    parser.add_argument("--mixed", action="store_true", help="train on texts of 3 to 30 words")
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--layer", choices=LAYERS, action="append")
    arguments = parser.parse_args()
    distance, found, settings = arguments.distance, {}, {}
    data = "builtin:agreement:{}" + ("" if arguments.mixed else f"-{distance}")
    texts = [text for _, text in generate("agreement", "test", TEXTS, distance=distance)]
    print(f"{'':14}{f'accuracy at {distance}':>15}{'reach before':>14}{'after':>10}", flush=True)
    with tempfile.TemporaryDirectory() as temporary:
        for layer in arguments.layer or LAYERS:
            stated = config(layer, data, arguments.steps, Path(temporary) / layer)
            run = seriatim.train(stated)
            settings[layer] = record.settled(run, stated)
            (flow,) = gradient_flow(run, texts, max_windows=TEXTS).layers
            before, after = reaches(flow)
            right = run.evaluate(f"builtin:agreement:test-{distance}")["accuracy"]
            found[LAYERS[layer]] = flow, right
            print(f"{LAYERS[layer]:14}{right:15.3f}{before:>14}{after:>10}", flush=True)
            for when, norms in (("before", flow.fresh.norms), ("after", flow.trained.norms)):
                print(f"   {when:8}" + " ".join(f"{norm / norms[0]:.0e}" for norm in norms[:: len(norms) // 10]))
    save(found, settings, distance, is_mixed=arguments.mixed)


def save(found: dict[str, tuple[LayerFlow, float]], settings: dict[str, Any], distance: int, *, is_mixed: bool) -> None:
    trained = "3 to 30" if is_mixed else str(distance)
    rows = [[f"trained at {trained} words", "reach before", "after", f"test accuracy at {distance}"]]
    figures = {}
    for layer, (flow, right) in zip(LAYERS, found.values(), strict=True):
        rows.append([f"`{layer}`", *reaches(flow), f"{right:.3f}"])
        ends = {"before": reach(flow.fresh.norms), "after": reach(flow.trained.norms)}  # None: beyond the text
        figures[layer] = {"accuracy": right, **{f"reach {when}": lag for when, lag in ends.items()}}
    learned = {layer: one["accuracy"] > 0.95 for layer, one in figures.items()}
    if is_mixed:
        claims = {"with shorter texts in training every layer learns it": all(learned.values())}
    else:
        gated = all(right for layer, right in learned.items() if layer != "rnn")
        claims = {
            "the Elman network, whose gradient vanishes, learns nothing, and the others learn it": gated
            and not learned["rnn"]
        }
    record.save(
        "reach-mixed" if is_mixed else "reach",
        claims=claims,
        settings=settings,
        figures=figures,
        tables=[rows],
        notes="""
            The reach is the lag k at which the norm of ∂loss/∂h, k words back, falls to 1 % of its value at k = 1
            (means over 32 test texts of `builtin:agreement`); h is what a step passes to the next. A short reach does
            not mean that nothing is remembered: what a network has latched no longer changes with small changes of its
            state (Y. Bengio, P. Simard and P. Frasconi, 1994).
        """,
        draw=None if is_mixed else lambda file: draw(found, distance, file),
    )


if __name__ == "__main__":
    main()

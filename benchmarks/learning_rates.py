"""Which learning rate trains each layer best: where `Stateful.learning_rate` comes from.

    python benchmarks/learning_rates.py [--data builtin:python-docs] [--steps 300] [--layer lstm]

Every layer learns the same text with the same batches at rates a factor of about 3 apart; where the best is the first
or last of them, one more is tried beyond it. Printed is the held-out loss in nats per token at each, the best marked,
and last how much worse the rate that the layer carries is than the best found: what a fair comparison without tuning
costs.
"""

import argparse
import math
import tempfile
from pathlib import Path
from typing import Any

import seriatim
from seriatim.errors import TrainingError

RATES = (1e-3, 3e-3, 1e-2)
FACTOR = 3


def config(layer: str, rate: float, data: str, steps: int, out: Path) -> dict[str, Any]:
    return {
        "data": {"train": data},
        "tokenizer": {"kind": "bpe", "vocabulary_size": 1000},
        "model": {"layer": layer, "embedding_size": 128, "hidden_size": 192},
        "training": {
            "steps": steps,
            "batch_size": 16,
            "learning_rate": rate,
            "warmup_steps": steps // 20,
            "precision": "float32",
        },
        "out": str(out),
    }


def loss(layer: str, rate: float, data: str, steps: int) -> float:
    """Held-out loss; infinite where the training failed."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            return float(seriatim.train(config(layer, rate, data, steps, Path(folder) / "run")).summary["best_valid"])
        except TrainingError:
            return math.inf


def sweep(layer: str, data: str, steps: int) -> dict[float, float]:
    """Rates to losses, from the lowest rate up; the best is neither the first nor the last."""
    found = {rate: loss(layer, rate, data, steps) for rate in RATES}
    while (best := min(found, key=found.__getitem__)) in (min(found), max(found)):
        beyond = float(f"{best / FACTOR if best == min(found) else best * FACTOR:.0e}")
        found[beyond] = loss(layer, beyond, data, steps)
    return dict(sorted(found.items()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="builtin:python-docs")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--layer", choices=seriatim.layers.names(), action="append")
    arguments = parser.parse_args()
    lost = {}
    for layer in arguments.layer or seriatim.layers.names():
        found = sweep(layer, arguments.data, arguments.steps)
        best = min(found, key=found.__getitem__)
        own = seriatim.layers.find(layer).learning_rate
        if own not in found:
            found[own] = loss(layer, own, arguments.data, arguments.steps)
        lost[layer] = found[own] - found[best]
        shown = "  ".join(f"{rate:g}: {value:.3f}{'*' if rate == best else ''}" for rate, value in found.items())
        print(f"{layer:15} {shown}   its own {own:g}: {lost[layer]:+.3f}", flush=True)
    mean = sum(lost.values()) / len(lost)
    print(f"\nits own rate costs a layer at most {max(lost.values()):.3f} nats, on average {mean:.3f}")


if __name__ == "__main__":
    main()

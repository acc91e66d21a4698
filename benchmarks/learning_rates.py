"""Which learning rate trains each layer best at each task: where `Stateful.learning_rates` comes from.

    python benchmarks/learning_rates.py [--task classify] [--layer lstm] [--steps 300] [--results rates.jsonl]
        [--data tag=TRAIN,VALID] ...

Every layer learns the same corpora with the same batches at rates a factor of about 3 apart; where the best is the
first or the last of them, one more is tried beyond it. The measure is the lowest held-out loss of a training (in nats),
and the score of a rate is how far this loss lies above that of the best rate, averaged over the corpora of the task.
Printed are the scores of each layer, the best marked, and what the rate that the layer declares costs. Trainings are
counted in steps, so that the load of the machine does not matter.
"""

import argparse
import json
import math
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import seriatim
from seriatim.core.errors import InputError, TrainingError
from seriatim.layers.registry import names
from seriatim.tasks import find_kind
from seriatim.tasks.defaults import rate_of

RATES = (1e-3, 3e-3, 1e-2)
FACTOR = 3
VALIDATIONS = 3
"""Of a training."""
TASKS: dict[str, dict[str, Any]] = {
    "lm": {"tokenizer": {"kind": "bpe", "vocabulary_size": 1000}, "training": {"batch_size": 16}},
    "mlm": {"tokenizer": {"kind": "bpe", "vocabulary_size": 1000}, "training": {"batch_size": 16}},
    "classify": {},
    "tag": {},
    "seq2seq": {"tokenizer": {"kind": "word"}},
}
BUILT_IN = {"lm": "builtin:python-docs", "mlm": "builtin:python-docs", "classify": "builtin:agreement"}
BUILT_IN |= {"seq2seq": "builtin:reversal"}
Measured = dict[tuple[str, str, str, float], float]
"""Task, corpus, layer and rate to the held-out loss."""


def config(task: str, layer: str, rate: float, corpus: str, steps: int, width: int, out: Path) -> dict[str, Any]:
    """The configuration of one training."""
    train, _, valid = corpus.partition(",")
    own = TASKS[task]
    return {
        "task": task,
        "data": {"train": train, "valid": valid or None},
        "tokenizer": own.get("tokenizer", {}),
        "model": {"layer": layer, "embedding_size": width, "hidden_size": width},
        "training": {
            "steps": steps,
            "learning_rate": rate,
            "warmup_steps": steps // 20,
            "evaluate_every": max(1, steps // VALIDATIONS),
            "checkpoint_every": steps,
            "precision": "float32",
            **own.get("training", {}),
        },
        "out": str(out),
    }


def loss(*wanted: Any) -> float:
    """The lowest held-out loss of a training with these arguments of `config`; infinite where it failed."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            seriatim.train(config(*wanted, Path(folder) / "run"))
        except TrainingError:
            return math.inf
        records = map(json.loads, (Path(folder) / "run" / "metrics.jsonl").read_text().splitlines())
        return min(float(record["loss"]) for record in records if record["kind"] == "valid")


def scores(task: str, layer: str, corpora: list[str], measured: Measured) -> dict[float, float]:
    """Each rate that all corpora were measured at, to its mean distance from the best, in nats."""
    rates = sorted({rate for key in measured for rate in key[3:] if key[:3] == (task, corpora[0], layer)})
    found = dict.fromkeys(rates, 0.0)
    for corpus in corpora:
        losses = {rate: measured[task, corpus, layer, rate] for rate in rates}
        for rate in rates:
            found[rate] += (losses[rate] - min(losses.values())) / len(corpora)
    return found


class Sweep:
    """Trains what is not measured yet, and appends it to a file.

    Args:
        results: where the measurements are kept; None for nowhere.
        steps: of each training.
        width: of embeddings and layers.
    """

    def __init__(self, results: Path | None, steps: int, width: int) -> None:
        self.results, self.steps, self.width = results, steps, width
        self.measured: Measured = {}
        if results is not None and results.exists():
            for line in results.read_text().splitlines():
                *key, value = json.loads(line)
                self.measured[tuple(key)] = value  # type: ignore[index]

    def measure(self, task: str, corpora: Iterable[str], layer: str, rate: float) -> None:
        """One rate on every corpus."""
        for corpus in corpora:
            key = (task, corpus, layer, rate)
            if key in self.measured:
                continue
            self.measured[key] = value = loss(task, layer, rate, corpus, self.steps, self.width)
            if self.results is not None:
                with self.results.open("a") as file:
                    file.write(json.dumps([*key, value]) + "\n")

    def layer(self, task: str, corpora: list[str], layer: str) -> dict[float, float]:
        """Rates to scores, from the lowest rate up; the best is neither the first nor the last."""
        own = rate_of(layer, task, find_kind(task).learning_rate)
        for rate in {*RATES, own}:
            self.measure(task, corpora, layer, rate)
        found = scores(task, layer, corpora, self.measured)
        while (best := min(found, key=found.__getitem__)) in (min(found), max(found)):
            beyond = float(f"{best / FACTOR if best == min(found) else best * FACTOR:.0e}")
            self.measure(task, corpora, layer, beyond)
            found = scores(task, layer, corpora, self.measured)
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", action="append", default=[], metavar="TASK=TRAIN[,VALID]")
    parser.add_argument("--task", choices=TASKS, action="append")
    parser.add_argument("--layer", choices=names(), action="append")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--results", type=Path, metavar="FILE", help="measurements, which are not repeated")
    arguments = parser.parse_args()
    corpora: dict[str, list[str]] = {}
    for given in arguments.data:
        task, _, corpus = given.partition("=")
        corpora.setdefault(task, []).append(corpus)
    sweep = Sweep(arguments.results, arguments.steps, arguments.width)
    for task in arguments.task or TASKS:
        wanted = corpora.get(task) or [BUILT_IN[task]] * (task in BUILT_IN)
        if not wanted:
            print(f"{task}: no corpus; give --data {task}=TRAIN,VALID")
            continue
        print(f"{task}: {', '.join(wanted)}")
        costs = []
        for layer in arguments.layer or names():
            try:
                found = sweep.layer(task, wanted, layer)
            except InputError as error:
                print(f"{layer:15} {error}")
                continue
            own, best = rate_of(layer, task, find_kind(task).learning_rate), min(found.values())
            costs.append(found[own])
            shown = "  ".join(f"{rate:g}: {value:.3f}{'*' * (value == best)}" for rate, value in found.items())
            print(f"{layer:15} {shown}   declared {own:g}: {found[own]:+.3f}", flush=True)
        print(f"the declared rate costs at most {max(costs):.3f} nats, on average {sum(costs) / len(costs):.3f}\n")


if __name__ == "__main__":
    main()

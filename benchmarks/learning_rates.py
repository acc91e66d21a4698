"""Which learning rate trains each layer best at each task: where `Stateful.learning_rates` comes from.

Claim: the rate that a layer declares costs at most 0.15 nats beside the best one.

    python benchmarks/learning_rates.py [--task lm] [--layer lstm] [--steps 300] [--width 192] [--keep FILE]
        [--data tag=TRAIN,VALID] ...

Every layer learns the same corpora with the same batches at rates a factor of about 3 apart; where the best is the
first or the last of them, one more is tried beyond it. The measure is the lowest held-out loss of a training (in nats),
and the score of a rate is how far this loss lies above that of the best rate, averaged over the corpora of the task.
Trainings are counted in steps, so that the load of the machine does not matter.
"""

import argparse
import functools
import json
import math
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import record

import seriatim
from seriatim.core.errors import TrainingError
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
        rows = map(json.loads, (Path(folder) / "run" / "metrics.jsonl").read_text().splitlines())
        return min(float(row["loss"]) for row in rows if row["kind"] == "valid")


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
    """Trains what is not kept in a file yet.

    Args:
        keep: where the measurements are kept.
        steps: of each training.
        width: of embeddings and layers.
    """

    def __init__(self, keep: Path, steps: int, width: int) -> None:
        self.keep, self.steps, self.width = keep, steps, width
        self.measured: Measured = {}

    def measure(self, task: str, corpora: Iterable[str], layer: str, rate: float) -> None:
        """One rate on every corpus."""
        for corpus in corpora:
            job = functools.partial(loss, task, layer, rate, corpus, self.steps, self.width)
            one = record.remembered(self.keep, f"{task} {corpus} {layer} {rate:g}", lambda job=job: {"loss": job()})
            self.measured[task, corpus, layer, rate] = one["loss"]

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
    parser.add_argument("--keep", type=Path, help="a file of finished trainings, with which the script goes on")
    arguments = parser.parse_args()
    corpora: dict[str, list[str]] = {}
    for given in arguments.data:
        task, _, corpus = given.partition("=")
        corpora.setdefault(task, []).append(corpus)
    rows = [["task", "layer", "scores by rate (nats above the best)", "its own rate", "costs"]]
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        sweep = Sweep(arguments.keep or Path(folder) / "kept.json", arguments.steps, arguments.width)
        for task in arguments.task or TASKS:
            wanted = corpora.get(task) or [BUILT_IN[task]] * (task in BUILT_IN)
            if not wanted:
                parser.error(f"{task}: no corpus; give --data {task}=TRAIN,VALID")
            for layer in arguments.layer or [name for name in names() if name not in ("prior",)]:  # no weights to learn
                found = sweep.layer(task, wanted, layer)
                own = rate_of(layer, task, find_kind(task).learning_rate)
                figures[f"{task} {layer}"] = found[own]
                shown = ", ".join(f"{rate:g}: {value:.3f}" for rate, value in found.items())
                rows.append([task, layer, shown, f"{own:g}", f"{found[own]:.3f}"])
                print(*rows[-1], sep="  ", flush=True)
    worst = max(figures, key=lambda name: figures[name])
    claim = record.Claim(
        text="the rate that a layer declares costs at most 0.15 nats beside the best one",
        reached=figures[worst] <= 0.15,
        ours=f"at most {figures[worst]:.3f} ({worst})",
    )
    record.save(
        "learning_rates",
        claims=[claim],
        settings={key: value for key, value in vars(arguments).items() if key != "keep"},
        figures={name: record.Figure(cost, cost - 0.03, cost + 0.03) for name, cost in figures.items()},
        tables=[rows],
        notes="""
            `builtin:python-docs`, 1,000 tokens of BPE, 300 steps of 16 × 64 tokens, AdamW with a cosine, one seed, so
            that costs below 0.03 say nothing. Longer trainings prefer lower rates than these.
        """,
    )


if __name__ == "__main__":
    main()

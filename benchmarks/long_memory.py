"""Solve the two classic tests of long memory: the adding problem over 600 steps, and copying over 1,000 steps.

    python benchmarks/long_memory.py adding [--layers gru,mgu,lstm] [--seeds 1,2,3] [--steps 6000] [--keep FILE]
    python benchmarks/long_memory.py copy [--layers convolution] [--seeds 1,2,3] [--steps 6000] [--keep FILE]

Both are those of Bai, Kolter and Koltun 2018 (arXiv:1803.01271), with new inputs at every step. A model is a linear
embedding, one `seriatim.layer` and a linear output, trained with Adam, until the loss on 2,000 inputs that it has not
seen is at most a tenth of the goal, or for the given number of steps.

- adding: the inputs are 600 pairs of a uniform number and a mark; two numbers are marked, one in each half. The answer
  is their sum, and the loss the mean squared error: 1/6, about 0.167, if all answers are 1.
- copy: ten symbols of eight kinds, 1,000 blanks from a start mark on, and ten places where the symbols must be written
  again. The loss is the mean cross-entropy (nats) of all 1,020 places: 10 ln 8 / 1,020 = 0.0204 if they are guessed.
"""

import argparse
import functools
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import record
import torch
from torch import Tensor, nn

import seriatim

KINDS = 8
SIZES = {"adding": 600, "copy": 1000}
GOAL = 1e-4
CHANCE = {"adding": "1/6 if all answers are 1", "copy": "0.0204 if the symbols are guessed"}
PUBLISHED = {
    "adding": {"LSTM": 0.164, "GRU": 5.3e-5, "tanh RNN": 0.177, "TCN": 5.8e-5},
    "copy": {"LSTM": 0.0204, "GRU": 0.0197, "tanh RNN": 0.0202, "TCN": 3.5e-5},
}
SETTINGS: dict[tuple[str, str], dict[str, Any]] = {
    ("adding", "gru"): {"width": 128, "rate": 2e-3, "options": {}},
    ("adding", "mgu"): {"width": 128, "rate": 2e-3, "options": {}},
    ("adding", "lstm"): {"width": 128, "rate": 2e-3, "options": {"forget_bias": 6.0}},
    ("copy", "convolution"): {"width": 24, "rate": 2e-3, "options": {"kernel_size": 8, "depth": 8}},
}
"""The width, the learning rate and the options of each layer, chosen on inputs of other seeds."""


class Model(nn.Module):
    """A layer between two linear maps."""

    def __init__(self, layer: str, inputs: int, outputs: int, width: int, options: dict[str, Any]) -> None:
        super().__init__()
        self.embedding = nn.Linear(inputs, width)
        self.layer = seriatim.layer(layer, width, width, **options)
        self.output = nn.Linear(width, outputs)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.output(self.layer(self.embedding(inputs))[0])


def adding(rows: int, steps: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return inputs ``(rows, steps, 2)`` and sums ``(rows,)``."""
    numbers = torch.rand(rows, steps, generator=generator)
    half = steps // 2
    places = torch.randint(half, (rows, 2), generator=generator) + torch.tensor([0, half])
    marks = torch.zeros(rows, steps).scatter_(1, places, 1.0)
    return torch.stack([numbers, marks], 2), (numbers * marks).sum(1)


def copy(rows: int, steps: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return one-hot inputs ``(rows, steps + 20, 10)`` and symbols to write ``(rows, steps + 20)``; 0 is the blank."""
    symbols = torch.randint(1, KINDS + 1, (rows, 10), generator=generator)
    inputs, answers = torch.zeros(2, rows, steps + 20, dtype=torch.long)
    inputs[:, :10], answers[:, -10:] = symbols, symbols
    inputs[:, -11:] = KINDS + 1  # from here on the symbols are to be written
    return nn.functional.one_hot(inputs, KINDS + 2).float(), answers


def loss_of(task: str, model: nn.Module, inputs: Tensor, answers: Tensor) -> Tensor:
    outputs = model(inputs)
    if task == "adding":
        return nn.functional.mse_loss(outputs[:, -1, 0], answers)
    return nn.functional.cross_entropy(outputs.flatten(0, 1), answers.flatten())


def solve(task: str, layer: str, seed: int, most: int, every: int = 250) -> dict[str, Any]:
    """Train a model; return its loss on unseen inputs, its steps, seconds and parameters."""
    torch.manual_seed(seed)
    setting, make = SETTINGS[task, layer], adding if task == "adding" else copy
    sizes = (2, 1) if task == "adding" else (KINDS + 2, KINDS + 1)
    model = Model(layer, *sizes, setting["width"], setting["options"])
    optimizer = torch.optim.Adam(model.parameters(), lr=setting["rate"])
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, most)
    generator = torch.Generator().manual_seed(seed)
    tests = [make(100, SIZES[task], torch.Generator().manual_seed(10_000 + i)) for i in range(20)]
    begin, found = time.perf_counter(), float("nan")
    for step in range(1, most + 1):
        loss = loss_of(task, model, *make(32, SIZES[task], generator))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % every == 0 or step == most:
            with torch.no_grad():
                found = float(torch.stack([loss_of(task, model, *test) for test in tests]).mean())
            print(
                f"{task} {layer} seed {seed} step {step}: {found:.2e} {time.perf_counter() - begin:.0f} s", flush=True
            )
            if found <= GOAL / 10:
                break
    return {
        "loss": found,
        "steps": step,
        "seconds": round(time.perf_counter() - begin),
        "parameters": sum(one.numel() for one in model.parameters()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=sorted(SIZES))
    parser.add_argument("--layers", help="separated by commas (default: all that have settings)")
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--steps", type=int, default=6000, help="of the optimizer, at most")
    parser.add_argument("--keep", type=Path, help="a file that keeps what each training found")
    arguments = parser.parse_args()
    task = arguments.task
    known = [layer for name, layer in SETTINGS if name == task]
    layers = arguments.layers.split(",") if arguments.layers else known
    if unknown := set(layers) - set(known):
        parser.error(f"no settings for {', '.join(sorted(unknown))}; choose from {', '.join(known)}")
    seeds = [int(seed) for seed in arguments.seeds.split(",")]
    with tempfile.TemporaryDirectory() as temporary:
        keep = arguments.keep or Path(temporary) / "kept.json"

        def run(layer: str, seed: int) -> dict[str, Any]:
            work = functools.partial(solve, task, layer, seed, arguments.steps)
            return record.remembered(keep, f"{task} {layer}, seed {seed}, {arguments.steps} steps", work)

        found = {layer: [run(layer, seed) for seed in seeds] for layer in layers}
    rows = [["model", "loss", "largest loss", "parameters", "steps", "seconds"]]
    rows += [[f"{name} (published)", f"{loss:.2g}", "", "", "", ""] for name, loss in PUBLISHED[task].items()]
    for layer, runs in found.items():
        losses = [run["loss"] for run in runs]
        middle = [statistics.median(run[key] for run in runs) for key in ("parameters", "steps", "seconds")]
        rows.append(
            [f"`{layer}`", f"**{statistics.median(losses):.2g}**", f"{max(losses):.2g}", *map("{:,.0f}".format, middle)]
        )
    medians = sorted(statistics.median(run["loss"] for run in runs) for runs in found.values())
    needed, text = {
        "adding": (2, f"two recurrent layers with a mean squared error of at most {GOAL:g} over 600 steps"),
        "copy": (1, f"one layer with a loss of at most {GOAL:g} over 1,000 steps"),
    }[task]
    theirs = min(loss for name, loss in PUBLISHED[task].items() if name != "TCN")
    claim = record.Claim(
        text=text,
        reached=medians[needed - 1] <= GOAL if len(layers) >= needed else None,
        peer="the best published recurrent network",
        ours=f"{medians[min(needed, len(medians)) - 1]:.2g}",
        theirs=f"{theirs:.2g}",
        ratio=theirs / medians[needed - 1] if len(layers) >= needed else None,
        limit=CHANCE[task],
    )
    settings = {f"{task} {layer}": SETTINGS[task, layer] for layer in layers}
    record.save(
        f"long_memory-{task}",
        claims=[claim],
        settings={"arguments": {**settings, "steps": arguments.steps, "seeds": arguments.seeds}},
        figures={layer: {key: [run[key] for run in runs] for key in runs[0]} for layer, runs in found.items()},
        tables=[rows],
        notes="Published: Bai, Kolter and Koltun 2018. Losses are medians over the seeds, on 2,000 "
        "inputs; a training ends at a tenth of the goal.",
        minutes=sum(run["seconds"] for runs in found.values() for run in runs) / 60,
    )


if __name__ == "__main__":
    main()

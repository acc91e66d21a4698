"""Compare a word-level LSTM with a plain PyTorch loop: perplexity and speed.

Claims: a training step is at least as fast as that of the loop, and the mean perplexity over seeds is within 0.5 % of
that of the loop, or below it.

    python benchmarks/words.py speed --train train.txt --valid valid.txt
    python benchmarks/words.py quality --train train.txt --valid valid.txt [--seeds 3]

The loop is what a user would write: nn.Embedding, nn.LSTM with two layers of 200, a tied nn.Linear, cross-entropy over
all logits of a batch, and SGD with rate 20, divided by 4 when the validation loss does not improve.
"""

import argparse
import itertools
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import machine
import record
import torch
from preparing import Prepared, prepare, trainer_of
from torch import Tensor, nn

from seriatim.config import resolve
from seriatim.data.batches import Batch
from seriatim.training.loop import Trainer

BATCH, LENGTH, SIZE, CLIP, RATE, DROPOUT = 20, 35, 200, 0.25, 20.0, 0.2
STEPS_A_TURN, TURNS = 10, 15
TOKENIZER = {"kind": "word", "min_count": 2}
MODEL = {
    "layer": "lstm",
    "embedding_size": SIZE,
    "hidden_size": SIZE,
    "num_layers": 2,
    "dropout": DROPOUT,
    "tie_weights": True,
}
TRAINING = {
    "batch_size": BATCH,
    "sequence_length": LENGTH,
    "optimizer": "sgd",
    "learning_rate": RATE,
    "schedule": "plateau",
    "anneal": 4.0,
    "clip": CLIP,
}


class Plain(nn.Module):
    """The model of the plain loop."""

    def __init__(self, vocabulary_size: int) -> None:
        super().__init__()
        self.drop = nn.Dropout(DROPOUT)
        self.embedding = nn.Embedding(vocabulary_size, SIZE)
        self.lstm = nn.LSTM(SIZE, SIZE, 2, dropout=DROPOUT, batch_first=True)
        self.output = nn.Linear(SIZE, vocabulary_size)
        nn.init.uniform_(self.embedding.weight, -0.1, 0.1)
        nn.init.zeros_(self.output.bias)
        self.output.weight = self.embedding.weight

    def forward(self, tokens: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        hidden, state = self.lstm(self.drop(self.embedding(tokens)), state)
        return self.output(self.drop(hidden)), state


class Loop:
    """The plain loop over the stream, with its state."""

    def __init__(self, vocabulary_size: int, seed: int = 1) -> None:
        torch.manual_seed(seed)
        self.model, self.rate = Plain(vocabulary_size), RATE
        self.restart()

    def restart(self) -> None:
        self.state = (torch.zeros(2, BATCH, SIZE), torch.zeros(2, BATCH, SIZE))

    def step(self, inputs: Tensor, targets: Tensor) -> None:
        self.model.zero_grad()
        logits, state = self.model(inputs, self.state)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), CLIP)
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.add_(parameter.grad, alpha=-self.rate)
        self.state = tuple(part.detach() for part in state)

    @torch.no_grad()
    def perplexity(self, ids: Tensor) -> float:
        """Return the perplexity of one pass over the whole text, with the state carried along."""
        self.model.eval()
        state, total = (torch.zeros(2, 1, SIZE), torch.zeros(2, 1, SIZE)), 0.0
        inputs = torch.cat([torch.zeros(1, dtype=torch.long), ids[:-1]])
        for x, y in zip(inputs.split(256), ids.split(256), strict=True):
            logits, state = self.model(x.unsqueeze(0), state)
            total += nn.functional.cross_entropy(logits[0], y, reduction="sum").item()
        self.model.train()
        return math.exp(total / len(ids))


def job(arguments: argparse.Namespace, folder: Path, precision: str, seed: int = 1) -> Prepared:
    data = {"train": arguments.train, "valid": arguments.valid}
    training = {**TRAINING, "epochs": arguments.epochs, "precision": precision, "seed": seed}
    config = resolve({"task": "lm", "data": data, "tokenizer": TOKENIZER, "model": MODEL, "training": training})
    torch.manual_seed(seed)
    folder.mkdir(parents=True)
    return prepare(config)


def turn(trainer: Trainer | Loop, windows: Iterator[Batch]) -> Callable[[], None]:
    """Run a fixed number of training steps."""

    def work() -> None:
        for _ in range(STEPS_A_TURN):
            batch = next(windows)
            if isinstance(trainer, Loop):
                trainer.step(batch.inputs, batch.targets)
            else:
                trainer.step([batch])

    return work


def speed(jobs: dict[str, Prepared]) -> None:
    first = jobs["float32"]
    contestants: dict[str, Trainer | Loop] = {"plain loop": Loop(first.settled.vocabulary.tokenizer.vocabulary_size)}
    for name, each in jobs.items():
        trainer = trainer_of(each, Path("unused"))
        trainer.start()
        trainer.model.train()
        trainer.began = time.perf_counter()
        contestants[name] = trainer
    works = {}
    for name, contestant in contestants.items():
        groups = first.batches.shuffled(1, 0)
        windows = itertools.chain.from_iterable(first.batches.read(groups) for _ in itertools.count())
        works[name] = turn(contestant, windows)
        works[name]()
    found = machine.times_in_turn(works, TURNS)
    tokens = STEPS_A_TURN * BATCH * LENGTH
    figures = {name: {"rate": [tokens / one for one in taken]} for name, taken in found.items()}
    rows, claims = [["", "tokens/s", "of the loop's"]], []
    for name, taken in found.items():
        ratios = figures[name]["ratio"] = [a / b for a, b in zip(found["plain loop"], taken, strict=True)]
        shown, ratio = f"{statistics.median(figures[name]['rate']):,.0f}", statistics.median(ratios)
        rows.append([name, shown, f"{ratio:.2f}"])
        if name != "plain loop":
            claims.append(
                record.Claim(
                    text=f"a training step of a language model of words in {name}: at least as fast as a plain loop",
                    reached=ratio >= 1,
                    peer="torch: nn.LSTM, all logits",
                    ours=f"{shown} tokens/s",
                    theirs=f"{rows[1][1]} tokens/s",
                    ratio=ratio,
                )
            )
    save("words", claims, figures, rows)


def save(name: str, claims: list[record.Claim], figures: dict[str, Any], rows: list[list[str]]) -> None:
    record.save(
        name,
        claims=claims,
        settings={"model": MODEL, "training": TRAINING, "tokenizer": TOKENIZER},
        figures=figures,
        tables=[rows],
        peers=["torch"],
        notes="Words of masc-lm that occur at least twice, LSTM 2 × 200 with tied weights, SGD, batch 20 × 35.",
    )


def loop_perplexity(first: Prepared, epochs: int, seed: int) -> float:
    """Train the plain loop and return its lowest perplexity."""
    loop = Loop(first.settled.vocabulary.tokenizer.vocabulary_size, seed)
    ids = torch.from_numpy(first.settled.valid.ids.astype("int64"))
    best = math.inf
    for epoch in range(epochs):
        loop.restart()
        for batch in first.batches.read(first.batches.shuffled(seed, epoch)):
            if batch.lengths is None:
                loop.step(batch.inputs, batch.targets)
        perplexity = loop.perplexity(ids)
        if perplexity >= best:
            loop.rate /= 4
        best = min(best, perplexity)
    return best


def quality(arguments: argparse.Namespace, folder: Path) -> None:
    """Train the loop and ours with each seed, and save the perplexities."""
    found: dict[str, list[float]] = {"plain loop": [], "float32": []}
    for seed in range(1, arguments.seeds + 1):
        each = job(arguments, folder / f"{seed}", "float32", seed)
        found["plain loop"].append(loop_perplexity(each, arguments.epochs, seed))
        trainer = trainer_of(each, folder / f"{seed}")
        trainer.start()
        found["float32"].append(math.exp(trainer.fit().best_valid))
        print(f"seed {seed}: " + ", ".join(f"{name} {values[-1]:.2f}" for name, values in found.items()), flush=True)
    theirs, ours = (statistics.fmean(values) for values in found.values())
    claim = record.Claim(
        text="the perplexity of a language model of words is at most 0.5 % above that of a plain loop",
        reached=ours <= 1.005 * theirs,
        peer="torch: nn.LSTM",
        ours=f"{ours:.2f}",
        theirs=f"{theirs:.2f}",
        ratio=theirs / ours,
    )
    rows = [["", "perplexity, mean", "each seed"]]
    for name, values in found.items():
        rows.append([name, f"{statistics.fmean(values):.2f}", ", ".join(f"{value:.2f}" for value in values)])
    save("words-quality", [claim], found, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("speed", "quality"))
    parser.add_argument("--train", required=True)
    parser.add_argument("--valid", required=True)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if arguments.part == "quality":
            quality(arguments, Path(folder))
        else:
            speed({name: job(arguments, Path(folder) / name, name) for name in ("float32", "bfloat16")})


if __name__ == "__main__":
    main()

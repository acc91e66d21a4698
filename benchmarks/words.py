"""Compare a word-level LSTM with a plain PyTorch loop: perplexity and speed.

Claim: the mean perplexity over seeds is within 0.5 % of that of the loop, or below it; bfloat16 is within 0.3 % of
float32; float32 is at least as fast as the loop, bfloat16 at least 1.6 times as fast.

    python benchmarks/words.py --train train.txt --valid valid.txt [--seeds 3] [--speed-only]

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

import machine
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
    found = machine.in_turn(works, TURNS)
    tokens = STEPS_A_TURN * BATCH * LENGTH
    for name, taken in found.items():
        ratio = found["plain loop"] / taken
        print(f"{name:12} {tokens / taken:8,.0f} tokens/s   {ratio:.2f} times the plain loop", flush=True)


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
    """Print the perplexity of the loop and of both precisions for each seed, and the ratios of the means."""
    rows = []
    for seed in range(1, arguments.seeds + 1):
        jobs = {name: job(arguments, folder / f"{name}-{seed}", name, seed) for name in arguments.precisions.split(",")}
        row = {"plain loop": loop_perplexity(next(iter(jobs.values())), arguments.epochs, seed)}
        for name, each in jobs.items():
            trainer = trainer_of(each, folder / f"{name}-{seed}")
            trainer.start()
            row[name] = math.exp(trainer.fit().best_valid)
        rows.append(row)
        print(f"seed {seed}: " + ", ".join(f"{name} {value:.2f}" for name, value in row.items()), flush=True)
    means = {name: statistics.fmean(row[name] for row in rows) for name in rows[0]}
    for name, mean in means.items():
        print(f"{name:12} mean perplexity {mean:.2f}, {mean / means['plain loop']:.4f} of the loop's", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--train", required=True)
    parser.add_argument("--valid", required=True)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--precisions", default="float32,bfloat16")
    parser.add_argument("--speed-only", action="store_true")
    parser.add_argument("--quality-only", action="store_true")
    arguments = parser.parse_args()
    print(machine.describe())
    with tempfile.TemporaryDirectory() as folder:
        jobs = {name: job(arguments, Path(folder) / name, name) for name in ("float32", "bfloat16")}
        print(f"{jobs['float32'].vocabulary.tokenizer.vocabulary_size:,} words, batch {BATCH} × {LENGTH}")
        if not arguments.speed_only:
            quality(arguments, Path(folder))
        if not arguments.quality_only:
            speed(jobs)


if __name__ == "__main__":
    main()

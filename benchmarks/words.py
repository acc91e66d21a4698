"""Compare the training of a word-level LSTM with a plain PyTorch loop.

    python benchmarks/words.py --train train.txt --valid valid.txt

Claims: a training step is at least as fast as that of the loop, in float32 and in bfloat16.

The loop is what a user would write: nn.Embedding, nn.LSTM with two layers of 200, a tied nn.Linear, cross-entropy over
all logits of a batch, and SGD with rate 20, divided by 4 when the validation loss does not improve.
"""

import argparse
import itertools
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

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

    def __init__(self, vocabulary_size: int) -> None:
        torch.manual_seed(1)
        self.model, self.rate = Plain(vocabulary_size), RATE
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


def job(arguments: argparse.Namespace, folder: Path, precision: str) -> Prepared:
    data = {"train": arguments.train, "valid": arguments.valid}
    training = {**TRAINING, "epochs": 1, "precision": precision, "seed": 1}
    config = resolve({"task": "lm", "data": data, "tokenizer": TOKENIZER, "model": MODEL, "training": training})
    torch.manual_seed(1)
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
    record.save(
        "words",
        claims=claims,
        settings={"model": MODEL, "training": TRAINING, "tokenizer": TOKENIZER},
        figures=figures,
        tables=[rows],
        peers=["torch"],
        notes="Words of masc-lm that occur at least twice, LSTM 2 × 200 with tied weights, SGD, batch 20 × 35.",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", required=True)
    parser.add_argument("--valid", required=True)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        speed({name: job(arguments, Path(folder) / name, name) for name in ("float32", "bfloat16")})


if __name__ == "__main__":
    main()

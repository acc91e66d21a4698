"""Compare the training speed of a recurrent translator with a plain PyTorch loop of the same sizes.

    python benchmarks/recurrent_translation.py --source train.en --target train.de

The model is a BiLSTM of 256 in each direction and an LSTM of 512 with Luong's attention (bilinear score) and input
feeding, embedding 256, one vocabulary of 8,000 byte pairs, batch 64, Adam, clip 1, no dropout. The loop is what a user
would write: packed nn.LSTM, nn.LSTMCell step by step, and cross-entropy over all logits. The figures are target tokens
per second, in turn in one run.

Claim: at least 1.5 times as fast as the loop.
"""

import argparse
import functools
import itertools
import statistics
from typing import Any

import machine
import record
import torch
from preparing import prepare
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from seriatim.config import resolve
from seriatim.tasks.task import Task
from seriatim.training.hardware import freed_memory_kept

VOCABULARY, EMBEDDING, HIDDEN, BATCH = 8_000, 256, 512, 64
STEPS_A_TURN, TURNS = 10, 7


class Plain(nn.Module):
    """The translator of the plain loop."""

    def __init__(self) -> None:
        super().__init__()
        self.source = self.target = nn.Embedding(VOCABULARY, EMBEDDING)
        self.encoder = nn.LSTM(EMBEDDING, HIDDEN // 2, batch_first=True, bidirectional=True)
        self.cell = nn.LSTMCell(EMBEDDING + HIDDEN, HIDDEN)
        self.first = nn.Linear(HIDDEN, 2 * HIDDEN)
        self.score = nn.Linear(HIDDEN, HIDDEN, bias=False)
        self.readout = nn.Linear(2 * HIDDEN, HIDDEN, bias=False)
        self.output = nn.Linear(HIDDEN, VOCABULARY)

    def forward(self, source: Tensor, lengths: Tensor, inputs: Tensor) -> Tensor:
        """Return logits ``(batch, time, vocabulary)``."""
        packed = pack_padded_sequence(self.source(source), lengths, batch_first=True, enforce_sorted=False)
        memory, (last, _) = self.encoder(packed)
        memory, _ = pad_packed_sequence(memory, batch_first=True)
        hidden, cell = torch.tanh(self.first(torch.cat([last[0], last[1]], 1))).chunk(2, dim=1)
        keys = self.score(memory)
        hides = torch.arange(memory.shape[1]) >= lengths.unsqueeze(1)
        fed, outputs = torch.zeros_like(hidden), []
        for x in self.target(inputs).unbind(1):
            hidden, cell = self.cell(torch.cat([x, fed], 1), (hidden, cell))
            scores = (keys @ hidden.unsqueeze(2)).squeeze(2).masked_fill(hides, -torch.inf)
            context = (torch.softmax(scores, 1).unsqueeze(1) @ memory).squeeze(1)
            fed = torch.tanh(self.readout(torch.cat([context, hidden], 1)))
            outputs.append(fed)
        logits: Tensor = self.output(torch.stack(outputs, 1))
        return logits

    def loss(self, batch: Any) -> Tensor:
        """Return the loss, summed over valid targets."""
        logits = self(batch.source, batch.source_lengths, batch.inputs)
        valid = torch.arange(batch.targets.shape[1]) < batch.target_lengths.unsqueeze(1)
        return F.cross_entropy(logits[valid], batch.targets[valid], reduction="sum")


class Steps:
    """Optimizer steps over the same batches, repeatedly."""

    def __init__(self, model: nn.Module, loss: Any, batches: list[Any]) -> None:
        self.model, self.loss, self.batches = model.train(), loss, itertools.cycle(batches)
        self.optimizer = torch.optim.Adam(model.parameters(), fused=True)

    def __call__(self) -> None:
        for batch in itertools.islice(self.batches, STEPS_A_TURN):
            self.optimizer.zero_grad(set_to_none=True)
            (self.loss(batch) / int(batch.target_lengths.sum())).backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()


def loss(task: Task, model: nn.Module, batch: Any) -> Tensor:
    """Return the loss of one of our models."""
    total: Tensor = task.objective.loss(model, batch, None)[0]
    return total


def config(train: str, *, input_feeding: bool) -> dict[str, Any]:
    return {
        "task": "seq2seq",
        "data": {"train": train},
        "tokenizer": {"kind": "bpe", "vocabulary_size": VOCABULARY},
        "model": {
            "layer": "lstm",
            "embedding_size": EMBEDDING,
            "hidden_size": HIDDEN,
            "options": {"attention": "bilinear", "input_feeding": input_feeding, "shared_vocabulary": True},
        },
        "training": {"batch_size": BATCH},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", required=True)
    parser.add_argument("--target", required=True)
    arguments = parser.parse_args()
    torch.manual_seed(1)
    with freed_memory_kept():
        jobs = {}
        for feeding in (True, False):
            job = prepare(resolve(config(f"{arguments.source},{arguments.target}", input_feeding=feeding)))
            jobs[feeding] = job.task, job
        every = jobs[True][1].batches
        batches = list(itertools.islice(every.read(every.shuffled(1, 0)), STEPS_A_TURN))
        plain = Plain()
        works = {"plain loop": Steps(plain, plain.loss, batches)}
        for feeding, (task, job) in jobs.items():
            name = "ours" if feeding else "ours, without input feeding"
            works[name] = Steps(job.model, functools.partial(loss, task, job.model), batches)
        for work in works.values():
            work()
        tokens = sum(int(batch.target_lengths.sum()) for batch in batches)
        found = machine.times_in_turn(works, TURNS)
    rates = {name: [tokens / one for one in seconds] for name, seconds in found.items()}
    rates["ratio"] = [a / b for a, b in zip(found["plain loop"], found["ours"], strict=True)]
    median = {name: statistics.median(each) for name, each in rates.items()}
    claim = record.Claim(
        text="training a recurrent translator with input feeding: at least 1.5 times as fast as a plain loop",
        reached=median["ratio"] >= 1.5,
        peer="torch: nn.LSTM, nn.LSTMCell",
        ours=f"{median['ours']:,.0f} tokens/s",
        theirs=f"{median['plain loop']:,.0f} tokens/s",
        ratio=median["ratio"],
    )
    record.save(
        "recurrent_translation",
        claims=[claim],
        settings={"embedding": EMBEDDING, "hidden": HIDDEN, "vocabulary": VOCABULARY, "batch": BATCH, "turns": TURNS},
        figures=rates,
        tables=[[["", "target tokens/s"], *([name, f"{median[name]:,.0f}"] for name in works)]],
        peers=["torch"],
        notes="BiLSTM 256, LSTM 512, bilinear attention, input feeding, 8,000 byte pairs; medians of turns.",
    )


if __name__ == "__main__":
    main()

"""Compare a training step of a tiny encoder-decoder with a plain PyTorch loop of the same equations.

    python benchmarks/tiny.py --data pairs.tsv [--width 32] [--batch 8]

Both have embeddings, a GRU that reads the source, a GRU that starts from its last state, and logits; Adam, clip 1. The
plain loop packs the sources (`pack_padded_sequence`), since the states after padding would be others. The figures are
milliseconds per step, in turn in one run, on one thread. Claim: no slower.
"""

import argparse
import itertools
import statistics
from collections.abc import Callable

import machine
import record
import torch
from preparing import prepare
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence

from seriatim.config import resolve
from seriatim.data.pairs import PairBatch

STEPS, TURNS = 60, 9
PLAIN = {
    "attention": "none", "copying": False, "hallucination": 0.0, "shared_vocabulary": False, "context": "initial",
    "bridge": "copy", "label_smoothing": 0.0,
}  # fmt: skip


class Loop(nn.Module):
    """What a user would write."""

    def __init__(self, sources: int, targets: int, width: int) -> None:
        super().__init__()
        self.sources, self.targets = nn.Embedding(sources, width), nn.Embedding(targets, width)
        self.encoder, self.decoder = (nn.GRU(width, width, batch_first=True) for _ in range(2))
        self.output = nn.Linear(width, targets)

    def forward(self, batch: PairBatch) -> Tensor:
        """Return the summed loss."""
        packed = pack_padded_sequence(
            self.sources(batch.source), batch.source_lengths, batch_first=True, enforce_sorted=False
        )
        hidden, _ = self.decoder(self.targets(batch.inputs), self.encoder(packed)[1])
        logits, valid = self.output(hidden), torch.arange(batch.inputs.shape[1]) < batch.target_lengths.unsqueeze(1)
        return F.cross_entropy(logits[valid], batch.targets[valid], reduction="sum")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--batch", type=int, default=8)
    args = parser.parse_args()
    torch.set_num_threads(1)
    model = {"layer": "gru", "hidden_size": args.width, "embedding_size": args.width, "bidirectional": False}
    config = {"task": "seq2seq", "data": {"train": args.data}, "training": {"batch_size": args.batch, "steps": 1}}
    job = prepare(resolve({**config, "model": {**model, "dropout": 0.0, "options": PLAIN}}))
    batches = list(itertools.islice(job.batches.read(job.batches.shuffled(1, 0)), STEPS))
    ours = job.model.train()
    loop = Loop(ours.source_embedding.num_embeddings, ours.target_vocabulary, args.width)

    def steps(model: nn.Module, loss: Callable[[PairBatch], Tensor]) -> Callable[[], None]:
        optimizer = torch.optim.Adam(model.parameters())

        def train() -> None:
            for batch in batches:
                optimizer.zero_grad()
                loss(batch).backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()

        return train

    works = {
        "plain loop": steps(loop, loop),
        "ours": steps(ours, lambda batch: job.task.objective.loss(ours, batch, None)[0]),
    }
    for work in works.values():
        work()
    found = machine.times_in_turn(works, TURNS)
    figures = {name: [1000 * one / len(batches) for one in seconds] for name, seconds in found.items()}
    figures["ratio"] = [a / b for a, b in zip(found["plain loop"], found["ours"], strict=True)]
    median = {name: statistics.median(each) for name, each in figures.items()}
    claim = record.Claim(
        text="a training step of a tiny encoder-decoder is no slower than a plain loop of the same equations",
        reached=median["ratio"] >= 1,
        peer="torch: nn.GRU",
        ours=f"{median['ours']:.2f} ms",
        theirs=f"{median['plain loop']:.2f} ms",
        ratio=median["ratio"],
    )
    record.save(
        "tiny",
        claims=[claim],
        settings=vars(args),
        figures=figures,
        tables=[[["", "ms a step"], *([name, f"{median[name]:.2f}"] for name in works)]],
        peers=["torch"],
        notes="Two GRUs of width 32, batch 8, one thread; medians of turns.",
    )


if __name__ == "__main__":
    main()

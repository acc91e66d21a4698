"""Measure the memory of training with a vocabulary of 200,000.

Claim: an optimizer step with batch 20 × 35 needs less than 2.5 GB in total.

    python benchmarks/large_vocabulary.py

Our loss and plain PyTorch cross-entropy over all logits run in separate processes. The figures are their peak memory
and seconds.
"""

import argparse
import resource
import subprocess
import sys
import time

import record
import torch
from torch.nn import functional as F

import seriatim.core.state
from seriatim.models import LanguageModel

VOCABULARY, SIZE, BATCH, LENGTH, STEPS = 200_000, 200, 20, 35, 5


def train(way: str) -> None:
    torch.manual_seed(0)
    model = LanguageModel(seriatim.layer("lstm", SIZE, SIZE, num_layers=2), VOCABULARY, tie_weights=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    state, start = None, 0.0
    for step in range(STEPS + 1):
        if step == 1:
            start = time.perf_counter()
        tokens = torch.randint(0, VOCABULARY, (BATCH, LENGTH + 1))
        optimizer.zero_grad(set_to_none=True)
        if way == "ours":
            loss, state = model.loss(tokens[:, :-1], tokens[:, 1:], state)
            loss = loss / (BATCH * LENGTH)
        else:
            logits, state = model(tokens[:, :-1], state)
            loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        state = seriatim.core.state.detach_state(state)
    taken = (time.perf_counter() - start) / STEPS
    print(f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6:.3f} {taken:.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--way", choices=("ours", "plain"))
    arguments = parser.parse_args()
    if arguments.way:
        train(arguments.way)
        return
    found = {}
    for way in ("ours", "plain"):
        done = subprocess.run([sys.executable, __file__, "--way", way], capture_output=True, text=True, check=True)
        found[way] = dict(zip(("peak", "seconds"), map(float, done.stdout.split()), strict=True))
    ours, plain = (found[way]["peak"] for way in found)
    labels = {"ours": "ours", "plain": "cross-entropy over all logits"}
    rows = [[labels[way], f"{one['peak']:.2f} GB", f"{one['seconds']:.2f} s"] for way, one in found.items()]
    claim = record.Claim(
        text="an optimizer step with a vocabulary of 200,000 needs less than 2.5 GB",
        reached=ours < 2.5,
        peer="cross-entropy over all logits",
        ours=f"{ours:.2f} GB",
        theirs=f"{plain:.2f} GB",
        ratio=plain / ours,
    )
    record.save(
        "large_vocabulary",
        claims=[claim],
        settings={"vocabulary": VOCABULARY, "size": SIZE, "batch": BATCH, "length": LENGTH, "steps": STEPS},
        figures={
            way: {key: record.Figure(v, 0.9 * v, 1.1 * v) for key, v in one.items()} for way, one in found.items()
        },
        tables=[[["", "peak of the process", "a step"], *rows]],
        peers=["torch"],
        notes="LSTM 2 × 200 with tied weights, batch 20 × 35. The ranges are 10 %, as each way runs once.",
    )


if __name__ == "__main__":
    main()

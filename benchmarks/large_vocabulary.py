"""Measure the memory of training with a vocabulary of 200,000.

Claim: an optimizer step with batch 20 × 35 needs less than 2.5 GB in total.

    python benchmarks/large_vocabulary.py

Our loss and plain PyTorch cross-entropy over all logits run in separate processes. Each prints its peak memory.
"""

import argparse
import resource
import subprocess
import sys
import time

import machine
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
    print(machine.describe())
    peaks = {}
    for way in ("ours", "plain"):
        done = subprocess.run([sys.executable, __file__, "--way", way], capture_output=True, text=True, check=True)
        peak, taken = map(float, done.stdout.split())
        peaks[way] = peak
        print(f"{way:6} peak {peak:.2f} GB   {taken:.2f} s a step", flush=True)
    print(f"ours {peaks['ours'] / peaks['plain']:.2f} of plain cross-entropy's peak; the claim is 2.5 GB")


if __name__ == "__main__":
    main()

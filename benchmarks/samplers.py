"""Measure the microseconds that a token costs beside the model, for each setting of sampling.

    python benchmarks/samplers.py [--sizes 10000 50257 500000] [--spread 3] [--repeats 15] [--threads 1]
                                  [--ngram-words 500000]

Logits are normally distributed with the standard deviation ``--spread``. "reference" draws from
`Sampling.distribution`, which makes several passes over the vocabulary in float64, as the library did at first;
"now" is what generated text is drawn with. Both take turns, so that other load on the machine affects them equally.
The script prints medians and the ratio of the two. With --ngram-words it also trains an n-gram model on random text of
that many words, and prints the microseconds per generated token, model included, without and with settings.
"""

import argparse
import itertools
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import seriatim
from seriatim.decoding.sampling import draw_from_logits
from seriatim.decoding.token_draws import Penalties, Sampling

SETTINGS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.0},
    {"temperature": 0.8},
    {"top_k": 40},
    {"top_p": 0.9},
    {"min_p": 0.05},
    {"typical": 0.9},
    {"top_k": 40, "top_p": 0.9, "min_p": 0.05, "temperature": 0.8},
    {"repetition_penalty": 1.2},
    {"frequency_penalty": 0.5, "presence_penalty": 0.5},
]
NO_TOKENS = torch.tensor([], dtype=torch.long)
NETWORK = torch.nn.Identity()  # any model whose logits are no log probabilities
READ = 1000
"""Tokens of the text so far, for the penalties."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="*", default=[10_000, 50_257, 500_000])
    parser.add_argument("--spread", type=float, default=3.0)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--ngram-words", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    print(f"{'vocabulary':>10}  {'setting':62} {'reference':>10} {'now':>8} {'ratio':>7}")
    for size in arguments.sizes:
        torch.manual_seed(0)
        logits = arguments.spread * torch.randn(1, size)
        for settings in SETTINGS:
            slow, fast = beside(*draws(Sampling(**settings), logits), arguments.repeats)
            name = ", ".join(f"{key} {value}" for key, value in settings.items()) or "none"
            print(f"{size:10,}  {name:62} {slow:10,.0f} {fast:8,.0f} {slow / fast:6.1f}×", flush=True)
    if arguments.ngram_words:
        ngram(arguments.ngram_words)


def draws(sampling: Sampling, logits: torch.Tensor) -> tuple[Callable[[], object], Callable[[], object]]:
    """Return functions that draw one token: from the reference, and as generated text is drawn."""
    read = torch.randint(0, logits.shape[1], (READ,)).tolist()
    penalties = Penalties(sampling, {}, read, logits.device)
    for token in read:
        penalties.add(token)

    def slow() -> object:
        probabilities = sampling.distribution(penalties.apply(logits))
        cumulative = probabilities.cumsum(1)
        point = torch.rand(1, 1, dtype=torch.float64) * cumulative[:, -1:]
        last = logits.shape[1] - 1 - (probabilities.flip(1) > 0).long().argmax(1, keepdim=True)
        return torch.minimum(torch.searchsorted(cumulative, point, right=True), last)

    def fast() -> object:
        uniform = torch.rand(1, dtype=torch.float64)
        return draw_from_logits(NETWORK, sampling, penalties.apply(logits), NO_TOKENS, uniform)

    return slow, fast


@torch.inference_mode()
def beside(first: Callable[[], object], second: Callable[[], object], repeats: int) -> tuple[float, float]:
    """Return the median microseconds of two functions that take turns, after one call that is not counted."""
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(repeats + 1):
        for function, durations in zip((first, second), times, strict=True):
            for _ in range(2):  # the memory that the other function left is not counted
                function()
            before = time.perf_counter()
            function()
            durations.append(1e6 * (time.perf_counter() - before))
    return statistics.median(times[0][1:]), statistics.median(times[1][1:])


def ngram(words: int) -> None:
    """Print the microseconds per generated token of a trigram model of so many words."""
    chance = random.Random(0)
    names = [f"w{i}" for i in range(words + 1)]
    rare = names.copy()
    chance.shuffle(rare)
    common = [names[int(words ** chance.random())] for _ in range(2 * words)]  # Zipf's law
    text = list(itertools.chain(rare, common))
    chance.shuffle(text)
    with tempfile.TemporaryDirectory() as temporary:
        path = Path(temporary) / "text.txt"
        path.write_text("\n".join(" ".join(text[i : i + 12]) for i in range(0, len(text), 12)) + "\n")
        config = {"data": {"train": str(path)}, "tokenizer": {"kind": "word"}, "out": f"{temporary}/run"}
        run = seriatim.train({**config, "model": {"layer": "ngram", "options": {"order": 3}}})
        size = run.tokenizer.vocabulary_size
        for settings in SETTINGS:
            pieces = run.generate(max_tokens=100_000, seed=1, **settings)
            next(pieces)
            times = []
            for _ in range(200):
                before = time.perf_counter()
                next(pieces)
                times.append(1e6 * (time.perf_counter() - before))
            name = ", ".join(f"{key} {value}" for key, value in settings.items()) or "none"
            print(f"n-gram of {size:,} words, {name}: {statistics.median(times):,.0f} µs per token", flush=True)


if __name__ == "__main__":
    main()

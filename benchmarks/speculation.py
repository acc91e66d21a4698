"""Measure how much faster a language model writes with drafts: plain and speculative decoding in turns.

Claim: drafts make decoding faster.

    python benchmarks/speculation.py --data train.txt [--run runs/book] [--draft runs/ngram] [--minutes 1]

Without `--run`, a small model is trained on the data. Without `--draft`, so is an n-gram model with its tokenizer.
Each turn writes one text after a prompt from the data, with every kind of draft, at temperature 0 and 0.8. The figures
are the tokens of a pass of the model, the milliseconds of a token, and the speed relative to plain decoding: the median
over the turns of the ratio of two neighbouring measurements, so that other load affects both equally.

After a rejection, the accepted tokens are read again with the next draft. Two other ways were slower: to read them in a
pass of their own, and to run a batch with a row for each number of accepted tokens.
"""

import argparse
import itertools
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import record
import torch

import seriatim
from seriatim.data.sources import find_sources
from seriatim.data.text import read_lines
from seriatim.decoding.sampling import Sampling, read, sample
from seriatim.decoding.speculative import Draft, Generated, PromptLookup, draft_with, speculate

TEMPERATURES = (0.0, 0.8)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="a text; its lines are also the prompts")
    parser.add_argument("--run", help="a language model that is trained already; its tokenizer is used")
    parser.add_argument("--draft", help="an n-gram model with the same tokenizer")
    parser.add_argument("--layer", default="transformer")
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--kind", default="word", help="of the tokenizer, for a model that is trained here")
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--tokens", type=int, default=100)
    parser.add_argument("--prompt-lines", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        run = seriatim.load(options.run) if options.run else train(folder / "model", options)
        ngram = seriatim.load(options.draft) if options.draft else train_ngram(folder / "ngram", options, run)
        compare_drafts(run, ngram, options)


def train(out: Path, options: argparse.Namespace) -> seriatim.Run:
    model = {"layer": options.layer, "embedding_size": options.hidden, "hidden_size": options.hidden}
    tokenizer = {"kind": options.kind, "vocabulary_size": 10_000 if options.kind == "word" else None}
    training = {"minutes": options.minutes}
    data = {"train": options.data}
    return seriatim.train({"data": data, "tokenizer": tokenizer, "model": model, "training": training, "out": str(out)})


def train_ngram(out: Path, options: argparse.Namespace, run: seriatim.Run) -> seriatim.Run:
    """Return an n-gram model with the tokenizer of the run."""
    config = run.config.model_dump()
    model = {"layer": "ngram", "options": {"order": 5 if run.tokenizer.kind != "char" else 12}}
    data = {**config["data"], "train": options.data, "valid": None}
    return seriatim.train({"data": data, "tokenizer": config["tokenizer"], "model": model, "out": str(out)})


def compare_drafts(run: seriatim.Run, ngram: seriatim.Run, options: argparse.Namespace) -> None:
    if ngram.vocabulary.fingerprint() != run.vocabulary.fingerprint():
        raise SystemExit("the n-gram model has another vocabulary than the run; give the training text of the run")
    lines = list(read_lines(find_sources(options.data, split="test")))
    size = options.prompt_lines
    starts = [i * (len(lines) - size) // options.turns for i in range(options.turns)]
    prompts = [run.tokenizer.encode("\n".join(lines[start : start + size])).tolist() for start in starts]
    drafts: dict[str, Callable[[], Draft]] = {"lookup": PromptLookup, "ngram": lambda: draft_with(ngram.model)}
    rows = [["temperature", "draft", "tokens a pass", "ms a token, plain", "with drafts", "times as fast"]]
    figures = {}
    for temperature, (name, make) in itertools.product(TEMPERATURES, drafts.items()):
        sampling = Sampling(temperature)
        turns = [turn(run, prompt, sampling, make, options.tokens, seed) for seed, prompt in enumerate(prompts)]
        columns = dict(zip(("accepted", "plain", "drafted", "ratio"), map(list, zip(*turns, strict=True)), strict=True))
        figures[f"{name} at {temperature:g}"] = columns
        rows.append([f"{temperature:g}", name, *(f"{statistics.median(column):.2f}" for column in columns.values())])
        print(*rows[-1], sep="  ", flush=True)
    best = max(figures.values(), key=lambda one: statistics.median(one["ratio"]))
    claim = record.Claim(
        text="drafts make a Transformer of width 256 write faster",
        reached=statistics.median(best["ratio"]) > 1,
        peer="our own plain decoding",
        ours=f"{statistics.median(best['drafted']):.2f} ms a token",
        theirs=f"{statistics.median(best['plain']):.2f} ms",
        ratio=statistics.median(best["ratio"]),
    )
    record.save(
        "speculation",
        claims=[claim],
        settings={"model": record.plain(run), "ngram": record.plain(ngram), "arguments": vars(options)},
        figures=figures,
        tables=[rows],
        notes="A step is one call of compiled code and a pass over several tokens is not: a small model gains nothing.",
    )


def turn(
    run: seriatim.Run, prompt: list[int], sampling: Sampling, make: Callable[[], Draft], count: int, seed: int
) -> tuple[float, float, float, float]:
    """Return tokens a pass, and milliseconds a token without and with a draft, and their ratio."""
    model = run.answering
    tokens = [0, *prompt]
    start = read(model, torch.tensor([tokens], device=run.device), model.initial_state(1))
    draft = make()
    draft.append(tokens)
    began = time.perf_counter()
    plain = sum(1 for _ in sample(model, *start, sampling, max_tokens=count, seeds=[seed]))
    between = time.perf_counter()
    drawn = list(speculate(model, *start, sampling, draft, max_tokens=count, seed=seed))
    ended = time.perf_counter()
    passes = sum(1 for before, after in itertools.pairwise(drawn) if starts_pass(before, after)) + 1
    before, after = 1e3 * (between - began) / plain, 1e3 * (ended - between) / len(drawn)
    return len(drawn) / passes, before, after, before / after


def starts_pass(before: Generated, after: Generated) -> bool:
    """Whether two neighbouring tokens come from different passes: logits of one pass share their memory."""
    return before.logits.untyped_storage().data_ptr() != after.logits.untyped_storage().data_ptr()


if __name__ == "__main__":
    main()

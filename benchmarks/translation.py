"""Train encoder-decoders for translation, with and without attention.

    python benchmarks/translation.py --folder multi30k/tok [--model transformer]

The data is Multi30k, English to German, lower case, normalized and tokenized as published, with one vocabulary of 8,000
byte pairs for both sides. The script prints BLEU and chrF of the 2016 test with intervals (greedy and beam 5), the
held-out loss, parameters, and target tokens per second in training and in decoding.
"""

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import seriatim

KEYS = ("bleu", "chrf")
SHARED = {"shared_vocabulary": True, "label_smoothing": 0.1}
BLOCK = {"num_heads": 4, "norm": "layer", "feed_forward": "relu", "feed_forward_size": 256, "bias": True}
MODELS: dict[str, dict[str, Any]] = {
    "transformer": {
        "layer": "transformer",
        "embedding_size": 128,
        "hidden_size": 128,
        "num_layers": 4,
        "dropout": 0.2,
        "tie_weights": True,
        "options": {**SHARED, **BLOCK, "position": "sinusoidal"},
    },
    "attention": {
        "layer": "lstm",
        "embedding_size": 256,
        "hidden_size": 256,
        "dropout": 0.35,
        "tie_weights": True,
        "options": {**SHARED, "attention": "bilinear"},
    },
    "no attention": {
        "layer": "lstm",
        "embedding_size": 256,
        "hidden_size": 256,
        "dropout": 0.35,
        "options": {**SHARED, "attention": "none", "context": "initial+updates+outputs"},
    },
}
TRAINING: dict[str, dict[str, Any]] = {
    "transformer": {"epochs": 30, "learning_rate": 0.003, "warmup_steps": 800},
    "attention": {"epochs": 22, "learning_rate": 0.0015, "warmup_steps": 500},
    "no attention": {"epochs": 16, "learning_rate": 0.0015, "warmup_steps": 500},
}


def pairs(folder: Path, part: str) -> str:
    return f"{folder}/{part}.lc.norm.tok.en,{folder}/{part}.lc.norm.tok.de"


def config(name: str, folder: Path, out: Path, seed: int) -> dict[str, Any]:
    return {
        "task": "seq2seq",
        "data": {"train": pairs(folder, "train"), "valid": pairs(folder, "val")},
        "tokenizer": {"kind": "bpe", "vocabulary_size": 8000},
        "model": MODELS[name],
        "training": {"batch_size": 64, "seed": seed, **TRAINING[name]},
        "out": str(out),
    }


def decoded(run: seriatim.Run, test: str, beam: int, penalty: float) -> str:
    """Return the figures of the answers and the speed of decoding: answer tokens per second, with end symbols."""
    found = run.evaluate(test, beam=beam, length_penalty=penalty)
    sources = Path(test.split(",")[0]).read_text(encoding="utf-8").splitlines()
    started = time.perf_counter()
    answers = list(run.predict(sources, beam=beam, length_penalty=penalty))
    seconds = time.perf_counter() - started
    tokens = sum(len(run.vocabulary.target.encode(answer)) + 1 for answer in answers)
    spans = (f"{key} {found[key]:.2f} ({found[f'{key}_low']:.2f} to {found[f'{key}_high']:.2f})" for key in KEYS)
    return f"  beam {beam}: {', '.join(spans)}; {tokens / seconds:,.0f} target tokens/s"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--model", choices=MODELS, action="append")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="a folder for the runs")
    arguments = parser.parse_args()
    test = pairs(arguments.folder, "test_2016_flickr")
    with tempfile.TemporaryDirectory() as temporary:
        for name in arguments.model or MODELS:
            out = (arguments.keep or Path(temporary)) / name.replace(" ", "-")
            run = seriatim.train(config(name, arguments.folder, out, arguments.seed))
            summary = run.summary
            speed = f"{summary['tokens_per_second']:,.0f} target tokens/s"
            work = f"{summary['parameters']:,} parameters, {summary['epochs']} epochs, {summary['seconds']:.0f} s"
            print(f"{name}: {work}, {speed}, held-out loss {summary['best_valid']:.4f}")
            for beam, penalty in ((1, 0.0), (5, 1.0)):
                print(decoded(run, test, beam, penalty), flush=True)


if __name__ == "__main__":
    main()

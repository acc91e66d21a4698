"""Translation by encoder-decoders with and without attention, each within a budget of time.

    python benchmarks/translation.py --folder multi30k/tok [--model transformer] [--minutes 55]

Multi30k, English to German, lower case, normalised and tokenised as published; one vocabulary of 8,000 byte pairs for
both sides. Prints BLEU and chrF of the 2016 test with intervals (greedy and beam 5), the held-out loss, parameters,
target tokens a second in training and sentences a second in decoding.
"""

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import seriatim

NAMES = ("train", "val", "test_2016_flickr")
RECURRENT = {"layer": "lstm", "embedding_size": 256, "hidden_size": 512, "dropout": 0.3}
MODELS: dict[str, dict[str, Any]] = {
    "transformer": {
        "layer": "transformer",
        "embedding_size": 128,
        "hidden_size": 128,
        "num_layers": 4,
        "dropout": 0.1,
        "tie_weights": True,
        "options": {"label_smoothing": 0.1, "num_heads": 4, "position": "sinusoidal"},
    },
    "attention": {**RECURRENT, "options": {"attention": "bilinear", "input_feeding": True, "label_smoothing": 0.1}},
    "no attention": {**RECURRENT, "options": {"attention": "none", "context": "initial+updates+outputs"}},
}
RATES = {"transformer": 0.003, "attention": 0.001, "no attention": 0.001}


def config(name: str, folder: Path, out: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    train, valid, _ = (f"{folder}/{part}.lc.norm.tok.en,{folder}/{part}.lc.norm.tok.de" for part in NAMES)
    model = dict(MODELS[name])
    model["options"] = {"shared_vocabulary": True, **model["options"]}
    return {
        "task": "seq2seq",
        "data": {"train": train, "valid": valid},
        "tokenizer": {"kind": "bpe", "vocabulary_size": 8000},
        "model": model,
        "training": {
            "minutes": arguments.minutes,
            "batch_size": 64,
            "learning_rate": RATES[name],
            "warmup_steps": 500,
            "seed": arguments.seed,
        },
        "out": str(out),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--model", choices=MODELS, action="append")
    parser.add_argument("--minutes", type=float, default=55)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="a folder for the runs")
    arguments = parser.parse_args()
    test = f"{arguments.folder}/{NAMES[2]}.lc.norm.tok.en,{arguments.folder}/{NAMES[2]}.lc.norm.tok.de"
    with tempfile.TemporaryDirectory() as temporary:
        for name in arguments.model or MODELS:
            out = (arguments.keep or Path(temporary)) / name.replace(" ", "-")
            run = seriatim.train(config(name, arguments.folder, out, arguments))
            summary = run.summary
            speed = f"{summary['tokens_per_second']:,.0f} target tokens/s"
            work = f"{summary['parameters']:,} parameters, {summary['epochs']} epochs, {summary['seconds']:.0f} s"
            print(f"{name}: {work}, {speed}, held-out loss {summary['best_valid']:.4f}")
            for beam, penalty in ((1, 0.0), (5, 1.0)):
                started = time.perf_counter()
                found = run.evaluate(test, beam=beam, length_penalty=penalty)
                rate = found["pairs"] / (time.perf_counter() - started)
                spans = ", ".join(
                    f"{key} {found[key]:.2f} ({found[f'{key}_low']:.2f} to {found[f'{key}_high']:.2f})"
                    for key in ("bleu", "chrf")
                )
                print(f"  beam {beam}: {spans}; {rate:.0f} sentences/s", flush=True)
        print(found["bleu_signature"])


if __name__ == "__main__":
    main()

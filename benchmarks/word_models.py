"""Measure what it gives to replace rare words by the unknown token while language models of words are trained.

Claim: the default `word_dropout` of networks is better than none on a text with many unknown words.

    python benchmarks/word_models.py --data FOLDER [--values 0,0.5,0.8] [--minutes 30]

The text is the sentences of a Hungarian treebank of FOLDER, a tenth of which are held out. For each value the script
runs ``seriatim train lm --kind word`` until the held-out loss stops improving, or for the given minutes. The figures
are the lowest held-out losses of the network, of the n-gram baseline, which learns unknown words in the same way, and
of ``--layer ngram`` with the same option.
"""

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import record
from dropout import sentences

import seriatim

TREEBANK = "ud-hu-szeged/hu_szeged-ud-train.conllu"


def train(text: Path, out: Path, layer: str, value: float, minutes: float) -> tuple[seriatim.Run, list[float]]:
    """Train a model; return it with its held-out losses."""
    config: dict[str, Any] = {
        "task": "lm",
        "data": {"train": str(text)},
        "tokenizer": {"kind": "word"},
        "model": {"layer": layer, "options": {"word_dropout": value}},
        "out": str(out),
    }
    if layer != "ngram":
        config["training"] = {"minutes": minutes}
    run = seriatim.train(config)
    rows = map(json.loads, (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    return run, [row["loss"] for row in rows if row["kind"] == "valid"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--values", default="0,0.5,0.8")
    parser.add_argument("--minutes", type=float, default=30)
    arguments = parser.parse_args()
    figures, settings = {}, {}
    for value in map(float, arguments.values.split(",")):
        with tempfile.TemporaryDirectory() as folder:
            text = Path(folder) / "train.txt"
            text.write_text(sentences(arguments.data / TREEBANK), encoding="utf-8")
            run, losses = train(text, Path(folder) / "lstm", "lstm", value, arguments.minutes)
            counted, _ = train(text, Path(folder) / "ngram", "ngram", value, arguments.minutes)
            settings[f"lstm {value:g}"] = record.plain(run)
            figures[f"{value:g}"] = {
                "model": min(losses),
                "baseline": run.summary["baseline"]["simple"]["loss"],
                "ngram": counted.summary["valid"]["loss"],
            }
            print(value, figures[f"{value:g}"], flush=True)
    rows = [["`word_dropout`", "LSTM", "its n-gram baseline", "`--layer ngram`"]]
    rows += [[value, *(f"{loss:.3f}" for loss in one.values())] for value, one in figures.items()]
    first, *_, last = figures.values()
    record.save(
        "word_models",
        claims={"`word_dropout` of 0.8, the default of networks, is better than none": last["model"] < first["model"]},
        settings=settings,
        figures=figures,
        tables=[rows],
        notes="Held-out losses in nats per token on the sentences of a Hungarian treebank.",
    )


if __name__ == "__main__":
    main()

"""Measure n-grams, an LSTM and a Transformer on minimal pairs, after the same training budget on the same sentences.

    python benchmarks/minimal_pairs.py --pairs blimp.jsonl.gz --text FILE [FILE ...] [--minutes 30] [--keep FOLDER]
        [--layers ngram,lstm,transformer]

The texts are cut into sentences, one a line, of which every fiftieth is held out. All models read the same subwords.
Each is trained by ``seriatim train lm`` with its defaults for the given minutes (n-grams are counted in seconds).
The figures are the perplexity per word of the sentences held out, and the accuracy on the pairs by phenomenon, each
with its 95 % interval, and the paired difference to the model before. With ``--keep``, runs that exist are used again.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeAlias

import record

import seriatim

VOCABULARY, HELD_OUT = 8000, 50
Figures: TypeAlias = dict[str, float]
LAYERS = {
    "ngram": ["--layer", "ngram", "--model.options.order", "5"],
    "lstm": ["--layer", "lstm"],
    "transformer": ["--layer", "transformer"],
}
SPACED = ((r" ([.,;:!?%)])", r"\1"), (r"([($]) ", r"\1"), (r" (n't|'s|'re|'ve|'ll|'d|'m)\b", r"\1"), (r"- ", "-"))
"""Spaces that treebanks put between a word and its punctuation or clitic, and the usual spelling."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=Path, required=True)
    parser.add_argument("--text", type=Path, nargs="+", required=True)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--layers", default=",".join(LAYERS))
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        train, test = write_sentences(arguments.text, folder)
        measured: dict[str, dict[str, Figures]] = {}
        rows = [["model", "perplexity per word", "accuracy", "difference to the row above", "p"]]
        figures, settings = {}, {}
        for layer in arguments.layers.split(","):
            run = folder / layer
            if not (run / "summary.json").exists():
                options = ["--data", train, "--data.unit", "line", "--tokenizer.kind", "bpe"]
                options += ["--tokenizer.vocabulary_size", VOCABULARY, "--training.minutes", arguments.minutes]
                command("train", "lm", *options, *LAYERS[layer], "--out", run, "--overwrite")
            words = json.loads(command("evaluate", run, "--data", test, "--json"))
            above = [folder / name for name in measured][-1:]
            pairs = ["--data", arguments.pairs, "--minimal-pairs", "--json"]
            found = json.loads(command("evaluate", run, *above, *pairs))
            compared = found.get("differences", {}).get("accuracy")
            found = found.get("first", found)
            difference = ["", ""]
            if compared is not None:
                interval_of = "{difference:+.4f} ({low:+.4f} to {high:+.4f})".format(**compared)
                difference = [interval_of, f"{compared['p_value']:.3f}"]
            rows.append([layer, interval(words, "word_perplexity", 1), interval(found, "accuracy", 4), *difference])
            print(*rows[-1], sep=" | ", flush=True)
            figures[layer] = {**words, **found, "phenomena": None}
            measured[layer] = found["phenomena"]
            settings[layer] = record.plain(seriatim.load(run))
    phenomena = [["phenomenon", *measured]]
    for phenomenon in sorted({name for found in measured.values() for name in found}):
        cells = (interval(found[phenomenon], "accuracy", 3) for found in measured.values())
        phenomena.append([phenomenon.replace("_", " "), *cells])
    first, *others = (one["accuracy"] for one in figures.values())
    record.save(
        "minimal_pairs",
        claims={"both networks prefer the acceptable sentence more often than a 5-gram model": min(others) > first},
        settings=settings,
        figures=figures,
        tables=[rows, phenomena],
        notes="67,000 pairs of BLiMP, 0.5 is chance; the defaults with as much time for each network, subwords.",
    )


def write_sentences(texts: Sequence[Path], folder: Path) -> tuple[Path, Path]:
    """Write the sentences of some texts to two files: those of the training and those held out."""
    train, test = folder / "train.txt", folder / "test.txt"
    sentences = [sentence for text in texts for sentence in sentences_of(text.read_text(encoding="utf-8"))]
    train.write_text("".join(f"{s}\n" for i, s in enumerate(sentences) if i % HELD_OUT), encoding="utf-8")
    test.write_text("".join(f"{s}\n" for s in sentences[::HELD_OUT]), encoding="utf-8")
    print(f"{len(sentences):,} sentences, {sum(len(s.split()) for s in sentences):,} words", flush=True)
    return train, test


def sentences_of(text: str) -> Iterator[str]:
    """Yield the sentences of a text, whose paragraphs are separated by empty lines or are lines."""
    separator = "\n\n" if text.count("\n\n") > 1000 else "\n"
    for paragraph in text.split(separator):
        joined = " ".join(paragraph.replace("“", '"').replace("”", '"').replace("’", "'").split())
        for pattern, spelling in SPACED:
            joined = re.sub(pattern, spelling, joined)
        yield from filter(None, re.split(r"(?<=[.!?])\s+(?=[A-Z])", joined))


def interval(values: Figures, name: str, digits: int) -> str:
    """Return a figure with its 95 % interval."""
    return "{:.{d}f} ({:.{d}f} to {:.{d}f})".format(
        *(values[key] for key in (name, f"{name}_low", f"{name}_high")), d=digits
    )


def command(*words: object) -> str:
    """Run a command of Seriatim and return what it prints."""
    arguments = [sys.executable, "-m", "seriatim", *map(str, words)]
    return subprocess.run(arguments, check=True, stdout=subprocess.PIPE, text=True).stdout


if __name__ == "__main__":
    main()

"""Train a model from spelling to pronunciation: letters to phones with stress, for unseen words.

    python benchmarks/pronunciation.py --dictionary cmudict.dict [--epochs 15]

The entries are split by word, 90 : 5 : 5 with seed 1, with all pronunciations of a word in the same part. An answer is
right if it is one of the listed pronunciations of the word, and each word counts once, as in published figures for
CMUdict. The phone error rate is the edit distance to the closest of them, relative to its number of phones. These are
the figures of ``seriatim evaluate`` with ``data.alternatives: true``, its default. While the model trains,
``alternatives`` is false: the weights are selected on held-out rows that count alone, as they were for RESULTS.md. The
model is an encoder-decoder of two GRUs with additive attention, with beam 5.
"""

import argparse
import random
import re
import tempfile
from collections import defaultdict
from pathlib import Path

import seriatim
from seriatim.evaluation.translation import translation_metrics

ENTRY = re.compile(r"^(\S+?)(?:\(\d+\))? (.+?)(?: #.*)?$")


def words(path: Path) -> dict[str, list[str]]:
    """Return every word with its pronunciations."""
    found = defaultdict(list)
    for line in path.read_text(encoding="utf-8").splitlines():
        if match := ENTRY.match(line.strip()):
            found[match[1]].append(match[2])
    return dict(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dictionary", type=Path, required=True)
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--layer", default="gru")
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--keep", type=Path, help="a folder for the run")
    arguments = parser.parse_args()
    known = words(arguments.dictionary)
    order = sorted(known)
    random.Random(1).shuffle(order)
    first, second = int(0.9 * len(order)), int(0.95 * len(order))
    parts = {"train": order[:first], "valid": order[first:second]}
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for part, some in parts.items():
            lines = [f"{word}\t{sound}\n" for word in some for sound in known[word]]
            (folder / f"{part}.tsv").write_text("".join(lines), encoding="utf-8")
        run = seriatim.train(
            {
                "task": "seq2seq",
                "data": {
                    "train": str(folder / "train.tsv"),
                    "valid": str(folder / "valid.tsv"),
                    "alternatives": False,
                },
                "tokenizer": {"kind": "char"},
                "model": {
                    "layer": arguments.layer,
                    "embedding_size": 128,
                    "hidden_size": arguments.hidden,
                    "num_layers": arguments.layers,
                    "dropout": 0.2,
                    "options": {"target_kind": "word", "attention": "additive", "label_smoothing": 0.1},
                },
                "training": {
                    "epochs": arguments.epochs,
                    "batch_size": arguments.batch,
                    "learning_rate": 0.002,
                    "warmup_steps": 500,
                },
                "out": str(folder / "run"),
            }
        )
        test = order[second:]
        answers = list(run.predict(test, beam=5))
        found = translation_metrics(answers, [known[word] for word in test])
        for name, key in (("word error", "string_error_rate"), ("phone error", "word_error_rate")):
            print(f"{name} {found[key]:.2%} ({found[f'{key}_low']:.2%} to {found[f'{key}_high']:.2%})")
        summary = run.summary
        print(
            f"{len(test):,} test words; {summary['parameters']:,} parameters, {summary['epochs']} epochs, "
            f"{summary['seconds']:.0f} s, {summary['tokens_per_second']:,.0f} phones/s"
        )


if __name__ == "__main__":
    main()

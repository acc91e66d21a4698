"""Measure the benefit of attention: reversed names, from names with a random letter after each letter.

    python benchmarks/reversal.py --names names.txt [--epochs 20] [--draws 4] [--plot reversal.png]

The models are a GRU encoder-decoder with embedding and hidden 32 and dot-product attention, and the three forms without
attention, which must keep the name in one vector. The names are shuffled with seed 123 and split 80 : 10 : 10. The
noise has its own seeds; with `--draws 4`, each training name occurs four times with different noise. The script prints
parameters, the held-out loss in nats per letter (the end of a name is one letter), the exactly right test names, also
by length, and seconds.
"""

import argparse
import random
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import seriatim
from seriatim.data.synthetic import noisy_reversal

SEED = 1
FORMS: dict[str, dict[str, Any]] = {
    "dot attention": {"attention": "dot", "readout": "direct", "bridge": "copy"},
    "context initial": {"attention": "none", "context": "initial", "bridge": "copy"},
    "context in updates": {"attention": "none", "context": "initial+updates", "bridge": "copy"},
    "context in updates and outputs": {"attention": "none", "context": "initial+updates+outputs", "bridge": "copy"},
}


def split(path: Path, folder: Path, draws: int) -> list[tuple[str, str]]:
    """Write training pairs (each name in ``draws`` noisy forms) and validation pairs, and return the test pairs."""
    names = path.read_text(encoding="utf-8").split()
    random.seed(123)
    random.shuffle(names)
    first, second = int(0.8 * len(names)), int(0.9 * len(names))
    parts = {"train": draws * names[:first], "valid": names[first:second], "test": names[second:]}
    for seed, (part, some) in enumerate(parts.items()):
        pairs = noisy_reversal(some, seed)
        (folder / f"{part}.tsv").write_text("".join(f"{noisy}\t{name}\n" for noisy, name in pairs), encoding="utf-8")
    return noisy_reversal(parts["test"], 2)


def trained(form: str, folder: Path, epochs: int, rate: float) -> seriatim.Run:
    return seriatim.train(
        {
            "task": "seq2seq",
            "data": {"train": str(folder / "train.tsv"), "valid": str(folder / "valid.tsv")},
            "tokenizer": {"kind": "char"},
            "model": {
                "layer": "gru",
                "embedding_size": 32,
                "hidden_size": 32,
                "bidirectional": False,
                "options": FORMS[form],
            },
            "training": {"epochs": epochs, "batch_size": 32, "learning_rate": rate, "seed": SEED},
            "out": str(folder / form.replace(" ", "-")),
        }
    )


def by_length(run: seriatim.Run, pairs: list[tuple[str, str]]) -> dict[int, list[bool]]:
    """Return whether each answer is right, by the length of the name."""
    found = defaultdict(list)
    answers = run.predict(noisy for noisy, _ in pairs)
    for answer, (_, name) in zip(answers, pairs, strict=True):
        found[len(name)].append(answer == name)
    return dict(sorted(found.items()))


def plot(found: dict[str, dict[int, list[bool]]], path: Path) -> None:
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4.2), layout="constrained")
    for (form, lengths), style in zip(found.items(), ("o-", "s--", "^:", "v-."), strict=True):
        enough = {length: rows for length, rows in lengths.items() if len(rows) >= 5}
        axes.plot(list(enough), [100 * sum(rows) / len(rows) for rows in enough.values()], style, label=form)
    axes.set(xlabel="letters of the name", ylabel="names exactly right (%)", ylim=(-3, 103))
    axes.set_title("Names backwards, noise letters left out: test names")
    axes.legend(frameon=False)
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--names", type=Path, required=True)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--rate", type=float, default=0.005)
    parser.add_argument("--draws", type=int, default=1, help="noisy forms of every training name")
    parser.add_argument("--form", choices=FORMS, action="append")
    parser.add_argument("--plot", type=Path)
    arguments = parser.parse_args()
    found = {}
    print(f"{'':32}{'parameters':>12}{'valid loss':>12}{'test exact':>12}{'seconds':>10}", flush=True)
    with tempfile.TemporaryDirectory() as temporary:
        test = split(arguments.names, Path(temporary), arguments.draws)
        for form in arguments.form or FORMS:
            started = time.perf_counter()
            run = trained(form, Path(temporary), arguments.epochs, arguments.rate)
            seconds = time.perf_counter() - started
            found[form] = by_length(run, test)
            right = sum(map(sum, found[form].values())) / len(test)
            loss = run.summary["best_valid"]
            print(f"{form:32}{run.summary['parameters']:12,}{loss:12.5f}{right:12.4%}{seconds:10.0f}", flush=True)
    for form, lengths in found.items():
        print(f"{form}: " + " ".join(f"{length}:{sum(r) / len(r):.0%}" for length, r in lengths.items()))
    if arguments.plot:
        plot(found, arguments.plot)


if __name__ == "__main__":
    main()

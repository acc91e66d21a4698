"""Compare the linear models with scikit-learn's pipelines and with CRFsuite: accuracy, training time and latency.

    python benchmarks/linear.py classify --train train.tsv --test test.tsv [--label coarse] [--rounds 3]
    python benchmarks/linear.py tag --train train.conllu --test test.conllu [--rounds 1]

`classify` trains `--layer bag`, and the two usual pipelines of scikit-learn: TF-IDF of 1 and 2 words with logistic
regression, and TF-IDF of 1 and 2 words and of 2 to 5 characters (`char_wb`) with a linear support vector machine. `tag`
trains `--layer features`, and CRFsuite (python-crfsuite) with the usual attributes: the word in lower case, prefixes
and suffixes of 1 to 4 characters, the shape and its parts, and for two words on either side the word, the suffix of 3
characters and the shape; L-BFGS with an L2 penalty of 1 and all transitions.

The trainings take turns. A training is measured from the file to the model, ours with all files of its run. Latency is
the median time of one text of the test data at a time. Seconds are medians over the rounds of the wall clock; those of
the processor are in parentheses.

Claims: at least the accuracy of the most accurate peer, in at most its training time and its time for one text.
"""

import argparse
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import machine
import record

import seriatim
from seriatim.data.conll import Sentence, read_sentences
from seriatim.data.repairs import Repairs
from seriatim.data.sources import find_sources
from seriatim.data.tables import read_labelled

TIMED = 200  # texts that are answered one at a time


class System(NamedTuple):
    """A way to train: from the file to a function that answers inputs."""

    name: str
    train: Callable[[], Callable[[Sequence[Any]], Sequence[Any]]]


class Result(NamedTuple):
    """What was measured of a system in one round."""

    accuracy: float
    f1: float | None
    wall: float
    processor: float
    latency: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=("classify", "tag"))
    parser.add_argument("--train", required=True)
    parser.add_argument("--test", required=True)
    parser.add_argument("--label", default="label", help="the column of the labels")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    print(machine.describe())
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        make = classifiers if arguments.task == "classify" else taggers
        systems, inputs, truth = make(arguments, Path(folder))
        results: dict[str, list[Result]] = {system.name: [] for system in systems}
        for _ in range(arguments.rounds):
            for system in systems:
                results[system.name].append(measure(system, inputs, truth))
    report(arguments, results, len(truth))


def measure(system: System, inputs: Sequence[Any], truth: Sequence[Any]) -> Result:
    wall, processor = time.perf_counter(), time.process_time()
    answer = system.train()
    wall, processor = time.perf_counter() - wall, time.process_time() - processor
    answers = list(answer(inputs))
    seconds = [machine.seconds(lambda one=one: list(answer([one]))) for one in inputs[:TIMED]]
    if isinstance(truth[0], str):
        return Result(share(zip(answers, truth, strict=True)), None, wall, processor, median(seconds))
    pairs = [pair for row in zip(answers, truth, strict=True) for pair in zip(*row, strict=True)]
    return Result(share(pairs), chunk_f1(truth, answers), wall, processor, median(seconds))


def share(pairs: Iterable[tuple[str, str]]) -> float:
    hits = [answer == true for answer, true in pairs]
    return sum(hits) / len(hits)


def chunk_f1(truth: Sequence[Sequence[str]], answers: Sequence[Sequence[str]]) -> float | None:
    from seriatim.evaluation.label_metrics import measure_tags

    return measure_tags(truth, answers).metrics.get("f1")


PEERS = {"classify": "scikit-learn", "tag": "python-crfsuite"}


def report(arguments: argparse.Namespace, results: dict[str, list[Result]], texts: int) -> None:
    table = [["system", "accuracy", "F1", "training, s (of the processor)", "one text, ms"]]
    figures: dict[str, dict[str, list[float]]] = {}
    for name, rounds in results.items():
        columns = dict(zip(Result._fields, map(list, zip(*rounds, strict=True)), strict=True))
        figures[name] = {key: column for key, column in columns.items() if None not in column}
        middle = {key: median(column) for key, column in figures[name].items()}
        cells = [f"{middle['accuracy']:.4f}", f"{middle['f1']:.4f}" if "f1" in middle else ""]
        cells += [f"{middle['wall']:.2f} ({middle['processor']:.2f})", f"{1000 * middle['latency']:.2f}"]
        table.append([name, *cells])
    ours, *peers = figures
    best = max(peers, key=lambda peer: median(figures[peer]["accuracy"]), default=PEERS[arguments.task])
    mine, theirs = figures[ours], figures.get(best)
    count = 1000.0  # milliseconds
    claims = [
        record.compared(
            "at least the accuracy of the most accurate peer",
            mine["accuracy"],
            theirs and theirs["accuracy"],
            peer=best,
            unit="accuracy",
            are_rates=True,
            limit=f"{texts:,} texts of the test data",
        ),
        record.compared(
            "in at most the time of its training", mine["wall"], theirs and theirs["wall"], peer=best, unit="s"
        ),
        record.compared(
            "with at most its time for one text",
            [count * one for one in mine["latency"]],
            theirs and [count * one for one in theirs["latency"]],
            peer=best,
            unit="ms",
        ),
    ]
    record.save(
        f"linear-{arguments.task}",
        claims=claims,
        settings={
            "label": arguments.label,
            "rounds": arguments.rounds,
            "train": Path(arguments.train).name,
            "test": Path(arguments.test).name,
        },
        figures=figures,
        tables=[table],
        peers=[PEERS[arguments.task]],
        notes="From the file to the model, ours with all files of its run; medians over rounds in turn. One text: the "
        f"median of {TIMED} texts of the test data, one a call.",
    )


def ours(task: str, layer: str, arguments: argparse.Namespace, folder: Path, details: str) -> System:
    def train() -> Callable[[Sequence[Any]], Sequence[Any]]:
        run = seriatim.train(
            {
                "task": task,
                "data": {"train": arguments.train, "valid": "none", "label": arguments.label},
                "model": {"layer": layer},
                "out": str(folder / layer),
            },
            overwrite=True,
        )
        return lambda inputs: [answer[details] for answer in run.predict(inputs, details=True)]

    return System(f"seriatim --layer {layer}", train)


def classifiers(arguments: argparse.Namespace, folder: Path) -> tuple[list[System], list[str], list[str]]:
    def read(spec: str) -> tuple[list[str], list[str]]:
        rows = list(read_labelled(find_sources(spec), text="text", label=arguments.label))
        return [row.text for row in rows], [row.label for row in rows]

    systems = [ours("classify", "bag", arguments, folder, "text")]
    try:
        from sklearn.feature_extraction.text import TfidfVectorizer
        from sklearn.linear_model import LogisticRegression
        from sklearn.pipeline import make_pipeline, make_union
        from sklearn.svm import LinearSVC
    except ImportError:
        return systems, *read(arguments.test)

    def words() -> Any:
        return TfidfVectorizer(ngram_range=(1, 2))

    def both() -> Any:
        return make_union(words(), TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 5)))

    pipelines: dict[str, Callable[[], Any]] = {
        "words, LogisticRegression": lambda: make_pipeline(words(), LogisticRegression(max_iter=1000)),
        "words and characters, LinearSVC": lambda: make_pipeline(both(), LinearSVC()),
    }
    for name, make in pipelines.items():
        systems.append(System(name, lambda make=make: make().fit(*read(arguments.train)).predict))
    return systems, *read(arguments.test)


def taggers(arguments: argparse.Namespace, folder: Path) -> tuple[list[System], list[list[str]], list[list[str]]]:
    def read(spec: str) -> list[Sentence]:
        return list(read_sentences(find_sources(spec), repairs=Repairs(strict=False)))

    test = read(arguments.test)
    inputs, truth = [list(one.words) for one in test], [list(one.tags) for one in test]
    systems = [ours("tag", "features", arguments, folder, "tags")]
    try:
        import pycrfsuite
    except ImportError:
        return systems, inputs, truth

    def train() -> Callable[[Sequence[list[str]]], Sequence[list[str]]]:
        trainer = pycrfsuite.Trainer(verbose=False)
        for one in read(arguments.train):
            trainer.append(attributes(one.words), list(one.tags))
        trainer.set_params({"c1": 0.0, "c2": 1.0, "feature.possible_transitions": True})
        trainer.train(str(folder / "crfsuite"))
        tagger = pycrfsuite.Tagger()
        tagger.open(str(folder / "crfsuite"))
        return lambda sentences: [tagger.tag(attributes(words)) for words in sentences]

    return [*systems, System("CRFsuite", train)], inputs, truth


def attributes(words: Sequence[str]) -> list[list[str]]:
    """Return the attributes of each word of a sentence for CRFsuite."""
    each = []
    for place, word in enumerate(words):
        lower = word.lower()
        found = ["bias", f"word={lower}", f"shape={shape(word)}", f"digit={any(map(str.isdigit, word))}"]
        found += [f"title={word.istitle()}", f"upper={word.isupper()}", f"hyphen={'-' in word}"]
        found += [f"{side}={part}" for n in range(1, 5) for side, part in (("pre", lower[:n]), ("suf", lower[-n:]))]
        for offset in (-2, -1, 1, 2):
            if 0 <= place + offset < len(words):
                other = words[place + offset]
                parts = {"word": other.lower(), "suf": other.lower()[-3:], "shape": shape(other)}
                found += [f"{offset}:{name}={part}" for name, part in parts.items()]
            else:
                found.append(f"{offset}:boundary")
        each.append(found)
    return each


def shape(word: str) -> str:
    return "".join("A" if c.isupper() else "a" if c.islower() else "0" if c.isdigit() else c for c in word)


if __name__ == "__main__":
    main()

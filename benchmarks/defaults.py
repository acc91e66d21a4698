"""Train every task with the plain command, without options, and measure the result beside its simple baseline.

    python benchmarks/defaults.py --data FOLDER [--only ud-hu-szeged,sst2] [--seeds 3]
    python benchmarks/defaults.py --data FOLDER --only mine --add mine=TASK:TRAIN,VALID,TEST

For each corpus and seed the script runs ``seriatim train TASK --data TRAIN --valid VALID --out RUN --seed N`` and
evaluates the run and its simple baseline (the folder ``baseline`` of the run) on the test part. The table has the mean
over seeds, each seed, the baseline, and the minutes of the whole command. With ``--keep``, finished trainings are kept
in a file.

The corpora are folders below FOLDER: Universal Dependencies (UPOS accuracy), MasakhaNER and WNUT 2017 (F1 of entities),
SST-2 (whole sentences), TREC (six classes), CLINC150, names of 18 languages (a tenth of them are held out, a tenth are
the test), SIGMORPHON 2017 inflection (exact match), CMUdict (words wrong; a twentieth is the test) and Multi30k
(BLEU). ``--add`` measures another corpus; its main metric is used.
"""

import argparse
import functools
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import record

import seriatim
from seriatim.tasks.beside_baseline import main_metric


class Corpus(NamedTuple):
    """The files of a corpus, the metric that is reported, and the options that only name its columns."""

    task: str
    train: str
    valid: str | None
    test: str
    metric: str | None = None
    naming: tuple[str, ...] = ()


def treebank(folder: str, name: str) -> Corpus:
    """Return the parts of a treebank of Universal Dependencies."""
    return Corpus("tag", *(f"{folder}/{name}-ud-{part}.conllu" for part in ("train", "dev", "test")), metric="accuracy")


def entities(folder: str, ending: str = "txt") -> Corpus:
    """Return the parts of a corpus of named entities."""
    return Corpus("tag", *(f"{folder}/{part}.{ending}" for part in ("train", "dev", "test")), metric="f1")


ENTRY = re.compile(r"^(\S+?)(?:\(\d+\))? (.+?)(?: #.*)?$")

CORPORA = {
    "ud-hu-szeged": treebank("ud-hu-szeged", "hu_szeged"),
    "ud-wo-wtb": treebank("ud-wo-wtb", "wo_wtb"),
    "ud-en-ewt": treebank("ud-en-ewt", "en_ewt"),
    "masakhaner-hau": entities("masakhaner-hau"),
    "masakhaner-kin": entities("masakhaner-kin"),
    "wnut17-ner": entities("wnut17-ner", "conll"),
    "sst2": Corpus("classify", "sst2/train.tsv", "sst2/dev.tsv", "sst2/test.tsv", "accuracy"),
    "trec6": Corpus("classify", "trec6/train.tsv", None, "trec6/test.tsv", "accuracy", ("--data.label", "coarse")),
    "clinc150": Corpus("classify", "clinc150/train.tsv", "clinc150/dev.tsv", "clinc150/test.tsv", "accuracy"),
    "names": Corpus("classify", *(f"{part}.tsv" for part in ("train", "valid", "test")), metric="accuracy"),
    "inflection-de-medium": Corpus(
        "seq2seq",
        *(f"inflection-de/{part}.tsv" for part in ("train-medium", "dev", "test")),
        metric="exact_match",
    ),
    "inflection-de-high": Corpus(
        "seq2seq", *(f"inflection-de/{part}.tsv" for part in ("train-high", "dev", "test")), metric="exact_match"
    ),
    "cmudict": Corpus("seq2seq", *(f"{part}.tsv" for part in ("train", "valid", "test")), metric="word_error_rate"),
    "multi30k": Corpus("seq2seq", *(f"{part}.tsv" for part in ("train", "valid", "test")), metric="bleu"),
}


def write_parts(name: str, data: Path, folder: Path) -> None:
    """Write the parts of a corpus that is not a table: CMUdict split by word, names, and Multi30k."""
    parts: dict[str, list[str]] = {}
    if name == "cmudict":
        known: dict[str, list[str]] = {}
        for line in (data / "cmudict" / "cmudict.dict").read_text(encoding="utf-8").splitlines():
            if entry := ENTRY.match(line.strip()):
                known.setdefault(entry[1], []).append(entry[2])
        for part, chosen in split(sorted(known), (0.9, 0.95)).items():
            parts[part] = [f"{word}\t{sound}" for word in chosen for sound in known[word]]
    elif name == "names":
        rows = {
            f"{file.stem}\t{line.strip()}"
            for file in (data / "names").glob("*.txt")
            if file.stem != "SOURCE"
            for line in file.read_text(encoding="utf-8").splitlines()
        }
        parts = {part: ["label\ttext", *chosen] for part, chosen in split(sorted(rows), (0.8, 0.9)).items()}
    else:
        files = {"train": "train", "valid": "val", "test": "test_2016_flickr"}
        for part, file in files.items():
            sides = [
                (data / f"multi30k-en-de/tok/{file}.lc.norm.tok.{language}").read_text(encoding="utf-8").splitlines()
                for language in ("en", "de")
            ]
            parts[part] = ["\t".join(pair) for pair in zip(*sides, strict=True)]
    for part, lines in parts.items():
        (folder / f"{part}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")


def split(items: list[str], ends: tuple[float, float]) -> dict[str, list[str]]:
    """Divide items at random into three parts, of which the first two end at these shares."""
    random.Random(1).shuffle(items)
    first, second = (int(end * len(items)) for end in ends)
    return {"train": items[:first], "valid": items[first:second], "test": items[second:]}


def words_wrong(run: seriatim.Run, test: Path) -> float:
    """Return the share of words whose answer is none of their pronunciations."""
    known: dict[str, set[str]] = {}
    for line in test.read_text(encoding="utf-8").splitlines():
        word, _, sound = line.partition("\t")
        known.setdefault(word, set()).add(sound)
    answers = run.predict(list(known))
    return statistics.fmean(answer not in sounds for answer, sounds in zip(answers, known.values(), strict=True))


def measure(name: str, corpus: Corpus, seed: int, out: Path) -> dict[str, Any]:
    """Train and evaluate one run; return the name of its metric, its value and that of its baseline."""
    command = [sys.executable, "-m", "seriatim", "train", corpus.task, "--data", corpus.train, "--out", str(out)]
    command += ["--valid", corpus.valid] if corpus.valid else []
    began = time.perf_counter()
    subprocess.run([*command, *corpus.naming, "--seed", str(seed), "--quiet"], check=True)
    minutes = (time.perf_counter() - began) / 60
    run = seriatim.load(out)
    key = corpus.metric or main_metric(run.task, run.vocabulary).key

    def value(one: seriatim.Run) -> float:
        if name == "cmudict":
            return words_wrong(one, Path(corpus.test))
        return float(one.evaluate(corpus.test)[key])

    return {
        "metric": key,
        "value": value(run),
        "baseline": value(seriatim.load(out / "baseline")),
        "minutes": minutes,
        "ended": run.summary["ended"],
        "settings": record.plain(run),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--only", help="names of corpora with commas between them")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--add", action="append", default=[], help="CORPUS=TASK:TRAIN,VALID,TEST")
    parser.add_argument("--keep", type=Path, help="a file of finished trainings, with which the script goes on")
    arguments = parser.parse_args()
    corpora = dict(CORPORA)
    for text in arguments.add:
        name, _, rest = text.partition("=")
        task, _, files = rest.partition(":")
        train, valid, test = files.split(",")
        corpora[name] = Corpus(task, train, valid or None, test)
    found: dict[str, list[dict[str, Any]]] = {}
    for name in arguments.only.split(",") if arguments.only else corpora:
        with tempfile.TemporaryDirectory() as temporary:
            base = arguments.data
            if name in ("cmudict", "multi30k", "names"):
                base = Path(temporary)
                write_parts(name, arguments.data, base)
            corpus = corpora[name]
            valid = None if corpus.valid is None else str(base / corpus.valid)
            corpus = corpus._replace(train=str(base / corpus.train), valid=valid, test=str(base / corpus.test))
            keep = arguments.keep or Path(temporary) / "kept.json"
            for seed in range(1, arguments.seeds + 1):
                job = functools.partial(measure, name, corpus, seed, Path(temporary) / f"run-{seed}")
                found.setdefault(name, []).append(one := record.remembered(keep, f"{name} {seed}", job))
                print(name, seed, *(f"{key}: {value}" for key, value in one.items() if key != "settings"), flush=True)
    save(found)


def save(found: dict[str, list[dict[str, Any]]]) -> None:
    rows = [["corpus", "metric", "plain command", "each seed", "simple baseline", "minutes"]]
    figures: dict[str, Any] = {}
    claims = []
    for name, results in found.items():
        metric, values = results[0]["metric"], [one["value"] for one in results]
        mean, simple = statistics.fmean(values), statistics.fmean(one["baseline"] for one in results)
        figures[name] = {
            "plain": record.Figure(mean, min(values), max(values)),
            "baseline": simple,
            "minutes": [one["minutes"] for one in results],
        }
        each = ", ".join(f"{value:.4g}" for value in values)
        minutes = f"{statistics.median(one['minutes'] for one in results):.1f}"
        rows.append([name, metric, f"**{mean:.4g}**", each, f"{simple:.4g}", minutes])
        claims.append(mean < simple if metric == "word_error_rate" else mean > simple)
    record.save(
        "defaults",
        claims={"the plain command is better than the simple baseline on every corpus": all(claims)},
        settings={name: results[0]["settings"] for name, results in found.items()},
        figures=figures,
        tables=[rows],
        notes="""
            `seriatim train TASK --data TRAIN --valid VALID`, on test parts: means over seeds. CMUdict: words wrong, the
            less the better. The defaults were developed on these corpora, so other data may gain a little less.
        """,
    )


if __name__ == "__main__":
    main()

"""Rows of the table of published figures: tagging and classification."""

from collections.abc import Callable
from pathlib import Path

from published_row import Part, Row

FOLDS = 10


def files(train: str, valid: str | None, test: str) -> Callable[[Path, Path], list[Part]]:
    """Return what finds the files of a corpus that is one training; ``valid`` None holds out a part of ``train``."""

    def parts(data: Path, folder: Path) -> list[Part]:
        return [Part("all", *(None if name is None else data / name for name in (train, valid, test)))]

    return parts


def folds(data: Path, folder: Path) -> list[Part]:
    """Write the training and the test part of each fold of `mr`, whose rows name their fold."""
    head, *rows = (data / "mr" / "mr.tsv").read_text(encoding="utf-8").splitlines()
    names = head.split("\t")
    for number, row in enumerate(rows, 2):
        if row.count("\t") != len(names) - 1:
            raise ValueError(f"line {number} of mr.tsv has {row.count(chr(9)) + 1} columns, not {len(names)}")
    if missing := {"label", "fold", "text"} - {*names}:
        raise ValueError(f"mr.tsv has no column {', '.join(sorted(missing))}")
    label, fold, text = (names.index(name) for name in ("label", "fold", "text"))
    found = []
    for number in range(FOLDS):
        paths = [folder / f"{part}-{number}.tsv" for part in ("train", "test")]
        for path, is_test in zip(paths, (False, True), strict=True):
            fields = [row.split("\t") for row in rows]
            lines = [f"{each[label]}\t{each[text]}" for each in fields if (int(each[fold]) == number) == is_test]
            path.write_text("\n".join(["label\ttext", *lines]) + "\n", encoding="utf-8")
        found.append(Part(f"fold-{number}", paths[0], None, paths[1]))
    return found


CHUNKS = {"SVM (2000)": 93.48, "BI-LSTM-CRF, random embeddings, 76,000 features by hand": 94.13}
ROWS: dict[str, Row] = {
    "conll2000": Row(
        "plain",
        "F1 of chunks, CoNLL-2000, %",
        "tag",
        "f1",
        files("conll2000/train.txt", None, "conll2000/test.txt"),
        CHUNKS,
        asked=93.9,
        differences="The published models read parts of speech; the plain command reads words and their spelling.",
    ),
    "conll2000-pos": Row(
        "with the given part of speech (--data.features 2)",
        "F1 of chunks, CoNLL-2000, %",
        "tag",
        "f1",
        files("conll2000/train.txt", None, "conll2000/test.txt"),
        CHUNKS,
        asked=94.3,
        options=("--data.features", "2"),
    ),
    "mr": Row(
        "plain",
        "accuracy, movie reviews (MR), mean of 10 folds, %",
        "classify",
        "accuracy",
        folds,
        {"CNN-rand": 76.1, "CNN-rand, replicated": 75.9, "CNN-rand, replicated again": 74.9},
        asked=77.5,
        differences="The folds are made by line number, as the published ones are not stated.",
    ),
    "trec6": Row(
        "plain",
        "accuracy, TREC, 6 classes, %",
        "classify",
        "accuracy",
        files("trec6/train.tsv", None, "trec6/test.tsv"),
        {"CNN-rand": 91.2, "CNN-rand, replicated": 88.2},
        asked=92.0,
        options=("--data.label", "coarse"),
        seeds=tuple(range(1, 11)),
    ),
    "clinc150": Row(
        "plain",
        "accuracy, CLINC150, 150 intents in scope, %",
        "classify",
        "accuracy",
        files("clinc150/train.tsv", "clinc150/dev.tsv", "clinc150/test.tsv"),
        {"SVM": 91.0, "fastText": 89.0},
        asked=93.0,
    ),
    "ud-hu-szeged": Row(
        "plain",
        "accuracy of UPOS, Hungarian-Szeged, %",
        "tag",
        "accuracy",
        files(*(f"ud-hu-szeged/hu_szeged-ud-{part}.conllu" for part in ("train", "dev", "test"))),
        {"UDPipe 1.2, release 2.3 of the treebank": 90.7},
        asked=93.5,
        differences="Ours is on commit 8f08ba64 of the treebank, whose release may differ from 2.3.",
    ),
}

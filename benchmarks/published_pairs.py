"""Rows of the table of published figures: pronunciation and inflection."""

from collections.abc import Callable
from pathlib import Path

from published_row import Part, Row

LANGUAGES = ("bul", "dut", "hin", "ice", "lit")


def pronunciation(data: Path, written: Path) -> list[Part]:
    """Return the five languages, each with its own split."""
    folder = data / "g2p-2020"
    return [Part(name, *(folder / f"{name}_{part}.tsv" for part in ("train", "dev", "test"))) for name in LANGUAGES]


def inflection(size: str) -> Callable[[Path, Path], list[Part]]:
    """Return the function that gives the one part of a size of training data."""

    def parts(data: Path, written: Path) -> list[Part]:
        folder = data / "inflection-de"
        return [Part(size, *(folder / f"{part}.tsv" for part in (f"train-{size}", "dev", "test")))]

    return parts


ROWS: dict[str, Row] = {
    "g2p-2020": Row(
        name="plain",
        title="words wrong (%), mean of five languages of SIGMORPHON 2020, task 1",
        task="seq2seq",
        metric="string_error_rate",
        parts=pronunciation,
        published={
            "LSTM with attention, 36 settings tried for each language": 16.7,
            "Transformer, 36 settings tried for each language": 18.1,
            "n-grams of pairs": 23.7,
            "CLUZH, one model": 17.6,
            "best of the task for each language, ensembles among them": 13.7,
        },
        asked=15.5,
        asked_together=14.0,
        is_error=True,
    ),
    "inflection-de-medium": Row(
        name="plain",
        title="exact match (%), German inflection, 1,000 pairs, CoNLL-SIGMORPHON 2017",
        task="seq2seq",
        metric="exact_match",
        parts=inflection("medium"),
        published={"one model, mean of five": 78.2, "best of the task, 15 models together": 79.1},
        asked=80.0,
        asked_together=81.0,
    ),
    "inflection-de-high": Row(
        name="plain",
        title="exact match (%), German inflection, 10,000 pairs, CoNLL-SIGMORPHON 2017",
        task="seq2seq",
        metric="exact_match",
        parts=inflection("high"),
        published={"one sequence-to-sequence model": 85.7},
        asked=92.0,
        asked_together=93.0,
    ),
}

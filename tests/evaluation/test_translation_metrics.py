"""Metrics of generated texts, compared with sacrebleu and with brute force."""

import itertools
import json
import random
import subprocess
import sys
from functools import cache

import numpy as np
import pytest
from sacrebleu.metrics import BLEU, CHRF

from seriatim.data.repairs import DataWarning
from seriatim.evaluation.intervals import Measure, paired
from seriatim.evaluation.translation import edit_distance, measure_translations

from ..conftest import sentences
from ..refusals import refused


def translation_metrics(hypotheses, references) -> dict:
    return measure_translations(hypotheses, references).metrics


def translation_measures(hypotheses, references) -> dict[str, Measure]:
    return dict(measure_translations(hypotheses, references).measures)


def garbled(texts: list[str], share: float, seed: int = 0) -> list[str]:
    """Return texts with some words dropped, doubled or replaced."""
    source = random.Random(seed)

    def change(word: str) -> str:
        return word if source.random() > share else source.choice(("", f"{word} {word}", "something", word[::-1]))

    return [" ".join(filter(None, map(change, text.split()))) for text in texts]


REFERENCES = sentences(80)
HYPOTHESES = garbled(REFERENCES, 0.3)
OTHERS = garbled(REFERENCES, 0.2, seed=1)


@pytest.mark.parametrize("count", [1, 80])
def test_bleu_and_chrf_are_those_of_sacrebleu(count: int) -> None:
    hypotheses, references = HYPOTHESES[:count], [list(pair) for pair in zip(REFERENCES, OTHERS, strict=True)][:count]
    metrics = translation_metrics(hypotheses, references)
    streams = [list(stream) for stream in zip(*references, strict=True)]
    bleu, chrf = BLEU(force=True), CHRF()
    assert metrics["bleu"] == bleu.corpus_score(hypotheses, streams).score
    assert metrics["chrf"] == chrf.corpus_score(hypotheses, streams).score
    assert metrics["bleu_signature"] == bleu.get_signature().format()
    assert metrics["chrf_signature"] == chrf.get_signature().format()
    json.dumps(metrics, allow_nan=False)


@pytest.mark.parametrize(
    ("hypotheses", "references"),
    [
        (["", "a b c d e"], ["a b c d", "a b c d e"]),
        (["", ""], ["a b c", "d"]),
        (["a", "b"], ["", ""]),
        (["", ""], ["", ""]),
        (["a b c", "x y"], ["a b c", "x z"]),  # no 4-grams at all
        (["a b x c y", "q"], ["a b c", "r"]),  # orders without a match are smoothed
        (["a b c d e f g"], ["b a d c f e h"]),
    ],
)
def test_sums_of_the_statistics_give_sacrebleus_figures(hypotheses: list[str], references: list[str]) -> None:
    measures = translation_measures(hypotheses, references)
    for name, metric in (("bleu", BLEU(force=True)), ("chrf", CHRF())):
        own = float(measures[name].compute(measures[name].statistics.sum(0)))
        assert own == pytest.approx(metric.corpus_score(hypotheses, [references]).score)
    metrics = translation_metrics(hypotheses, references)
    assert all(np.isfinite(value) for value in metrics.values() if isinstance(value, float))


def test_resamples_give_sacrebleus_figures() -> None:
    """The figures are equal for any selection of sentences."""
    measures = translation_measures(HYPOTHESES, REFERENCES)
    source = np.random.default_rng(0)
    chosen = source.integers(0, 80, (30, 6))
    for name, metric in (("bleu", BLEU(force=True)), ("chrf", CHRF())):
        own = measures[name].compute(measures[name].statistics[chosen].sum(1))
        theirs = [
            metric.corpus_score([HYPOTHESES[i] for i in row], [[REFERENCES[i] for i in row]]).score for row in chosen
        ]
        np.testing.assert_allclose(own, theirs)


def test_sentences_may_have_different_numbers_of_references() -> None:
    metrics = translation_metrics(["a b", "c d"], [["a b", "a x"], ["c e"]])
    assert metrics["bleu"] == BLEU(force=True).corpus_score(["a b", "c d"], [["a b", "c e"], ["a x", None]]).score
    assert "nrefs:var" in metrics["bleu_signature"]
    assert (metrics["exact_match"], metrics["word_error_rate"]) == (0.5, 0.25)


def test_every_figure_lies_in_its_interval() -> None:
    metrics = translation_metrics(HYPOTHESES, REFERENCES)
    for name in ("bleu", "chrf", "exact_match", "word_error_rate", "string_error_rate"):
        assert metrics[f"{name}_low"] < metrics[name] < metrics[f"{name}_high"]
    assert metrics["string_error_rate"] == 1 - metrics["exact_match"]
    assert translation_metrics(["a"], ["a"])["bleu_low"] is None


def test_error_rates_by_hand() -> None:
    metrics = translation_metrics(["the cat sat ", "a dog", ""], ["the cat sat", "a big dog runs", "x"])
    assert metrics["exact_match"] == pytest.approx(1 / 3)
    assert metrics["word_error_rate"] == pytest.approx(3 / 8)
    closest = translation_metrics(["a b c"], [["x y z", "a b", "a b c d"]])
    assert closest["word_error_rate"] == pytest.approx(1 / 4)
    assert translation_metrics(["a b"], [""])["word_error_rate"] == 2


def test_two_systems_are_compared_sentence_by_sentence() -> None:
    good, bad = (translation_measures(garbled(REFERENCES, share), REFERENCES) for share in (0.1, 0.4))
    for name, measure in good.items():
        found = paired(measure.statistics, bad[name].statistics, measure.compute)
        assert found.p_value < 0.01
        assert (found.difference < 0) == (name == "word_error_rate")
        assert paired(measure.statistics, measure.statistics, measure.compute) == (0, 0, 0, 1)


def test_edit_distance_by_brute_force() -> None:
    @cache
    def slow(a: tuple, b: tuple) -> int:
        if not a or not b:
            return len(a) + len(b)
        return min(slow(a[1:], b) + 1, slow(a, b[1:]) + 1, slow(a[1:], b[1:]) + (a[0] != b[0]))

    source = random.Random(0)
    for _ in range(500):
        a, b = (tuple(source.choices("abc", k=source.randrange(8))) for _ in range(2))
        assert edit_distance(a, b) == slow(a, b) == edit_distance(b, a)
        assert edit_distance(a, a) == 0


def test_edit_distance_of_long_sequences() -> None:
    """Sequences longer than a machine word, compared with the dynamic programme row by row."""
    source = random.Random(1)
    for length in (64, 65, 200):
        a, b = source.choices("abcd", k=length), source.choices("abcd", k=length + 13)
        row = list(range(len(b) + 1))
        for i, x in enumerate(a, 1):
            above, row = row, [i]
            for j, y in enumerate(b):
                row.append(min(above[j + 1] + 1, row[j] + 1, above[j] + (x != y)))
        assert edit_distance(a, b) == row[-1]


@pytest.mark.parametrize(
    ("hypotheses", "references", "kind", "place"),
    [
        ([], [], "empty", ""),
        (["a"], ["a", "b"], "mismatch", ""),
        (["a", "b"], [["a"], []], "required", "sentence 2"),
    ],
)
def test_bad_input_is_refused(hypotheses: list, references: list, kind: str, place: str) -> None:
    with refused(kind, place):
        translation_metrics(hypotheses, references)


def test_sacrebleu_is_imported_only_when_it_is_needed() -> None:
    code = "import sys, seriatim.evaluation.translation; sys.exit('sacrebleu' in sys.modules or 'torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


PIECES = {
    "@@": lambda first, rest: [f"{first}@@", rest],
    "##": lambda first, rest: [first, f"##{rest}"],
    "￭": lambda first, rest: [f"{first}￭", rest],
    "▁": lambda first, rest: [f"▁{first}", rest],
}


def cut_up(text: str, mark: str) -> str:
    """Return a text whose words of 4 letters and more are cut into two pieces."""
    begin = "▁" if mark == "▁" else ""
    words = ([f"{begin}{word}"] if len(word) < 4 else PIECES[mark](word[:2], word[2:]) for word in text.split())
    return " ".join(itertools.chain.from_iterable(words))


@pytest.mark.parametrize("mark", PIECES)
@pytest.mark.parametrize("sides", [(True, True), (True, False), (False, True)])
def test_pieces_of_words_are_joined_and_this_is_said(mark: str, sides: tuple[bool, bool]) -> None:
    """Whether both sides are pieces, or one of them was joined before."""
    expected = translation_metrics(HYPOTHESES, REFERENCES)
    hypotheses, references = (
        [cut_up(text, mark) if is_cut else text for text in texts]
        for texts, is_cut in zip((HYPOTHESES, REFERENCES), sides, strict=True)
    )
    with pytest.warns(DataWarning, match=mark):
        found = translation_metrics(hypotheses, references)
    assert found.pop("joined") == mark
    assert found == expected
    odd = ["a ￭ b##c @@ ▁d@@"]  # no single line decides
    with pytest.warns(DataWarning, match=mark):
        assert translation_metrics([*hypotheses, *odd], [*references, "x"])["joined"] == mark


def test_bleu_of_pieces_by_hand() -> None:
    references = ["das ro@@ te bo@@ ot in dem grü@@ nen ha@@ us 1", "ein bl@@ auer ba@@ um und das ro@@ te ha@@ us 2"]
    with pytest.warns(DataWarning, match="@@"):
        found = translation_metrics(["das rote bo@@ ot ha@@ us 1", "ein bla@@ uer ba@@"], references)
    joined = ["das rote boot in dem grünen haus 1", "ein blauer baum und das rote haus 2"]
    assert found["bleu"] == BLEU().corpus_score(["das rote boot haus 1", "ein blauer ba"], [joined]).score
    assert found["word_error_rate"] == (3 + 6) / 16


@pytest.mark.parametrize(
    "text",
    ["write to me@@home now", "a @@ b", "@@ -1,3 +1,4 @@", "the end@@", "## A title", "C## and F##", "a ▁▁▁ b", "▁▁▁▁"],
)
def test_marks_that_are_content_stay(text: str) -> None:
    assert translation_metrics([text] * 9, [text] * 9)["exact_match"] == 1
    assert "joined" not in translation_metrics([text] * 9, [text] * 9)
    few = ["re@@ d", *["a plain text of several words"] * 9]  # one line of ten is no text of pieces
    assert "joined" not in translation_metrics(few, few)

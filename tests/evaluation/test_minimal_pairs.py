"""Minimal pairs: accuracy by phenomenon, ties, the comparison of two runs, and bad input."""

import gzip
import json
import math
from pathlib import Path

import pytest

from seriatim.cli.main import main
from seriatim.evaluation.minimal_pairs import MinimalPair, score_pairs

PAIRS = [
    ("the cat likes a dog .", "the cat likes dog a .", "order", "determiner"),
    ("she sees the cat .", "she the sees cat .", "order", "verb"),
    ("the cat likes a dog .", "the cat likes a dog .", "same", "same"),
]


def call(capsys, *arguments: str) -> tuple[int, str, str]:
    code = main(list(arguments))
    return (code, *capsys.readouterr())


def written(path, pairs=PAIRS) -> str:
    fields = ("sentence_good", "sentence_bad", "linguistics_term", "UID")
    lines = [json.dumps(dict(zip(fields, pair, strict=False))) for pair in pairs]
    with gzip.open(path, "wt") if path.suffix == ".gz" else path.open("w") as file:
        file.write("\n".join(lines) + "\n")
    return str(path)


def test_accuracy_is_the_share_of_pairs_whose_good_sentence_is_more_probable(runs, tmp_path, capsys) -> None:
    run = runs["char-line"]
    pairs = PAIRS * 4
    data = written(tmp_path / "pairs.jsonl.gz", pairs)
    code, out, _ = call(capsys, "evaluate", str(run.path), "--data", data, "--minimal-pairs", "--json")
    assert code == 0
    metrics = json.loads(out)
    good, bad = ([score.log_probability for score in run.score([pair[i] for pair in PAIRS])] for i in (0, 1))
    hits = [a > b for a, b in zip(good, bad, strict=True)]
    assert metrics["accuracy"] == pytest.approx(sum(hits) / 3)
    assert metrics["accuracy_low"] <= metrics["accuracy"] <= metrics["accuracy_high"]
    assert (metrics["pairs"], metrics["ties"]) == (12, 4)
    assert metrics["phenomena"]["order"]["accuracy"] == pytest.approx(sum(hits[:2]) / 2)
    assert metrics["phenomena"]["same"] == {**metrics["phenomena"]["same"], "accuracy": 0.0, "pairs": 4, "ties": 4}
    assert sorted(metrics["paradigms"]) == ["determiner", "same", "verb"]
    code, out, _ = call(capsys, "evaluate", str(run.path), "--data", data, "--minimal-pairs")
    assert code == 0
    assert out.splitlines()[-1] == "equal probability, which counts as wrong: 4 of 12 pairs"
    assert [line.split()[0] for line in out.splitlines()[1:-1]] == ["order", "same", "all"]


def test_two_impossible_sentences_are_equally_probable() -> None:
    pairs = [MinimalPair("a", "b", "", "")] * 4
    probable = {"a": -math.inf, "b": -math.inf}
    scores = score_pairs(pairs, lambda sentences: [probable[sentence] for sentence in sentences])
    assert (scores.metrics()["ties"], scores.metrics()["accuracy"]) == (4, 0.0)
    for one, other, right in ((-3.0, -math.inf, 1.0), (-math.inf, -3.0, 0.0)):
        scores = score_pairs(
            pairs, lambda sentences, given=(one, other): [given["ab".index(each)] for each in sentences]
        )
        assert (scores.metrics()["ties"], scores.metrics()["accuracy"]) == (0, right)


def test_two_runs_are_compared_on_the_same_pairs(runs, tmp_path, capsys) -> None:
    data = written(tmp_path / "pairs.jsonl", [pair[:2] for pair in PAIRS])
    first, second = (str(runs[name].path) for name in ("char-line", "word-line"))
    code, out, _ = call(capsys, "evaluate", first, second, "--data", data, "--minimal-pairs", "--json")
    assert code == 0
    both = json.loads(out)
    assert set(both) == {"first", "second", "differences"}
    difference = both["differences"]["accuracy"]["difference"]
    assert difference == pytest.approx(both["first"]["accuracy"] - both["second"]["accuracy"])
    code, out, _ = call(capsys, "evaluate", first, second, "--data", data, "--minimal-pairs")
    assert code == 0
    heading, *_, last_row, conclusion = out.splitlines()
    names = [Path(path).name for path in (first, second)]
    assert heading.split()[1:3] == names
    assert last_row.startswith("all")
    assert all(name in conclusion for name in names)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"sentence_good": "a"}', 'pairs.jsonl:1: no string field "sentence_bad"'),
        ('{"sentence_good": "a", "sentence_bad": 3}', 'no string field "sentence_bad"'),
        ('{"sentence_good": "a\\nb", "sentence_bad": "b"}', "pairs.jsonl:1: a sentence contains a line end"),
        ("not json", "pairs.jsonl:1"),
        ("", "no pairs; give JSONL with the fields"),
    ],
)
def test_bad_pairs_are_refused(runs, tmp_path, capsys, line: str, message: str) -> None:
    path = tmp_path / "pairs.jsonl"
    path.write_text(f"{line}\n" if line else "")
    code, _, error = call(capsys, "evaluate", str(runs["char-line"].path), "--data", str(path), "--minimal-pairs")
    assert code == 2
    assert message in error
    assert error.count("\n") == 1


def test_options_that_do_not_apply_are_refused(runs, tmp_path, capsys) -> None:
    data, run = written(tmp_path / "pairs.jsonl"), str(runs["char-line"].path)
    for more in (["--beam", "3"], ["--interpolate"]):
        code, _, error = call(capsys, "evaluate", run, "--data", data, "--minimal-pairs", *more)
        assert code == 2
        assert f"--minimal-pairs: cannot be combined with {more[0]}" in error

"""What is measured while the rows of a comparison are trained."""

from pathlib import Path

import pytest

import seriatim
from seriatim.comparison import planning

from .comparisons import small


@pytest.mark.parametrize("task", ["lm", "mlm"])
def test_all_rows_are_validated_eight_times_on_the_same_sample(
    task: str, texts, tmp_path: Path, in_process: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "VALIDATE_TOKENS", 60)
    config = {"task": task, **small(texts, tmp_path / "a")}
    config["model"] = {**config["model"], "options": {"smoothing": "witten-bell"} if task == "lm" else {}}
    layers = ["rnn", "gru", "ngram"] if task == "lm" else ["rnn", "gru"]
    results = seriatim.compare(config, layers=layers, steps=16).results
    count = results["validated_on"]["tokens"]
    assert 60 <= count <= 120
    for row in results["rows"]:
        run = seriatim.load(tmp_path / "a" / row["runs"][0]["path"])
        assert run.config.training.validate_tokens == 60
        assert run.summary["valid"]["tokens"] > count, "the summary is of all of the held-out data"

        # What was measured last can be measured again, on the same tokens.
        valid = run.task.reader.read(texts["valid"], "valid", run.vocabulary)
        sample = run.task.evaluator.sample(valid, 60)
        again = run.task.evaluator.evaluate(run.model, sample)
        assert again["tokens"] == count
        points = row["held_out"]
        assert len(points) == (1 if row["counted"] else 8)
        assert again[points[0]["key"]] == pytest.approx(min(point["value"] for point in points), rel=1e-4)


def test_a_given_number_of_validations_is_of_all_of_the_data(texts, tmp_path: Path, in_process: None) -> None:
    config = small(texts, tmp_path / "a")
    config["training"] = {**config["training"], "evaluate_every": 2}
    results = seriatim.compare(config, layers=["rnn"], steps=4).results
    assert results["validated_on"] is None
    assert len(results["rows"][0]["held_out"]) == 2


def test_a_counted_row_may_come_first_with_a_budget_of_tokens(texts, tmp_path: Path, in_process: None) -> None:
    config = small(texts, tmp_path / "a")
    config["model"] = {**config["model"], "options": {"smoothing": "witten-bell"}}
    results = seriatim.compare(config, layers=["ngram", "rnn"], tokens=200).results
    counted, trained = results["rows"]
    assert counted["counted"]
    assert results["equal"] == {"of": "tokens", "low": 256, "high": 256, "is_equal": True}
    assert trained["runs"][0]["tokens"] == 256

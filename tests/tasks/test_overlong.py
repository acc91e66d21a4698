"""Attention without a window warns of very long sequences before it reads them."""

from pathlib import Path

import numpy as np
import pytest

import seriatim
from seriatim.config import resolve
from seriatim.tasks import data_files as data_warnings
from seriatim.tasks.data_files import warn_of_long

from ..conftest import small_config


@pytest.mark.parametrize(
    ("layer", "options", "warns"),
    [
        ("attention", {}, True),
        ("lstm,transformer", {}, True),
        ("self-attention", {"window": 64}, False),
        ("lstm", {}, False),
        ("mamba", {}, False),
    ],
)
def test_layers_whose_time_grows_with_the_square_are_named(layer: str, options: dict, warns: bool, recwarn) -> None:
    config = resolve({"model": {"layer": layer, "options": options}})
    lengths = np.array([3, data_warnings.LONG + 1])
    warn_of_long(lengths[:1], config, name="a.txt", items="lines")
    assert not recwarn
    warn_of_long(lengths, config, name="a.txt", items="lines")
    assert len(recwarn) == warns
    if warns:
        assert "a.txt: one of the lines (number 2) has 10,001 tokens" in str(recwarn[0].message)
        assert "model.options.window" in str(recwarn[0].message)


def test_training_evaluation_and_scores_warn(texts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_warnings, "LONG", 20)
    settings = small_config(texts, tmp_path / "run", data={"unit": "line"}, training={"steps": 1})
    settings["data"]["valid"] = "none"
    with pytest.warns(UserWarning, match="train.txt: one of the lines"):
        run = seriatim.train({**settings, "model": {"layer": "attention", "hidden_size": 8, "embedding_size": 8}})
    with pytest.warns(UserWarning, match="test.txt: one of the lines"):
        run.evaluate(texts["test"])
    with pytest.warns(UserWarning, match="score: one of the lines"):
        run.score(["the cat sees the sea and the moon"])

"""What is held against a golden run: its figures, and what it says of a few inputs."""

import json
from pathlib import Path
from typing import Any

import pytest

import seriatim

from .recipes import DATA

GOLDEN = Path(__file__).parent
LINES = ("the cat sees the sea .", "", "nobody paints it .", "she forgets her brother . a dog likes the moon .")
PREFIXES = ("the", "the cat likes", "a dog follows the moon")
GAPS = ("the [MASK] sees the sea .", "[MASK] paints it [MASK]", "no gap")
TOLERANCE = 1e-4
"""Of figures, relative, and of logarithms below 1 absolute: processors and libraries round sums in other orders, which
changes the last of the seven digits of a number, and a few more of what is summed up of many."""


def names() -> list[str]:
    """The golden runs there are."""
    return sorted(path.parent.name for path in GOLDEN.glob("*/expected.json"))


def answers(run: seriatim.Run) -> dict[str, Any]:
    """As JSON holds it. The working directory is the folder of the golden runs, where their data lie."""
    metrics = run.evaluate(f"data/valid-{DATA[run.config.task]}")
    keys = [figure.key for figure in run.task.evaluator.metrics if figure.key in metrics] + list(
        run.task.evaluator.counts
    )
    found = {"figures": {key: metrics[key] for key in keys}}
    more = _of_a_language_model(run) if run.config.task == "lm" else {"answers": _to_lines(run)}
    return _short(json.loads(json.dumps(found | more)))


def _short(value: Any) -> Any:
    """With as many digits as mean something."""
    if isinstance(value, dict):
        return {key: _short(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_short(each) for each in value]
    return float(f"{value:.8g}") if isinstance(value, float) else value


def _of_a_language_model(run: seriatim.Run) -> dict[str, Any]:
    logits = []
    for prefix in PREFIXES:
        stream = run.stream()
        stream.feed(prefix)
        logits.append(stream.logits[0, :9].tolist())
    written = "".join(run.generate(PREFIXES[0], max_tokens=12, temperature=0))
    return {"scores": run.score(LINES), "logits": logits, "written": written}


def _to_lines(run: seriatim.Run) -> list[dict[str, Any]]:
    lines = GAPS if run.config.task == "mlm" else LINES
    settings = {"beam": 3, "n_best": 2} if run.config.task == "seq2seq" else {}
    return [
        {key: value for key, value in one.items() if key != "seconds"}
        for one in run.predict(lines, **settings, details=True)
    ]


def differences(found: Any, expected: Any, where: str = "") -> list[str]:
    """What is not the same: numbers that are not whole beyond `TOLERANCE`, and everything else at all.

    Keys that are new, such as that of a new metric, make no difference.
    """
    if isinstance(expected, dict) and isinstance(found, dict) and found.keys() >= expected.keys():
        return [line for key in expected for line in differences(found[key], expected[key], f"{where}.{key}")]
    if isinstance(expected, list) and isinstance(found, list) and len(found) == len(expected):
        pairs = enumerate(zip(found, expected, strict=True))
        return [line for i, (one, other) in pairs for line in differences(one, other, f"{where}.{i}")]
    if isinstance(expected, float) and isinstance(found, float | int):
        expected = pytest.approx(expected, rel=TOLERANCE, abs=TOLERANCE)
    return [] if found == expected else [f"{where}: {found!r}, once {expected!r}"]

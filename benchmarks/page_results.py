"""The results of a comparison, with the statistics of its rows, and figures that follow from them."""

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from page_text import Node
from safetensors.numpy import load_file

RESAMPLES = 2000
SLACK = 0.2  # of the width of an interval, by which ends of two sets of resamples may differ
Row = Mapping[str, Any]


class Comparison:
    """The results of a comparison, and the statistics of its rows."""

    def __init__(self, folder: Path) -> None:
        self.values = json.loads((folder / "results.json").read_text(encoding="utf-8"))
        self.metric = self.values["metric"]
        self.key, self.up = self.metric["key"], self.metric["more_is_better"]
        self.rows: dict[str, Row] = {row["layer"]: row for row in self.values["rows"]}
        self.arrays: dict[str, dict[str, np.ndarray]] = {}
        self.kept: dict[str, Row] = {}
        for layer, row in self.rows.items():
            for run in row["runs"][:1]:
                file = folder / "rows" / f"{layer}-{run['seed']}.json"
                self.kept[layer] = json.loads(file.read_text(encoding="utf-8"))
                self.arrays[layer] = load_file(file.with_suffix(".safetensors"))
        measured = [row for row in self.rows.values() if row["metrics"].get(self.key) is not None and not row["failed"]]
        self.measured = sorted(measured, key=lambda row: (-1 if self.up else 1) * row["metrics"][self.key])
        self.trained = [row for row in self.measured if not row["counted"]]

    def spent(self) -> list[float]:
        """Return what each trained row spent of the budget."""
        name = next((each for each in ("minutes", "tokens", "steps") if each in self.values["budget"]), "")
        field = {"minutes": "training_seconds"}.get(name, name)
        runs = [[run[field] for run in row["runs"] if not run.get("ended_early")] for row in self.trained]
        return [sum(each) / len(each) for each in runs if each] if field else []

    @property
    def is_equal(self) -> bool:
        spent = self.spent()
        return len(spent) < 2 or max(spent) <= 1.1 * min(spent)

    def of(self, row: Row, key: str = "") -> list[float | None]:
        """Return a figure with its interval, as far as there is one."""
        key = key or self.key
        ends = [row["metrics"].get(f"{key}_{end}") for end in ("low", "high")]
        return [row["metrics"].get(key), *(ends if None not in ends and ends[0] != ends[1] else [])]


def figure(sums: np.ndarray, key: str) -> np.ndarray:
    """Return a figure of summed statistics."""
    value = sums[..., 0] / np.maximum(sums[..., 1], 1e-300)
    return np.exp(value) if key == "perplexity" else value


def resampled(statistics: np.ndarray, key: str) -> np.ndarray:
    """Return the figure of resamples of the items."""
    counts = np.random.default_rng(7).multinomial(
        len(statistics), np.full(len(statistics), 1 / len(statistics)), RESAMPLES
    )
    return figure(counts @ statistics, key)


def style(node: Node, name: str) -> float:
    found = re.search(rf"(?<![\w-]){name}: ([\d.]+)%", node.attributes["style"])
    return float(found[1]) if found else math.nan


def seconds(row: Row) -> float | None:
    known = [run["training_seconds"] for run in row["runs"] if run.get("training_seconds")]
    return sum(known) / len(known) if known else None


def others(row: Row) -> float:
    known = [run["others_processors"] for run in row["runs"] if run.get("others_processors") is not None]
    return sum(known) / len(known) if known else 0.0


def differs(test: Mapping[str, Any] | None) -> bool:
    if not test or test.get("p_value") is None:
        return False
    return test["p_value"] <= 0.05 and not test["low"] <= 0 <= test["high"]


def gap(of: Comparison, test: Mapping[str, Any]) -> list[float]:
    scale = 100 if of.up and of.metric["ceiling"] == 1 else 1
    low, high = sorted(scale * abs(test[end]) for end in ("low", "high"))
    return [scale * abs(test["difference"]), low, high]


def names_after(text: str, sentence: str) -> list[str]:
    found = re.search(rf"{sentence}[^:]*: ([^.]*)\.", text)
    return re.split(r", | and ", found[1]) if found else []

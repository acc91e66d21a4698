"""Blank lines of JSONL are left out of running text, and the user is told of them."""

import json
from pathlib import Path

import pytest

import seriatim
from seriatim.core.errors import InputError
from seriatim.data.repairs import DataWarning, Repairs
from seriatim.data.source_content import find_repairs
from seriatim.data.sources import find_sources
from seriatim.data.text import read_chunks, read_objects
from seriatim.runs.checking import check_training

ROWS = [json.dumps({"text": f"row {i} of the text"}) + "\n" for i in range(60)]


@pytest.fixture
def config(tmp_path: Path) -> dict[str, object]:
    """A training on JSONL whose lines 4, 5 and 41 are blank."""
    rows = [*ROWS[:3], "\n", " \u3000\r\n", *ROWS[3:38], "\t\n", *ROWS[38:]]
    (tmp_path / "a.jsonl").write_text("".join(rows), newline="")
    model = {"layer": "ngram", "options": {"order": 2, "smoothing": "witten-bell"}}
    return {"data": {"train": str(tmp_path / "a.jsonl"), "valid": "none"}, "model": model, "out": str(tmp_path / "run")}


def test_those_are_counted_that_readers_leave_out(config) -> None:
    sources, read, counted = find_sources(config["data"]["train"]), Repairs(), Repairs()
    assert len(list(read_objects(sources[0], read))) == len(list(read_chunks(sources))) == 60
    find_repairs([*find_sources("builtin:python-docs"), *sources], counted)
    assert counted.facts() == read.facts()
    assert counted.lines() == {"repairs": ["blank lines 3 (first: a.jsonl:4)"]}


@pytest.mark.parametrize("valid", ["none", "20%"])
@pytest.mark.parametrize("unit", ["stream", "line"])
def test_a_training_warns_once_and_learns_what_it_would_without_them(config, valid: str, unit: str) -> None:
    config["data"] |= {"valid": valid, "unit": unit}
    with pytest.warns(DataWarning) as told:
        run = seriatim.train(config)
    assert [str(warning.message) for warning in told] == [
        f"{config['data']['train']}:4: an empty line; left out (3 times in this file); --strict refuses such data"
    ]
    with pytest.warns(DataWarning, match=r"a\.jsonl:4: an empty line"):
        counts = [run.evaluate(config["data"]["train"])]
    whole = Path(config["data"]["train"]).with_name("whole.jsonl")
    whole.write_text("".join(ROWS))
    counts.append(run.evaluate(str(whole)))
    (repair,) = counts[0].pop("repairs")
    assert (repair["kind"], repair["line"], repair["count"]) == ("blank lines", 4, 3)
    assert counts[0] == counts[1]


def test_check_says_so_and_strict_refuses(config) -> None:
    with pytest.warns(DataWarning, match=r"a\.jsonl:4: an empty line"):
        report = check_training(config)
    assert report["train"]["repairs"] == ["blank lines 3 (first: a.jsonl:4)"]
    config["data"]["strict"] = True
    for refuse in (check_training, seriatim.train):
        with pytest.raises(InputError, match=r"a\.jsonl:4: an empty line; every line of JSONL holds one object"):
            refuse(config)

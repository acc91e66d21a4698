"""Files that are whole and hold figures that do not fit together: an error, or an answer; never a fall."""

import contextlib
import copy
import json
import math
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

import seriatim
from seriatim.cli.main import main
from seriatim.core.errors import InputError
from seriatim.data.tokenizers import WordTokenizer
from seriatim.storage.weights import load_tensors, read_metadata, save_tensors
from seriatim.training.checkpoints import MANIFEST, _sum, checkpoints

from ..conftest import small_config
from ..refusals import refused
from . import saved

FAR = 2**62


@pytest.fixture(scope="module")
def counted(texts, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose tables are longer than what is looked at when it is opened."""
    folder = tmp_path_factory.mktemp("counted")
    generator = np.random.default_rng(0)
    (folder / "text").write_text("".join(map(chr, generator.integers(97, 123, 40_000))) + "\n")
    model = {"layer": "ngram", "options": {"order": 4, "smoothing": "witten-bell"}}
    config = small_config({"train": str(folder / "text"), "valid": None}, folder / "run")
    return seriatim.train({**config, "model": model}).path


def with_tables(counted: Path, folder: Path, changes: dict[str, Any]) -> Path:
    """The run with some of its tables replaced: None leaves one out."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(counted, folder)
    path = counted / "model.safetensors"
    tables = {name: table for name, table in (load_tensors(path) | changes).items() if table is not None}
    save_tensors(tables, folder / "model.safetensors", read_metadata(path))
    return folder


@pytest.mark.exhaustive
def test_tables_that_do_not_fit_one_another_are_refused(counted, tmp_path: Path) -> None:
    tables = load_tensors(counted / "model.safetensors")
    assert len(tables["keys.2"]) > 4096
    changes: list[dict[str, Any]] = [{name: None} for name in tables]
    changes += [{name: table[:-1].clone()} for name, table in tables.items()]
    changes += [{name: torch.cat([table, table[-1:]])} for name, table in tables.items()]
    changes += [{name: table[:0].clone()} for name, table in tables.items()]
    changes += [{name: table[None]} for name, table in tables.items()]
    changes += [{name: table.to(kind)} for name, table in tables.items() for kind in (torch.float32, torch.int32)]
    changes += [{name: table.flip(0)} for name, table in tables.items() if name.startswith("keys")]
    changes += [{name: table + FAR} for name, table in tables.items() if name.startswith("keys")]
    changes += [{name: table - FAR} for name, table in tables.items() if name.startswith("keys")]
    for value in (math.nan, math.inf, -1.0):
        changes += [
            {name: torch.full_like(table, value)} for name, table in tables.items() if table.is_floating_point()
        ]
    changes += [{"probabilities.1": tables["probabilities.1"] * 10**6}, {"more": torch.zeros(1)}]
    changes.append({"probabilities.4": torch.zeros(3, dtype=torch.float64)})
    for change in changes:
        with refused("damaged", "model.safetensors"):
            seriatim.load(with_tables(counted, tmp_path / "run", change))


@pytest.mark.exhaustive
def test_tables_with_hidden_faults_give_an_error_or_an_answer(counted, tmp_path: Path) -> None:
    """Between the places that are looked at, anything can stand."""
    tables, generator = load_tensors(counted / "model.safetensors"), np.random.default_rng(1)
    text = str(counted.parent / "text")
    for value in (FAR, -FAR, 0, -1, math.nan, math.inf, -1e300):
        for name in ("keys.0", "keys.1", "keys.2", "probabilities.2", "backoffs.1", "backoffs.2"):
            table = tables[name].clone()
            if not (math.isfinite(value) or table.is_floating_point()):
                continue
            seen = np.linspace(0, len(table) - 1, min(len(table), 4096)).astype(np.int64)
            hidden = np.setdiff1d(np.arange(len(table)), seen)
            hidden = generator.choice(hidden, len(hidden) // 2, replace=False) if len(hidden) else seen[:0]
            table[torch.from_numpy(hidden)] = torch.tensor(value).to(table.dtype)
            folder = with_tables(counted, tmp_path / "run", {name: table})
            largest = 1.0 if name.startswith("probabilities") else 1e300
            if len(hidden) and not (name.startswith("keys.") or 0 <= value <= largest):
                with pytest.raises(InputError, match=rf"{name} holds"):
                    seriatim.load(folder)
                continue
            run = seriatim.load(folder)
            with np.errstate(all="ignore"):
                for use, given in ((run.score, ["abcab" * 20]), (run.evaluate, text), (draw, run)):
                    with contextlib.suppress(InputError):
                        use(given)


def draw(run: seriatim.Run) -> None:
    run.samples(2, "abc", max_tokens=20, seed=1)


def test_a_cache_of_absurd_size_is_refused(counted, tmp_path: Path) -> None:
    folder = with_tables(counted, tmp_path / "run", {})
    text = (folder / "config.yaml").read_text()
    (folder / "config.yaml").write_text(text.replace("cache_size: 200", "cache_size: 1000000000"))
    with refused("mismatch", "run"):
        seriatim.load(folder)


def test_a_tokenizer_larger_than_the_tables_is_refused(counted, tmp_path: Path) -> None:
    from seriatim.data.tokenizers import Spelling
    from seriatim.data.vocabulary import Vocabulary
    from seriatim.training.run_files import identity, read_config

    folder = with_tables(counted, tmp_path / "run", {})
    vocabulary = Vocabulary({"tokenizer": WordTokenizer([f"w{i}" for i in range(1000)], Spelling())})
    vocabulary.save(folder)
    path = folder / "model.safetensors"
    save_tensors(load_tensors(path), path, identity(read_config(folder), vocabulary))
    with refused("damaged", "model.safetensors"):
        seriatim.load(folder)


def sealed(folder: Path) -> Path:
    """The checkpoints, whose last one has the sums of what it holds now."""
    last = checkpoints(folder)[-1]
    sums = {path.name: _sum(path) for path in last.iterdir() if path.name != MANIFEST}
    (last / MANIFEST).write_text(json.dumps({"sha256": sums}))
    return folder


def test_tensors_of_a_checkpoint_are_checked_where_its_sums_are_right(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    saved.save(folder, 1)
    for name in ("optimizer.safetensors", "state.safetensors", "model.safetensors"):
        path = checkpoints(folder)[-1] / name
        kept, metadata, before = load_tensors(path), read_metadata(path), path.read_bytes()
        odd = [{**kept, "nothing|exp_avg": torch.zeros(1)}]
        for key, value in kept.items():
            odd += [{**kept, key: torch.zeros(size)} for size in ((), (1,), (0,), (7, 7)) if size != value.shape]
            odd += [{**kept, key: value.to(kind)} for kind in (torch.float64, torch.int64, torch.bool)]
            odd.append({other: value for other, value in kept.items() if other != key})
        for tensors in odd:
            save_tensors(tensors, path, metadata)
            with pytest.raises(InputError):
                saved.load(sealed(folder))
        path.write_bytes(before)
    assert saved.load(sealed(folder)) == 1


def test_progress_is_checked_where_its_sum_is_right(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    saved.save(folder, 1)
    path = checkpoints(folder)[-1] / "progress.json"
    kept = json.loads(path.read_text())
    numbers = (-2, 2**64, 10**400, 1.5)
    values = ("1", [1], {}, None, True, *numbers)
    for name, known in kept.items():
        for value in values:
            fits = name in ("best_valid", "loss_of_best", "best_loss", "previous_loss") and value in (None, *numbers)
            fits |= isinstance(known, float) and isinstance(value, int | float) and value in numbers
            fits |= isinstance(known, str) and isinstance(value, str)
            fits |= name == "held_out" and (value is None or isinstance(value, str))
            fits |= (name == "records" and value is None) or (isinstance(known, dict) and value == {})
            if not fits:
                path.write_text(json.dumps({**kept, name: value}))
                with refused("damaged", "progress.json"):
                    saved.load(sealed(folder))
    for text in ("", "null", "[]", "1", '"x"', "[" * 60_000, '{"step": '):
        path.write_text(text)
        with refused("damaged", "progress.json"):
            saved.load(sealed(folder))


REPLACED = (None, True, -1, 1.5, math.nan, math.inf, 2**70, "x", "", [], ["x"], {}, {"x": 1})
"""Put in place of every value of a file."""


def replacements(value: Any) -> Iterator[Any]:
    """A value of JSON with each of its parts replaced in turn; of long lists only the first."""
    yield from REPLACED
    if isinstance(value, dict | list) and value:
        for key in list(value) if isinstance(value, dict) else [0]:
            for other in replacements(value[key]):
                changed = copy.copy(value)
                changed[key] = other
                yield changed


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["summary.json", "config.yaml", "tokenizer.json"])
def test_a_value_of_another_type_is_refused_in_one_line_or_does_no_harm(texts, tmp_path: Path, name: str) -> None:
    run = seriatim.train(small_config(texts, tmp_path / "run", training={"steps": 2})).path
    every = list(replacements(yaml.safe_load((run / name).read_text())))
    for changed in random.Random(0).sample(every, min(60, len(every))):
        (run / name).write_text(json.dumps(changed))
        with contextlib.suppress(InputError):
            opened = seriatim.load(run)
            assert opened.score(["the cat"])
            for key in ("parameters", "tokens", "seconds"):
                format(opened.summary.get(key, 0), ",.0f")


def test_a_field_of_a_summary_is_named(texts, tmp_path: Path) -> None:
    run = seriatim.train(small_config(texts, tmp_path / "run", training={"steps": 2})).path
    summary = json.loads((run / "summary.json").read_text())
    for change in ({"parameters": "x"}, {"seconds": -1}, {"valid": {"loss": {}}}, {"versions": [1]}, {"layer": None}):
        (run / "summary.json").write_text(json.dumps({**summary, **change}))
        with pytest.raises(
            InputError, match=rf"summary\.json: {next(iter(change))}\b.* does not fit; .*; remove the file"
        ):
            seriatim.load(run)


@pytest.mark.parametrize(
    "change",
    [
        {"seconds": 10**400},
        {"valid": {"loss": "x"}},
        {"valid": {"perplexity_low": [1]}},
        {"baseline": {"bits_per_byte": "1"}},
        *({"valid": {"ngrams": wrong}} for wrong in (5, [], [5], [{}], [{"order": 1, "predicted": "x"}])),
    ],
)
def test_a_metric_of_another_type_is_named(texts, tmp_path: Path, change: dict, capsys) -> None:
    data, model = {"unit": "line"}, {"layer": "ngram", "options": {"smoothing": "witten-bell"}}
    run = seriatim.train(small_config(texts, tmp_path / "run", data=data, model=model, tokenizer={"kind": "word"}))
    summary = json.loads((run.path / "summary.json").read_text())
    (run.path / "summary.json").write_text(json.dumps({**summary, **change}))
    capsys.readouterr()
    assert main(["inspect", str(run.path), "--text", "the cat"]) == 2
    part = next(iter(change))
    assert f"summary.json: {part}" in (error := capsys.readouterr().err)
    assert "remove the file" in error
    (run.path / "summary.json").write_text(json.dumps(summary))
    assert seriatim.load(run.path).summary == run.summary


@pytest.mark.parametrize("change", [{"records": -1}, {"step": -1}, {"seconds": math.nan}, {"tokens": 2**60}])
def test_progress_that_no_training_makes_is_refused(tmp_path: Path, change: dict[str, float]) -> None:
    saved.save(tmp_path / "checkpoints", 1)
    last = checkpoints(tmp_path / "checkpoints")[-1]
    progress = json.loads((last / "progress.json").read_text())
    (last / "progress.json").write_text(json.dumps(progress | change))
    sums = json.loads((last / MANIFEST).read_text())
    sums["sha256"]["progress.json"] = _sum(last / "progress.json")
    (last / MANIFEST).write_text(json.dumps(sums))
    with pytest.raises(InputError, match=rf"progress\.json: {next(iter(change))} must be "):
        saved.load(tmp_path / "checkpoints")


def test_the_figures_of_each_class_fit_a_summary(tmp_path: Path) -> None:
    (tmp_path / "data.tsv").write_text("label\ttext\nx\ta b\ny\tc d\n" * 4)
    data = {"train": str(tmp_path / "data.tsv"), "valid": str(tmp_path / "data.tsv")}
    model = {"layer": "rnn", "embedding_size": 4, "hidden_size": 4}
    config = {
        "task": "classify",
        "data": data,
        "model": model,
        "training": {"baseline": "none", "steps": 1},
        "out": str(tmp_path / "run"),
    }
    run = seriatim.train(config)
    assert isinstance(run.summary["valid"]["classes"], dict)
    assert seriatim.load(run.path).summary == run.summary

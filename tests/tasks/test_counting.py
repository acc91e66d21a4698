"""N-gram models as runs: trained, measured, opened, exported, mixed; and what is refused."""

import gzip
import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import seriatim
from seriatim.cli.main import main
from seriatim.storage.weights import load_tensors, read_metadata, save_tensors
from seriatim.tasks import shared_options

from ..conftest import small_config
from ..refusals import refused

pytestmark = pytest.mark.filterwarnings("ignore:too few", "ignore:.* boundary marker")


@pytest.fixture(scope="module")
def run(texts: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> seriatim.Run:
    return seriatim.train(config(texts, tmp_path_factory.mktemp("counting") / "run"))


def config(texts: dict[str, str], out: Path, **options: Any) -> dict[str, Any]:
    return {
        "data": {"train": texts["train"], "valid": texts["valid"], "unit": "line"},
        "tokenizer": {"kind": "word"},
        "model": {"layer": "ngram", "options": {"order": 3, **options}},
        "out": str(out),
    }


def test_a_run_like_any_other(run: seriatim.Run, texts: dict[str, str]) -> None:
    assert {"config.yaml", "tokenizer.json", "model.safetensors", "metrics.jsonl", "summary.json", "README.md"} <= {
        path.name for path in run.path.iterdir()
    }
    found = run.evaluate(texts["valid"])
    assert found["loss"] == run.summary["best_valid"] == run.summary["valid"]["loss"]
    assert found["perplexity"] < 0.8 * run.summary["baseline"]["perplexity"]
    again = seriatim.load(run.path)
    assert again.evaluate(texts["valid"]) == found


def test_it_scores_streams_and_writes(run: seriatim.Run, texts: dict[str, str], tmp_path: Path) -> None:
    lines = Path(texts["valid"]).read_text().splitlines()[:20]
    scores = run.score(lines)
    whole = run.model.text_losses(np.concatenate([np.append(run.tokenizer.encode(line), 0) for line in lines]))
    assert -sum(score.log_probability for score in scores) == pytest.approx(whole.sum())
    stream = run.stream()
    stream.feed(lines[0])
    stream.save(tmp_path / "state.safetensors")
    other = seriatim.load(run.path).stream().load(tmp_path / "state.safetensors")
    first, second = (list(one.generate(max_tokens=8, seed=3)) for one in (stream, other))
    assert first == second
    assert len(run.samples(3, max_tokens=5, seed=1)) == 3


def test_unknown_words_are_learned_from_words_that_occur_once(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text("".join(f"the cat saw name{i}\n" for i in range(40)))
    (tmp_path / "valid.txt").write_text("".join(f"the cat saw other{i}\n" for i in range(20)))
    texts = {"train": str(tmp_path / "train.txt"), "valid": str(tmp_path / "valid.txt")}
    runs = {
        rate: seriatim.train(config(texts, tmp_path / f"run-{rate}", word_dropout=rate)) for rate in (0.0, 0.5, 0.8)
    }
    losses = {rate: run.summary["valid"]["loss"] for rate, run in runs.items()}
    assert losses[0.0] > losses[0.5] > losses[0.8]
    assert runs[0.0].summary["baseline"]["perplexity"] > runs[0.8].summary["baseline"]["perplexity"]
    network = {**config(texts, tmp_path / "network"), "training": {"steps": 2}, "model": {"hidden_size": 8}}
    simple = seriatim.train(network).path / "baseline"
    assert seriatim.load(simple).config.model.options["word_dropout"] == 0.8
    assert shared_options("lm", "ngram", {"word_dropout": 0.3}) == {"word_dropout": 0.3}


@pytest.mark.parametrize("options", [{"order": 5}, {"order": 50}, {"order": 1}, {"order": 4, "memory": 1e-6}])
def test_a_text_of_one_word_is_enough(tmp_path: Path, options: dict[str, Any]) -> None:
    (tmp_path / "one.txt").write_text("one\n")
    found = seriatim.train(
        {
            "data": {"train": str(tmp_path / "one.txt"), "unit": "line"},
            "tokenizer": {"kind": "word"},
            "model": {"layer": "ngram", "options": options},
            "out": str(tmp_path / "run"),
        }
    )
    assert 0 < found.evaluate(str(tmp_path / "one.txt"))["loss"] < np.log(3)
    assert len(found.score(["one", "two one", ""])) == 3


def test_there_is_nothing_to_resume(run: seriatim.Run) -> None:
    before = (run.path / "model.safetensors").stat().st_mtime_ns
    with pytest.warns(UserWarning, match="counted in one pass, nothing is left to do"):
        assert main(["train", "--resume", str(run.path)]) == 0
    assert (run.path / "model.safetensors").stat().st_mtime_ns == before


def test_options_reach_the_model(texts: dict[str, str], tmp_path: Path) -> None:
    made = {
        name: seriatim.train(config(texts, tmp_path / name, **options))
        for name, options in {
            "plain": {},
            "pruned": {"prune": [0, 0, 1]},
            "cached": {"cache": 0.2, "cache_size": 5},
            "lidstone": {"smoothing": "add-k", "k": 0.1},
        }.items()
    }
    assert made["pruned"].summary["parameters"] < made["plain"].summary["parameters"]
    losses = {name: run.evaluate(texts["valid"])["loss"] for name, run in made.items()}
    assert len(set(losses.values())) == 4
    assert losses["plain"] < losses["lidstone"]


def test_runs_are_mixed_with_fitted_weights(run: seriatim.Run, texts: dict[str, str], tmp_path: Path, capsys) -> None:
    settings = small_config(
        texts, tmp_path / "gru", data={"unit": "line"}, tokenizer={"kind": "word"}, training={"steps": 30}
    )
    neural = seriatim.train({**settings, "data": {**settings["data"], "train": texts["train"]}})
    given = ["evaluate", str(run.path), str(neural.path), "--data", texts["valid"], "--json"]
    assert main([*given, "--interpolate"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert sum(found["weights"].values()) == pytest.approx(1)
    assert found["loss"] <= min(one.evaluate(texts["valid"])["loss"] for one in (run, neural)) + 1e-4
    assert main(["evaluate", str(run.path), "--data", texts["valid"], "--interpolate"]) == 2
    assert "needs at least two runs" in capsys.readouterr().err


def test_arpa_there_and_back(run: seriatim.Run, texts: dict[str, str], tmp_path: Path, capsys) -> None:
    arpa = str(tmp_path / "model.arpa.gz")
    assert main(["export", str(run.path), "--format", "arpa", "--out", arpa]) == 0
    assert main(["import", arpa, "--out", str(tmp_path / "back")]) == 0
    back = seriatim.load(tmp_path / "back")
    assert back.evaluate(texts["valid"])["loss"] == pytest.approx(run.evaluate(texts["valid"])["loss"])
    assert main(["export", str(run.path), "--format", "arap", "--out", arpa]) == 2
    assert main(["import", str(tmp_path), "--out", str(tmp_path / "no")]) == 2
    assert main(["import", arpa, "--out", str(tmp_path / "back")]) == 2
    assert "did you mean 'arpa'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "kind", "place", "value"),
    [
        ({"order": 0}, "range", "model.options.order", ""),
        ({"order": 1000}, "range", "model.options.order", ""),
        ({"ordr": 3}, "unknown", "model.options.ordr", "order"),
        ({"smoothing": "kneserney"}, "range", "model.options.smoothing", ""),
        ({"prune": [1, 1]}, "range", "model.options.prune", ""),
        ({"prune": [0, 2, 1]}, "range", "model.options.prune", ""),
        ({"cache": 1.0}, "range", "model.options.cache", ""),
        ({"k": 0}, "range", "model.options.k", ""),
        ({"memory": 1e300}, "range", "model.options.memory", ""),
    ],
)
def test_options_that_do_not_fit(
    texts: dict[str, str], tmp_path: Path, options: dict, kind: str, place: str, value: str
) -> None:
    with refused(kind, place, value):
        seriatim.train(config(texts, tmp_path / "run", **options))


def test_small_and_strange_texts(tmp_path: Path) -> None:
    for i, text in enumerate(["a", "a\n", "<s> </s> <unk> a\n", "x " * 300]):
        path = tmp_path / f"{i}.txt"
        path.write_text(text)
        for unit in ("line", "stream"):
            settings = config({"train": str(path), "valid": str(path)}, tmp_path / f"{i}{unit}")
            settings["data"]["unit"] = unit
            found = seriatim.train(settings).evaluate(str(path))
            assert np.isfinite(found["loss"])
    (tmp_path / "empty").write_text("")
    with refused("empty", "empty:1"):
        seriatim.train(config({"train": str(tmp_path / "empty"), "valid": str(path)}, tmp_path / "none"))


def test_what_cannot_be(run: seriatim.Run, texts: dict[str, str], tmp_path: Path) -> None:
    with refused("unknown"):
        seriatim.train({**config(texts, tmp_path / "run"), "model": {"layer": "n-gram"}})
    with refused("mismatch", "model.layer"):
        seriatim.train({**config(texts, tmp_path / "run"), "task": "classify"})
    shutil.copytree(run.path, tmp_path / "damaged")
    weights = tmp_path / "damaged" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with refused("damaged", "model.safetensors"):
        seriatim.load(tmp_path / "damaged")


def test_what_is_impossible_has_no_number_in_json(texts: dict[str, str], tmp_path: Path, capsys) -> None:
    seriatim.train(config(texts, tmp_path / "run", smoothing="maximum-likelihood"))
    assert main(["evaluate", str(tmp_path / "run"), "--data", texts["valid"], "--json"]) == 0
    found = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert found["loss"] is found["perplexity"] is found["loss_low"] is None
    assert main(["evaluate", str(tmp_path / "run"), "--data", texts["valid"]]) == 0
    assert "inf" in capsys.readouterr().out


def test_only_plain_files_are_written(run: seriatim.Run, tmp_path: Path, capsys) -> None:
    (tmp_path / "there.arpa").write_text("# written by Seriatim\nold")
    (tmp_path / "link.arpa").symlink_to(tmp_path / "there.arpa")
    given = ["export", str(run.path), "--format", "arpa", "--out"]
    assert main([*given, str(tmp_path / "link.arpa")]) == 0
    assert (tmp_path / "link.arpa").is_symlink()
    assert "data" in (tmp_path / "there.arpa").read_text()[:99]
    os.mkfifo(tmp_path / "pipe")
    assert main([*given, str(tmp_path / "pipe")]) == 2
    assert "pipe exists and is not an ARPA file that Seriatim wrote" in capsys.readouterr().err


def test_only_arpa_files_of_seriatim_are_replaced(run: seriatim.Run, tmp_path: Path, capsys) -> None:
    for name in ("a.arpa", "b.arpa.gz"):
        out = tmp_path / name
        command = ["export", str(run.path), "--format", "arpa", "--out", str(out)]
        assert main(command) == main(command) == 0, "a second export replaces the first"
        foreign = "\\data\\\nngram 1=1\n"
        out.write_bytes(gzip.compress(foreign.encode()) if name.endswith(".gz") else foreign.encode())
        before = out.read_bytes()
        assert main(command) == 2
        assert "exists and is not an ARPA file that Seriatim wrote" in capsys.readouterr().err
        assert out.read_bytes() == before


def test_tables_of_another_order_are_refused(run: seriatim.Run, texts: dict[str, str], tmp_path: Path) -> None:
    other = seriatim.train(config(texts, tmp_path / "two", order=2))
    shutil.copytree(run.path, tmp_path / "mixed")
    tables = load_tensors(other.path / "model.safetensors")
    save_tensors(tables, tmp_path / "mixed" / "model.safetensors", read_metadata(run.path / "model.safetensors"))
    with refused("damaged", "model.safetensors"):
        seriatim.load(tmp_path / "mixed")


def test_the_model_card_says_what_was_counted(run: seriatim.Run) -> None:
    card = (run.path / "README.md").read_text()
    counts = [len(order.probability) for order in run.model.table.orders]
    assert f"n-gram counts of order {len(counts)}, smoothing" in card
    assert all(f"{count:,} of order {n}" in card for n, count in enumerate(counts, 1))
    assert not any(f"| {name} |" in card for name in ("optimizer", "layer", "parameters", "seed"))

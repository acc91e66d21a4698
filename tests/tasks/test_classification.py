"""A label for every text, from files to answers."""

import io
import json
import random
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import seriatim
from seriatim.cli.main import main

from ..conftest import sentences
from ..exhaustive import parameters
from ..refusals import refused

TEXTS = ["the cat sees it .", "", "nobody paints the moon .", "she", "zebra " * 40]


def write(path: Path, count: int, seed: int) -> str:
    """Sentences labelled by whether they speak of the sea or the moon, rarely of neither."""
    chosen = random.Random(seed)
    rows = []
    for sentence in sentences(count, seed=seed):
        label = "sea" if "sea" in sentence else "moon" if "moon" in sentence else "other"
        rows.append(
            f"{label}\t{sentence if chosen.random() < 0.98 else ''}" if label != "other" else f"other\t{sentence}"
        )
    path.write_text("label\ttext\n" + "\n".join(rows) + "\n")
    return str(path)


def config(folder: Path, out: str, **options) -> dict:
    return {
        "task": "classify",
        "data": {"train": str(folder / "train.tsv"), "valid": str(folder / "valid.tsv")},
        "model": {"layer": "gru", "embedding_size": 12, "hidden_size": 10, "options": options},
        "training": {"epochs": 6, "batch_size": 16, "learning_rate": 0.02, "schedule": "constant", "baseline": "none"},
        "out": str(folder / out),
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("labelled")
    write(path / "train.tsv", 300, 0)
    write(path / "valid.tsv", 80, 1)
    return path


@pytest.fixture(scope="module")
def run(folder: Path) -> seriatim.Run:
    return seriatim.train(config(folder, "run"))


def test_it_learns_what_the_labels_mean(run: seriatim.Run, folder: Path) -> None:
    found = run.evaluate(str(folder / "valid.tsv"))
    assert found["accuracy"] > 0.9
    assert found["accuracy_low"] <= found["accuracy"] <= found["accuracy_high"]
    assert run.summary["best_valid"] == pytest.approx(found["accuracy"])
    assert run.summary["baseline"]["accuracy"] < 0.8
    assert np.sum(found["confusion"]) == found["texts"] == 80
    assert list(run.predict(["she likes the moon .", "a dog likes the sea ."])) == ["moon", "sea"]


def test_the_metric_follows_the_labels_unless_it_is_chosen(run: seriatim.Run, folder: Path, tmp_path: Path) -> None:
    """More than two thirds of the texts have one label here."""
    assert run.config.training.metric == run.summary["selected_by"] == "macro_f1"
    assert run.summary["best_valid"] == pytest.approx(run.evaluate(str(folder / "valid.tsv"))["macro_f1"])
    assert "macro_f1" in (run.path / "README.md").read_text()

    # In the loss, a label weighs by the square root of its rarity.
    objective, data = run.task.objective, run.task.reader.read(str(folder / "train.tsv"), "train", run.vocabulary)
    assert objective is not None
    counts = np.bincount(data.labels)
    (batch,) = objective.batches(data).read([np.arange(len(data.labels))])
    sizes = torch.from_numpy(counts)[batch.labels]
    torch.testing.assert_close(batch.weights * sizes.sqrt(), (batch.weights * sizes.sqrt())[:1].expand(len(sizes)))

    # With a metric that is given, or labels that are as frequent as each other, it is another one.
    settings = config(folder, "other")
    settings["training"] |= {"metric": "accuracy", "steps": 1, "epochs": None}
    assert seriatim.train(settings | {"out": str(tmp_path / "a")}).summary["selected_by"] == "accuracy"
    head, *rows = (folder / "train.tsv").read_text().splitlines()
    even = [row for label in ("sea", "moon") for row in [one for one in rows if one.startswith(label)][:15]]
    (tmp_path / "even.tsv").write_text("\n".join([head, *even]) + "\n")
    settings["data"] = {"train": str(tmp_path / "even.tsv"), "valid": "none"}
    del settings["training"]["metric"]
    assert seriatim.train(settings | {"out": str(tmp_path / "b")}).config.training.metric == "accuracy"
    settings["training"]["metric"] = "f1"
    with refused("unknown", "training.metric"):
        seriatim.train(settings | {"out": str(tmp_path / "c")})
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize("pooling", parameters(["mean", "max", "attention"], everyday=["attention"]))
def test_every_pooling_and_an_encoder_that_sees_everything(folder: Path, pooling: str) -> None:
    settings = config(folder, f"run-{pooling}", pooling=pooling, class_weights="balanced")
    if pooling == "attention":
        settings["model"] |= {"layer": "transformer", "hidden_size": 16}
        settings["training"] |= {"learning_rate": 0.005}
    run = seriatim.train(settings)
    assert run.model.layer.causal is False
    assert run.evaluate(str(folder / "valid.tsv"))["accuracy"] > 0.85


def test_a_batch_gives_what_its_rows_give_one_by_one(run: seriatim.Run) -> None:
    together = list(run.predict(TEXTS, details=True))
    assert len(together) == len(TEXTS)
    for text, answer in zip(TEXTS, together, strict=True):
        alone = next(run.predict([text], details=True))
        assert alone["text"] == answer["text"] == max(answer["probabilities"], key=answer["probabilities"].get)
        assert sum(answer["probabilities"].values()) == pytest.approx(1)
        for label, share in alone["probabilities"].items():
            assert answer["probabilities"][label] == pytest.approx(share, abs=1e-6)


def test_answers_come_lazily_and_in_order(run: seriatim.Run) -> None:
    def endless():
        while True:
            yield from ("a dog likes the sea .", "she likes the moon .")

    answers = run.predict(endless())
    assert [next(answers) for _ in range(600)] == ["sea", "moon"] * 300


@pytest.mark.exhaustive
def test_a_training_that_was_cut_off_ends_with_the_same_bits(folder: Path) -> None:
    settings = config(folder, "whole")
    settings["data"]["train"] = settings["data"]["valid"]  # five steps an epoch
    settings["training"]["keep"] = "last"  # the training that is cut off validates once more
    whole = seriatim.train(settings)
    seriatim.train({**settings, "training": {**settings["training"], "steps": 13}, "out": str(folder / "cut")})
    resumed = seriatim.resume(folder / "cut", overrides={"training.steps": None})
    for (name, mine), other in zip(whole.model.named_parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(mine, other), name


def test_predict_is_one_line_in_one_line_out(run: seriatim.Run, folder: Path, monkeypatch, capsys) -> None:
    path = folder / "texts.txt"
    path.write_text("\n".join(TEXTS) + "\n")
    assert main(["predict", str(run.path), str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines == list(run.predict(TEXTS))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(path.read_bytes())))
    assert main(["predict", str(run.path), "--json"]) == 0
    answers = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [answer["text"] for answer in answers] == lines
    assert all(answer["seconds"] > 0 for answer in answers)


def test_check_and_evaluate_from_the_command_line(run: seriatim.Run, folder: Path, capsys) -> None:
    assert main(["check", "classify", "--data", str(folder / "train.tsv")]) == 0
    assert "sea" in capsys.readouterr().out
    assert main(["evaluate", str(run.path), "--data", str(folder / "valid.tsv")]) == 0
    assert "macro F1" in capsys.readouterr().out
    assert "accuracy" in (run.path / "README.md").read_text()


def test_one_label_alone_teaches_nothing(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "one.tsv").write_text("label\ttext\nsea\tthe sea\nsea\ta sea\n")
    settings = config(folder, "none")
    settings["data"] = {"train": str(tmp_path / "one.tsv")}
    with refused("empty", "one.tsv"):
        seriatim.train(settings)


@pytest.mark.parametrize(
    ("options", "kind", "place", "value"),
    [
        ({"pooling": "middle"}, "range", "model.options.pooling", ""),
        ({"poolin": "mean"}, "unknown", "model.options.poolin", "pooling"),
        ({"weight_dropou": 0.1}, "unknown", "", "weight_dropout"),
    ],
)
def test_wrong_options_are_named(folder: Path, options: dict, kind: str, place: str, value: str) -> None:
    with refused(kind, place, value):
        seriatim.train(config(folder, "none", **options))


def test_a_classifier_writes_no_text(run: seriatim.Run, capsys) -> None:
    assert main(["generate", str(run.path)]) == 2
    assert "trained to classify" in capsys.readouterr().err
    assert main(["predict", str(run.path), "--beam", "3"]) == 2
    assert "--beam: not an option of the task classify" in capsys.readouterr().err


def test_two_runs_are_compared_text_by_text(run: seriatim.Run, folder: Path, tmp_path: Path, capsys) -> None:
    settings = config(folder, "poor")
    settings["training"] |= {"steps": 2, "baseline_weight": 0}
    seriatim.train(settings)
    data = str(folder / "valid.tsv")
    assert main(["evaluate", str(run.path), str(folder / "poor"), "--data", data, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    apart = found["differences"]["accuracy"]
    assert apart["difference"] == pytest.approx(found["first"]["accuracy"] - found["second"]["accuracy"])
    assert apart["p_value"] < 0.01
    assert apart["low"] > 0
    assert main(["evaluate", str(run.path), str(run.path), "--data", data]) == 0
    assert "1.000" in capsys.readouterr().out


@pytest.mark.parametrize("suffix", ["csv", "tsv", "jsonl"])
def test_the_texts_of_a_table_are_answered_row_by_row(run: seriatim.Run, folder: Path, suffix: str, capsys) -> None:
    texts = ["she likes the moon .", "", "a dog likes the sea ."]
    path = folder / f"table.{suffix}"
    if suffix == "jsonl":
        path.write_text("".join(json.dumps({"text": text, "id": i}) + "\n" for i, text in enumerate(texts)))
    else:
        between = "," if suffix == "csv" else "\t"
        path.write_text(f"id{between}text\n" + "".join(f"{i}{between}{text}\n" for i, text in enumerate(texts)))
    assert main(["predict", str(run.path), str(path), "--format", suffix]) == 0
    assert capsys.readouterr().out.splitlines() == list(run.predict(texts))
    assert main(["predict", str(run.path), str(path), "--format", "conll"]) == 2


@pytest.mark.parametrize(
    ("given", "kind", "place", "value"),
    [
        ("What is it ?", "range", "predict", ""),
        (7, "range", "predict", ""),
        ({"text": "What is it ?"}, "range", "predict", ""),
        ([None], "range", "predict", "item 0"),
        (["she", b"he"], "range", "predict", "item 1"),
        (["she", "\ud800"], "malformed", "predict", "item 1"),
    ],
)
def test_items_that_are_not_texts_are_refused_by_index(
    run: seriatim.Run, given: object, kind: str, place: str, value: str
) -> None:
    with refused(kind, place, value):
        list(run.predict(given))


def test_answering_one_text_hashes_no_vocabulary_and_sets_no_allocator(run: seriatim.Run, monkeypatch) -> None:
    opened = seriatim.load(run.path)
    for name in ("seriatim.data.vocabulary.json.dumps", "seriatim.runs.run.freed_memory_kept"):
        monkeypatch.setattr(name, lambda *_, **__: pytest.fail("called for one text"))
    assert next(opened.predict(["she"])) in opened.vocabulary.labels


def test_a_vocabulary_is_hashed_once(run: seriatim.Run, monkeypatch) -> None:
    vocabulary, calls = seriatim.load(run.path).vocabulary, []
    monkeypatch.setattr(type(vocabulary), "files", lambda self: calls.append(1) or {})
    assert vocabulary.fingerprint() == vocabulary.fingerprint()
    assert len(calls) <= 1


def test_measuring_leaves_every_part_in_its_mode(run: seriatim.Run) -> None:
    opened = seriatim.load(run.path)
    opened.model.layer.train()
    before = [part.training for part in opened.model.modules()]
    next(opened.predict(["she"]))
    assert [part.training for part in opened.model.modules()] == before


@pytest.mark.parametrize("control", ["\n", "\t", "\x85", "\u2028", "\x1b"])
def test_labels_that_would_not_be_one_line_are_refused(tmp_path: Path, control: str) -> None:
    """Else `predict` would print more lines than it reads."""
    rows = [{"text": "a", "label": "x"}, {"text": "b", "label": "y"}, {"text": "c", "label": f"z{control}z"}]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    job = {"task": "classify", "data": {"train": str(tmp_path / "train.jsonl")}, "out": str(tmp_path / "out")}
    with refused("malformed", "train.jsonl:3"):
        seriatim.train(job)
    assert not (tmp_path / "out").exists()


def test_details_hold_the_same_answers_and_an_item_is_named(run: seriatim.Run) -> None:
    assert [answer["text"] for answer in run.predict(TEXTS, details=True)] == list(run.predict(TEXTS))
    with refused("range", "predict"):
        list(run.predict_batches([TEXTS[:1], [None]]))


def test_words_outside_the_vocabulary_differ_by_their_characters(run: seriatim.Run) -> None:
    first, second, again = run.predict(["xyzzy", "Q7", "xyzzy"], details=True)
    assert first["probabilities"] != second["probabilities"]
    assert first["probabilities"] == again["probabilities"]


def test_an_answer_does_not_depend_on_other_unknown_words(run: seriatim.Run) -> None:
    (alone,) = run.predict(["sea xyzzy"], details=True)
    *_, together = run.predict(["plugh", "Q7 plover", "sea xyzzy"], details=True)
    for label, share in alone["probabilities"].items():
        assert together["probabilities"][label] == pytest.approx(share, abs=1e-6)


@pytest.mark.parametrize(
    ("settings", "kind", "place"),
    [
        (
            {"tokenizer": {"kind": "char"}, "model": {"options": {"characters": "recurrent"}}},
            "conflict",
            "model.options.characters",
        ),
        (
            {"tokenizer": {"kind": "bpe"}, "model": {"options": {"word_features": ["suffix"]}}},
            "conflict",
            "model.options.word_features",
        ),
        ({"model": {"options": {"word_features": ["sufix"]}}}, "range", "model.options.word_features.0"),
    ],
)
def test_characters_are_those_of_words(folder: Path, settings: dict, kind: str, place: str) -> None:
    with refused(kind, place):
        seriatim.train({**config(folder, "refused"), **settings})


@pytest.mark.parametrize("kind", ["char", "bpe"])
def test_other_tokens_have_an_index_alone(folder: Path, kind: str) -> None:
    plain = seriatim.train({**config(folder, kind), "tokenizer": {"kind": kind}})
    assert plain.config.model.options["characters"] == "none"
    assert plain.config.model.options["word_features"] == []
    assert plain.model.characters is None


@pytest.mark.exhaustive
def test_a_page_is_written_of_a_text_with_unknown_words(run: seriatim.Run, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert main(["inspect", str(run.path), "--text", "sea xyzzy moon plugh xyzzy", "--out", str(page)]) == 0
    assert "xyzzy" in page.read_text()

"""A training that starts from another run: what it takes, what it refuses, and that it helps."""

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import seriatim
from seriatim.cli.main import main
from seriatim.config import resolve
from seriatim.storage.weights import load_tensors
from seriatim.tasks import new_task

from ..conftest import sentences, small_config
from ..preparing import prepare
from ..refusals import refused

SIZES = {"layer": "gru", "embedding_size": 16, "hidden_size": 24, "dropout": 0.0}


@pytest.fixture(scope="module")
def folder(texts: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of both kinds of language models, and labelled texts."""
    path = tmp_path_factory.mktemp("init")
    for task, words in (("lm", "word"), ("mlm", "bpe")):
        settings = small_config(
            texts,
            path / task,
            data={"unit": "line"},
            tokenizer={"kind": words, "vocabulary_size": 400 if words == "bpe" else None},
            training={"steps": 3},
        )
        seriatim.train({**settings, "task": task})
    for name, count, seed in (("few", 40, 3), ("test", 200, 4)):
        rows = [f"{'away' if 'sea' in text or 'moon' in text else 'home'}\t{text}" for text in sentences(count, seed)]
        (path / f"{name}.tsv").write_text("label\ttext\n" + "\n".join(rows) + "\n")
    return path


def classifier(folder: Path, init: str | None, out: str = "none", **sections: Any) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "task": "classify",
        "data": {"train": str(folder / "few.tsv")},
        "model": {**SIZES, **({"bidirectional": False} if init == "lm" else {})},
        "training": {"baseline": "none", "steps": 1, "batch_size": 8, "init": init and str(folder / init)},
        "out": str(folder / out),
    }
    return {**settings, **{name: {**settings.get(name, {}), **section} for name, section in sections.items()}}


def start(settings: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Parameters before the first step."""
    torch.manual_seed(5)
    return dict(prepare(resolve(settings)).model.named_parameters())


def taken(folder: Path, init: str) -> dict[str, torch.Tensor]:
    found = load_tensors(folder / init / "model.safetensors")
    return {name: value for name, value in found.items() if name.startswith(("embedding.", "layer."))}


@pytest.mark.parametrize("init", ["lm", "mlm"])
def test_a_classifier_begins_with_the_parameters_of_the_run(folder: Path, init: str) -> None:
    found, theirs = start(classifier(folder, init)), taken(folder, init)
    assert set(theirs) == {name for name in found if name.startswith(("embedding.", "layer."))}
    for name, value in theirs.items():  # the classifier reads characters, too, if its tokens are words
        assert torch.equal(found[name][..., : value.shape[-1]], value[: len(found[name])]), name
    assert len(theirs["embedding.weight"]) - len(found["embedding.weight"]) == (init == "mlm")


def test_language_models_begin_with_each_others(folder: Path, texts: dict[str, str]) -> None:
    """Both ways; the row of the mask symbol is left out, or fresh."""
    for task, init, more in (("mlm", "lm", 1), ("mlm", "mlm", 0), ("lm", "lm", 0)):
        model = {"bidirectional": init == "mlm"}
        settings = small_config(texts, folder / "none", model=model, training={"init": str(folder / init)})
        del settings["tokenizer"]
        found, theirs = start({**settings, "task": task}), taken(folder, init)
        rows = len(theirs["embedding.weight"])
        assert len(found["embedding.weight"]) == rows + more
        assert torch.equal(found["embedding.weight"][:rows], theirs["embedding.weight"])
        assert all(torch.equal(found[name], theirs[name]) for name in theirs if name.startswith("layer."))


def test_the_tokenizer_comes_with_them(folder: Path) -> None:
    run = seriatim.train(classifier(folder, "mlm", "classifier"))
    assert run.tokenizer.fingerprint() == seriatim.load(folder / "mlm").tokenizer.fingerprint()
    assert run.config.tokenizer.kind == "bpe"
    assert run.vocabulary.labels == ("away", "home")
    assert len(list(run.predict(["she likes the sea .", ""]))) == 2


def test_it_goes_on_without_the_run_it_began_with(folder: Path) -> None:
    shutil.copytree(folder / "lm", folder / "gone")
    constant = {"init": str(folder / "gone"), "schedule": "constant"}
    whole = seriatim.train(classifier(folder, "lm", "whole", training={"steps": 8, "batch_size": 8, **constant}))
    seriatim.train(classifier(folder, "lm", "cut", training={"steps": 3, "batch_size": 8, **constant}))
    shutil.rmtree(folder / "gone")
    resumed = seriatim.resume(folder / "cut", overrides={"training.steps": 8})
    for (name, mine), other in zip(whole.model.named_parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(mine, other), name
    with refused("fixed", "training.init"):
        seriatim.resume(folder / "cut", overrides={"training.init": str(folder / "lm")})


def topical(count: int, seed: int) -> list[tuple[str, str]]:
    """Five words of one of two topics, 40 each, which only their company tells apart."""
    chosen, found = random.Random(seed), []
    for _ in range(count):
        first = chosen.choice((0, 40))
        found.append((f"topic{first}", " ".join(f"w{chosen.randrange(first, first + 40)}" for _ in range(5))))
    return found


@pytest.mark.exhaustive
def test_ten_labels_are_enough_after_much_text_without(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("".join(f"{text}\n" for _, text in topical(600, 0)))
    for name, count, seed in (("few", 10, 3), ("test", 200, 4)):
        rows = "".join(f"{label}\t{text}\n" for label, text in topical(count, seed))
        (tmp_path / f"{name}.tsv").write_text(f"label\ttext\n{rows}")
    masked = {
        "task": "mlm",
        "data": {"train": str(tmp_path / "text.txt"), "valid": "none", "unit": "line"},
        "model": SIZES,
        "training": {"steps": 250, "batch_size": 32, "learning_rate": 0.01},
        "out": str(tmp_path / "mlm"),
    }
    seriatim.train(masked)
    accuracy: dict[str | None, list[float]] = {"mlm": [], None: []}
    for init, found in accuracy.items():
        for seed in range(2):
            few = {"steps": 20, "batch_size": 10, "learning_rate": 0.01, "seed": seed}
            settings = classifier(tmp_path, init, f"from-{init}-{seed}", training=few)
            settings["model"]["options"] = {"characters": "none", "word_features": []}
            run = seriatim.train(settings)
            found.append(run.evaluate(str(tmp_path / "test.tsv"))["accuracy"])
    assert min(accuracy["mlm"]) > 0.9
    assert sum(accuracy[None]) / 2 < min(accuracy["mlm"])


@pytest.mark.parametrize(
    ("init", "sections", "kind", "place", "value"),
    [
        ("nothing", {}, "missing", "training.init", ""),
        (
            "lm",
            {"tokenizer": {"kind": "char"}},
            "conflict",
            "tokenizer.kind",
            "",
        ),
        ("mlm", {"tokenizer": {"vocabulary_size": 9}}, "conflict", "tokenizer.vocabulary_size", ""),
        (
            "mlm",
            {"model": {"embedding_size": 8}},
            "mismatch",
            "training.init",
            "model.embedding_size",
        ),
        (
            "mlm",
            {"model": {"hidden_size": 5}},
            "mismatch",
            "training.init",
            "model.hidden_size",
        ),
        ("mlm", {"model": {"layer": "lstm"}}, "mismatch", "training.init", "model.layer"),
        ("mlm", {"model": {"num_layers": 2}}, "mismatch", "training.init", "model.num_layers"),
        ("lm", {"model": {"bidirectional": True}}, "mismatch", "training.init", "model.bidirectional"),
        ("mlm", {"model": {"residual": True}}, "mismatch", "training.init", "model.residual"),
        ("mlm", {"model": {"options": {"block": True}}}, "mismatch", "training.init", "model.options.block"),
    ],
)
def test_what_does_not_fit_is_named_with_what_to_set(
    folder: Path, init: str, sections: dict, kind: str, place: str, value: str
) -> None:
    with refused(kind, place, value):
        seriatim.train(classifier(folder, init, **sections))
    assert not (folder / "none").exists()


@pytest.mark.parametrize("init", ["lm", "mlm"])
def test_a_model_has_the_sizes_of_the_run_it_starts_from_unless_others_are_given(folder: Path, init: str) -> None:
    settings = classifier(folder, init, f"follows-{init}")
    settings["model"] = {"dropout": 0.0}
    run = seriatim.train(settings)
    theirs = seriatim.load(folder / init).config.model
    for name in ("layer", "bidirectional", "embedding_size", "hidden_size", "num_layers"):
        assert getattr(run.config.model, name) == getattr(theirs, name)


def test_files_of_two_runs_are_refused(folder: Path) -> None:
    shutil.copytree(folder / "lm", folder / "mixed")
    shutil.copy(folder / "mlm" / "tokenizer.json", folder / "mixed" / "tokenizer.json")
    with refused("mismatch", "tokenizer.json"):
        seriatim.train(classifier(folder, "mixed"))


def test_from_the_command_line(folder: Path, capsys) -> None:
    given = ["--init", str(folder / "mlm"), "--layer", "gru", "--model.embedding_size", "16", "--training.steps", "2"]
    data = ["--data", str(folder / "few.tsv"), "--out", str(folder / "command")]
    assert main(["train", "classify", *data, *given, "--model.hidden_size", "24", "--quiet"]) == 0
    assert main(["train", "classify", *data, *given, "--model.hidden_size", "9", "--overwrite"]) == 2
    assert "set model.hidden_size to 24, as there" in capsys.readouterr().err


def test_check_reads_with_the_tokenizer_of_the_run(folder: Path, capsys) -> None:
    data = ["--data", str(folder / "few.tsv")]
    model = ["--layer", "gru", "--model.embedding_size", "16", "--model.hidden_size", "24"]
    assert main(["check", "classify", *data, *model, "--init", str(folder / "mlm"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    tokenizer = seriatim.load(folder / "mlm").tokenizer
    assert found["tokenizer"] == {"kind": "bpe", "vocabulary_size": tokenizer.vocabulary_size}
    texts = [line.split("\t")[1] for line in (folder / "few.tsv").read_text().splitlines()[1:]]
    assert found["train"]["tokens"] == sum(len(tokenizer.encode(text)) for text in texts)


@pytest.mark.parametrize("model", [{}, {"tie_weights": True, "embedding_size": 24}, {"output_bias": False}])
def test_a_run_of_the_same_task_and_vocabulary_goes_on(tmp_path: Path, texts: dict[str, str], model: dict) -> None:
    """Also with its output layer, so that training begins with the loss of the run."""
    first = seriatim.train(small_config(texts, tmp_path / "first", model=model, training={"steps": 3}))
    settings = small_config(texts, tmp_path / "second", training={"init": str(first.path)})
    del settings["tokenizer"], settings["model"]
    found = start(settings)
    assert found.keys() == dict(first.model.named_parameters()).keys()
    assert all(torch.equal(found[name], value) for name, value in first.model.named_parameters())


@pytest.mark.parametrize("given", [{}, {"layer": "transformer"}])
@pytest.mark.parametrize("kind", ["mlm", "classify"])
def test_a_transformer_that_reads_both_sides_stays_one(folder: Path, tmp_path: Path, kind: str, given: dict) -> None:
    sizes = {"layer": "transformer", "embedding_size": 8, "hidden_size": 8}
    data = {"train": str(folder / "few.tsv")}
    first = {"task": "mlm", "data": data, "model": sizes, "training": {"steps": 1}, "out": str(tmp_path / "run")}
    seriatim.train(first)
    config = new_task(resolve({"task": kind, "model": given, "training": {"init": str(tmp_path / "run")}})).config
    assert (config.model.bidirectional, config.model.options["causal"]) == (False, False)

"""Taggers that read further columns: what the columns tell is learned, kept and required."""

from pathlib import Path

import numpy as np
import pytest

import seriatim
from seriatim.cli.main import main
from seriatim.data.conll import read_sentences
from seriatim.data.sources import find_sources
from seriatim.serving.service import Service

from ..refusals import refused
from .tagged import config


def written(path: Path, count: int, seed: int, *, tagged: bool = True) -> Path:
    """Write words whose tag is that of the second column, whatever they are, and which have a third."""
    rng = np.random.default_rng(seed)
    lines = []
    for _ in range(count):
        for kind in rng.choice(["X", "Y"], rng.integers(1, 6)):
            word = "".join(rng.choice(list("abcd"), 3))
            tag = [{"X": "YES", "Y": "NO"}[kind]] if tagged else []
            lines.append("\t".join([word, kind, rng.choice(["u", "v"]), *tag]))
        lines.append("")
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("columns")
    for seed, (name, count) in enumerate({"train": 150, "valid": 40}.items()):
        written(folder / f"{name}.conll", count, seed)
    return folder


@pytest.fixture(scope="module")
def run(folder: Path) -> seriatim.Run:
    settings = config(folder, "run")
    settings["data"]["features"] = "2, 3"
    settings["training"] |= {"baseline": "simple", "epochs": 3}
    return seriatim.train(settings)


def test_both_models_learn_what_the_columns_tell(run: seriatim.Run, folder: Path) -> None:
    found = run.evaluate(str(folder / "valid.conll"))
    assert min(found["accuracy"], found["network"]["accuracy"], found["baseline"]["accuracy"]) > 0.97
    assert seriatim.load(run.path).evaluate(str(folder / "valid.conll")) == found
    assert run.summary["selected_by"] in (run.path / "README.md").read_text()


def test_sentences_are_tagged_alone_as_together_and_without_the_column_of_tags(
    run: seriatim.Run, folder: Path, tmp_path: Path
) -> None:
    bare = written(tmp_path / "bare.conll", 40, 1, tagged=False)
    sentences = [
        list(read_sentences(find_sources(str(path)), further=("2", "3"), labelled=False))
        for path in (bare, folder / "valid.conll")
    ]
    answers = [list(run.predict(each)) for each in sentences]
    assert answers == [[next(run.predict([one])) for one in each] for each in sentences]
    assert "".join(f"{text}\n" for text in answers[0]) == (folder / "valid.conll").read_text()
    assert answers[0] == answers[1]


def test_a_value_that_training_did_not_have_is_read(run: seriatim.Run, tmp_path: Path) -> None:
    path = tmp_path / "new.conll"
    path.write_text("abc\tZ\tu\n\n")
    (answer,) = run.predict(read_sentences(find_sources(str(path)), further=("2", "3"), labelled=False))
    assert answer.split()[-1] in ("YES", "NO")


def test_what_lacks_the_columns_is_refused(
    run: seriatim.Run, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "words.conll"
    path.write_text("abc\tYES\n\n")
    for verb in ("evaluate", "predict"):
        arguments = [verb, str(run.path), *(["--data"] if verb == "evaluate" else []), str(path)]
        assert main(arguments) == 2
        error = capsys.readouterr().err.strip().splitlines()[-1]
        assert f"{path}:1" in error
    with refused("mismatch", "predict", "item 0"):
        list(run.predict(["abc bcd"]))
    assert main(["evaluate", str(run.path), "--data", str(folder / "valid.conll"), "--data.features", "2"]) == 2
    assert "data.features" in capsys.readouterr().err
    with refused("unsupported", "data.features"):
        seriatim.compare({"task": "tag", "data": run.config.data.model_dump()}, layers=["gru"], steps=1)


def test_another_column_in_the_place_of_a_missing_one_is_refused(
    run: seriatim.Run, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [line.split("\t") for line in (folder / "valid.conll").read_text().splitlines()]
    rows = ["\t".join(line[:1] + line[2:]) for line in lines]  # word, third column, tag
    for name in ("without.conll", "without.txt"):
        (tmp_path / name).write_text("\n".join(rows) + "\n")
        for command in (["predict", str(run.path)], ["evaluate", str(run.path), "--data"]):
            assert main([*command, str(tmp_path / name)]) == 2
            assert "data.features" in capsys.readouterr().err


def test_what_reads_words_alone_refuses_the_tagger(run: seriatim.Run, folder: Path, tmp_path: Path) -> None:
    with refused("unsupported", str(run.path)):
        Service({"tagger": run})
    settings = config(folder, "another")
    settings["training"]["init"] = str(run.path)
    with refused("mismatch", "training.init"):
        seriatim.train(settings)


@pytest.mark.parametrize("features", ["4", "2,4"])
def test_a_column_has_one_meaning(folder: Path, features: str) -> None:
    settings = config(folder, "other")
    settings["data"] |= {"features": features, "column": "4"}
    with refused("conflict", "data.features"):
        seriatim.train(settings)
    del settings["data"]["column"]  # the last one is that of the tags
    with refused("malformed", f"{folder}/train.conll:1"):
        seriatim.train(settings)


def test_columns_of_conllu_have_names(tmp_path: Path) -> None:
    path = tmp_path / "a.conllu"
    path.write_text("1\tword\tlemma\tNOUN\tNN\t_\t0\troot\t_\t_\n\n")
    (sentence,) = read_sentences(find_sources(str(path)), further=("xpos", "feats"))
    assert (sentence.tags, sentence.further) == (["NOUN"], [["NN", "_"]])
    with refused("unknown"):
        list(read_sentences(find_sources(str(path)), further=("colour",)))

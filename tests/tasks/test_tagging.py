"""A tag for every word, from files to answers."""

import io
import itertools
import json
import sys
from pathlib import Path

import pytest
import torch

import seriatim
from seriatim.cli.main import main
from seriatim.config import resolve
from seriatim.core.errors import InputError
from seriatim.data.conll import read_sentences, write
from seriatim.data.sources import find_sources
from seriatim.runs.ensembles import ensemble
from seriatim.tasks import new_task

from ..models.test_tagger import people
from .tagged import config

LINES = ["the Abcd saw Efgh Abce .", "", "and", "  a\tthe  met ", "Hgfe " * 40]


@pytest.fixture(scope="session")
def treebank(folder: Path) -> seriatim.Run:
    settings = config(folder, "treebank", "conllu", characters="none")
    settings["data"]["column"] = "upos"
    settings["tokenizer"] = {"lowercase": True, "min_count": 2}
    settings["training"]["epochs"] = 2
    return seriatim.train(settings)


def test_it_learns_to_find_names(run: seriatim.Run, folder: Path) -> None:
    found = run.evaluate(str(folder / "valid.conll"))
    assert found["f1"] > 0.9
    assert found["f1_low"] <= found["f1"] <= found["f1_high"]
    assert found["loss_low"] <= found["loss"] <= found["loss_high"]
    assert run.summary["best_valid"] == pytest.approx(found["f1"])
    assert set(run.summary["baseline"]) == {"name", "accuracy", "precision", "recall", "f1"}
    assert run.summary["baseline"]["f1"] < 0.6
    assert found["unknown_tokens"] > 30
    assert found["unseen_tags"] == 0
    assert list(found["entities"]) == ["PER"]


def test_the_tags_say_what_chooses_and_what_is_chosen_by(run: seriatim.Run, treebank: seriatim.Run) -> None:
    assert (run.model.crf is None, run.task.evaluator.selection(run.vocabulary).key) == (False, "f1")
    assert (treebank.model.crf is None, treebank.task.evaluator.selection(treebank.vocabulary).key) == (
        True,
        "accuracy",
    )
    assert treebank.summary["best_valid"] > 0.9
    assert "f1" not in treebank.summary["valid"]
    assert run.config.model.options["output"] is None
    other = resolve(run.config, {"model.options.output": "softmax"})
    assert new_task(other).builder.build(run.vocabulary).crf is None


@pytest.mark.parametrize("kind", ["run", "treebank"])
def test_a_run_beside_itself_is_an_ensemble(kind: str, folder: Path, request: pytest.FixtureRequest, capsys) -> None:
    run, data = request.getfixturevalue(kind), str(folder / f"valid.{'conll' if kind == 'run' else 'conllu'}")
    alone, twice = run.evaluate(data), ensemble([run, run]).evaluate(data)
    assert twice["accuracy"] == pytest.approx(alone["accuracy"], abs=0.01)
    if kind == "treebank":  # of a field, the product of its marginals
        assert twice["loss"] == pytest.approx(alone["loss"])
    assert main(["evaluate", f"{run.path},{run.path}", "--data", data, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["loss"] == pytest.approx(twice["loss"])


def test_a_batch_gives_what_its_rows_give_one_by_one(run: seriatim.Run, treebank: seriatim.Run) -> None:
    for tagger in (run, treebank):
        together = list(tagger.predict(LINES, details=True))
        for line, answer in zip(LINES, together, strict=True):
            alone = next(tagger.predict([line], details=True))
            assert answer["words"] == alone["words"] == line.split()
            assert answer["tags"] == alone["tags"] == answer["text"].split(" ")[: len(line.split())]
            assert answer["probabilities"] == pytest.approx(alone["probabilities"], abs=1e-5)
            assert all(0 < share <= 1 + 1e-6 for share in answer["probabilities"])


def test_answers_come_lazily_and_in_order(run: seriatim.Run) -> None:
    answers = run.predict(itertools.cycle(["a", "a the saw", ""]))
    assert [len(next(answers).split()) for _ in range(600)] == [1, 3, 0] * 200


@pytest.mark.parametrize("suffix", ["conll", "conllu"])
def test_a_file_comes_back_with_other_tags_alone(
    run: seriatim.Run, treebank: seriatim.Run, folder: Path, suffix: str, capsys
) -> None:
    tagger, column = {"conll": (run, 2), "conllu": (treebank, 3)}[suffix]
    text = (folder / f"valid.{suffix}").read_text()
    path = folder / f"untagged.{suffix}"
    path.write_text(text.replace("NAME", "_").replace("WORD", "_").replace("PER\n", "LOC\n"))
    assert main(["predict", str(tagger.path), str(path)]) == 0
    out = capsys.readouterr().out
    sentences = list(read_sentences(find_sources(str(path)), labelled=False))
    tags = iter([tag for answer in tagger.predict(sentences, details=True) for tag in answer["tags"]])
    expected = []
    for line in path.read_text().split("\n"):
        fields = line.split("\t")
        if len(fields) == 3 or (len(fields) == 10 and fields[0].isdigit()):
            fields[column] = next(tags)
        expected.append("\t".join(fields))
    assert out == "\n".join(expected)
    assert next(tags, None) is None
    same = [a == b for a, b in zip(out.split("\n"), text.split("\n"), strict=True)]
    assert sum(same) / len(same) > 0.9
    texts = list(tagger.predict(sentences))
    assert "".join(f"{text}\n" for text in texts) == out
    assert texts[0] + "\n" == write(sentences[0], next(tagger.predict([sentences[0]], details=True))["tags"])


def test_predict_is_a_line_of_tags_for_a_line_of_words(run: seriatim.Run, folder: Path, monkeypatch, capsys) -> None:
    def piped(text: str, *options: str) -> str:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
        assert main(["predict", str(run.path), *options]) == 0
        return capsys.readouterr().out

    plain = [line.replace("\t", " ") for line in LINES]
    text = "".join(f"{line}\n" for line in plain)
    (folder / "plain.txt").write_text(text)
    assert main(["predict", str(run.path), str(folder / "plain.txt")]) == 0
    out = capsys.readouterr().out
    assert out.split("\n") == [*run.predict(plain), ""]
    assert piped(text) == piped("".join(f"{line}\n" for line in LINES), "--format", "text") == out
    answers = [json.loads(line) for line in piped(text, "--json").splitlines()]
    assert [answer["text"] for answer in answers] == out.splitlines()
    assert all(len(one["words"]) == len(one["tags"]) == len(one["probabilities"]) for one in answers)
    assert [len(line.split()) for line in piped("# Abcd\n\n#\n").split("\n")] == [2, 0, 1, 0]
    tagged = (folder / "valid.conll").read_text()
    assert piped(tagged) == "".join(
        f"{t}\n" for t in run.predict(read_sentences(find_sources(str(folder / "valid.conll"))))
    )
    assert piped("\n\nthe\tx\tO\n\n\nAbcd\tx\tO\n").splitlines()[2] == "the\tx\tO"
    assert piped("Abcd NNP\n", "--format", "conll").startswith("Abcd ")


def test_columns_between_spaces_are_recognized_by_the_tags_of_the_model(
    run: seriatim.Run, folder: Path, capsys, recwarn
) -> None:
    columns = (folder / "valid.conll").read_text().replace("\t", " ")
    (folder / "columns.txt").write_text(columns)
    assert main(["predict", str(run.path), str(folder / "columns.txt"), "--format", "conll"]) == 0
    expected = capsys.readouterr().out
    assert main(["predict", str(run.path), str(folder / "columns.txt")]) == 0
    assert capsys.readouterr().out == expected
    assert len(expected.splitlines()) == len(columns.splitlines())
    assert not list(recwarn)


@pytest.mark.parametrize("from_pipe", [False, True])
def test_a_text_that_looks_like_columns_is_read_as_text_with_a_warning(
    run: seriatim.Run, folder: Path, monkeypatch, capsys, from_pipe: bool
) -> None:
    lines = [*(folder / "valid.conll").read_text().replace("\t", " ").splitlines(), "" if from_pipe else "a b"]
    text = "".join(f"{line}\n" for line in lines)
    (folder / "mixed.txt").write_text(text)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    with pytest.warns(
        UserWarning, match=r":1: \d+ of the first \d+ lines look like a word and its tag.*--format conll"
    ):
        assert main(["predict", str(run.path), *([] if from_pipe else [str(folder / "mixed.txt")])]) == 0
    answers = capsys.readouterr().out.splitlines()
    assert [len(answer.split()) for answer in answers] == [len(line.split()) for line in lines]


def test_a_text_whose_lines_have_as_many_words_is_read_as_text(
    run: seriatim.Run, folder: Path, capsys, recwarn
) -> None:
    (folder / "two.txt").write_text("the saw\nAbcd Efgh\n" * 20)
    assert main(["predict", str(run.path), str(folder / "two.txt")]) == 0
    assert all(len(answer.split()) == 2 for answer in capsys.readouterr().out.splitlines())
    assert not list(recwarn)


@pytest.mark.exhaustive
def test_a_training_that_was_cut_off_ends_with_the_same_bits(folder: Path) -> None:
    settings = config(folder, "whole")
    settings["data"]["train"] = settings["data"]["valid"]  # four steps an epoch
    whole = seriatim.train(settings)
    seriatim.train({**settings, "training": {**settings["training"], "steps": 9}, "out": str(folder / "cut")})
    resumed = seriatim.resume(folder / "cut", overrides={"training.steps": None})
    for (name, mine), other in zip(whole.model.named_parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(mine, other), name


def test_the_command_checks_and_evaluates(run: seriatim.Run, treebank: seriatim.Run, folder: Path, capsys) -> None:
    assert main(["check", "tag", "--data", str(folder / "train.conllu"), "--valid", str(folder / "valid.conllu")]) == 0
    out = capsys.readouterr().out
    assert "NAME" in out
    assert "longest sentence" in out
    assert main(["evaluate", str(run.path), "--data", str(folder / "valid.conll")]) == 0
    assert "F1" in capsys.readouterr().out
    assert main(["evaluate", str(treebank.path), "--data", str(folder / "valid.conllu"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["accuracy"] > 0.9
    assert "the most frequent tag of each word in the training data" in (treebank.path / "README.md").read_text()


def language_model(folder: Path, task: str, kind: str = "word") -> str:
    """Trained on the words of the same sentences; a run that exists already is returned."""
    if (folder / f"{task}-{kind}" / "summary.json").exists():
        return str(folder / f"{task}-{kind}")
    text = folder / "text.txt"
    text.write_text("".join(" ".join(one.words) + "\n" for one in people(200, 5)))
    settings = config(folder, f"{task}-{kind}")
    settings |= {"task": task, "data": {"train": str(text), "unit": "line"}, "tokenizer": {"kind": kind}}
    settings["model"] |= {"options": {}}
    settings["training"]["epochs"] = 1
    return str(seriatim.train(settings).path)


@pytest.mark.parametrize("characters", ["none", "convolution"])
def test_it_can_begin_from_a_language_model(folder: Path, characters: str) -> None:
    settings = config(folder, f"from-mlm-{characters}", characters=characters)
    settings["training"] |= {"init": language_model(folder, "mlm"), "epochs": 2}
    run = seriatim.train(settings)
    assert run.tokenizer.fingerprint() == seriatim.load(settings["training"]["init"]).tokenizer.fingerprint()
    assert (run.model.characters is None) == (characters == "none")
    assert run.summary["best_valid"] > 0.3
    assert len(next(run.predict(["the Abcd saw"])).split()) == 3


def test_what_cannot_begin_from_a_language_model_is_refused(folder: Path) -> None:
    settings = config(folder, "refused")
    settings["training"] |= {"init": language_model(folder, "mlm"), "epochs": 2}
    for changes, message in (
        ({"model.options.vectors": "v.txt"}, "training.init gives the embedding already"),
        ({"training.init": language_model(folder, "lm", "char")}, "tokenizer.kind: 'char', but tags belong to words"),
        (
            {"training.init": language_model(folder, "lm"), "model.bidirectional": True},
            "set model.bidirectional to false",
        ),
    ):
        with pytest.raises(InputError, match=message):
            seriatim.train(settings, overrides={"out": str(folder / "none"), **changes})


def test_two_runs_are_compared_sentence_by_sentence(run: seriatim.Run, folder: Path, capsys) -> None:
    assert main(["evaluate", str(run.path), str(run.path), "--data", str(folder / "valid.conll"), "--json"]) == 0
    differences = json.loads(capsys.readouterr().out)["differences"]
    assert {"loss", "accuracy", "f1"} <= set(differences)
    assert all(found["difference"] == 0 for found in differences.values())


def test_a_list_of_words_is_a_sentence(run: seriatim.Run) -> None:
    assert list(run.predict([["the", "saw"], "the saw"])) == 2 * list(run.predict(["the saw"]))
    assert len(next(run.predict([["a b", "c"]], details=True))["tags"]) == 2
    for items, expected in (
        ([["a", 3]], "3 is of type int"),
        ([["a", ""]], "empty"),
        ([None], "None is of type NoneType"),
        ("a b", "single text"),
    ):
        with pytest.raises(InputError, match=expected):
            list(run.predict(items))

"""A tag for every word, from files to answers."""

import io
import itertools
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import seriatim
from seriatim.cli.main import main
from seriatim.config import resolve
from seriatim.core.errors import InputError
from seriatim.data.conll import read_sentences, write
from seriatim.data.readers import find_sources
from seriatim.runs.ensembles import ensemble
from seriatim.tasks import find

from ..models.test_tagger import people

LINES = ["the Abcd saw Efgh Abce .", "", "and", "  a\tthe  met ", "Hgfe " * 40]


def columns(count: int, seed: int) -> str:
    """Names tagged BIO, between tabs."""
    return "".join(
        "".join(f"{word}\tx\t{tag}\n" for word, tag in zip(one.words, one.tags, strict=True)) + "\n"
        for one in people(count, seed)
    )


def conllu(count: int, seed: int) -> str:
    """The same with other tags, and with all that is no word: comments, ranges, empty nodes."""
    found = []
    for number, one in enumerate(people(count, seed)):
        found.append(f"# sent_id = {number}")
        for i, (word, tag) in enumerate(zip(one.words, one.tags, strict=True), 1):
            if i == 1:
                found.append(f"1-2\t{word}\t" + "\t".join("_" * 8))
            fields = [str(i), word, "_", "NAME" if tag != "O" else "WORD", "_", "A=b|C=d", "0", "x", "_", "_"]
            found.append("\t".join(fields))
        found += [f"{i}.1\telided\t" + "\t".join("_" * 8), *[""] * (1 + number % 2)]
    return "\n".join(found) + "\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tagged")
    for seed, (name, count) in enumerate({"train": 120, "valid": 30}.items()):
        (path / f"{name}.conll").write_text(columns(count, seed))
        (path / f"{name}.conllu").write_text(conllu(count, seed))
    return path


def config(folder: Path, out: str, suffix: str = "conll", **options) -> dict:
    return {
        "task": "tag",
        "data": {"train": f"{folder}/train.{suffix}", "valid": f"{folder}/valid.{suffix}"},
        "model": {
            "layer": "gru",
            "embedding_size": 12,
            "hidden_size": 12,
            "dropout": 0.1,
            "options": {"character_size": 8, "filters": 16, **options},
        },
        "training": {"epochs": 5, "batch_size": 8, "learning_rate": 0.02, "schedule": "constant"},
        "out": str(folder / out),
    }


@pytest.fixture(scope="module")
def run(folder: Path) -> seriatim.Run:
    return seriatim.train(config(folder, "run"))


@pytest.fixture(scope="module")
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
    assert (run.model.crf is None, run.task.selection_metric(run.vocabulary)) == (False, "f1")
    assert (treebank.model.crf is None, treebank.task.selection_metric(treebank.vocabulary)) == (True, "accuracy")
    assert treebank.summary["best_valid"] > 0.9
    assert "f1" not in treebank.summary["valid"]
    assert run.config.model.options["output"] is None
    other = resolve(run.config, {"model.options.output": "softmax"})
    assert find(other).make_model(run.vocabulary).crf is None


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


def test_a_training_that_was_cut_off_ends_with_the_same_bits(folder: Path, run: seriatim.Run) -> None:
    settings = config(folder, "cut")
    settings["training"]["steps"] = 22
    seriatim.train(settings)
    resumed = seriatim.resume(folder / "cut", overrides={"training.steps": None})
    for (name, mine), other in zip(run.model.named_parameters(), resumed.model.parameters(), strict=True):
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
    assert "each word's commonest tag" in (treebank.path / "README.md").read_text()


def test_a_folder_of_files_in_columns_is_read_whole(folder: Path, tmp_path: Path) -> None:
    for name in ("train", "valid"):
        (tmp_path / f"{name}.conllu").write_bytes((folder / f"{name}.conllu").read_bytes())
    (tmp_path / "LICENSE.txt").write_text("Not a sentence in columns.\n")
    task = find(resolve({"task": "tag", "data": {"train": str(tmp_path)}}))
    with pytest.warns(UserWarning, match=r"1 file was not read .*LICENSE\.txt"):
        assert len(task.read(str(tmp_path), "train", task.learn_vocabulary()).lengths) == 150


def test_vectors_made_elsewhere_are_where_it_begins(folder: Path, tmp_path: Path) -> None:
    vectors = np.random.default_rng(0).normal(size=(3, 12)).astype(np.float32)
    rows = zip(["the", "nowhere", "saw"], vectors.tolist(), strict=True)
    (tmp_path / "v.txt").write_text("".join(f"{word} {' '.join(map(str, row))}\n" for word, row in rows))
    settings = config(folder, "vectors", vectors=str(tmp_path / "v.txt"), characters="none")
    task = find(resolve(settings))
    vocabulary = task.learn_vocabulary()
    embedding = task.make_model(vocabulary).embedding.weight
    torch.testing.assert_close(embedding[vocabulary.tokenizer.encode("the saw")], torch.tensor(vectors[[0, 2]]))
    assert "2 words with a vector" in task.describe(task.read(settings["data"]["train"], "train", vocabulary))
    settings["training"]["epochs"] = 1
    run = seriatim.train(settings)
    assert run.summary["words_with_vectors"] == 2
    (tmp_path / "v.txt").unlink()
    assert list(seriatim.load(run.path).predict(["the saw"])) == list(run.predict(["the saw"]))
    (tmp_path / "v.txt").write_text("the 0.5 0.5\n")
    with pytest.raises(InputError, match=r"v\.txt: vectors of 2 numbers, model\.embedding_size is 12; set it to 2"):
        seriatim.train(config(folder, "none", vectors=str(tmp_path / "v.txt")))


def test_a_tag_never_seen_is_named_and_counts_as_wrong(run: seriatim.Run, tmp_path: Path) -> None:
    path = tmp_path / "odd.conll"
    path.write_text("the\tx\tO\nAbcd\tx\tB-ORG\nEfgh\tx\tI-ORG\n\nsaw\tx\tO\n")
    with pytest.warns(match=r"odd\.conll:2: the tag 'B-ORG' and 1 more never stood in training; 2 words count as"):
        found = run.evaluate(str(path))
    assert (found["unseen_tags"], found["unseen"]) == (2, ["B-ORG", "I-ORG"])
    assert found["accuracy"] == pytest.approx(0.5)
    assert found["entities"]["ORG"]["recall"] == 0
    assert np.isfinite(found["loss"])


def test_a_loss_over_no_words_is_null_and_not_zero(run: seriatim.Run, tmp_path: Path, capsys) -> None:
    path = tmp_path / "unseen.conll"
    path.write_text("Abcd\tx\tB-OTHER\nsaw\tx\tI-OTHER\n\nthe\tx\tB-OTHER\n")
    with pytest.warns(UserWarning, match="B-OTHER"):
        assert main(["evaluate", str(run.path), "--data", str(path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["loss"], found["loss_low"], found["loss_high"]) == (None, None, None)
    assert found["accuracy"] == 0
    with pytest.warns(UserWarning, match="B-OTHER"):
        assert main(["evaluate", str(run.path), "--data", str(path)]) == 0
    (shown,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("loss"))
    assert shown.split()[-1] == "-"


def test_held_out_data_with_other_tags_alone_is_refused(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "unseen.conll"
    path.write_text("Abcd\tx\tB-OTHER\nsaw\tx\tI-OTHER\n")
    settings = config(folder, str(tmp_path / "out"))
    settings["data"] = {**settings["data"], "valid": str(path)}
    with pytest.warns(match="B-OTHER"), pytest.raises(InputError, match="none of its tags"):
        seriatim.train(settings)
    assert not (tmp_path / "out").exists()


def test_held_out_data_must_have_what_weights_are_chosen_by(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "flat.conll").write_text("the\tx\tO\n")
    settings = config(folder, "none")
    settings["data"]["valid"] = str(tmp_path / "flat.conll")
    with pytest.raises(InputError, match=r"flat\.conll: no chunks marked there"):
        seriatim.train(settings)


def test_iob1_is_made_bio_where_it_is_said(run: seriatim.Run, folder: Path, tmp_path: Path) -> None:
    text = (folder / "valid.conll").read_text().replace("B-PER", "I-PER")
    (tmp_path / "iob1.conll").write_text(text)
    task = find(resolve(run.config, {"model.options.scheme": "iob1"}))
    task.make_model(run.vocabulary)
    one, other = (task.read(str(path), "test", run.vocabulary) for path in (folder / "valid.conll", tmp_path))
    assert one.truth() == other.truth()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "bad.conll: no sentences"),
        ("the\tx\tO\nsaw\tO\n", "bad.conll:2: 2 columns between tabs"),
        ("the\tx\tO\nsaw\tx\tO\tO\n", "bad.conll:2: 4 columns between tabs"),
        ("the\tx\tO\nsaw x O\n", "bad.conll:2: 1 columns between tabs"),
        ("the\tx\tO\nsaw\tx\tI-\n", "bad.conll:2: I- names no type"),
    ],
)
def test_bad_data_is_one_line_that_names_it(run: seriatim.Run, tmp_path: Path, text: str, message: str, capsys) -> None:
    (tmp_path / "bad.conll").write_text(text)
    assert main(["evaluate", str(run.path), "--data", str(tmp_path / "bad.conll")]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert main(["predict", str(run.path), str(tmp_path / "bad.conll")]) == (2 if "I-" not in text else 0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model.options.characters": "wide"}, "model.options.characters: 'wide' does not fit"),
        ({"model.options.filter": 3}, "did you mean 'filters'"),
        ({"model.options.vectors": "none.txt"}, "none.txt: no such file"),
        ({"tokenizer.kind": "bpe"}, "tokenizer.kind: 'bpe', but it is words that have tags"),
        ({"model.tie_weights": True}, "model.tie_weights: a tagger reads words and gives tags"),
        ({"data.column": "upos"}, "give the number of a column"),
        ({"data.format": "tsv"}, "unknown format 'tsv'"),
        ({"model.options.memory_size": 4, "model.layer": "transformer"}, "a tagger has no memory"),
    ],
)
def test_settings_that_do_not_fit_are_named(folder: Path, changes: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        seriatim.train(config(folder, "none"), overrides=changes)
    assert not (folder / "none").exists()


def language_model(folder: Path, task: str, kind: str = "word") -> str:
    """Trained on the words of the same sentences."""
    text = folder / "text.txt"
    text.write_text("".join(" ".join(one.words) + "\n" for one in people(200, 5)))
    settings = config(folder, f"{task}-{kind}")
    settings |= {"task": task, "data": {"train": str(text), "unit": "line"}, "tokenizer": {"kind": kind}}
    settings["model"] |= {"options": {}}
    settings["training"]["epochs"] = 1
    return str(seriatim.train(settings).path)


def test_it_can_begin_from_a_language_model(folder: Path) -> None:
    settings = config(folder, "from-mlm", characters="none")
    settings["training"] |= {"init": language_model(folder, "mlm"), "epochs": 2}
    run = seriatim.train(settings)
    assert run.tokenizer.fingerprint() == seriatim.load(settings["training"]["init"]).tokenizer.fingerprint()
    assert run.summary["best_valid"] > 0.3
    assert len(next(run.predict(["the Abcd saw"])).split()) == 3
    for changes, message in (
        ({"model.options.characters": "convolution"}, "convolution widens what the layer reads.* set it to none"),
        ({"model.options.vectors": "v.txt"}, "training.init gives the embedding already"),
        ({"training.init": language_model(folder, "lm", "char")}, "tokenizer.kind: 'char', but it is words"),
        ({"training.init": language_model(folder, "lm")}, "set model.bidirectional to false"),
    ):
        with pytest.raises(InputError, match=message):
            seriatim.train(settings, overrides={"out": str(folder / "none"), **changes})


def test_two_runs_are_compared_sentence_by_sentence(run: seriatim.Run, folder: Path, capsys) -> None:
    assert main(["evaluate", str(run.path), str(run.path), "--data", str(folder / "valid.conll"), "--json"]) == 0
    differences = json.loads(capsys.readouterr().out)["differences"]
    assert {"loss", "accuracy", "f1"} <= set(differences)
    assert all(found["difference"] == 0 for found in differences.values())


def test_formats_that_hold_no_sentences_are_refused(run: seriatim.Run, folder: Path, capsys) -> None:
    assert main(["predict", str(run.path), str(folder / "valid.conll"), "--format", "csv"]) == 2
    assert "format 'csv': sentences are not read from it; give conllu, conll or text" in capsys.readouterr().err


def test_a_table_of_texts_is_not_taken_for_tags(tmp_path: Path) -> None:
    (tmp_path / "table.tsv").write_text("label\ttext\nsea\tthe sea is blue\n")
    with pytest.raises(InputError, match=r"table\.tsv:2: 'the sea is blue' is a text, not a tag"):
        seriatim.train({"task": "tag", "data": {"train": str(tmp_path / "table.tsv")}, "out": str(tmp_path / "run")})


def test_a_list_of_words_is_a_sentence(run: seriatim.Run) -> None:
    assert list(run.predict([["the", "saw"], "the saw"])) == 2 * list(run.predict(["the saw"]))
    assert len(next(run.predict([["a b", "c"]], details=True))["tags"]) == 2
    for items, expected in (
        ([["a", 3]], "got 3"),
        ([["a", ""]], "empty"),
        ([None], "got None"),
        ("a b", "single text"),
    ):
        with pytest.raises(InputError, match=expected):
            list(run.predict(items))


def test_tags_that_would_not_be_one_line_are_refused(tmp_path: Path) -> None:
    (tmp_path / "train.conll").write_text("a\tX\nb\tY\n\nc\tZ\u2028Z\n")
    with pytest.raises(InputError, match=r"train\.conll:4: the label 'Z.*Z' holds a line end or another control"):
        seriatim.train({"task": "tag", "data": {"train": str(tmp_path / "train.conll")}, "out": str(tmp_path / "out")})

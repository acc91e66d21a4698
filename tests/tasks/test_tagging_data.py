"""What taggers read: files in columns and vectors, and the errors that name what does not fit."""

import json
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

import seriatim
from seriatim.cli.main import main
from seriatim.config import resolve
from seriatim.data.repairs import DataWarning
from seriatim.inspection.inspected_run import explainer_of
from seriatim.tasks import new_task
from seriatim.tasks.data_files import is_held_out
from seriatim.training.settle import with_data_defaults

from ..refusals import refused
from .tagged import config


def test_a_folder_of_files_in_columns_is_read_whole(folder: Path, tmp_path: Path) -> None:
    for name in ("train", "valid"):
        (tmp_path / f"{name}.conllu").write_bytes((folder / f"{name}.conllu").read_bytes())
    (tmp_path / "LICENSE.txt").write_text("Not a sentence in columns.\n")
    task = new_task(resolve({"task": "tag", "data": {"train": str(tmp_path)}}))
    with pytest.warns(UserWarning, match=r"1 file was not read .*LICENSE\.txt"):
        assert len(task.reader.read(str(tmp_path), "train", task.reader.learn_vocabulary()).lengths) == 150


def test_vectors_made_elsewhere_are_where_it_begins(folder: Path, tmp_path: Path) -> None:
    vectors = np.random.default_rng(0).normal(size=(3, 12)).astype(np.float32)
    rows = zip(["the", "nowhere", "saw"], vectors.tolist(), strict=True)
    (tmp_path / "v.txt").write_text("".join(f"{word} {' '.join(map(str, row))}\n" for word, row in rows))
    settings = config(folder, "vectors", vectors=str(tmp_path / "v.txt"), characters="none")
    task = new_task(resolve(settings))
    vocabulary = task.reader.learn_vocabulary()
    model = task.builder.build(vocabulary)
    counts = task.builder.initialise(model, task.reader.read(settings["data"]["train"], "train", vocabulary))
    embedding = model.embedding.weight
    torch.testing.assert_close(embedding[vocabulary.tokenizer.encode("the saw")], torch.tensor(vectors[[0, 2]]))
    assert counts == {"words_with_vectors": 2}
    settings["training"]["epochs"] = 1
    run = seriatim.train(settings)
    assert run.summary["words_with_vectors"] == 2
    (tmp_path / "v.txt").unlink()
    assert list(seriatim.load(run.path).predict(["the saw"])) == list(run.predict(["the saw"]))
    (tmp_path / "v.txt").write_text("the 0.5 0.5\n")
    with refused("mismatch", "v.txt"):
        seriatim.train(config(folder, "none", vectors=str(tmp_path / "v.txt")))


def test_a_tag_never_seen_is_named_and_counts_as_wrong(run: seriatim.Run, tmp_path: Path) -> None:
    path = tmp_path / "odd.conll"
    path.write_text("the\tx\tO\nAbcd\tx\tB-ORG\nEfgh\tx\tI-ORG\n\nsaw\tx\tO\n")
    with pytest.warns(match=r"odd\.conll:2: the tag 'B-ORG' and 1 more do not occur in the training data; 2 words"):
        found = run.evaluate(str(path))
    assert (found["unseen_tags"], found["unseen"]) == (2, ["B-ORG", "I-ORG"])
    assert found["accuracy"] == pytest.approx(0.5)
    assert found["entities"]["ORG"]["recall"] == 0
    assert np.isfinite(found["loss"])


def test_a_tag_never_seen_is_named_once_however_often_its_file_is_read(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "odd.conll").write_text("the\tx\tO\nAbcd\tx\tB-ORG\n")
    command = ["check", "tag", "--data", str(folder / "train.conll"), "--valid", str(tmp_path / "odd.conll")]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")  # as outside tests: each warning of a place once
        assert main(command) == 0
    (message,) = (str(warning.message) for warning in caught if "ORG" in str(warning.message))
    assert message.endswith("odd.conll:2: the tag 'B-ORG' does not occur in the training data; 1 word counts as wrong")


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
    with pytest.warns(match="B-OTHER"), refused("mismatch", "unseen.conll"):
        seriatim.train(settings)
    assert not (tmp_path / "out").exists()


def test_held_out_data_must_have_what_weights_are_chosen_by(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "flat.conll").write_text("the\tx\tO\n")
    settings = config(folder, "none")
    settings["data"]["valid"] = str(tmp_path / "flat.conll")
    with refused("mismatch", "flat.conll"):
        seriatim.train(settings)


def test_iob1_is_made_bio_where_it_is_said(run: seriatim.Run, folder: Path, tmp_path: Path) -> None:
    text = (folder / "valid.conll").read_text().replace("B-PER", "I-PER")
    (tmp_path / "iob1.conll").write_text(text)
    task = new_task(resolve(run.config, {"model.options.scheme": "iob1"}))
    task.builder.build(run.vocabulary)
    one, other = (task.reader.read(str(path), "test", run.vocabulary) for path in (folder / "valid.conll", tmp_path))
    assert one.truth() == other.truth()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "bad.conll:1: no sentences"),
        ("the\tx\tO\nsaw\tO\n", "bad.conll:2: 2 columns between tabs"),
        ("the\tx\tO\nsaw\tx\tO\tO\n", "bad.conll:2: 4 columns between tabs"),
        ("the\tx\tO\nsaw x\tO\n", "bad.conll:2: 2 columns between tabs"),
        ("the\tx\tO\nsaw\tx\tI-\n", "bad.conll:2: I- has no type"),
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
    ("changes", "kind", "place", "value"),
    [
        ({"model.options.characters": "wide"}, "range", "model.options.characters", ""),
        ({"model.options.filter": 3}, "unknown", "model.options.filter", "filters"),
        ({"model.options.vectors": "none.txt"}, "missing", "none.txt", ""),
        ({"tokenizer.kind": "bpe"}, "conflict", "tokenizer.kind", ""),
        ({"model.tie_weights": True}, "unsupported", "model.tie_weights", ""),
        ({"data.column": "upos"}, "range", "column 'upos'", ""),
        ({"data.format": "tsv"}, "unknown", "", "tsv"),
        (
            {"model.options.memory_size": 4, "model.layer": "transformer"},
            "unsupported",
            "model.options.memory_size",
            "",
        ),
    ],
)
def test_settings_that_do_not_fit_are_named(folder: Path, changes: dict, kind: str, place: str, value: str) -> None:
    with refused(kind, place, value):
        seriatim.train(config(folder, "none"), overrides=changes)
    assert not (folder / "none").exists()


def test_formats_that_hold_no_sentences_are_refused(run: seriatim.Run, folder: Path, capsys) -> None:
    assert main(["predict", str(run.path), str(folder / "valid.conll"), "--format", "csv"]) == 2
    assert "format 'csv': sentences are not read from it; give conllu, conll or text" in capsys.readouterr().err


def test_a_table_of_texts_is_not_taken_for_tags(tmp_path: Path) -> None:
    (tmp_path / "table.tsv").write_text("label\ttext\nsea\tthe sea is blue\n")
    with refused("malformed", "table.tsv:2"):
        seriatim.train({"task": "tag", "data": {"train": str(tmp_path / "table.tsv")}, "out": str(tmp_path / "run")})


def test_tags_that_would_not_be_one_line_are_refused(tmp_path: Path) -> None:
    (tmp_path / "train.conll").write_text("a\tX\nb\tY\n\nc\tZ\u2028Z\n")
    with refused("malformed", "train.conll:4"):
        seriatim.train({"task": "tag", "data": {"train": str(tmp_path / "train.conll")}, "out": str(tmp_path / "out")})


def few_chunks(path: Path, chunks: list[int]) -> list[str]:
    """Write 80 sentences, of which only the given ones mark a chunk; return their words."""
    words = [f"word{i}" for i in range(80)]
    lines = [f"the\tO\n{word}\t{'B-PER' if i in chunks else 'O'}\n" for i, word in enumerate(words)]
    path.write_text("\n".join(lines))
    return [f"the {word}" for word in words]


def test_nothing_is_held_out_if_no_chunk_would_be(tmp_path: Path) -> None:
    sentences = few_chunks(tmp_path / "few.conll", [])
    rest = [i for i, text in enumerate(sentences) if not is_held_out(text, 0.1)][:3]
    few_chunks(tmp_path / "few.conll", rest)
    settings = {"task": "tag", "data": {"train": str(tmp_path / "few.conll")}, "out": str(tmp_path / "run")}
    settings |= {"model": {"layer": "gru", "hidden_size": 8}, "training": {"steps": 2, "baseline": "none"}}
    with pytest.warns(UserWarning, match="nothing is held out of .*no chunk in it; give other data with --valid"):
        run = seriatim.train(settings)
    assert run.config.data.valid == "none"
    with refused("range", "data.valid"):
        seriatim.train({**settings, "data": {**settings["data"], "valid": "10%"}, "out": str(tmp_path / "other")})


def test_a_repair_in_a_divided_file_is_counted_once(tmp_path: Path, capsys) -> None:
    few_chunks(tmp_path / "few.conll", list(range(80)))
    text = (tmp_path / "few.conll").read_text()
    (tmp_path / "few.conll").write_text(text.replace("B-PER", "I-PER", 1))
    with pytest.warns(UserWarning, match="I-PER begins a chunk"):
        assert main(["check", "tag", "--data", str(tmp_path / "few.conll")]) == 0
    assert capsys.readouterr().out.count("few.conll:2") == 1


def test_tags_in_lower_case_are_tags_for_predict_too(run: seriatim.Run, folder: Path, tmp_path: Path, capsys) -> None:
    (tmp_path / "lower.txt").write_text("Abcd b-per\nsaw o\n\nthe o\nAbce b-per\n")
    assert main(["predict", str(run.path), str(tmp_path / "lower.txt")]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 5


CLEAN = "".join(f"Anna{i} B-PER\nMay I-PER\nruft O\nRom{i} B-LOC\nan O\n\n" for i in range(30))
ODD = f"{CLEAN}Anna PER\nlebt O\n"
BARE = "".join(line[: line.find("-") if "-" in line else None] + "\n" for line in ODD.splitlines())


def trained_on(folder: Path, text: str, layer: str, **fields: object) -> seriatim.Run:
    (folder / "train.conll").write_text(text)
    settings = {"task": "tag", "data": {"train": str(folder / "train.conll"), "valid": "none"}}
    settings |= {"model": {"layer": layer}, "out": str(folder / "run")}
    return seriatim.train(settings, overrides=fields)


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> seriatim.Run:
    folder = tmp_path_factory.mktemp("clean")
    (folder / "odd.conll").write_text(ODD)
    return trained_on(folder, CLEAN, "features")


def test_one_odd_tag_takes_no_figure_away(clean: seriatim.Run, tmp_path: Path, capsys) -> None:
    """By hand: 60 chunks, all found, and one more for the odd word, so that F1 is 2 · 60 / (60 + 61)."""
    odd = clean.path.parent / "odd.conll"
    with pytest.warns(DataWarning, match=r"odd\.conll:181: the tag 'PER'"):
        found = clean.evaluate(str(odd))
    assert found["f1"] == pytest.approx(120 / 121)
    assert found["unseen_tags"] == 0
    assert [(one["line"], one["count"]) for one in found["repairs"]] == [(181, 1)]
    assert list(clean.task.reader.measured_items(clean.vocabulary, str(odd), "test"))[-1] == ("Anna lebt", ("O O",))
    assert explainer_of(clean).labelled.mistakes(str(odd), None).correct == 151
    assert explainer_of(clean).labelled.reference_answer("Anna lebt", str(odd), None) == ["O", "O"]
    for command in (["check", "tag", "--data", str(odd)], ["evaluate", str(clean.path), "--data", str(odd)]):
        assert main([*command, "--strict"]) == 2
        assert "odd.conll:181: " in capsys.readouterr().err
    (tmp_path / "odd.txt").write_text(ODD)  # columns, although one line has no tag of the model
    assert main(["predict", str(clean.path), str(tmp_path / "odd.txt")]) == 0
    assert capsys.readouterr().out.endswith("\nAnna B-PER\nlebt O\n")


def test_an_odd_tag_in_training_or_held_out_data_leaves_the_choices_as_they_are(tmp_path: Path) -> None:
    with pytest.warns(DataWarning, match=r"train\.conll:181: the tag 'PER'"):
        run = trained_on(tmp_path, ODD, "features")
    assert sorted(run.vocabulary.labels) == ["B-LOC", "B-PER", "I-PER", "O"]
    (tmp_path / "clean.conll").write_text(CLEAN)
    data = {"data.train": str(tmp_path / "clean.conll"), "data.valid": str(tmp_path / "train.conll")}
    task = new_task(resolve({"task": "tag", "model": {"layer": "gru"}}, data))
    vocabulary = task.reader.learn_vocabulary()
    with pytest.warns(DataWarning, match=r"train\.conll:181"):
        train, valid = (task.reader.read(data[f"data.{part}"], part, vocabulary) for part in ("train", "valid"))
    task.check(train, valid)
    assert task.evaluator.selection(vocabulary).key == "f1"
    assert task.builder.build(vocabulary).crf is not None


def test_data_whose_tags_mostly_mark_no_chunks_have_an_accuracy_alone(clean: seriatim.Run, tmp_path: Path) -> None:
    path = tmp_path / "flat.conll"
    path.write_text("Anna0 PER\nMay PER\nruft O\nRom0 B-LOC\n")
    with pytest.warns(DataWarning) as warned:
        found = clean.evaluate(str(path))
    assert sum("flat.conll:1: most tags mark no chunks" in str(one.message) for one in warned) == 1
    assert "f1" not in found
    assert (found["unseen_tags"], found["accuracy"]) == (2, 0.5)


def test_chunks_without_a_type_have_an_f1_and_valid_sequences(tmp_path: Path) -> None:
    with pytest.warns(DataWarning, match=r"train\.conll:181"):
        run = trained_on(tmp_path, BARE, "features")
    with pytest.warns(DataWarning, match=r"train\.conll:181"):
        found = run.evaluate(str(tmp_path / "train.conll"))
    assert (sorted(run.vocabulary.labels), found["f1"]) == (["B", "I", "O"], 1)
    assert found["entities"]["chunk"]["support"] == 60
    task = new_task(
        resolve(run.config, {"model.layer": "gru", "model.options": {}, "data.train": run.config.data.train})
    )
    vocabulary = task.reader.learn_vocabulary()
    model = task.builder.build(vocabulary)
    b, i, o = (vocabulary.labels.index(tag) for tag in "BIO")
    assert [bool(model.crf.allowed[before, i]) for before in (b, i, o)] == [True, True, False]
    with pytest.warns(DataWarning, match=r"train\.conll:181"):
        train = task.reader.read(task.files.training_source(), "train", vocabulary)
    assert with_data_defaults(task.config, train).model.options["output"] == "crf"  # the run names the CRF

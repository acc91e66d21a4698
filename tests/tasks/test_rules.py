"""Rules: they reproduce regular changes of unseen words, and are a model like any other for the commands."""

import json
import random
from pathlib import Path

import numpy as np
import pytest
import torch

import seriatim
from seriatim.cli.main import main
from seriatim.comparison.item_answers import answer_items
from seriatim.config import resolve
from seriatim.counting.rule_translator import (
    KINDS,
    Features,
    Lexicon,
    Rewriter,
    RewritingExample,
    RuleTranslator,
    align,
    link,
    margins_of,
)
from seriatim.data.repairs import DataWarning
from seriatim.inspection.inspected_run import explainer_of
from seriatim.pages.page import Samples
from seriatim.tasks import open_task
from seriatim.tasks.answering import pair_losses
from seriatim.tasks.rules import best_kind
from seriatim.training.settle import settle_texts

from ..refusals import refused

VERBS = ["walk", "talk", "open", "start", "jump", "climb", "paint", "wait", "help", "laugh", "kick", "look"]
FORMS = {"PAST": lambda verb: verb + "ed", "NOUN": lambda verb: verb + "er", "UN": lambda verb: "un" + verb}


def inflections(verbs: list[str]) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
    return [((*verb, f"+{name}"), tuple(form(verb))) for verb in verbs for name, form in FORMS.items()]


def test_an_alignment_has_the_fewest_changes_and_keeps_both_sides() -> None:
    columns = align("kitten", "sitting")
    assert sum(source != target for source, target in columns) == 3
    assert "".join(source or "" for source, _ in columns) == "kitten"
    assert "".join(target or "" for _, target in columns) == "sitting"
    assert margins_of(align("spielt", "gespielt")) == (2, 0)
    assert margins_of(align("lauf", "laufend")) == (0, 3)
    assert margins_of(align("", "ab")) == (2, 0)


def test_rules_of_unseen_words_depend_on_their_features() -> None:
    rules = RuleTranslator.fit(inflections(VERBS), "rewriting")
    for source, target in inflections(["smooth", "zip", "q"]):
        assert rules.translate(source) == target
    assert rules.features == Features(frozenset(), frozenset({"+PAST", "+NOUN", "+UN"}))


def test_the_longest_end_and_then_the_most_frequent_change_win() -> None:
    pairs = [("cat", "cats"), ("dog", "dogs"), ("box", "boxes"), ("fox", "foxes"), ("ox", "oxen")]
    rewriter = Rewriter.fit(RewritingExample(tuple(source), (), tuple(target)) for source, target in pairs)
    expected = {"hat": "hats", "mix": "mixes", "wox": "woxes"}
    assert {word: "".join(rewriter.rewrite(tuple(word), ())) for word in expected} == expected


def test_prefixing_data_is_read_from_the_right() -> None:
    pairs = [(tuple(verb), ("w", "a", *verb)) for verb in VERBS]
    rules = RuleTranslator.fit(pairs, "rewriting")
    assert rules.backwards
    assert rules.translate(tuple("sing")) == tuple("wasing")


def test_unknown_features_take_the_rules_with_most_in_common() -> None:
    examples = [RewritingExample(("a",), ("+A", "+X"), ("a", "x")), RewritingExample(("a",), ("+B", "+Y"), ("a", "y"))]
    rewriter = Rewriter.fit(examples)
    assert rewriter.rewrite(("b",), ("+B", "+Z")) == ("b", "y")
    assert Rewriter.fit([]).rewrite(("b",), ()) == ("b",)


def test_words_without_shared_tokens_are_linked_by_their_company() -> None:
    meanings = {"das": ("the",), "haus": ("house",), "buch": ("book",), "ein": ("a",), "ja": ()}
    texts = ["das haus", "das buch", "ein buch", "ja das buch", "ein haus ja"]
    pairs = [(tuple(t.split()), tuple(w for s in t.split() for w in meanings[s])) for t in texts]
    lexicon = Lexicon.fit(pairs)
    assert lexicon.translate(("ein", "haus", "ja", "unbekannt")) == ("a", "house", "unbekannt")
    assert [links.tolist() for links in link(pairs[:1])] == [[0, 1]]
    assert link([((), ("a",))])[0].tolist() == [-1]


def test_the_kind_with_fewer_wrong_tokens_is_chosen() -> None:
    assert best_kind(inflections(VERBS)) == "rewriting"
    numbers = [" ".join(random.Random(i).choices(["one", "two", "three"], k=6)) for i in range(40)]
    swapped = {"one": "eins", "two": "zwei", "three": "drei"}
    assert best_kind([(tuple(t.split()), tuple(swapped[w] for w in t.split())) for t in numbers]) == "lexicon"


@pytest.mark.parametrize("kind", KINDS)
def test_saved_rules_answer_the_same(kind: str) -> None:
    rules = RuleTranslator.fit(inflections(VERBS), kind, ("word", "char"))
    loaded = RuleTranslator.from_tensors(rules.tensors())
    sources = [source for source, _ in inflections(["smooth", "zip"])]
    assert [loaded.translate(source) for source in sources] == [rules.translate(source) for source in sources]
    assert torch.equal(loaded.counts, rules.counts)
    assert loaded.answer("w a l k +PAST") == rules.answer("w a l k +PAST")


def test_damaged_rules_are_refused() -> None:
    tensors = RuleTranslator.fit(inflections(VERBS), "rewriting").tensors()
    for damaged in ({}, {**tensors, "counts": tensors["counts"][1:]}, {**tensors, "rules": tensors["rules"][5:]}):
        with pytest.raises(ValueError, match="rules"):
            RuleTranslator.from_tensors(damaged)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> seriatim.Run:
    folder = tmp_path_factory.mktemp("rules")
    for name, verbs in {"train": VERBS, "valid": ["smooth", "zip"]}.items():
        lines = (f"{' '.join(source)}\t{' '.join(target)}\n" for source, target in inflections(verbs))
        (folder / f"{name}.tsv").write_text("".join(lines))
    data = {"train": str(folder / "train.tsv"), "valid": str(folder / "valid.tsv")}
    model = {"layer": "rules"}
    return seriatim.train({"task": "seq2seq", "data": data, "model": model, "out": str(folder / "run")})


def test_the_page_of_rules_has_the_source_and_the_answer(run: seriatim.Run, tmp_path: Path) -> None:
    result = seriatim.inspect(run, "z i p +PAST", out=tmp_path / "a.html")
    (answer,) = run.predict(["z i p +PAST"])
    shown = [block for block in result.screens[0].blocks() if isinstance(block, Samples)]
    assert [block.items[0].text for block in shown] == ["z i p +PAST", answer]
    assert seriatim.inspect([run, run], "z i p +PAST", out=tmp_path / "b.html").path.is_file()


def test_a_run_of_rules_is_evaluated_and_predicts(run: seriatim.Run) -> None:
    assert run.summary["valid"]["exact_match"] == 1
    assert run.summary["best_valid"] == 1
    assert "loss" not in run.summary["valid"]
    assert run.evaluate(run.config.data.valid, beam=5)["exact_match"] == 1
    assert list(seriatim.load(run.path).predict(["s i n g +UN", ""])) == ["u n s i n g", run.model.answer("")]


def test_settings_without_meaning_are_refused(run: seriatim.Run, tmp_path: Path) -> None:
    for settings in ({"temperature": 0.5}, {"n_best": 2}):
        with refused("unsupported"):
            list(run.predict(["a"], **settings))
    with refused("unsupported"):
        run.task.builder.combine([run.model, run.model])
    with refused("unknown", "model.options.order"):
        seriatim.train({**run.config.model_dump(), "model": {"layer": "rules", "options": {"order": 3}}})


ANSWERS = "either\tAY DH ER\neither\tIY DH ER\na\tAH\na\tEY\n"


@pytest.fixture(scope="module")
def pronouncing(tmp_path_factory: pytest.TempPathFactory) -> seriatim.Run:
    folder = tmp_path_factory.mktemp("answers")
    (folder / "test.tsv").write_text(ANSWERS)
    (folder / "train.tsv").write_text((ANSWERS + "cat\tK AE T\nat\tAE T\ntea\tT IY\n") * 5)
    (folder / "repeated.tsv").write_text("a\tAH\ncat\tK AE T\ncat\tK AE T\ncat\tK AE T\n")
    data = {"train": str(folder / "train.tsv"), "valid": "none"}
    model = {"layer": "rules"}
    return seriatim.train({"task": "seq2seq", "data": data, "model": model, "out": str(folder / "run")})


def test_targets_of_equal_sources_are_alternatives(pronouncing: seriatim.Run, capsys) -> None:
    """The best of them counts, and each source once, for every figure and every verb."""
    test = str(pronouncing.path.parent / "test.tsv")
    with pytest.warns(DataWarning, match=r"test\.tsv:1: the source 'either' and 1 more have several rows.*2 sources"):
        found = pronouncing.evaluate(test)
    wanted = {"exact_match": 1, "word_error_rate": 0, "string_error_rate": 0, "chrf": 100, "sentences": 2, "pairs": 4}
    assert {name: found[name] for name in wanted} == wanted
    assert "nrefs:2" in found["bleu_signature"]
    with pytest.warns(DataWarning, match=r"several rows"):
        data = pronouncing.task.reader.read(test, "test", pronouncing.vocabulary)
    measures = pronouncing.task.evaluator.measure(pronouncing.model, data).measures
    assert {len(measure.statistics) for measure in measures.values()} == {2}
    assert data.lengths.tolist() == [6, 1]
    items = list(pronouncing.task.reader.measured_items(pronouncing.vocabulary, test, "test"))
    assert items == [("either", ["AY DH ER", "IY DH ER"]), ("a", ["AH", "EY"])]
    fields, arrays = answer_items(pronouncing, items)
    assert arrays["rows"].tolist() == [0, 1]
    assert [text["right"] for text in fields["answers"]["texts"]] == [True, True]
    labelled = explainer_of(pronouncing).labelled
    assert labelled.mistakes(test, None).correct == 2
    assert labelled.reference_answer("a", test, None) == ["AH", "EY"]
    # where each row counts, as in published tables, one of two targets is right
    assert main(["evaluate", str(pronouncing.path), "--data", test, "--data.alternatives", "false", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert (rows["exact_match"], rows["sentences"]) == (0.5, 4)
    assert rows["word_error_rate"] == pytest.approx(2 / 8)


def test_a_source_counts_once_also_where_its_pair_is_repeated(pronouncing: seriatim.Run, tmp_path: Path) -> None:
    with pytest.warns(DataWarning, match=r"repeated\.tsv:2: the source 'cat' has several rows"):
        found = pronouncing.evaluate(str(pronouncing.path.parent / "repeated.tsv"))
    assert (found["sentences"], found["pairs"]) == (2, 4)
    alike = tmp_path / "alike.tsv"  # composed, decomposed, and with a blank at the end
    alike.write_text("\u00e9\tAH\ne\u0301\tEY\n\u00e9 \tIY\n")
    with pytest.warns(DataWarning, match=r"alike\.tsv:1: the source '\u00e9' has several rows"):
        assert pronouncing.evaluate(str(alike))["sentences"] == 1


@pytest.mark.parametrize("factorisation", ["autoregressive", "ctc"])
def test_networks_are_measured_and_selected_by_the_best_of_several_targets(
    pronouncing: seriatim.Run, tmp_path: Path, factorisation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = pronouncing.path.parent
    options = {"factorisation": factorisation, "upsample": 3} if factorisation == "ctc" else {}
    data = {"train": str(folder / "train.tsv"), "valid": str(folder / "test.tsv")}
    given = resolve({"task": "seq2seq", "data": data, "model": {"layer": "transformer", "options": options}})
    config, _, vocabulary = settle_texts(given)
    task = open_task(config.replaced({"model.options.location": factorisation != "ctc"}))
    with pytest.warns(DataWarning, match="several rows"):
        valid = task.reader.read(data["valid"], "valid", vocabulary)
    model = task.builder.build(vocabulary)
    losses = pair_losses(model, valid)
    answers = ["IY DH ER", "EY"]
    monkeypatch.setattr(task.predictor, "answer", lambda *_: [{"text": answer} for answer in answers])
    metrics, measures = task.evaluator.measure(model, valid)
    assert (metrics["exact_match"], metrics["word_error_rate"]) == (1, 0)
    assert metrics["loss"] == pytest.approx(losses[:, 0].sum() / losses[:, 1].sum())
    assert measures["loss"].statistics == pytest.approx(np.stack([losses[:2].sum(0), losses[2:].sum(0)]))
    if factorisation != "ctc":
        with torch.no_grad():  # always the end: no target is exact, but an empty one would be
            model.output.weight.zero_()
            model.output.bias.zero_()[0] = 1
        assert task.objective.validate(model, valid)["exact_match"] == 0
        (tmp_path / "empty.tsv").write_text("a\t\na\tAH\nb\tAH\n")
        with pytest.warns(DataWarning, match="'a' has several rows"):
            empty = task.reader.read(str(tmp_path / "empty.tsv"), "valid", vocabulary)
        assert task.objective.validate(model, empty)["exact_match"] == 0.5

"""A text for every text, from files to answers."""

import json
import math
import random
from collections import Counter
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch

import seriatim
from seriatim.cli.main import main
from seriatim.core.errors import InputError
from seriatim.runs.ensembles import ensemble

from ..exhaustive import parameters
from ..refusals import refused

SOURCES = ["abc", "", "a", "ccab", "bacabcab"]


def pairs(count: int, seed: int) -> list[tuple[str, str]]:
    """Strings of three letters, and the same in capitals with every letter doubled."""
    chosen = random.Random(seed)
    words = ["".join(chosen.choices("abc", k=chosen.randint(1, 6))) for _ in range(count)]
    return [(word, "".join(2 * letter for letter in word.upper())) for word in words]


def config(folder: Path, out: str, model: dict | None = None, **options) -> dict:
    return {
        "task": "seq2seq",
        "data": {"train": str(folder / "train.tsv"), "valid": str(folder / "valid.tsv")},
        "tokenizer": {"kind": "char"},
        "model": {
            "layer": "gru",
            "embedding_size": 16,
            "hidden_size": 32,
            "dropout": 0.0,
            "options": options,
            **(model or {}),
        },
        "training": {"epochs": 6, "batch_size": 16, "learning_rate": 0.01, "schedule": "constant", "baseline": "none"},
        "out": str(folder / out),
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pairs")
    for seed, (name, count) in enumerate({"train": 600, "valid": 60}.items()):
        found = list(dict.fromkeys(pairs(count, seed))) if name == "valid" else pairs(count, seed)
        (path / f"{name}.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in found))
        for i, side in enumerate(("src", "tgt")):
            (path / f"{name}.{side}").write_text("".join(f"{pair[i]}\n" for pair in found))
    return path


@pytest.fixture(scope="module")
def run(folder: Path) -> seriatim.Run:
    # Smoothing gives probability to symbols that are never written, which draws share out among the others.
    return seriatim.train(config(folder, "run", label_smoothing=0.0))


def test_it_learns_to_translate(run: seriatim.Run, folder: Path) -> None:
    found = run.evaluate(str(folder / "valid.tsv"), beam=3)
    assert found["exact_match"] > 0.8
    assert found["exact_match_low"] <= found["exact_match"] <= found["exact_match_high"]
    greedy = run.evaluate(str(folder / "valid.tsv"), beam=1)
    assert greedy["exact_match"] == pytest.approx(run.summary["best_valid"])  # selects the weights of short symbols
    assert found["bleu_signature"]
    assert run.summary["baseline"]["exact_match"] == 0


def test_a_run_records_its_usual_search(run: seriatim.Run) -> None:
    options = run.config.model.options
    assert (options["beam"], options["length_penalty"]) == (5, 1.0)
    usual, named = (list(run.predict(SOURCES, details=True, **search)) for search in ({}, options_of_search(options)))
    assert [answer["n_best"] for answer in usual] == [answer["n_best"] for answer in named]
    assert len(next(iter(run.predict(["abc"], n_best=9, details=True)))["n_best"]) == 9


def options_of_search(options: dict) -> dict:
    return {name: options[name] for name in ("beam", "length_penalty")}


def test_parallel_files_are_the_same_pairs(run: seriatim.Run, folder: Path) -> None:
    one, two = (run.evaluate(data) for data in (str(folder / "valid.tsv"), f"{folder}/valid.src,{folder}/valid.tgt"))
    assert one == two


FORMS = {
    "bahdanau": ({}, {"form": "bahdanau", "attention": "additive"}),
    "feeding": ({}, {"input_feeding": True, "attention": "bilinear", "readout": "direct"}),
    "no attention": ({}, {"attention": "none", "context": "initial+updates+outputs"}),
    "copied": ({"bidirectional": False}, {"bridge": "copy", "scheduled_sampling": 0.2, "label_smoothing": 0.1}),
    "transformer": (
        {"layer": "transformer", "embedding_size": 32},
        {"shared_vocabulary": True, "position": "sinusoidal"},
    ),
    "copying": ({}, {"copying": True, "location": True, "shared_vocabulary": True}),
    "copying blocks": ({"layer": "transformer", "embedding_size": 32}, {"copying": True}),
    "at once": ({}, {"factorisation": "ctc", "upsample": 4}),
    "mixed": ({"layer": "convolution"}, {"decoder": "lstm", "attention": "scaled-dot"}),
}


@pytest.mark.parametrize("form", parameters(FORMS, everyday=("copying", "at once")))
def test_every_form_trains_and_answers_a_batch_as_one_by_one(folder: Path, form: str) -> None:
    model, options = FORMS[form]
    settings = config(folder, form, model, **options)
    settings["training"] |= {"epochs": 1, "learning_rate": 0.005}
    run = seriatim.train(settings)
    assert run.evaluate(str(folder / "valid.tsv"))["loss"] < 1.6  # of seven symbols: 1.95 to begin with
    how = {"beam": 3, "n_best": 2, "length_penalty": 0.0 if form == "at once" else 0.6}
    together = list(run.predict(SOURCES, **how, details=True))
    for source, answer in zip(SOURCES, together, strict=True):
        alone = next(run.predict([source], **how, details=True))
        assert answer["text"] == alone["text"]
        assert answer["score"] == pytest.approx(alone["score"], abs=1e-4)
        assert len(answer["n_best"]) == (2 if source or form != "at once" else 1)
        assert answer["n_best"][0]["score"] >= answer["n_best"][-1]["score"]
    if form == "at once":
        with refused("unsupported", "temperature, seed"):
            list(run.predict(SOURCES, seed=1))
    else:
        assert list(run.predict(SOURCES, seed=1)) == [
            *run.predict(SOURCES[:2], seed=1),
            *run.predict(SOURCES[2:], seed=1),
        ]


def test_a_wider_beam_finds_no_worse_answers(run: seriatim.Run) -> None:
    narrow, wide = (list(run.predict(SOURCES, beam=width, details=True)) for width in (1, 6))
    assert sum(a["log_probability"] for a in wide) >= sum(a["log_probability"] for a in narrow) - 1e-6
    assert [len(text) >= 4 for text in run.predict(SOURCES, beam=2, min_length=4)] == [True] * len(SOURCES)
    with refused("range", "min_length"):
        list(run.predict(SOURCES, min_length=100_000))


def test_an_ensemble_averages_probabilities(run: seriatim.Run, folder: Path, capsys) -> None:
    settings = config(folder, "second")
    settings["training"] |= {"seed": 2, "epochs": 1}
    second = seriatim.train(settings)
    twice = ensemble([run, run])
    for one, both in zip(
        run.predict(SOURCES, beam=2, details=True), twice.predict(SOURCES, beam=2, details=True), strict=True
    ):
        assert one["text"] == both["text"]
        assert one["score"] == pytest.approx(both["score"], abs=1e-5)
    data = str(folder / "valid.tsv")
    mixed = ensemble([run, second]).evaluate(data)
    assert mixed["loss"] < (run.evaluate(data)["loss"] + second.evaluate(data)["loss"]) / 2  # by convexity of -log
    assert main(["evaluate", f"{run.path},{second.path}", "--data", data, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["loss"] == pytest.approx(mixed["loss"])


def test_what_is_drawn_for_a_source_depends_on_it_and_the_seed(run: seriatim.Run, folder: Path, capsys) -> None:
    def texts(sources: list[str], **settings) -> list[str]:
        return list(run.predict(sources, **settings))

    assert texts(SOURCES, temperature=0.0) == texts(SOURCES)
    drawn = texts(SOURCES, seed=1, temperature=2.0)
    assert drawn == [text for source in SOURCES for text in texts([source], seed=1, temperature=2.0)]
    assert drawn != texts(SOURCES, seed=2, temperature=2.0)
    assert texts(SOURCES, top_k=1, seed=3) == texts(SOURCES)
    (folder / "sources.txt").write_text("".join(f"{source}\n" for source in SOURCES))
    command = ["predict", str(run.path), str(folder / "sources.txt"), "--seed", "1", "--temperature", "2"]
    assert main(command) == 0
    assert capsys.readouterr().out.splitlines() == drawn
    assert main([*command, "--beam", "3"]) == 2
    assert "beam: cannot be used for sampled answers (temperature)" in capsys.readouterr().err
    assert main([*command, "--top-p", "1.5"]) == 2
    assert main([*command, "--n-best", "0"]) == 2


def test_answers_are_drawn_as_often_as_they_are_likely(run: seriatim.Run) -> None:
    (answer,) = run.predict(["abca"], n_best=1000, seed=1, details=True)
    counts = Counter(one["text"] for one in answer["n_best"])
    shares = {one["text"]: math.exp(one["log_probability"]) for one in answer["n_best"]}
    for text, share in shares.items():
        assert counts[text] / 1000 == pytest.approx(share, abs=0.06)
    assert sum(shares.values()) <= 1 + 1e-6
    assert len(counts) > 1


def test_alignments_are_distributions_over_the_source(run: seriatim.Run) -> None:
    answers = list(run.predict(["abc", "", "ca"], alignments=True, details=True))
    for source, answer in zip(["abc", "", "ca"], answers, strict=True):
        assert answer["source_tokens"] == list(source)
        assert answer["target_tokens"] == [*answer["text"], "</s>"]
        for row in answer["alignment"]:
            assert len(row) == len(source)
            assert sum(row) == pytest.approx(1 if source else 0, abs=1e-5)


@pytest.mark.exhaustive
def test_a_training_that_was_cut_off_ends_with_the_same_bits(folder: Path) -> None:
    settings = config(folder, "whole")
    settings["data"]["train"] = settings["data"]["valid"]  # four steps an epoch
    whole = seriatim.train(settings)
    seriatim.train({**settings, "training": {**settings["training"], "steps": 11}, "out": str(folder / "cut")})
    resumed = seriatim.resume(folder / "cut", overrides={"training.steps": None})
    for (name, mine), other in zip(whole.model.named_parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(mine, other), name


@pytest.mark.filterwarnings("ignore:.*several rows")  # in the part of the training data that is held out
def test_the_command_answers_line_by_line(run: seriatim.Run, folder: Path, capsys) -> None:
    (folder / "sources.txt").write_text("\n".join(SOURCES) + "\n")
    where = [str(run.path), str(folder / "sources.txt")]
    for order in ([*where, "--beam", "2"], [where[0], "--beam", "2", where[1]], ["--beam", "2", *where]):
        assert main(["predict", *order]) == 0
        assert capsys.readouterr().out.splitlines() == list(run.predict(SOURCES, beam=2))
    assert main(["predict", str(run.path), str(folder / "sources.txt"), "--json"]) == 0
    first = json.loads(capsys.readouterr().out.splitlines()[0])
    assert {"text", "score", "log_probability", "n_best", "alignment", "seconds"} <= set(first)
    assert main(["check", "seq2seq", "--data", str(folder / "train.tsv"), "--tokenizer.kind", "char"]) == 0
    assert "longest target" in capsys.readouterr().out
    assert main(["evaluate", str(run.path), "--data", str(folder / "valid.tsv"), "--beam", "2"]) == 0
    assert "BLEU" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("model", "options", "kind", "place", "value"),
    [
        ({}, {"attention": "dots"}, "range", "model.options.attention", ""),
        ({}, {"attention": "multi-head"}, "conflict", "model.options.attention", ""),
        ({}, {"form": "bahdenau"}, "range", "model.options.form", ""),
        ({}, {"bridge": "copy"}, "mismatch", "bridge copy", ""),
        ({}, {"encoder_size": 10, "attention": "dot"}, "mismatch", "score 'dot'", ""),
        ({"layer": "gruu"}, {}, "unknown", "", "gruu"),
        ({}, {"decoder": "grru"}, "unknown", "", "grru"),
        (
            {},
            {"attention": "none", "input_feeding": True},
            "conflict",
            "model.options.input_feeding",
            "",
        ),
        ({}, {"form": "bahdanau", "input_feeding": True}, "conflict", "model.options.input_feeding", ""),
        ({}, {"context": "updates"}, "conflict", "model.options.context", ""),
        ({}, {"factorisation": "ctc", "label_smoothing": 0.1}, "conflict", "model.options.label_smoothing", ""),
        ({}, {"upsample": 2}, "conflict", "model.options.upsample", ""),
        ({}, {"zone": 1}, "unknown", "", "zone"),
        ({"tie_weights": True}, {}, "mismatch", "model.tie_weights", ""),
    ],
)
def test_settings_that_do_not_fit_are_named(
    folder: Path, model: dict, options: dict, kind: str, place: str, value: str
) -> None:
    with refused(kind, place, value):
        seriatim.train(config(folder, "none", model, **options))


def test_bad_pairs_are_named_by_line(run: seriatim.Run, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "long.tsv").write_text("a\tAA\nb\t" + "B" * 300 + "\n")
    with refused("size", "long.tsv:2"):
        run.evaluate(str(tmp_path / "long.tsv"))
    (tmp_path / "one.tgt").write_text("A\n")
    with refused("mismatch", "valid.src:2"):
        run.evaluate(f"{folder}/valid.src,{tmp_path}/one.tgt")
    (tmp_path / "tabs.tsv").write_text("a\tAA\nb\tB\tC\n")
    with refused("malformed", "tabs.tsv:2"):
        run.evaluate(str(tmp_path / "tabs.tsv"))
    with refused("range", "n_best"):
        list(run.predict(["a"], beam=2, n_best=4))
    with refused("range", "beam"):
        list(run.predict(["a"], beam=65))


HUGE = 10**5000


@pytest.mark.parametrize(
    "settings",
    [
        *({"n_best": value} for value in (0, 1.5, "2", True, math.nan, None, 10**30, -HUGE, HUGE)),
        *({"n_best": value, "seed": 1} for value in (0, 1.5, "2", True, math.nan, 10**30, HUGE)),
        *({"beam": value} for value in (0, 1.5, "2", True, math.nan, 10**30, HUGE)),
        *({"length_penalty": value} for value in (-1, "1", True, False, math.nan, math.inf, 1e308, HUGE)),
        *({"min_length": value} for value in (-1, 1.5, "1", True, math.nan, 10**30, HUGE)),
        *({"seed": value} for value in (1.5, "1", True, math.nan, [])),
        *({"temperature": value} for value in (-1, "1", True, math.nan, 1e-308, 1e308, HUGE)),
        *({"top_p": value} for value in (0, True, math.nan, HUGE)),
        *({"top_k": value} for value in (0, True, math.nan, -HUGE)),
    ],
    ids=lambda given: next(iter(given)),
)
def test_settings_out_of_range_are_named(run: seriatim.Run, settings: dict) -> None:
    with pytest.raises(InputError, match=next(iter(settings)).replace("n_best", "n_best|beam")):
        list(run.predict(["abc"], **settings))


def test_numbers_of_any_type_are_settings_of_a_search(run: seriatim.Run) -> None:
    given = {"beam": np.int8(3), "n_best": np.uint64(2), "length_penalty": np.float16(0.5), "min_length": np.int64(1)}
    plain = {"beam": 3, "n_best": 2, "length_penalty": 0.5, "min_length": 1}
    first, second = (next(run.predict(["abc"], details=True, **settings)) for settings in (given, plain))
    assert first["n_best"] == second["n_best"]
    sampled = [next(run.predict(["abc"], seed=np.int32(3), temperature=kind(1))) for kind in (int, np.int32, Fraction)]
    assert len(set(sampled)) == 1


def test_pairs_without_any_target_are_refused(tmp_path: Path, capsys) -> None:
    data = tmp_path / "pairs.tsv"
    data.write_text("a b\t\nc d\t\n")
    for verb in (["train", "seq2seq", "--out", str(tmp_path / "run")], ["check", "seq2seq"]):
        assert main([*verb, "--data", str(data), "--hidden_size", "4"]) == 2
        assert "pairs.tsv:1: the targets of all 2 pairs are empty; write SOURCE<TAB>TARGET" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
    data.write_text("a b\t\nc d\tx\n")  # some answers may be nothing
    assert main(["check", "seq2seq", "--data", str(data)]) == 0


def test_a_target_that_does_not_fit_its_places_is_named(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "tight.tsv").write_text("ab\tABAB\nab\tAABB\n")
    settings = config(folder, "tight", factorisation="ctc", upsample=2)
    settings["data"] = {"train": str(tmp_path / "tight.tsv")}
    with refused("size", "tight.tsv:2"):
        seriatim.train(settings)


def test_an_answer_is_one_line_whatever_its_tokens(folder: Path) -> None:
    """An untrained model over bytes would write line ends now and then."""
    settings = config(folder, "bytes")
    settings["tokenizer"]["kind"] = "byte"
    settings["training"] = {"steps": 1, "learning_rate": 1e-9}
    run = seriatim.train(settings)
    answers = run.predict(["abcab", "", "c"], beam=20, n_best=20, details=True)
    assert not any("\n" in one["text"] for answer in answers for one in answer["n_best"])

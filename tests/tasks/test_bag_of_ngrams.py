"""Bags of n-grams as runs: trained, measured, opened, asked; and what is refused."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import seriatim
from seriatim.cli.main import main
from seriatim.counting import bag
from seriatim.counting.bag import Bag, count_features, fit_weights
from seriatim.counting.sparse_features import SparseRows, find_ngrams
from seriatim.storage.weights import load_tensors, read_metadata, save_tensors

from ..refusals import refused
from .test_classification import write

TEXTS = ["the cat sees it .", "", "nobody paints the moon .", "she", "zebra " * 40, "\N{SNOWMAN}\N{SNOWMAN} 東京"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bag")
    write(path / "train.tsv", 300, 0)
    write(path / "valid.tsv", 80, 1)
    return path


def config(folder: Path, out: str, **options: Any) -> dict[str, Any]:
    return {
        "task": "classify",
        "data": {"train": str(folder / "train.tsv"), "valid": str(folder / "valid.tsv")},
        "model": {"layer": "bag", "options": options},
        "out": str(folder / out),
    }


@pytest.fixture(scope="module")
def run(folder: Path) -> seriatim.Run:
    return seriatim.train(config(folder, "run"))


def test_it_learns_and_opens_with_the_same_figures(run: seriatim.Run, folder: Path) -> None:
    found = run.evaluate(str(folder / "valid.tsv"))
    assert found["accuracy"] > 0.95 > run.summary["baseline"]["accuracy"]
    assert found["loss"] == run.summary["valid"]["loss"]
    assert seriatim.load(run.path).evaluate(str(folder / "valid.tsv")) == found


def test_a_batch_gives_the_answers_of_its_texts(run: seriatim.Run) -> None:
    answers = list(run.predict(TEXTS, details=True))
    assert len(answers) == len(TEXTS)
    for text, answer in zip(TEXTS, answers, strict=True):
        (alone,) = run.predict([text], details=True)
        assert alone["probabilities"] == pytest.approx(answer["probabilities"])
        assert sum(answer["probabilities"].values()) == pytest.approx(1)


def test_verbs(run: seriatim.Run, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.warns(UserWarning, match="nothing is left to do"):
        assert main(["train", "--resume", str(run.path)]) == 0
    page = folder / "page.html"
    assert main(["inspect", str(run.path), "--text", "the sea sings .", "--out", str(page)]) == 0
    assert "strongest token: “sea”" in capsys.readouterr().out
    assert "label" in page.read_text()
    assert main(["layers"]) == 0
    assert "bag" in capsys.readouterr().out
    assert "linear classifier" in (run.path / "README.md").read_text()


@pytest.mark.parametrize(
    "options",
    [{"word_ngrams": 0}, {"character_ngrams": 0}, {"word_ngrams": 0, "character_ngrams": 0}, {"word_ngrams": 4}],
)
def test_any_kind_of_ngrams_can_be_left_out(folder: Path, tmp_path: Path, options: dict[str, int]) -> None:
    found = seriatim.train({**config(folder, "", **options), "out": str(tmp_path / "run")})
    assert found.summary["valid"]["accuracy"] >= found.summary["baseline"]["accuracy"]


def test_a_label_with_one_text_and_empty_texts(tmp_path: Path) -> None:
    (tmp_path / "few.tsv").write_text("label\ttext\na\t\nb\tone\nc\tone two\n")
    found = seriatim.train(
        {
            "task": "classify",
            "data": {"train": str(tmp_path / "few.tsv")},
            "model": {"layer": "bag"},
            "out": str(tmp_path / "run"),
        }
    )
    assert list(found.predict(["", "one", "one two"])) == ["a", "b", "c"]


def test_weights_of_another_model_are_refused(run: seriatim.Run, tmp_path: Path) -> None:
    tensors, metadata = load_tensors(run.path / "model.safetensors"), read_metadata(run.path / "model.safetensors")
    damages = {
        "not sorted": {"words": tensors["words"].flip(0)},
        "another": {"bias": tensors["bias"][:1]},
        "different numbers": {"scales": tensors["scales"][:-1]},
        "NaN": {"bias": tensors["bias"] * float("nan")},
        "wrong type": {"weights": tensors["weights"].double()},
    }
    for number, damage in enumerate(damages.values()):
        copy = tmp_path / str(number)
        shutil.copytree(run.path, copy)
        save_tensors(tensors | damage, copy / "model.safetensors", metadata)
        with refused("damaged", "model.safetensors"):
            seriatim.load(copy)


def test_so_many_labels_are_refused(tmp_path: Path) -> None:
    rows = "".join(f"label{i}\tword{i}\n" for i in range(20_000))
    (tmp_path / "many.tsv").write_text(f"label\ttext\n{rows}")
    with refused("size", "model.layer"):
        seriatim.train(
            {
                "task": "classify",
                "data": {"train": str(tmp_path / "many.tsv"), "valid": "none"},
                "model": {"layer": "bag"},
                "out": str(tmp_path / "run"),
            }
        )


def test_options_are_checked(folder: Path) -> None:
    with refused("unknown", "model.options.pooling"):
        seriatim.train(config(folder, "bad", pooling="max"))


def test_ngrams_are_those_of_the_text() -> None:
    (words, characters) = find_ngrams(["Ab c", "", "ab c"], words=2, characters=range(2, 6))
    # "ab", "c" and "ab c"; "ab" and "ab c" at the beginning; "c" and "ab c" at the end
    assert np.bincount(words.rows, minlength=3).tolist() == [7, 0, 7]
    # of " ab " 3, 2 and 1, of " c " 2 and 1
    assert np.bincount(characters.rows, minlength=3).tolist() == [9, 0, 9]
    for found in (words, characters):
        assert set(found.keys[found.rows == 0].tolist()) == set(found.keys[found.rows == 2].tolist())
    assert len(np.unique(np.concatenate([words.keys, characters.keys]))) == 7 + 9


def test_ngrams_at_the_ends_of_a_text_count_twice() -> None:
    def of(text: str) -> set[int]:
        return set(find_ngrams([text], words=2, characters=())[0].keys.tolist())

    assert len(of("a b c") & of("a c b")) == 4  # three words, and the first one
    assert len(of("a b c") & of("b c a")) == 4  # three words and a pair, which neither begins nor ends both texts


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("don't stop", 2),
        ("3.5 well-made", 2),
        ("end. (so)", 5),
        ("wait... what", 5),
        ("'quoted'", 3),
        ("中文", 2),
        ("a中b", 3),
        ("-", 1),
        ("", 0),
    ],
)
def test_punctuation_within_a_word_does_not_divide_it(text: str, expected: int) -> None:
    keys = find_ngrams([text], words=1, characters=())[0].keys
    assert len(keys) == (expected + 2 if expected else 0)  # the first and the last word count twice


def test_rare_ngrams_are_left_out_if_there_are_too_many() -> None:
    texts = ["one two three", "one two", "one"]
    table, features = count_features(texts, words=2, characters=0, min_texts=1, max_features=3)
    assert len(table.words) == features.width == 2  # "one", and as the first; of three that occur twice, none


@pytest.mark.parametrize("one_versus_rest", [False, True])
def test_compiled_code_counts_and_fits_what_arrays_do(one_versus_rest: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(0)
    texts = ["".join(random.choice(list("aab  c.-'é東"), size=random.integers(30))) for _ in range(300)] + ["a " * 700]
    labels = torch.tensor([text.count("b") % 3 for text in texts])
    settings = {"words": 3, "characters": 4, "min_texts": 2, "max_features": 900}
    table, features = count_features(texts, **settings)
    how = {"strength": 5.0, "one_versus_rest": one_versus_rest}
    fitted = fit_weights(features, labels, 3, **how)
    again = fit_weights(features, labels, 3, **how)
    assert torch.equal(fitted.weights, again.weights)
    found = [table.features(some) for some in (texts, ["never seen 😀"], ["-ab ab", ""], [])]
    model = bag.Bag(table, fitted.weights, fitted.bias)
    logits = model(texts)
    assert torch.equal(torch.cat([model([text]) for text in texts]), logits)

    monkeypatch.setattr(bag, "compiled_bag", lambda: None)
    expected, others = count_features(texts, **settings)
    for name in ("words", "characters", "scales"):
        np.testing.assert_array_equal(getattr(table, name), getattr(expected, name))
    assert torch.equal(features.offsets, others.offsets)
    assert torch.equal(features.columns, others.columns)
    torch.testing.assert_close(features.values, others.values)
    torch.testing.assert_close(logits, model(texts))
    for some, compiled in zip((texts, ["never seen 😀"], ["-ab ab", ""], []), found, strict=True):
        for values, reference in zip(compiled, table.features(some), strict=True):
            torch.testing.assert_close(values, reference)
    monkeypatch.setattr(bag, "TOLERANCE", 1e-7)
    slowly = fit_weights(features, labels, 3, **how)
    first, second = (features.times(one.weights) + one.bias for one in (fitted, slowly))
    assert (first - second).abs().mean() < 0.05 * second.abs().mean()


def test_the_features_of_training_texts_are_those_found_again() -> None:
    texts = ["one two two", "", "three one"]
    table, features = count_features(texts, words=2, characters=3, min_texts=1, max_features=1000)
    dense = torch.eye(features.width)
    assert torch.equal(features.times(dense), table.features(texts).times(dense))
    assert torch.equal(features.transposed().times(torch.eye(3)), features.times(dense).t())
    norms = features.times(dense)[:, : len(table.words)].norm(dim=1)
    torch.testing.assert_close(norms, torch.tensor([1.0, 0.0, 1.0]))


@pytest.mark.parametrize("one_versus_rest", [False, True])
@pytest.mark.parametrize("is_compiled", [False, True])
def test_the_minimum_has_no_gradient(is_compiled: bool, one_versus_rest: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(0)
    dense = random.normal(size=(40, 6)) * (random.random((40, 6)) < 0.5)
    rows, columns = dense.nonzero()
    features = SparseRows.build(rows, columns, dense[rows, columns], dense.shape)
    labels, strength = torch.from_numpy(random.integers(3, size=40)), 2.0
    weights = torch.from_numpy(random.random(40) + 0.5)
    monkeypatch.setattr(bag, "GAP", 1e-5)
    if not is_compiled:
        monkeypatch.setattr(bag, "compiled_bag", lambda: None)
    how = {"strength": strength, "weights": weights, "one_versus_rest": one_versus_rest}
    fitted = fit_weights(features, labels, 3, **how)
    point = [part.double().requires_grad_() for part in (fitted.weights, fitted.bias)]
    x, truth = torch.from_numpy(dense), torch.nn.functional.one_hot(labels, 3).double()
    logits = x @ point[0] + point[1]
    if one_versus_rest:
        errors = torch.nn.functional.binary_cross_entropy_with_logits(logits, truth, reduction="none").sum(1)
    else:
        errors = torch.nn.functional.cross_entropy(logits, labels, reduction="none")
    losses = errors * weights
    penalty = sum(part.square().sum() for part in point) / (2 * strength * 40)
    start = torch.zeros_like(point[0]), torch.zeros_like(point[1])
    (losses.mean() + penalty).backward()
    at_start = truth.sub(1 / 2 if one_versus_rest else 1 / 3).mul(weights[:, None] / 40)
    size = (x.t() @ at_start).norm()
    assert all(len(part) == len(first) for part, first in zip(point, start, strict=True))
    assert torch.cat([part.grad.flatten() for part in point]).norm() < 0.05 * size


def test_a_model_of_unknown_ngrams_gives_the_same_shares_to_all() -> None:
    table, _ = count_features(["one"], words=1, characters=0, min_texts=1, max_features=10)
    model = Bag(table, torch.ones(1, 2), torch.zeros(2))
    assert model.probabilities(["two", ""]).tolist() == [[0.5, 0.5]] * 2

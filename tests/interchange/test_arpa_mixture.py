"""Several ARPA files become one: the mixture on listed n-grams, sums of 1, and what KenLM reads."""

import itertools
from pathlib import Path

import numpy as np
import pytest

import seriatim
from seriatim.cli.main import main
from seriatim.counting.ngrams.table import NgramTable
from seriatim.data.tokenizers import Spelling, WordTokenizer
from seriatim.interchange.arpa import mix, read_arpa, write_arpa
from seriatim.interchange.formats import import_run

from ..conftest import sentences
from .test_arpa import made

OTHERS = ["she reads a book .", "the dog reads", "a bird sings a song .", "the bird likes the song"] * 5


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder, paths = tmp_path_factory.mktemp("arpa"), []
    for name, order, lines in (("one", 3, sentences(60)), ("two", 2, OTHERS)):
        model, tokenizer = made("word", order, lines)
        paths.append(folder / f"{name}.arpa")
        write_arpa(model.table.orders, tokenizer, paths[-1])
    return paths


@pytest.mark.filterwarnings("ignore:too few n-grams")
def test_every_context_sums_to_one_and_listed_ngrams_are_the_mixture(files: list[Path]) -> None:
    models = [read_arpa(path) for path in files]
    mixed = mix(models, [0.3, 0.7])
    assert set(mixed.words) == {word for model in models for word in model.words}
    table = NgramTable(mixed.orders)
    size = 2 + len(mixed.words)
    contexts = [np.array(pair) for pair in itertools.product(range(0, size, 3), repeat=2)]
    sums = [table.distributions(context[None, :]).sum() for context in contexts]
    np.testing.assert_allclose(sums, 1, atol=1e-9)
    ids = {word: i for i, word in enumerate(mixed.words, start=2)}
    for sentence in (["the", "dog"], ["a", "bird", "sings"], ["she", "reads", "a"]):
        tokens = np.array([[0, *(ids[word] for word in sentence)]])
        expected = 0.0
        for model, weight in zip(models, (0.3, 0.7), strict=True):
            own = {word: i for i, word in enumerate(model.words, start=2)}
            if sentence[-1] in own:
                row = np.array([[0, *(own.get(word, -1) for word in sentence)]])
                expected += weight * np.exp(NgramTable(model.orders).log_probabilities(row[:, :-1], row[:, -1:]))[0, 0]
        index = table.ending(tokens, len(mixed.orders))
        if index[min(len(sentence), 2)][0, -1] >= 0:  # it is listed with its whole context
            found = np.exp(table.log_probabilities(tokens[:, :-1], tokens[:, -1:]))[0, 0]
            assert found == pytest.approx(expected)


@pytest.mark.filterwarnings("ignore:too few n-grams")
def test_a_mixture_of_a_model_with_itself_is_the_model(files: list[Path]) -> None:
    model = read_arpa(files[0])
    mixed = mix([model, model], [0.25, 0.75])
    assert mixed.words == model.words
    for ours, theirs in zip(mixed.orders, model.orders, strict=True):
        np.testing.assert_array_equal(ours.key, theirs.key)
        np.testing.assert_allclose(ours.probability, theirs.probability, rtol=1e-9)
        np.testing.assert_allclose(ours.backoff, theirs.backoff, rtol=1e-6, atol=1e-9)


@pytest.mark.filterwarnings("ignore:too few n-grams")
def test_kenlm_reads_the_result(files: list[Path], tmp_path: Path) -> None:
    kenlm = pytest.importorskip("kenlm")
    out = tmp_path / "mixed.arpa"
    run = str(tmp_path / "run")
    assert main(["import", *map(str, files), "--mixture-weights", "0.3,0.7", "--out", run]) == 0
    assert main(["export", run, "--format", "arpa", "--out", str(out)]) == 0
    model, ours = kenlm.Model(str(out)), seriatim.load(run)
    lines = ["the dog reads a book .", "a bird likes the cat", "she sings"]
    expected = [model.score(line) * np.log(10) for line in lines]
    assert [score.log_probability for score in ours.score(lines)] == pytest.approx(expected, rel=1e-5)


@pytest.mark.filterwarnings("ignore:too few n-grams")
def test_bad_input(files: list[Path], tmp_path: Path, capsys) -> None:
    one, two = map(str, files)
    for arguments, message in (
        ([one, two, "--mixture-weights", "1"], "1 weights for 2 files; give one for each"),
        ([one, two, "--mixture-weights", "1,-1"], "not all are above 0"),
        ([one, two, "--mixture-weights", "1,x"], "--mixture-weights: invalid float value: 'x'"),
        ([one, "--mixture-weights", "1"], "cannot be used with one file"),
        ([one, str(tmp_path)], "only ARPA files can be mixed"),
        ([one, str(tmp_path / "gone")], "gone"),
    ):
        assert main(["import", *arguments, "--out", str(tmp_path / "run")]) == 2, arguments
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1
        assert not (tmp_path / "run").exists()


@pytest.mark.filterwarnings("ignore:too few n-grams")
def test_words_of_one_model_only_keep_their_share(tmp_path: Path) -> None:
    for name, words in (("a", ["x", "y"]), ("b", ["y", "z"])):
        model, _ = made("word", 1, [" ".join(words)] * 3)
        write_arpa(model.table.orders, WordTokenizer(words, Spelling()), tmp_path / f"{name}.arpa")
    run = import_run([str(tmp_path / "a.arpa"), str(tmp_path / "b.arpa")], str(tmp_path / "run"))
    assert run.tokenizer.words == ["x", "y", "z"]
    assert run.model.table.orders[0].probability.sum() == pytest.approx(1)

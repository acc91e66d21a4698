"""The CRF on attributes of words: its algorithm agrees with `CRF`, its gradient with differences, and its model."""

import numpy as np
import pytest
import torch

from seriatim.config import Tokenizer
from seriatim.counting import feature_tagger
from seriatim.counting.feature_tagger import Packing, _SequenceLoss, expectations, fit_tagger
from seriatim.counting.minimization import minimize
from seriatim.counting.sparse_features import NONE, find_attributes
from seriatim.data.conll import Sentence
from seriatim.data.tagged_corpus import TaggedCorpus, fit_vocabulary
from seriatim.models.crf import CRF, bio_transitions

LENGTHS = np.array([3, 0, 5, 1, 3])


@pytest.mark.parametrize("tags", [("N", "V", "O"), ("O", "B-X", "I-X", "B-Y")])
def test_packed_sentences_agree_with_the_crf(tags: tuple[str, ...]) -> None:
    torch.manual_seed(0)
    crf = CRF(len(tags), bio_transitions(tags)).double()
    for parameter in crf.parameters():
        torch.nn.init.normal_(parameter)
    packing = Packing.of(LENGTHS)
    flat = torch.randn(int(LENGTHS.sum()), len(tags), dtype=torch.float64)
    scores = torch.zeros(len(LENGTHS), int(LENGTHS.max()), len(tags), dtype=torch.float64)
    starts = LENGTHS.cumsum() - LENGTHS
    for row, (start, length) in enumerate(zip(starts, LENGTHS, strict=True)):
        scores[row, :length] = flat[start : start + length]
    total = crf.log_partition(scores, torch.from_numpy(LENGTHS)).sum()
    total.backward()
    moves = crf._moves()
    found = expectations(packing, flat[packing.positions], *(part.detach() for part in moves))
    assert found.log_partition == pytest.approx(total.item())
    for counts, parameter in zip(found[2:], (crf.transitions, crf.start, crf.end), strict=True):
        torch.testing.assert_close(counts, parameter.grad)
    marginals = crf.marginals(scores, torch.from_numpy(LENGTHS))
    packed = torch.cat([marginals[row, :length] for row, length in enumerate(LENGTHS.tolist())])[packing.positions]
    torch.testing.assert_close(found.marginals, packed)


def test_attributes() -> None:
    words = ["Walking", "walking", "a", "A1-b", "", "\N{SNOWMAN}"]
    keys = find_attributes([(word,) for word in words])
    assert keys.shape[0] == len(words)
    same = [kind for kind in range(keys.shape[1]) if keys[0, kind] == keys[1, kind] != NONE]
    assert len(same) == 1 + 4 + 4  # in lower case, prefixes and suffixes are those of both
    assert (keys[2] == NONE).sum() == 3 + 3 + 3  # affixes of 2 to 4 characters, and no digit, capital or hyphen
    assert np.array_equal(find_attributes([words[3:4]])[0], keys[3])
    used = keys[keys != NONE]
    by_kind = [set(keys[:, kind].tolist()) - {NONE} for kind in range(keys.shape[1])]
    assert sum(map(len, by_kind)) == len(set(used.tolist()))


def test_any_character_can_be_a_word() -> None:
    """Also NUL, of which a word of control characters consists, and characters that Unicode does not assign."""
    words = [count * chr(point) for point in (*range(0x300), *range(0x300, 0x110000, 999)) for count in (1, 3)]
    keys = find_attributes([(word,) for word in words])
    for i in range(0, len(words), 53):
        assert np.array_equal(find_attributes([words[i : i + 1]])[0], keys[i])
    assert len(np.unique(keys[:, 0])) == len(words)  # as they are written


def test_columns_are_attributes_of_their_own() -> None:
    plain, read = find_attributes([("a",), ("b",)]), find_attributes([("a", "X", "X"), ("b", "X", "Y")])
    assert np.array_equal(read[:, : plain.shape[1]], plain)
    first, second = read[:, plain.shape[1] :].T
    assert first[0] == first[1] not in second
    assert second[0] != second[1]


@pytest.mark.parametrize("columns", [0, 2])
def test_the_model_scores_what_was_fitted(columns: int) -> None:
    """The loss of all sentences together equals the loss of the model on a batch of the same sentences."""
    rng, labels = np.random.default_rng(1), ["N", "V"]
    sentences = []
    for length in LENGTHS.tolist():
        words = rng.choice(["a", "b", "Walking", "c3"], length).tolist()
        further = [rng.choice(["X", "Y"], columns).tolist() for _ in words]
        tags = rng.choice(labels, length).tolist()
        sentences.append(Sentence(words, tags, [], list(range(length)), 0, "", 0, further=further))
    sentences = [*sentences, *sentences]
    corpus = TaggedCorpus(sentences, fit_vocabulary(sentences, Tokenizer(kind="word"), characters=False))
    model, _ = fit_tagger(corpus, labels, decay=0.1, max_attributes=1000)
    assert model.pair_weights[:-1].abs().max() > 0
    scores = model(batch := corpus.batch(np.arange(len(sentences))))

    objective = _SequenceLoss(corpus, model, decay=0.1)
    point = torch.cat([
        *(part.view(-1, len(labels)) for part in (model.weights, model.pair_weights, model.crf.transitions)),
        torch.stack([model.crf.start, model.crf.end]),
    ])  # fmt: skip
    outputs = objective.outputs(point)
    rows = torch.arange(len(sentences)).repeat_interleave(batch.lengths)
    flat = torch.cat([scores[row, : batch.lengths[row]] for row in range(len(sentences))])
    torch.testing.assert_close(outputs[: len(rows)], flat[objective.packing.positions])
    loss, errors = objective.loss(outputs.clone())
    assert loss * len(rows) == pytest.approx(float(model.losses(scores, batch).sum()), rel=1e-5)

    # The gradient is the product of the errors with the outputs, which are linear.
    direction = torch.randn(point.shape, generator=torch.Generator().manual_seed(1))
    expected = (errors * objective.outputs(direction)).sum()
    torch.testing.assert_close((objective.gradient(errors) * direction).sum(), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("columns", [0, 2])
def test_compiled_scores_are_those_of_the_arrays(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng, labels = np.random.default_rng(1), ["N", "V", "X"]
    forms = ["a", "Walking", "c3", "-x-", "İstanbul", "Straße", "x" * 40, "東京", "B-B0"]
    sentences = []
    for length in (5, 0, 1, 7):
        words = rng.choice(forms, length).tolist()
        further = [rng.choice(["X", "Yy"], columns).tolist() for _ in words]
        tags = rng.choice(labels, length).tolist()
        sentences.append(Sentence(words, tags, [], list(range(length)), 0, "", 0, further=further))
    corpus = TaggedCorpus(sentences * 2, fit_vocabulary(sentences, Tokenizer(kind="word"), characters=False))
    model, _ = fit_tagger(corpus, labels, decay=0.1, max_attributes=60)
    rows = [np.arange(len(corpus.lengths)), *np.flatnonzero(corpus.lengths)[:, None]]
    compiled = [model(corpus.batch(some)) for some in rows]
    monkeypatch.setattr(feature_tagger, "compiled_tags", lambda: None)
    for some, scores in zip(rows, compiled, strict=True):
        expected = model(corpus.batch(some))
        for row, length, values, others in zip(some, corpus.lengths[some], scores, expected, strict=True):
            torch.testing.assert_close(values[:length], others[:length])
            assert torch.equal(values[:length], compiled[0][row, :length])


class _Quadratic:
    """‖A w − t‖² / 2, whose minimum is known."""

    decay = 0.1

    def __init__(self) -> None:
        torch.manual_seed(1)
        self.matrix, self.target = torch.randn(6, 4), torch.randn(6, 1)

    def start(self) -> torch.Tensor:
        return torch.zeros(4, 1)

    def diagonal(self) -> torch.Tensor:
        return torch.ones(1, 1)

    def outputs(self, point: torch.Tensor) -> torch.Tensor:
        return self.matrix @ point

    def loss(self, outputs: torch.Tensor) -> tuple[float, torch.Tensor]:
        return float((outputs - self.target).square().sum() / 2), outputs - self.target

    def gradient(self, errors: torch.Tensor) -> torch.Tensor:
        return self.matrix.t() @ errors


def test_the_minimum_of_a_quadratic_is_found() -> None:
    objective = _Quadratic()
    found = minimize(objective, tolerance=1e-7)
    exact = torch.linalg.solve(
        objective.matrix.t() @ objective.matrix + 0.1 * torch.eye(4), objective.matrix.t() @ objective.target
    )
    torch.testing.assert_close(found.point, exact, atol=1e-2, rtol=1e-2)
    assert minimize(objective, tolerance=1e-7, max_steps=1).steps == 1
    assert "time was spent" in minimize(objective, tolerance=0.0, seconds=0.0).ended

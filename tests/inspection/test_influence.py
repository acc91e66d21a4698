"""Influence, compared with gradients taken one by one, and the widget that shows it."""

import math
from pathlib import Path

import pytest
import torch

import seriatim
from seriatim.inspection.influence import influence, influence_fractions, link_lenses
from seriatim.inspection.inspected_run import explainer_of, prepare
from seriatim.inspection.surprisal import read_text
from seriatim.recurrence import uncompiled

from .inspected import SENTENCE, TEXTS


@pytest.fixture(autouse=True)
def _uncompiled():
    with uncompiled():
        yield


@pytest.mark.parametrize("name", ["lm", "lm-words"])
def test_a_row_equals_the_gradients_of_a_language_model(inspected, name: str) -> None:
    """Each token is read as a vector of its own, and log P of the next token is differentiated with respect to it."""
    run = inspected[name]
    found, model = influence(run, SENTENCE), run.model
    inputs, targets = (torch.tensor(ids) for ids in (found.example.inputs, found.example.targets))
    for place in (0, 3, len(targets) - 1):
        embedded = model.embedding(inputs).detach().requires_grad_()
        outputs, _ = model.layer(embedded.unsqueeze(0))
        log_probability = model.output(outputs[0, place]).double().log_softmax(0)[targets[place]]
        (gradient,) = torch.autograd.grad(log_probability, embedded)
        norms = gradient.double().norm(dim=1)
        assert not norms[place + 1 :].any(), "the layer is causal"
        assert found.shares[place, place + 1 :].isnan().all(), "later tokens are blank"
        torch.testing.assert_close(
            found.shares[place, : place + 1], (norms / norms.sum())[: place + 1], rtol=1e-4, atol=1e-7
        )
        assert found.probabilities[place].item() == pytest.approx(log_probability.exp().item(), rel=1e-5)


def test_shares_equal_finite_differences(inspected) -> None:
    """In float64, moving the vector of one token along each axis changes log P by the gradient."""
    run, step = inspected["lm"], 1e-6
    explainer = explainer_of(run)
    example = explainer.examples(SENTENCE)[0].beginning(5)
    model = run.model.double()
    try:
        shares, _ = influence_fractions(explainer.inputs, example, 5)
        inputs, target = torch.tensor(example.inputs), example.targets[4]
        embedded = model.embedding(inputs).detach()

        def log_probability(vectors: torch.Tensor) -> float:
            with torch.no_grad():
                outputs, _ = model.layer(vectors.unsqueeze(0))
                return model.output(outputs[0, 4]).log_softmax(0)[target].item()

        norms = []
        for token in range(5):
            changes = []
            for axis in range(embedded.shape[1]):
                moved = [embedded.clone() for _ in range(2)]
                moved[0][token, axis] += step
                moved[1][token, axis] -= step
                changes.append((log_probability(moved[0]) - log_probability(moved[1])) / (2 * step))
            norms.append(math.hypot(*changes))
        expected = torch.tensor(norms) / sum(norms)
        torch.testing.assert_close(shares[4], expected.double(), rtol=1e-4, atol=1e-8)
    finally:
        model.float()


@pytest.mark.parametrize("name", ["lm-words", "mlm", "classify", "tag", "seq2seq", "seq2seq-heads", "ctc"])
def test_rows_sum_to_one_and_leave_out_what_must_not_count(inspected, name: str) -> None:
    run = inspected[name]
    item = (TEXTS[name], "abc") if name in TEXTS else SENTENCE
    found = influence(run, item)
    rows = found.shares[~found.shares.isnan().all(1)]
    assert len(rows)
    torch.testing.assert_close(rows.nansum(1), torch.ones(len(rows), dtype=torch.float64))
    read = len(found.example.inputs)
    if name == "mlm":
        assert found.shares.diagonal().isnan().all(), "a masked token is not its own context"
        assert found.shares[0, 1:].isfinite().all()
    if name.startswith("seq2seq"):
        assert found.answers == ("a", "b", "c", "</s>")
        assert found.shares[:, :read].isfinite().all(), "all of the source may count"
        assert torch.equal(found.shares[:, read:].isnan(), torch.ones(4, 4).triu(1).bool())
    if name in ("classify", "ctc"):
        assert found.shares.shape == (1, read)


GIVEN = {"beam": 2, "data": None, "file_format": None}


def test_every_head_is_a_lens_and_what_is_left_out_is_said(inspected, monkeypatch) -> None:
    subject = prepare(inspected["seq2seq-heads"], TEXTS["seq2seq-heads"], **GIVEN)
    layout = read_text(subject).layout
    lenses = link_lenses(subject, layout)
    assert lenses[0].name == "influence"
    crossing = [lens.name.rpartition(", ")[2] for lens in lenses if "cross attention" in lens.name]
    assert crossing == ["mean of 2 heads", "head 1", "head 2"]
    for lens in lenses:
        for block in lens.weights:
            assert block.first_row + len(block.rows) <= layout.size
            assert all(block.first_column + len(row) <= layout.size for row in block.rows)
    for lens in lenses[1:]:
        assert all(sum(row) == pytest.approx(1, abs=1e-5) for block in lens.weights for row in block.rows)
    shares = influence(subject.run, subject.item).shares
    read, written = lenses[0].weights
    assert [[*row, *rest] for row, rest in zip(read.rows, written.rows, strict=True)] == [
        pytest.approx(row[~row.isnan()].tolist()) for row in shares
    ]
    monkeypatch.setattr("seriatim.inspection.influence.MAX_TOKENS", 3)
    subject = prepare(inspected["lm"], SENTENCE, **GIVEN)
    (lens, *_) = link_lenses(subject, read_text(subject).layout)
    assert len(lens.weights[0].rows) == 3
    assert "after the first 3" in lens.sentence


def test_the_lens_of_a_language_model_is_about_the_tokens_of_its_strip(inspected) -> None:
    """Row t is about token t + 1 of the strip, whose probability is that of the surprisal there."""
    subject = prepare(inspected["lm-words"], SENTENCE, **GIVEN)
    reading = read_text(subject)
    tokens = [token.text.strip() for token in reading.layout.rows[0].tokens]
    assert tokens[1:] == SENTENCE.split()
    found = influence(subject.run, SENTENCE)
    (lens, *_) = link_lenses(subject, reading.layout)
    assert lens.weights[0].first_row == 1
    assert lens.pinned == len(tokens) - 1
    assert found.probabilities.tolist() == pytest.approx([2**-bits for bits in reading.lenses[0].values], abs=1e-5)
    assert reading.lenses[0].first == 1


@pytest.mark.exhaustive
def test_the_gold_answer_stands_beside_the_answer(inspected, tmp_path: Path) -> None:
    run = inspected["classify"]
    (row, *_) = Path(run.config.data.test).read_text().splitlines()[1:]
    label, text = row.split("\t")
    (answer,) = run.predict([text])
    reading = read_text(prepare(run, text, **GIVEN))
    assert reading.answers[0].mark == ("right" if answer == label else "wrong")
    assert reading.answers[1].text == label
    assert read_text(prepare(run, "a cat", **GIVEN)).answers[0].mark == ""


def test_the_influence_on_a_tag_is_that_on_its_marginal(tmp_path: Path) -> None:
    """The certainty of a tag is the marginal of the CRF, and so is the probability that is differentiated."""
    path = tmp_path / "tags.conll"
    path.write_text("the O\nUN B-ORG\nin O\nNew B-LOC\nYork I-LOC\n\n" * 8)
    config = {
        "task": "tag",
        "data": {"train": str(path)},
        "model": {"layer": "gru", "embedding_size": 4, "hidden_size": 4, "options": {"characters": "none"}},
        "training": {"steps": 3, "baseline": "none"},
        "out": str(tmp_path / "run"),
    }
    run = seriatim.train(config)
    assert run.model.crf is not None
    with torch.no_grad():
        run.model.crf.transitions.normal_()
    text = "the UN in New York"
    scores = explainer_of(run).token_scores(text).scores
    assert influence(run, text).probabilities.tolist() == pytest.approx([2**-score.bits for score in scores], abs=1e-5)

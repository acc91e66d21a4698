"""Influence, compared with gradients taken one by one, and the widget that shows it."""

import json
import math
import re
from pathlib import Path

import pytest
import torch

import seriatim
from seriatim.inspection.influence import influence, influence_fractions, influence_section
from seriatim.inspection.inspected_run import explainer_of, prepare
from seriatim.pages.page import STEPS, LinkedToken, LinkView, PageSection, TokenLinks, encoded_row, render
from seriatim.pages.wording import percent
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
        shares, _ = influence_fractions(explainer.inputs, explainer.losses, example, 5)
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


def test_the_section_offers_every_head_and_says_what_is_left_out(inspected, monkeypatch) -> None:
    given = {"beam": 2, "data": None, "file_format": None}
    content = influence_section(prepare(inspected["seq2seq-heads"], TEXTS["seq2seq-heads"], **given))
    (links,) = (part for part in content.blocks if isinstance(part, TokenLinks))
    names = [(view.group, view.name) for view in links.views]
    assert names[0] == ("Influence", "influence on the selected token")
    crossing = [name for group, name in names if "cross attention" in group]
    assert crossing == ["mean of 2 heads", "head 1", "head 2"]
    size = sum(len(tokens) for _, tokens in links.texts)
    for view in links.views:
        assert view.first_row + len(view.rows) <= size
        assert all(view.first_column + len(row) <= size for row in view.rows)
    for view in links.views[1:]:
        assert all(sum(row) == pytest.approx(1, abs=1e-5) for row in view.rows)
    monkeypatch.setattr("seriatim.inspection.influence.MAX_TOKENS", 3)
    content = influence_section(prepare(inspected["lm"], SENTENCE, **given))
    assert "are left out here" in content.blocks[0].text


def test_stored_digits_keep_the_shares_that_are_shown() -> None:
    weights = [0.5, 0.25, 0.0, math.nan, 0.001]
    digits, largest = encoded_row(weights)
    assert digits == "999706000   045"
    assert largest == 0.5
    assert encoded_row([math.nan]) == ("", 0.0)
    for shares in ([0.5, 0.0074, 0.0149, 0.0024], [0.996, 0.003, 0.001], [0.31, 0.099, 0.0996]):
        digits, largest = encoded_row(shares)
        stored = [(int(digits[at : at + 3]) / STEPS) ** 2 * largest for at in range(0, len(digits), 3)]
        assert [percent(share) for share in stored] == [percent(share) for share in shares]


def test_texts_of_a_widget_stay_texts() -> None:
    tokens = [LinkedToken(text) for text in ("</script><script>alert(1)</script> ", "a" * 60, "\u0301", "שלום ", '"&')]
    links = TokenLinks([("", tokens)], [LinkView("g</script>", "n<b>", "s</script>", [[0.2], [0.1, math.nan, 0.7]])])
    html = render("t", "", [PageSection("a", "A", [links])])
    assert "<script>alert" not in html
    assert "<b>" not in html.split("<h2")[1].split("<figcaption")[0].replace("<b></b>", "")
    assert f">{'a' * 23}…<" in html, "a long token is cut"
    assert f'data-text="{"a" * 60}"' in html, "and is there as a whole"
    assert ">◌\u0301<" in html, "a combining mark has a base"
    data = re.search(r'class="weights">(.*?)</script>', html, re.DOTALL)
    assert data is not None
    (view,) = json.loads(data[1])
    assert view["rows"] == ["999", "378   999"]
    assert view["sentence"] == "s</script>"
    assert links.pinned == 1
    assert links.first_shades[1] is None


@pytest.mark.exhaustive
def test_the_gold_answer_stands_beside_the_answer(inspected, tmp_path: Path) -> None:
    run = inspected["classify"]
    (row, *_) = Path(run.config.data.test).read_text().splitlines()[1:]
    label, text = row.split("\t")
    html = seriatim.inspect(run, text, out=tmp_path / "a.html").path.read_text()
    assert f"where its gold answer is {label}; the prediction is" in html
    assert "where its gold answer is" not in seriatim.inspect(run, "a cat", out=tmp_path / "b.html").path.read_text()


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

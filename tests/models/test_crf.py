"""The conditional random field against what its definition says when every sequence of tags is written out."""

import itertools
import math

import pytest
import torch
from torch import Tensor

from seriatim.models import crf as crf_module
from seriatim.models.crf import CRF, bio_transitions

from ..conftest import randn

BIO = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]


def random_crf(num_tags: int, allowed: Tensor | None = None) -> CRF:
    torch.manual_seed(num_tags)
    crf = CRF(num_tags, allowed).double()
    for parameter in crf.parameters():
        parameter.data.normal_()
    return crf


def sequences(num_tags: int, length: int) -> list[tuple[int, ...]]:
    return list(itertools.product(range(num_tags), repeat=length))


def score(crf: CRF, scores: Tensor, tags: tuple[int, ...]) -> Tensor:
    """S of one sequence, term by term; −inf where a transition cannot be."""
    if not tags:
        return scores.sum() * 0
    ways = [*itertools.pairwise((crf.num_tags, *tags, crf.num_tags))]
    if crf.allowed is not None and not all(crf.allowed[way] for way in ways):
        return scores.new_tensor(-math.inf)
    total = crf.start[tags[0]] + crf.end[tags[-1]]
    total = total + sum(scores[t, tag] for t, tag in enumerate(tags))
    return total + sum(crf.transitions[pair] for pair in itertools.pairwise(tags))


def enumerated(crf: CRF, scores: Tensor) -> tuple[list[tuple[int, ...]], Tensor]:
    found = sequences(crf.num_tags, len(scores))
    return found, torch.stack([score(crf, scores, tags) for tags in found])


CASES = [
    (num_tags, time, mask) for num_tags in (1, 2, 5) for time in (1, 2, 4) for mask in ("all", "bio", "random", "none")
]


@pytest.fixture(params=CASES, ids=str)
def case(request: pytest.FixtureRequest) -> tuple[CRF, Tensor, Tensor]:
    """A field, scores with NaN on padding, and ragged lengths."""
    num_tags, time, mask = request.param
    torch.manual_seed(0)
    allowed = {
        "all": None,
        "bio": bio_transitions(BIO[:num_tags]),
        "random": torch.rand(num_tags + 1, num_tags + 1) < 0.7,
        "none": torch.zeros(num_tags + 1, num_tags + 1, dtype=torch.bool),
    }[mask]
    crf = random_crf(num_tags, allowed)
    lengths = torch.tensor([time, 1, 0, max(1, time - 1)])
    scores = randn(4, time, num_tags) * 3
    for row, length in enumerate(lengths):
        scores[row, length:] = math.nan
    return crf, scores, lengths


def test_everything_is_what_enumeration_gives(case: tuple[CRF, Tensor, Tensor]) -> None:
    crf, scores, lengths = case
    totals, marginals = crf.log_partition(scores, lengths), crf.marginals(scores, lengths)
    best, best_scores = crf.decode(scores, lengths)
    for row, length in enumerate(lengths.tolist()):
        found, values = enumerated(crf, scores[row, :length])
        torch.testing.assert_close(totals[row], values.logsumexp(0))
        torch.testing.assert_close(best_scores[row], values.max())
        assert len(best[row]) == length
        assert not marginals[row, length:].any()
        if values.max() > -math.inf:
            assert tuple(best[row]) == found[int(values.argmax())]
            probabilities = values.softmax(0)
            for t, tag in itertools.product(range(length), range(crf.num_tags)):
                expected = sum(p for p, tags in zip(probabilities, found, strict=True) if tags[t] == tag)
                torch.testing.assert_close(marginals[row, t, tag], torch.as_tensor(expected, dtype=torch.float64))


def test_compiled_code_finds_the_sequences_of_the_operators(
    case: tuple[CRF, Tensor, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    crf, scores, lengths = case[0].float(), case[1].float(), case[2]
    best, totals = crf.decode(scores, lengths)
    for row, length in enumerate(lengths.tolist()):
        alone, total = crf.decode(scores[row : row + 1, :length])
        assert (alone[0], total[0]) == (best[row], totals[row])
    damaged = crf.decode(scores[:1].masked_fill(torch.arange(crf.num_tags) == 0, math.nan))[1]
    monkeypatch.setattr(crf_module, "compiled_tags", lambda: None)
    expected, others = crf.decode(scores, lengths)
    assert torch.equal(totals, others)
    assert all(one == other for one, other, total in zip(best, expected, totals, strict=True) if total > -math.inf)
    assert damaged.isnan().all()


def test_gradients_are_those_of_enumeration(case: tuple[CRF, Tensor, Tensor]) -> None:
    crf, scores, lengths = case
    scores.requires_grad_()
    weights = torch.tensor([1.0, -2.0, 0.5, 3.0], dtype=torch.float64)
    possible = torch.tensor(
        [
            float(enumerated(crf, scores[row, :length])[1].detach().max()) > -math.inf
            for row, length in enumerate(lengths)
        ]
    )
    wanted = [scores, *crf.parameters()]
    totals = crf.log_partition(scores, lengths)[possible]
    found = torch.autograd.grad((totals * weights[possible]).sum(), wanted, allow_unused=True)
    expected_totals = [
        enumerated(crf, scores[row, :length])[1].logsumexp(0) * weights[row]
        for row, length in enumerate(lengths.tolist())
        if possible[row]
    ]
    expected = torch.autograd.grad(torch.stack(expected_totals).sum(), wanted, allow_unused=True)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, torch.zeros_like(one) if other is None else other.nan_to_num(0))


def test_no_sequence_that_can_be_is_no_nan() -> None:
    crf = random_crf(2, torch.zeros(3, 3, dtype=torch.bool))
    scores = randn(2, 3, 2).requires_grad_()
    crf.log_partition(scores).sum().backward()
    assert not scores.grad.any()
    assert not crf.marginals(scores).any()


@pytest.mark.parametrize("mask", [None, bio_transitions(BIO)], ids=["all", "bio"])
def test_the_loss_is_that_of_the_sequence(mask: Tensor | None) -> None:
    crf = random_crf(5, mask)
    scores, lengths = randn(3, 4, 5), torch.tensor([4, 2, 0])
    tags = torch.tensor([[0, 1, 2, 0], [3, 4, -1, -1], [0, 0, 0, 0]])
    expected = 0.0
    for row, length in enumerate(lengths.tolist()):
        values = enumerated(crf, scores[row, :length])[1]
        expected += values.logsumexp(0) - score(crf, scores[row], tuple(tags[row, :length].tolist()))
    torch.testing.assert_close(crf.losses(scores, tags, lengths).sum(), expected)
    partial = tags.clone()
    partial[0, 1] = partial[0, 3] = -1
    found, values = enumerated(crf, scores[0])
    known = torch.tensor([one[0] == 0 and one[2] == 2 for one in found])
    expected += score(crf, scores[0], tuple(tags[0].tolist())) - values[known].logsumexp(0)
    torch.testing.assert_close(crf.losses(scores, partial, lengths).sum(), expected)


def test_unknown_tags_have_a_gradient_without_nan() -> None:
    crf = random_crf(5, bio_transitions(BIO))
    scores = randn(2, 4, 5).requires_grad_()
    assert torch.autograd.gradcheck(
        lambda scores: crf.losses(scores, torch.tensor([[-1, 1, -1, 0], [-1, -1, -1, -1]])).sum(), (scores,)
    )
    crf.losses(scores, torch.full((2, 4), -1)).sum().backward()
    torch.testing.assert_close(scores.grad, torch.zeros_like(scores))


def test_a_field_without_transitions_is_a_softmax_a_word() -> None:
    crf = CRF(5).double()
    scores, tags = randn(2, 7, 5), torch.randint(0, 5, (2, 7))
    expected = torch.nn.functional.cross_entropy(scores.flatten(0, 1), tags.flatten(), reduction="sum")
    torch.testing.assert_close(crf.losses(scores, tags).sum(), expected)
    torch.testing.assert_close(crf.marginals(scores), scores.softmax(2))
    assert crf.decode(scores)[0] == scores.argmax(2).tolist()


def test_no_chunk_begins_inside() -> None:
    names = ["I-X", "O", "B-X", "B-Y", "NOUN", "I-Y"]
    crf = random_crf(6, bio_transitions(names))
    found, _ = crf.decode(randn(200, 9, 6) * 10)
    for row in found:
        tags = ["", *(names[tag] for tag in row)]
        for before, tag in itertools.pairwise(tags):
            assert not tag.startswith("I-") or before in (tag, f"B{tag[1:]}")
    assert {names[tag] for row in found for tag in row} == set(names)


def test_tags_that_are_no_chunks_can_come_anywhere() -> None:
    assert bio_transitions(["NOUN", "VERB", "I-", "I-X", "B"]).all()


def test_scores_far_apart_lose_nothing() -> None:
    """In float32 exp(−200) is 0: what is unlikely now may be all there is later."""
    crf = CRF(2, torch.tensor([[True, False, True], [False, True, True], [True, True, True]]))
    scores = torch.zeros(1, 6, 2)
    scores[0, :3, 0], scores[0, 3:, 1] = 200, 300
    assert crf.log_partition(scores).item() == 900
    assert crf.decode(scores)[0] == [[1] * 6]
    torch.testing.assert_close(crf.marginals(scores)[0, :, 1], torch.ones(6))


@pytest.mark.parametrize("shape", [(0, 3, 2), (2, 0, 2)])
def test_nothing_to_tag(shape: tuple[int, int, int]) -> None:
    crf = CRF(2)
    scores, tags = torch.zeros(shape), torch.zeros(shape[:2], dtype=torch.long)
    assert crf.losses(scores, tags).sum() == 0
    assert crf.marginals(scores).shape == shape
    assert crf.decode(scores)[0] == [[]] * shape[0]


def test_shapes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match=r"\(3, 3\)"):
        CRF(2, torch.ones(2, 2, dtype=torch.bool))
    with pytest.raises(ValueError, match="booleans"):
        CRF(2, torch.ones(3, 3))
    with pytest.raises(ValueError, match=r"\(batch, time, 2\)"):
        CRF(2).decode(torch.zeros(1, 2, 3))


def test_probabilities_of_large_scores_are_probabilities() -> None:
    """Rounding of log Z and of the scores of sequences is then larger than the probabilities."""
    torch.manual_seed(0)
    crf, lengths = CRF(4), torch.tensor([7, 3, 0])
    for size in (1e4, 1e12, 1e30, 1e36):
        scores = torch.randn(3, 7, 4) * size
        shares = crf.marginals(scores, lengths)
        assert ((shares >= 0) & (shares <= 1)).all()
        torch.testing.assert_close(shares.sum(2), (torch.arange(7) < lengths.unsqueeze(1)).float())
        for row, tags in enumerate(crf.decode(scores, lengths)[0]):
            assert [int(tag) for tag in shares[row, : len(tags)].argmax(1)] == tags


@pytest.mark.parametrize("tags", [["A", "B", "C"], BIO])
def test_a_single_row_has_the_answer_that_it_has_in_a_batch(tags: list[str]) -> None:
    crf = random_crf(len(tags), bio_transitions(tags)).requires_grad_(False).float()
    scores = (3 * randn(8, 7, len(tags))).float().round()  # whose best sequences are often equally good
    lengths = torch.tensor([7, 0, 1, 2, 6, 7, 3, 5])
    together, totals = crf.decode(scores, lengths)
    for row in range(8):
        alone, total = crf.decode(scores[row : row + 1], lengths[row : row + 1])
        assert (alone[0], total[0]) == (together[row], totals[row])

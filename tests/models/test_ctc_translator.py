"""All of an answer at once: its loss and its search against every alignment there is."""

import itertools
from collections import defaultdict

import pytest
import torch

import seriatim
from seriatim.decoding.beam import best_alignments, search_alignments
from seriatim.models.ctc_translator import CTCTranslator

PLACES, VOCABULARY = 4, 3


def joined(alignment: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(token for token, _ in itertools.groupby(alignment) if token)


def every_answer(log_p: torch.Tensor) -> dict[tuple[int, ...], float]:
    """P of each answer, summed over its alignments."""
    found: dict[tuple[int, ...], float] = defaultdict(float)
    for alignment in itertools.product(range(log_p.shape[1]), repeat=len(log_p)):
        total = sum(float(log_p[place, token]) for place, token in enumerate(alignment))
        found[joined(alignment)] += torch.tensor(total).exp().item()
    return found


@pytest.mark.parametrize("seed", range(5))
def test_a_wide_search_finds_the_best_answers_of_all(seed: int) -> None:
    torch.manual_seed(seed)
    log_p = torch.log_softmax(2 * torch.randn(PLACES, VOCABULARY, dtype=torch.float64), dim=1)
    expected = sorted(every_answer(log_p).items(), key=lambda item: -item[1])
    found = search_alignments(log_p, beam=100, n_best=len(expected))
    assert sum(share for _, share in expected) == pytest.approx(1)
    for mine, (answer, share) in zip(found, expected, strict=True):
        assert mine.tokens == answer
        assert mine.log_probability == pytest.approx(torch.tensor(share).log().item(), abs=1e-5)


def test_the_best_alignment_is_the_likeliest_path() -> None:
    torch.manual_seed(3)
    log_p = torch.log_softmax(torch.randn(2, PLACES, VOCABULARY), dim=2)
    for row, (places, found) in enumerate(zip((4, 2), best_alignments(log_p, torch.tensor([4, 2])), strict=True)):
        paths = itertools.product(range(VOCABULARY), repeat=places)
        score = {path: sum(float(log_p[row, t, token]) for t, token in enumerate(path)) for path in paths}
        best = max(score, key=score.__getitem__)
        assert found.tokens == joined(best)
        assert found.score == pytest.approx(score[best], abs=1e-5)


def test_losses_are_those_of_all_alignments_and_rows_do_not_meet() -> None:
    torch.manual_seed(1)
    model = CTCTranslator(seriatim.layer("gru", 6, 5, bidirectional=True), 7, VOCABULARY, upsample=2).double()
    source, lengths = torch.tensor([[3, 4], [5, 0], [0, 0]]), torch.tensor([2, 1, 0])
    targets, sizes = torch.tensor([[1, 2, 1], [2, 0, 0], [0, 0, 0]]), torch.tensor([3, 1, 0])
    found = model.losses(source, lengths, targets, sizes)
    for row, (length, size) in enumerate(zip(lengths.tolist(), sizes.tolist(), strict=True)):
        if length:
            log_p, _ = model(source[row : row + 1, :length], lengths[row : row + 1])
            share = every_answer(log_p[0].detach())[tuple(targets[row, :size].tolist())]
            assert found[row].item() == pytest.approx(-torch.tensor(share).log().item(), abs=1e-5)
    assert found[2].item() == 0

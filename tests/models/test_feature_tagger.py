"""The CRF on attributes of words: its algorithm agrees with `CRF`, its gradient with differences, and its model."""

import numpy as np
import pytest
import torch

from seriatim.counting.feature_tagger import Packing, expectations
from seriatim.counting.minimization import minimize
from seriatim.counting.sparse_features import NONE, find_attributes
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
    keys = find_attributes(words)
    assert keys.shape[0] == len(words)
    same = [kind for kind in range(keys.shape[1]) if keys[0, kind] == keys[1, kind] != NONE]
    assert len(same) == 1 + 4 + 4  # in lower case, prefixes and suffixes are those of both
    assert (keys[2] == NONE).sum() == 3 + 3 + 3  # affixes of 2 to 4 characters, and no digit, capital or hyphen
    assert np.array_equal(find_attributes(words[3:4])[0], keys[3])
    used = keys[keys != NONE]
    by_kind = [set(keys[:, kind].tolist()) - {NONE} for kind in range(keys.shape[1])]
    assert sum(map(len, by_kind)) == len(set(used.tolist()))


def test_any_character_can_be_a_word() -> None:
    """Also NUL, of which a word of control characters consists, and characters that Unicode does not assign."""
    words = [count * chr(point) for point in (*range(0x300), *range(0x300, 0x110000, 999)) for count in (1, 3)]
    keys = find_attributes(words)
    for i in range(0, len(words), 53):
        assert np.array_equal(find_attributes([words[i]])[0], keys[i])
    assert len(np.unique(keys[:, 0])) == len(words)  # as they are written


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

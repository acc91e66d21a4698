"""How attention knows positions: biases by distance, rotations, sinusoids."""

import math

import pytest
import torch
from torch import Tensor

import seriatim
from seriatim.layers.positions import Rotary, sinusoids

from ..conftest import randn

WIDTH = 12


def test_alibi_lowers_scores_by_distance() -> None:
    torch.manual_seed(0)
    layer, x = seriatim.layer("attention", WIDTH, WIDTH, num_heads=4, position="alibi").double(), randn(1, 5, WIDTH)
    queries, keys, values, _ = layer.project(x, torch.zeros(1, dtype=torch.long))
    found = []
    for h in range(4):
        distance = torch.arange(5).unsqueeze(1) - torch.arange(5)
        scores = queries[0, h] @ keys[0, h].T / math.sqrt(3) - 2.0 ** (-2 * (h + 1)) * distance
        found.append(torch.softmax(scores.masked_fill(distance < 0, -torch.inf), 1) @ values[0, h])
    torch.testing.assert_close(layer(x)[0], layer.merge(torch.stack(found).unsqueeze(0)))


def test_rotary_scores_depend_on_distance_alone() -> None:
    torch.manual_seed(0)
    rotate, q, k = Rotary(3), randn(1, 1, 1, 7), randn(1, 1, 1, 7)

    def score(i: int, j: int) -> Tensor:
        return (rotate(q, torch.tensor([[i]]), 1) * rotate(k, torch.tensor([[j]]), 1)).sum()

    torch.testing.assert_close(score(9, 4), score(100_005, 100_000))
    assert not torch.isclose(score(9, 4), score(9, 5))
    torch.testing.assert_close(rotate(q, torch.tensor([[12]]), 1).norm(), q.norm())


def test_rotary_positions_are_exact_in_bfloat16() -> None:
    """Angles are found in float64 whatever the model's type: the vectors alone are rounded."""
    torch.manual_seed(0)
    layer, x = seriatim.layer("attention", 64, 64, num_heads=1).bfloat16(), torch.randn(1, 1, 1, 64)
    position = torch.tensor([[9_998]])
    assert not [name for name, _ in layer.named_buffers() if "slopes" not in name]
    expected = Rotary(32)(x, position, 1)
    torch.testing.assert_close(layer.rotary(x.bfloat16(), position, 1).float(), expected, rtol=0.02, atol=0.03)


def test_rotary_attention_works_under_function_transforms() -> None:
    torch.manual_seed(0)
    layer, x = seriatim.layer("attention", WIDTH, WIDTH).double(), randn(2, 5, WIDTH).requires_grad_()
    expected = torch.autograd.grad(layer(x)[0].sin().sum(), x)[0]
    torch.testing.assert_close(torch.func.grad(lambda v: layer(v)[0].sin().sum())(x), expected)


def test_sinusoids_are_the_papers() -> None:
    found = sinusoids(torch.tensor([0, 3]), 5)
    for row, t in enumerate((0, 3)):
        for i in range(5):
            angle = t / 10_000 ** (2 * (i // 2) / 5)
            assert found[row, i].item() == pytest.approx(math.cos(angle) if i % 2 else math.sin(angle))

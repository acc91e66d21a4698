"""The scores of attention, and the sums they weight."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

import seriatim
from seriatim.layers.scoring import SCORES, attend, attention_weights, scoring

from ..conftest import randn
from ..refusals import refused


@pytest.mark.parametrize("name", SCORES)
def test_scores_are_their_equations(name: str) -> None:
    torch.manual_seed(0)
    score = scoring(name, 4, 4, num_heads=2).double()
    q, k = randn(1, 2, 3, 4), randn(1, 2, 5, 4)
    found = score(q, k)
    for h in range(2):
        for i in range(3):
            for j in range(5):
                query, key = q[0, h, i], k[0, h, j]
                if name == "additive":
                    hidden = torch.tanh(score.query_weight[h].T @ query + score.key_weight[h].T @ key)
                    expected = score.vector[h, :, 0] @ hidden
                elif name == "bilinear":
                    expected = query @ score.weight[h] @ key
                else:
                    expected = query @ key / (2.0 if name == "scaled-dot" else 1.0)
                torch.testing.assert_close(found[0, h, i, j], expected)


@pytest.mark.parametrize("name", SCORES)
def test_attend_is_the_weighted_sum(name: str) -> None:
    torch.manual_seed(0)
    score = scoring(name, 4, 4, num_heads=4).double()
    q, k, v = randn(2, 4, 6, 4), randn(2, 2, 6, 4), randn(2, 2, 6, 5)
    repeated = k.repeat_interleave(2, dim=1), v.repeat_interleave(2, dim=1)
    weights = attention_weights(score, q, repeated[0], causal=True)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 4, 6, dtype=torch.float64))
    assert not weights.triu(1).any()
    torch.testing.assert_close(attend(score, q, k, v, causal=True), weights @ repeated[1])


def test_attention_agrees_with_torch_under_a_full_mask() -> None:
    torch.manual_seed(0)
    q, k, v = randn(2, 3, 5, 4), randn(2, 3, 6, 4), randn(2, 3, 6, 4)
    mask = torch.rand(2, 3, 5, 6) < 0.5
    mask[..., 0] = True
    for name, scale in (("dot", 1.0), ("scaled-dot", 0.5)):
        expected = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)
        torch.testing.assert_close(attend(scoring(name, 4, 4), q, k, v, mask=mask), expected)
        torch.testing.assert_close(attention_weights(scoring(name, 4, 4), q, k, mask=mask) @ v, expected)


def test_bilinear_and_additive_scores_take_queries_and_keys_of_different_widths() -> None:
    for name in ("bilinear", "additive"):
        assert scoring(name, 3, 4)(torch.randn(1, 1, 2, 3), torch.randn(1, 1, 5, 4)).shape == (1, 1, 2, 5)
    with refused("mismatch"):
        scoring("dot", 3, 4)


def test_scores_of_a_long_sequence_are_not_held_at_once() -> None:
    """Where no gradient is recorded, no tensor is as large as all scores."""
    largest = 0

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            nonlocal largest
            found = func(*args, **(kwargs or {}))
            for tensor in [found] if isinstance(found, Tensor) else []:
                largest = max(largest, tensor.numel())
            return found

    layer, time = seriatim.layer("attention", 8, 8, score="bilinear", num_heads=1), 1500
    with torch.inference_mode(), Watch():
        layer(torch.randn(1, time, 8))
    assert largest < time**2 / 2

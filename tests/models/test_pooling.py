"""One vector for a sequence."""

import pytest
import torch

from seriatim.models.base_models import POOLINGS, Pooling

from ..refusals import refused

LENGTHS = torch.tensor([5, 1, 0, 3])


def made(kind: str, *, backward_from: int = 6) -> tuple[Pooling, torch.Tensor]:
    torch.manual_seed(1)
    return Pooling(kind, 6, backward_from=backward_from).double(), torch.randn(4, 5, 6, dtype=torch.float64)


@pytest.mark.parametrize("kind", POOLINGS)
def test_rows_do_not_depend_on_each_other_or_on_padding(kind: str) -> None:
    pool, outputs = made(kind, backward_from=3)
    for row, length in enumerate(LENGTHS.tolist()):
        outputs[row, length:] = torch.nan
    found = pool(outputs, LENGTHS)
    assert found.shape == (4, 6)
    for row, length in enumerate(LENGTHS.tolist()):
        alone = pool(outputs[row : row + 1, :length], None)
        torch.testing.assert_close(found[row : row + 1], alone, rtol=1e-12, atol=1e-12)
    assert not found[2].any()


@pytest.mark.parametrize("kind", POOLINGS)
def test_gradients_reach_valid_outputs_alone(kind: str) -> None:
    pool, outputs = made(kind)
    outputs.requires_grad_()
    pool(outputs, LENGTHS).square().sum().backward()
    for row, length in enumerate(LENGTHS.tolist()):
        assert not outputs.grad[row, length:].any()
        assert outputs.grad[row, :length].any() == (length > 0)


def test_what_each_kind_takes() -> None:
    outputs = made("mean")[1]
    ends = made("final", backward_from=4)[0](outputs, LENGTHS)
    assert torch.equal(ends[0], torch.cat([outputs[0, 4, :4], outputs[0, 0, 4:]]))
    assert torch.equal(made("max")[0](outputs, LENGTHS)[3], outputs[3, :3].amax(0))
    torch.testing.assert_close(made("mean")[0](outputs, LENGTHS)[3], outputs[3, :3].mean(0))
    pool, _ = made("attention")
    mixed, inside = pool(outputs, LENGTHS)[3], outputs[3, :3]
    assert (mixed <= inside.amax(0)).all()
    assert (mixed >= inside.amin(0)).all()


def test_an_unknown_kind_names_the_nearest() -> None:
    with refused("unknown"):
        Pooling("meen", 6, backward_from=6)

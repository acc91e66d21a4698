"""Weight gradients of a Python loop as one product: the same as autograd's, whoever asks for them and how often."""

from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import seriatim
from seriatim.core.state import state_leaves
from seriatim.models.attention_decoder import AttentionDecoder, bahdanau_decoder, luong_decoder
from seriatim.recurrence import uncompiled
from seriatim.recurrence.deferred_gradients import ProductsAfter

from ..exhaustive import parameters
from ..quick_compiler import quickly

_quickly = pytest.fixture(autouse=True, scope="module")(quickly)


NAMES = ("rnn", "gru", "lstm", "lstm-peephole", "mingru", "self-attention")


def loop(weight: Tensor, bias: Tensor | None, x: Tensor) -> Tensor:
    h = x[:, 0]
    for x_t in x.unbind(1):
        h = torch.tanh(F.linear(h, weight, bias) + x_t + F.linear(x_t, weight))
    return h


@pytest.mark.parametrize("time", [1, 7])
@pytest.mark.parametrize("with_bias", [True, False])
def test_gradients_are_those_of_autograd(time: int, with_bias: bool) -> None:
    torch.manual_seed(0)
    weight, x = torch.randn(4, 4).double().requires_grad_(), torch.randn(3, time, 4).double().requires_grad_()
    bias = torch.randn(4).double().requires_grad_() if with_bias else None
    wanted = [value for value in (weight, x, bias) if value is not None]
    plain = loop(weight, bias, x)
    with ProductsAfter():
        found = loop(weight, bias, x)
    torch.testing.assert_close(found, plain)
    expected = torch.autograd.grad((plain**2).sum(), wanted)
    torch.testing.assert_close(torch.autograd.grad((found**2).sum(), wanted), expected)


def test_a_part_of_the_gradients_first_and_all_of_them_twice() -> None:
    torch.manual_seed(0)
    weight, x = torch.randn(4, 4).double().requires_grad_(), torch.randn(3, 5, 4).double().requires_grad_()
    (expected,) = torch.autograd.grad(loop(weight, None, x).sum(), weight)
    with ProductsAfter():
        total = loop(weight, None, x).sum()
    torch.autograd.grad(total, x, retain_graph=True)  # rows of this pass must not count in the next
    for _ in range(2):
        (found,) = torch.autograd.grad(total, weight, retain_graph=True)
        torch.testing.assert_close(found, expected)


def test_a_weight_used_outside_and_in_two_loops_adds_up() -> None:
    torch.manual_seed(0)
    layer, x = nn.Linear(4, 4).double(), torch.randn(3, 5, 4).double()

    def total(around: Callable[[], AbstractContextManager[object]]) -> Tensor:
        sums = layer(x[:, 0]).sum() + (layer.weight**3).sum()
        for _ in range(2):
            with around():
                sums = sums + loop(layer.weight, layer.bias, x).sum()
        return sums

    expected = torch.autograd.grad(total(uncompiled), list(layer.parameters()))
    torch.testing.assert_close(torch.autograd.grad(total(ProductsAfter), list(layer.parameters())), expected)


def test_no_gradient_no_change() -> None:
    weight, x = torch.randn(4, 4), torch.randn(3, 5, 4)
    with ProductsAfter():
        assert not loop(weight, None, x).requires_grad
        assert torch.equal(loop(weight.requires_grad_(), None, x).detach(), loop(weight.detach(), None, x))
        with torch.no_grad():
            assert not loop(weight, None, x).requires_grad


def test_a_second_derivative_is_refused_and_uncompiled_gives_it() -> None:
    weight, x = torch.randn(4, 4).double().requires_grad_(), torch.randn(3, 5, 4).double()
    with ProductsAfter():
        total = (loop(weight, None, x) ** 2).sum()
    with pytest.raises(RuntimeError, match="uncompiled"):
        torch.autograd.grad(total, weight, create_graph=True)
    with uncompiled(), ProductsAfter():
        total = (loop(weight, None, x) ** 2).sum()
    (first,) = torch.autograd.grad(total, weight, create_graph=True)
    assert torch.autograd.grad(first.sum(), weight)[0].abs().sum() > 0


@pytest.mark.parametrize("name", parameters(NAMES, everyday=("lstm", "self-attention")))
@pytest.mark.parametrize("form", [luong_decoder, bahdanau_decoder])
def test_decoders_with_attention_have_the_gradients_of_the_plain_loop(
    name: str, form: Callable[..., AttentionDecoder]
) -> None:
    torch.manual_seed(0)
    options = {"input_feeding": True} if form is luong_decoder else {}
    decoder = form(lambda width: seriatim.layer(name, width, 8), 5, 6, **options).double()
    inputs, memory = torch.randn(3, 7, 5).double(), torch.randn(3, 4, 6).double()
    lengths = torch.tensor([7, 0, 3])

    def gradients() -> list[Tensor]:
        state = decoder.initial_state(3, memory, torch.tensor([4, 2, 0]))
        outputs, end = decoder(inputs, state, lengths=lengths)
        total = (outputs**2).sum() + sum((leaf.double() ** 2).sum() for leaf in state_leaves(end))
        return list(torch.autograd.grad(total, list(decoder.parameters()), allow_unused=True, materialize_grads=True))

    found = gradients()
    with uncompiled():
        torch.testing.assert_close(found, gradients())

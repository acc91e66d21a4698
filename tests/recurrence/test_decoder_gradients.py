"""Gradients of decoders with attention: in compiled code the same as those of the plain loop."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import seriatim
from seriatim.core.state import state_leaves
from seriatim.models.attention_decoder import AttentionDecoder, bahdanau_decoder, luong_decoder
from seriatim.recurrence import uncompiled

from ..exhaustive import parameters
from ..quick_compiler import quickly

_quickly = pytest.fixture(autouse=True, scope="module")(quickly)


NAMES = ("rnn", "gru", "lstm", "lstm-peephole", "mingru", "self-attention")


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

"""Random recurrences and their inputs, in float64."""

import torch
from torch import Tensor, nn

import seriatim
from seriatim.core.contract import SequenceLayer

N, D, H = 3, 5, 6
CELLS = ("residual-rnn", "mgu", "gru-original", "lstm-peephole", "lstm-coupled", "lstm-layernorm")
FUSED = ("rnn", "gru", "lstm")


def build(name: str, **options) -> SequenceLayer:
    """A layer in float64 whose every parameter is random, the biases and peepholes that start at zero included."""
    torch.manual_seed(1)
    layer = seriatim.layer(name, D, H, **options).double().eval()
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.4)
    return layer


def sequence(time: int) -> Tensor:
    torch.manual_seed(2)
    return torch.randn(N, time, D, dtype=torch.float64)

"""Rounds the weights that a step of a model multiplies with, so that decoding reads fewer bytes."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..compiler.expressions import walk
from .weight_formats import WeightFormat, check_format, rounded


class Rounding(NamedTuple):
    """How many numbers are in the matrices that a step multiplies with, and how many of them were rounded."""

    numbers: int
    rounded: int


def round_weights(model: nn.Module, weight_format: WeightFormat) -> Rounding:
    """Round the matrices that one step of a model multiplies with, in place.

    A matrix is rounded if it is stored in a parameter, not if it is computed from parameters. Everything else, such as
    biases, norms and embeddings that are not the output layer as well, stays as it is.

    Raises:
        InputError: there is no such format.
        UnsupportedError: the step of the model cannot be traced; the error holds the reasons.
    """
    check_format(weight_format)
    matrices, stored = matrices_of_step(model)
    with torch.no_grad():
        for matrix in stored:
            matrix.copy_(rounded(matrix, weight_format))
    return Rounding(sum(map(Tensor.numel, matrices)), sum(map(Tensor.numel, stored)))


def matrices_of_step(model: nn.Module) -> tuple[list[Tensor], list[Tensor]]:
    """Return the matrices ``(depth, width)`` that a step multiplies with, and those that are parts of parameters.

    Raises:
        UnsupportedError: the step of the model cannot be traced.
    """
    from .compiled_modules import trace_step  # only who rounds weights needs the compiler

    traced, weights = trace_step(model)
    parameters = {weight.untyped_storage().data_ptr() for weight in weights}
    constants = traced.constants(weights)
    nodes = walk([traced.outputs, *traced.states])
    matrices = [constants[i] for i in dict.fromkeys(node.attribute.constant for node in nodes if node.op == "product")]
    return matrices, [matrix for matrix in matrices if matrix.untyped_storage().data_ptr() in parameters]

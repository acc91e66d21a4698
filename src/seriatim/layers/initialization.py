"""How weights start."""

from torch import Tensor, nn


def initialize_gates(inputs: Tensor, recurrent: Tensor, gates: int) -> None:
    """Glorot-uniform input weights and orthogonal recurrent weights, gate by gate, in place.

    X. Glorot and Y. Bengio, 2010; A. Saxe, J. McClelland and S. Ganguli, 2014.

    Args:
        inputs: ``(gates * hidden_size, input_size)``.
        recurrent: ``(gates * hidden_size, hidden_size)``.
        gates: how many are stacked along dimension 0.
    """
    for w, u in zip(inputs.data.chunk(gates), recurrent.data.chunk(gates), strict=True):
        nn.init.xavier_uniform_(w)
        nn.init.orthogonal_(u)

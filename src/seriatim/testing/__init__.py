"""Check a layer or a cell of your own against the contract: shapes, and the eight laws of every layer.

    seriatim.testing.check_cell(FastSlow(5, 6))
    seriatim.testing.check_layer(seriatim.layer("mamba", 5, 6))

The laws are checked in float64, in evaluation mode, for values and for gradients, on a copy of the layer. Layers with
few features (5 to 32) are checked fastest. `check_quickly` checks what a training relies on, in training mode, too.
"""

from .laws import LAWS, LawError, check_cell, check_law, check_layer, check_quickly

__all__ = ["LAWS", "LawError", "check_cell", "check_law", "check_layer", "check_quickly"]

"""The names of a comparison's rows: ``lstm``, ``mamba+transformer`` for a mixed stack, ``lstm@32`` for a width."""

from collections.abc import Sequence

from ..core.errors import InputError
from ..layers import split_names
from ..tasks.counting import LAYER as COUNTED

WIDTH = "@"
"""What stands between a layer and its width in the name of a row."""


def parts(layer: str) -> list[str]:
    """The layers of a mixed stack."""
    return split_names(bare(layer).replace("+", ","))


def bare(layer: str) -> str:
    """The name of a row without its width."""
    return layer.partition(WIDTH)[0]


def width_of(layer: str) -> int | None:
    """The width that the name of a row asks for; None where widths are solved for equal parameters."""
    _, sign, width = layer.partition(WIDTH)
    return int(width) if sign else None


def with_widths(layers: Sequence[str], widths: Sequence[int] | None) -> list[str]:
    """Every layer at every width, as names of rows; a model that is counted has no width.

    Raises:
        InputError: a width that is not a positive whole number, or one for a layer that names its own.
    """
    if widths is None:
        return list(layers)
    for width in widths:
        if not isinstance(width, int) or isinstance(width, bool) or width < 1:
            raise InputError(f"--widths: {width!r} is not a width; give whole numbers above 0, for instance 16,32,64")
    given = next((layer for layer in layers if WIDTH in layer), None)
    if given is not None or not widths:
        raise InputError(
            "--widths: no width is given; for instance --widths 16,32,64"
            if given is None
            else f"--layers: {given} has a width of its own; leave out {WIDTH} and the number, or leave out --widths"
        )
    names_only = [layer.strip() for layer in layers if layer.strip()]
    return [
        row
        for layer in names_only
        for row in ([layer] if layer == COUNTED else [f"{layer}{WIDTH}{width}" for width in widths])
    ]


def check_width(layer: str) -> None:
    """Raises InputError where a row asks for a width that is none."""
    _, sign, width = layer.partition(WIDTH)
    if sign and not (width.isascii() and width.isdigit() and 0 < int(width[:10]) < 2**31 and len(width) <= 10):
        raise InputError(f"--layers: {layer}: {width!r} is not a width; give a whole number, for instance lstm@32")
    if sign and bare(layer) == COUNTED:
        raise InputError(f"--layers: {layer}: n-grams are counted and have no width; give {COUNTED} alone")

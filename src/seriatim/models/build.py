"""The sequence layer that a configuration describes."""

from collections.abc import Mapping
from typing import Any

from ..config import Model
from ..core.contract import SequenceLayer
from ..layers import layer, split_names


def layer_from_config(config: Model, options: Mapping[str, Any], *, input_size: int | None = None) -> SequenceLayer:
    """Builds ``model.layer``.

    Args:
        config: names, sizes and rates.
        options: the layer's own.
        input_size: width of its inputs; None for ``embedding_size``.

    Raises:
        ValueError: an option that does not exist, or values that do not fit each other.
    """
    return layer(
        ",".join(split_names(config.layer)),  # runs of earlier versions may have a former name
        config.embedding_size if input_size is None else input_size,
        config.hidden_size,
        num_layers=config.num_layers,
        bidirectional=bool(config.bidirectional),
        dropout=config.dropout,
        variational_dropout=config.variational_dropout,
        residual=config.residual,
        **options,
    )

"""What goes around a layer: norms, residual connections, attention to a memory, a feed-forward network.

    u = x + layer(norm(x))
    v = u + CrossAttention(norm(u), memory)      where it attends to a memory
    y = v + FeedForward(norm(v))                 where it is a whole block

Any sequence layer can be the mixer of a block, not attention alone: A. Vaswani et al. 2017; for others, W. Yu et al.,
"MetaFormer is actually what you need for vision", CVPR 2022.
"""

from torch import nn

from ..core.contract import SequenceLayer
from .norms import Norm
from .pointwise import Pointwise
from .residual import Residual
from .stack import Stack


def wrapped(
    layer: SequenceLayer,
    memory: SequenceLayer | None,
    feed_forward: nn.Module | None,
    *,
    norm: Norm = "rms",
    norm_first: bool = True,
    dropout: float = 0.0,
    variational: bool = False,
) -> SequenceLayer:
    """A layer with residual connections, and with what else is asked for.

    Args:
        layer: gives as many features as it takes.
        memory: attention to a memory, or None.
        feed_forward: the network after these, made by `feed_forward.feed_forward`, or None.
        norm: by name; see `norms`.
        norm_first: before each part, or else after each sum.
        dropout: rate on what each part gives.
        variational: one dropout mask a sequence instead of one a step.
    """
    size = layer.output_size
    network = None if feed_forward is None else Pointwise(size, size, module=feed_forward)
    made = [
        Residual(part, norm=norm, norm_first=norm_first, dropout=dropout, variational=variational)
        for part in (layer, memory, network)
        if part is not None
    ]
    return made[0] if len(made) == 1 else Stack(made)

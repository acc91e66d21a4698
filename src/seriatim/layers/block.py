"""What goes around a layer: norms, residual connections, attention to a memory, a feed-forward network.

    u = x + layer(norm(x))
    v = u + CrossAttention(norm(u), memory)      where it attends to a memory
    y = v + FeedForward(norm(v))                 where it is a whole block

Any sequence layer can be the mixer of a block, not attention alone: A. Vaswani et al. 2017; for others, W. Yu et al.,
"MetaFormer is actually what you need for vision", CVPR 2022.
"""

from torch import nn

from ..errors import InputError
from ..layer import SequenceLayer
from .cross_attention import CrossAttention
from .pointwise import Pointwise
from .residual import Residual
from .stack import Stack


def wrapped(
    layer: SequenceLayer,
    feed_forward: nn.Module | None,
    *,
    norm: str = "rms",
    norm_first: bool = True,
    memory_size: int | None = None,
    dropout: float = 0.0,
) -> SequenceLayer:
    """A layer with residual connections, and with what else is asked for.

    Args:
        layer: gives as many features as it takes.
        feed_forward: the network after it, made by `feed_forward.feed_forward`, or None.
        norm: by name; see `norms`.
        norm_first: before each part, or else after each sum.
        memory_size: width of the memory it also attends to; None for no memory.
        dropout: rate on what each part gives.
    """
    size = layer.output_size
    parts = [layer]
    if memory_size is not None:
        if memory_size < 1:
            raise InputError(f"memory_size must be at least 1; got {memory_size}")
        parts.append(CrossAttention(size, size, memory_size=memory_size))
    if feed_forward is not None:
        parts.append(Pointwise(size, size, module=feed_forward))
    made = [Residual(part, norm=norm, norm_first=norm_first, dropout=dropout) for part in parts]
    return made[0] if len(made) == 1 else Stack(made)

"""The Transformer: attention in a block.

A. Vaswani et al., "Attention is all you need", NeurIPS 2017; norms before the sums: R. Xiong et al., "On layer
normalization in the transformer architecture", ICML 2020.

    u = x + Attention(norm(x))
    y = u + FeedForward(norm(u))

With a memory, v = u + CrossAttention(norm(u), memory) comes between the two. With `causal` it is a decoder without an
encoder. The defaults are those of present language models (norm first, RMSNorm, rotary positions, SwiGLU);
``norm="layer", norm_first=False, feed_forward="relu", position="sinusoidal", bias=True`` is the form of the paper.

x ``inputs`` · Attention `seriatim.layers.attention` · other parts `seriatim.layers.containers`. Simplified: there is
no dropout on the attention weights.
"""

from typing import ClassVar

from .attention import Attention


class Transformer(Attention):
    """Multi-head attention inside a block: norm, attention, sum, norm, feed-forward network, sum."""

    wrap = "block"
    learning_rates: ClassVar = {"lm": 3e-3, "mlm": 3e-3, "classify": 3e-3, "tag": 3e-3, "seq2seq": 3e-3}

"""Intervals of perplexities: those of the bootstrap over blocks, as of every other figure."""

import math

import numpy as np
import pytest

from seriatim.data.encoding import Statistics
from seriatim.evaluation.intervals import interval, mean
from seriatim.evaluation.perplexity import text_metrics


def test_the_intervals_of_a_text_are_those_of_the_bootstrap_over_its_blocks() -> None:
    random = np.random.default_rng(0)
    sizes = random.integers(5, 40, 300).astype(float)
    losses = sizes * random.gamma(9, 1 / 3, 300)
    counts = Statistics(tokens=int(sizes.sum()), words=4_000, lines=300, bytes=20_000)
    found = text_metrics(losses, sizes, counts)
    _, low, high = interval(np.stack([losses, sizes], 1), mean)
    assert (found["loss_low"], found["loss_high"]) == (low, high)
    assert found["perplexity_low"] == pytest.approx(math.exp(low))
    assert found["bits_per_byte_high"] == pytest.approx(high * counts.tokens / counts.bytes / math.log(2))

    # For many blocks it is close to 1.96 standard errors of a ratio.
    rest = losses - found["loss"] * sizes
    error = math.sqrt((rest**2).sum()) / sizes.sum()
    assert (high - low) / 2 == pytest.approx(1.96 * error, rel=0.1)
    assert text_metrics(losses[:1], sizes[:1], counts)["loss_low"] is None

"""Pseudo-log-likelihood of masked language models: Σ_t log P(w_t | w_s for s ≠ t).

J. Salazar, D. Liang, T. Nguyen and K. Kirchhoff, "Masked language model scoring", ACL 2020; J. Besag, "Statistical
analysis of non-lattice data", The Statistician 24, 1975. Each token is predicted from the tokens before and after it,
so that this is not the likelihood of the text: its exponential does not sum to one over texts, and the loss is lower
than that of an equally good model that reads from left to right.

Every token is predicted once. In pass i of k, the tokens i, i + k, i + 2k, … of every window are masked and predicted
together. If k is the length of the window, each token is masked alone and the result is exact. For a smaller k, other
tokens are masked at the same time, as in training.
"""

import math

import numpy as np
import torch

from ..data.batching import Buckets, Windows
from ..models import MaskedLanguageModel
from .intervals import Measure, Metrics, exp_mean, mean, with_intervals
from .perplexity import BLOCK, COUNTS

TOGETHER = 64  # windows in a batch


def evaluate_masked_language_model(model: MaskedLanguageModel, windows: Windows, *, every: int | None) -> Metrics:
    """Compute the metrics of the windows of a text with a model in evaluation mode.

    ``every`` is k, the distance from one masked token to the next; None masks each token alone.

    Returns:
        ``loss`` (nats per token), ``perplexity``, ``bits_per_byte`` and ``accuracy``, each with its 95 % interval (over
        lines, or over blocks of 500 tokens of a running text), and the same counts as for language models.
    """
    counts = {name: getattr(windows.corpus.statistics, name) for name in COUNTS}
    return with_intervals(pseudo_measures(model, windows, every)) | counts


def pseudo_measures(model: MaskedLanguageModel, windows: Windows, every: int | None) -> dict[str, Measure]:
    """Return the metrics by lines, or by blocks of a running text; arguments as in `evaluate_masked_language_model`."""
    sums = pseudo_losses(model, windows, every)
    counts = windows.corpus.statistics
    spelled, tokens_per_byte = counts.spelling_nats / counts.tokens, counts.tokens / counts.bytes
    losses, hits = sums[:, [0, 2]], sums[:, [1, 2]]

    def bits(summed: np.ndarray) -> np.ndarray:
        return (mean(summed) + spelled) * tokens_per_byte / math.log(2)

    return {
        "loss": Measure(losses, mean),
        "perplexity": Measure(losses, exp_mean),
        "bits_per_byte": Measure(losses, bits),
        "accuracy": Measure(hits, mean),
    }


def pseudo_losses(model: MaskedLanguageModel, windows: Windows, every: int | None) -> np.ndarray:
    """Return −log P, hits and tokens ``(items, 3)``, summed over each line or each block of a running text."""
    block = max(1, min(BLOCK, len(windows.corpus.ids) // 20))
    groups = windows.starts // block if windows.lines is None else windows.lines
    items = np.unique(groups, return_inverse=True)[1]
    sums = np.zeros((items.max() + 1, 3))
    device = next(model.parameters()).device
    batches = Buckets(windows.lengths, TOGETHER, lambda rows: rows)
    for rows in batches.read(batches.in_order()):
        ids, lengths = torch.from_numpy(windows.ids(rows)).to(device), windows.lengths[rows]
        place = np.arange(ids.shape[1])
        passes = min(every or len(place), len(place))
        for offset in range(passes):
            chosen = (place % passes == offset) & (place < lengths[:, None])  # (B, T)
            positions = torch.from_numpy(chosen.ravel().nonzero()[0]).to(device)
            targets = ids.flatten()[positions]
            masked = ids.flatten().index_fill(0, positions, model.mask).view(ids.shape)
            losses, hits = model.judged(masked, positions, targets, lengths=torch.from_numpy(lengths))
            statistics = torch.stack([losses.double(), hits.double(), torch.ones_like(losses).double()], dim=1)
            np.add.at(sums, items[rows][chosen.nonzero()[0]], statistics.cpu().numpy())
    return sums

"""Pseudo-log-likelihood of masked language models: Σ_t log P(w_t | w_s for s ≠ t).

J. Salazar, D. Liang, T. Nguyen and K. Kirchhoff, "Masked language model scoring", ACL 2020; J. Besag, "Statistical
analysis of non-lattice data", The Statistician 24, 1975. Each token is predicted from the tokens before and after it,
so that this is not the likelihood of the text: its exponential does not sum to one over texts, and the loss is lower
than that of an equally good model that reads from left to right.

Every token is predicted once. In pass i of k, the tokens i, i + k, i + 2k, … of every window are masked and predicted
together. If k is the length of the window, each token is masked alone and the result is exact. For a smaller k, other
tokens are masked at the same time, as in training.

The pseudo-surprisal of a word that consists of several tokens is that of its tokens from left to right, where those
that follow in the word are masked, too. The chain rule makes their sum −log₂ P(word | the rest of the text); given the
end of a word, its beginning would be almost certain. C. Kauf and A. Ivanova, "A better way to do masked language model
scoring", ACL 2023.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch

from ..data.batches import Buckets, Windows
from ..models import MaskedLanguageModel
from ..models.probabilities import log_softmax
from .intervals import Measure, Measurement, exp_mean, mean, with_intervals
from .perplexity import COUNTS, block_size
from .word_surprisal import Surprisals, measures_of

TOGETHER = 64  # windows in a batch


def measure_windows(model: MaskedLanguageModel, windows: Windows, *, every: int | None) -> Measurement:
    """Measure the windows of a text with a model in evaluation mode.

    ``every`` is k, the distance from one masked token to the next; None masks each token alone.

    Returns:
        ``loss`` (nats per token), ``perplexity``, ``bits_per_byte`` and ``accuracy``, each with its 95 % interval (over
        lines, or over blocks of 500 tokens of a running text), and the same counts as for language models.
    """
    sums = pseudo_losses(model, windows, every)
    counts = windows.corpus.statistics
    spelled, tokens_per_byte = counts.spelling_nats / counts.tokens, counts.tokens / counts.bytes
    losses, hits = sums[:, [0, 2]], sums[:, [1, 2]]

    def bits(summed: np.ndarray) -> np.ndarray:
        return (mean(summed) + spelled) * tokens_per_byte / math.log(2)

    measures = {
        "loss": Measure(losses, mean),
        "perplexity": Measure(losses, exp_mean),
        "bits_per_byte": Measure(losses, bits),
        "accuracy": Measure(hits, mean),
    }
    return Measurement(with_intervals(measures) | {name: getattr(counts, name) for name in COUNTS}, measures)


def pseudo_losses(model: MaskedLanguageModel, windows: Windows, every: int | None) -> np.ndarray:
    """Return −log P, hits and tokens ``(items, 3)``, summed over each line or each block of a running text."""
    block = block_size(windows.corpus)
    groups = windows.starts // block if windows.lines is None else windows.lines
    items = np.unique(groups, return_inverse=True)[1]
    sums = np.zeros((items.max() + 1, 3))
    device = next(model.parameters()).device

    # Every n-th token is masked at once, in n passes: each is predicted from nearly all others (all, without n).
    batches = Buckets(windows.lengths, TOGETHER, lambda rows: rows)
    for rows in batches.read(batches.in_order()):
        ids, lengths = torch.from_numpy(windows.ids(rows)).to(device), windows.lengths[rows]
        columns = np.arange(ids.shape[1])
        passes = min(every or len(columns), len(columns))
        for offset in range(passes):
            chosen = (columns % passes == offset) & (columns < lengths[:, None])  # (B, T)
            positions = torch.from_numpy(chosen.ravel().nonzero()[0]).to(device)
            targets = ids.flatten()[positions]
            masked = ids.flatten().index_fill(0, positions, model.mask).view(ids.shape)
            losses, hits = model.losses_and_hits(masked, positions, targets, lengths=torch.from_numpy(lengths))
            statistics = torch.stack([losses.double(), hits.double(), torch.ones_like(losses).double()], dim=1)
            np.add.at(sums, items[rows][chosen.nonzero()[0]], statistics.cpu().numpy())
    return sums


@torch.inference_mode()
def pseudo_surprisals(
    model: MaskedLanguageModel, texts: Sequence[np.ndarray], stops: Sequence[np.ndarray], end: np.ndarray
) -> list[Surprisals]:
    """Return the surprisals of the tokens of some texts, each given all others but those that follow in its unit.

    ``texts`` are token ids ``(tokens,)``; ``stops`` say for each token where its unit ends ``(tokens,)``; ``end`` are
    tokens that follow every text. The boundaries are 0: nothing corrects the sum of a unit.
    """
    passes = [(row, position) for row, ids in enumerate(texts) for position in range(len(ids))]
    results = [Surprisals(*np.zeros((4, len(ids) + 1))) for ids in texts]
    sizes = np.array([len(texts[row]) + len(end) for row, _ in passes], dtype=np.int64)
    device = next(model.parameters()).device
    batches = Buckets(sizes, TOGETHER, lambda rows: rows)
    for rows in batches.read(batches.in_order()) if len(passes) else ():
        chosen = [passes[row] for row in rows]
        masked = np.zeros((len(rows), int(sizes[rows].max())), dtype=np.int64)
        for line, (row, position) in zip(masked, chosen, strict=True):
            line[: len(texts[row]) + len(end)] = np.concatenate([texts[row], end])
            line[position : stops[row][position]] = model.mask

        # Rows are flattened, and each has one position that is scored: positions (B,) in B · T tokens.
        positions = np.arange(len(rows)) * masked.shape[1] + [position for _, position in chosen]
        inputs, at = torch.from_numpy(masked).to(device), torch.from_numpy(positions).to(device)
        targets = torch.tensor([int(texts[row][position]) for row, position in chosen], device=device)
        nats = log_softmax(model(inputs, at, lengths=torch.from_numpy(sizes[rows])))
        columns = torch.stack(measures_of(nats, targets), dim=1).cpu().numpy()
        for (row, position), values in zip(chosen, columns, strict=True):
            for column, value in zip(results[row], values, strict=False):
                column[position] = value
    return results

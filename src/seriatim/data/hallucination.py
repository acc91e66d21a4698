"""Invented stems: training pairs whose longest shared part is replaced by other tokens, on both sides alike.

A. Anastasopoulos and G. Neubig, "Pushing the limits of low-resource morphological inflection", EMNLP 2019.

If source and target share a long part, as l a u f in l a u f e n +V +PST and l a u f t e, most of it says nothing about
the rest, and the pair stays right with other tokens there. The first and the last token of the part stay, because what
follows or precedes may depend on them. The new tokens are drawn from the shared parts of the batch, again at every
step. In the paper, whole data sets are made once, from uniform letters, and the new stem can have another length.
"""

from collections.abc import Sequence
from difflib import SequenceMatcher
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

SHORTEST = 3
"""Smallest number of tokens of a shared part in which something is replaced."""


class SharedParts(NamedTuple):
    """The longest part that each source shares with its target, and which target id a source id stands for."""

    starts: Tensor  # position of the part in the source (pairs,)
    target_starts: Tensor  # in the target (pairs,)
    sizes: Tensor  # number of tokens of the part (pairs,)
    table: Tensor  # target id of each source id, −1 if it has none (source_vocabulary,)

    def rows(self, rows: np.ndarray) -> "SharedParts":
        """Return those of some pairs."""
        index = torch.from_numpy(rows)
        return SharedParts(self.starts[index], self.target_starts[index], self.sizes[index], self.table)


def shared_parts(sources: Sequence[np.ndarray], targets: Sequence[np.ndarray], table: Tensor) -> SharedParts:
    """Find the longest shared part of each pair of token ids; ``table`` is that of `SharedParts`."""
    found = []
    for source, target in zip(sources, targets, strict=True):
        as_target = table.numpy()[source].tolist()
        match = SequenceMatcher(None, as_target, target.tolist(), autojunk=False).find_longest_match()
        found.append(tuple(match))
    starts, target_starts, sizes = torch.tensor(found, dtype=torch.long).reshape(-1, 3).unbind(1)
    return SharedParts(starts, target_starts, sizes, table)


def with_invented_stems(source: Tensor, targets: Tensor, parts: SharedParts, rate: float) -> tuple[Tensor, Tensor]:
    """Return ids ``(batch, source_time)`` and ``(batch, time)`` in which some pairs have another shared part.

    ``rate`` is the share of the pairs that are changed, of those with a part of `SHORTEST` tokens or more. The numbers
    are drawn from the generator of `torch`.
    """
    batch, time = source.shape
    chosen = (torch.rand(batch) < rate) & (parts.sizes >= SHORTEST)
    place = torch.arange(time) - parts.starts.unsqueeze(1)  # within the part (B, S)
    shared = (place >= 0) & (place < parts.sizes.unsqueeze(1))
    pool = source[shared]
    if not len(pool):
        return source, targets
    drawn = pool[torch.randint(len(pool), (batch, time))]
    inner = chosen.unsqueeze(1) & (place > 0) & (place < parts.sizes.unsqueeze(1) - 1)
    source = torch.where(inner, drawn, source)
    place = torch.arange(targets.shape[1]) - parts.target_starts.unsqueeze(1)
    inner = chosen.unsqueeze(1) & (place > 0) & (place < parts.sizes.unsqueeze(1) - 1)
    copied = parts.table[source].gather(1, (place + parts.starts.unsqueeze(1)).clamp(0, time - 1))
    return source, torch.where(inner, copied, targets)

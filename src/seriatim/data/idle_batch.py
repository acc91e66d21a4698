"""Batches of a rank that has no sequence, or no token, of its own in a window.

Every rank takes part in every step, because gradients are added up by all. An idle rank computes a sequence, and its
loss does not count.
"""

from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import numpy as np


class Rows(Protocol):
    """What an idle batch must know of the batch that it computes."""

    @property
    def rows(self) -> np.ndarray:
        """Indices of the sequences."""

    @property
    def fresh(self) -> bool:
        """Whether the sequences begin in this batch."""


AnyRows = TypeVar("AnyRows", bound=Rows, covariant=True)


@dataclass(frozen=True)
class IdleBatch(Generic[AnyRows]):
    """A batch that is computed without effect.

    ``has_rows`` says whether its sequences are the rank's own; otherwise their state is not carried on.
    """

    batch: AnyRows
    has_rows: bool
    tokens: int = 0
    terms: int = 0

    @property
    def rows(self) -> np.ndarray:
        """Indices of the sequences; see `Rows`."""
        return self.batch.rows

    @property
    def fresh(self) -> bool:
        """Whether the sequences begin in this batch; see `Rows`."""
        return self.batch.fresh

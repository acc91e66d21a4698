"""A sparse matrix by rows, and its products with dense ones."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F


class SparseRows(NamedTuple):
    """A matrix ``(rows, columns)`` by its values that are not zero, row after row.

    PyTorch sums weighted rows of a table (`embedding_bag`) faster than it multiplies sparse matrices, and on every
    platform.
    """

    columns: Tensor  # of each value (values,), int32
    offsets: Tensor  # the index of the first value of each row, and the number of values (rows + 1,), int32
    values: Tensor  # (values,), float32
    width: int  # number of columns

    @classmethod
    def build(cls, rows: np.ndarray, columns: np.ndarray, values: np.ndarray, shape: tuple[int, int]) -> "SparseRows":
        """Return a matrix from its values ``(values,)`` and their places; ``rows`` must ascend."""
        offsets = np.zeros(shape[0] + 1, np.int32)
        np.cumsum(np.bincount(rows, minlength=shape[0]), out=offsets[1:])
        return cls(
            torch.from_numpy(columns.astype(np.int32)),
            torch.from_numpy(offsets),
            torch.from_numpy(values.astype(np.float32)),
            shape[1],
        )

    def to(self, device: torch.device) -> "SparseRows":
        """Return the matrix on a device."""
        return SparseRows(self.columns.to(device), self.offsets.to(device), self.values.to(device), self.width)

    def times(self, dense: Tensor) -> Tensor:
        """Return the product with a matrix ``(columns, k)``: ``(rows, k)``."""
        if not len(self.columns):
            return dense.new_zeros(len(self.offsets) - 1, dense.shape[1])
        return F.embedding_bag(
            self.columns,
            dense,
            self.offsets,
            mode="sum",
            per_sample_weights=self.values.to(dense.dtype),
            include_last_offset=True,
        )

    def transposed(self) -> "SparseRows":
        """Return the matrix ``(columns, rows)``."""
        columns, offsets = self.columns.numpy(), self.offsets.numpy()
        order = np.argsort(columns, kind="stable")
        rows = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
        shape = (self.width, len(offsets) - 1)
        return SparseRows.build(columns[order], rows[order], self.values.numpy()[order], shape)

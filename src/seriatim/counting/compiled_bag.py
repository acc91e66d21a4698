"""The compiled code of a bag of n-grams (`compiler/cpp/bag.h`), and the n-grams of texts that it counts."""

import ctypes
from collections.abc import Sequence

import numpy as np
import torch

from ..compiler.cpp.toolchain import address, typed_library
from .sparse_features import SparseRows, read_characters

TEXTS_READ = 1 << 14
"""Texts whose characters are in memory together."""


def compiled_bag() -> ctypes.CDLL | None:
    """Return the compiled functions, or None if nothing can be compiled."""
    return typed_library(
        '#include "bag.h"\n',
        counts_new=":p",
        counts_free="p",
        counts_add="pppqpii",
        counts_size="pi:q",
        counts_keys="pipp",
        counts_rows="pppqppp:q",
        bag_logits="pppppppppqqqqii",
        ascend="ppppppqqpppi:d",
    )


class CompiledCounts:
    """N-grams of texts, looked up in a hash table text by text.

    ``keys`` and ``frequency`` are the n-grams of words and of characters, and in how many texts each occurs.
    """

    def __init__(self, functions: ctypes.CDLL, texts: Sequence[str], words: int, characters: int) -> None:
        self.functions, self.texts, self.counts = functions, len(texts), functions.counts_new()
        for start in range(0, len(texts), TEXTS_READ):
            points, ends, classes = read_characters(texts[start : start + TEXTS_READ])
            read = address(points), address(ends), len(ends), address(classes)
            functions.counts_add(self.counts, *read, words, characters)
        sizes = [functions.counts_size(self.counts, kind) for kind in (0, 1)]
        self.keys = [np.empty(size, np.uint64) for size in sizes]
        self.frequency = [np.empty(size, np.int64) for size in sizes]
        for kind, arrays in enumerate(zip(self.keys, self.frequency, strict=True)):
            functions.counts_keys(self.counts, kind, *map(address, arrays))

    def features(self, columns: np.ndarray, scales: np.ndarray, num_words: int) -> SparseRows:
        """Return the features of the texts; ``columns`` has the column of each n-gram, −1 for those left out."""
        offsets = np.empty(self.texts + 1, np.int32)
        given = (self.counts, address(columns), address(scales), num_words, address(offsets))
        size = self.functions.counts_rows(*given, None, None)
        found, values = np.empty(size, np.int32), np.empty(size, np.float32)
        self.functions.counts_rows(*given, address(found), address(values))
        return SparseRows(torch.from_numpy(found), torch.from_numpy(offsets), torch.from_numpy(values), len(scales))

    def __del__(self) -> None:
        self.functions.counts_free(self.counts)

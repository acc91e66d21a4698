"""CUDA graphs: a loop that runs again on the same memory is replayed with one call instead of several per step.

PyTorch's allocator gives a training step the memory of the step before, so the same loop soon runs on the same
addresses. A graph keeps none of this memory alive.
"""

import warnings
from collections import OrderedDict
from collections.abc import Callable, Hashable

import torch
from torch import Tensor

from ..core.errors import first_line

Work = Callable[[], None]

MAX_GRAPHS = 64
"""Graphs kept for one cell; beyond this number the least recently used is dropped."""


def can_capture(like: Tensor) -> bool:
    """Return whether work on such tensors can be captured now."""
    return like.is_cuda and not torch.cuda.is_current_stream_capturing()


def capture(work: Work) -> Work:
    """Capture work as a graph that can be replayed, or raise RuntimeError; the work is not done yet."""
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):  # type: ignore[no-untyped-call]
        graph.capture_begin(capture_error_mode="thread_local")
        try:
            work()
        finally:
            graph.capture_end()
    return graph.replay


class Replays:
    """Runs work the first time, which may compile kernels, captures it the second time, and then replays it."""

    def __init__(self) -> None:
        self.graphs: OrderedDict[Hashable, Work | None] = OrderedDict()
        self.has_failed = False

    def run(self, key: Hashable, work: Work) -> None:
        """Do the work; ``key`` stands for the memory it uses and everything else that it depends on."""
        if self.has_failed:
            return work()
        has_run, replay = key in self.graphs, self.graphs.pop(key, None)
        if has_run and replay is None:
            try:
                replay = capture(work)
            except RuntimeError as error:
                self.has_failed = True
                reason = first_line(error) or "unknown"
                problem = "a loop cannot be captured as a CUDA graph, and therefore runs step by step"
                warnings.warn(f"{problem}: {reason}", stacklevel=2)
                return work()
        self.graphs[key] = replay
        while len(self.graphs) > MAX_GRAPHS:
            self.graphs.popitem(last=False)
        return work() if replay is None else replay()

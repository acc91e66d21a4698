"""A loop that runs again on the same memory is replayed as a CUDA graph: one call in place of several a step.

torch's allocator hands a training step the memory of the one before, so that the same loop soon meets the same
addresses. A graph is replayed only where all the memory it reads and writes is what is given now, and keeps none of it.
"""

import warnings
from collections import OrderedDict
from collections.abc import Callable, Hashable

import torch
from torch import Tensor

Work = Callable[[], None]

MOST = 64
"""What is remembered of one cell at most; what was used longest ago goes first."""


def possible(like: Tensor) -> bool:
    """Whether work on such tensors can be captured now."""
    return like.is_cuda and not torch.cuda.is_current_stream_capturing()


def capture(work: Work) -> Work:
    """Work as a graph that can be replayed; it is not done yet.

    Raises:
        RuntimeError: something in it cannot be captured.
    """
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
    """Runs work by hand the first time on some memory, captures it the second time, and replays it from then on.

    The first time compiles kernels and loads libraries, which no graph may hold.
    """

    def __init__(self) -> None:
        self.known: OrderedDict[Hashable, Work | None] = OrderedDict()
        self.fails = False

    def run(self, key: Hashable, work: Work) -> None:
        """Does the work, which ``key`` stands for: the memory it uses and everything else that it depends on."""
        if self.fails:
            return work()
        seen, replay = key in self.known, self.known.pop(key, None)
        if seen and replay is None:
            try:
                replay = capture(work)
            except RuntimeError as error:
                self.fails = True
                reason = (str(error).strip().splitlines() or ["unknown"])[0]
                warnings.warn(f"no CUDA graph of a loop, which runs step by step: {reason}", stacklevel=2)
                return work()
        self.known[key] = replay
        while len(self.known) > MOST:
            self.known.popitem(last=False)
        return work() if replay is None else replay()

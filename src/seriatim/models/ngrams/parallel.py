"""Parts of a job on all cores, their results in order. NumPy lets go of the interpreter while it computes."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import torch

Part = TypeVar("Part")
Result = TypeVar("Result")


def in_order(function: Callable[[Part], Result], parts: Iterable[Part]) -> Iterator[Result]:
    """``function`` of each part; as many at once as there are threads, and one result waiting."""
    threads = torch.get_num_threads()
    with ThreadPoolExecutor(threads) as pool:
        waiting: deque[Future[Result]] = deque()
        for part in parts:
            waiting.append(pool.submit(function, part))
            if len(waiting) > threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def for_all(function: Callable[[Part], None], parts: Iterable[Part]) -> None:
    """``function`` of each part, for what it does."""
    for _ in in_order(function, parts):
        pass

"""The processes of one training, the ranks, as ``torchrun`` starts them; a training without it has one rank.

A training is written once, against `Ranks`: with one rank all methods return at once. Each rank computes a shard of
every batch (`RankShard`). Short messages travel over gloo, on the CPU, whatever the gradients travel over. While rank 0
works alone (it reads data, validates, writes files), the others wait for as long as it shows that it is alive. In a
step of training each rank waits at most `Config.training.rank_timeout` seconds for the others.
"""

import functools
import gc
import json
import os
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed import PrefixStore  # type: ignore[attr-defined]

from ..core import errors
from ..core.errors import input_error, shown
from .child import RANK_VARIABLES
from .peers import Peers, RankError, open_store, rendezvous
from .signals import Interrupted, terminations_ignored


@dataclass(frozen=True)
class RankShard:
    """Shard ``index`` of ``count`` consecutive shards of nearly equal size."""

    index: int
    count: int

    def slice(self, size: int) -> slice:
        """Return which of ``size`` rows are in the shard: none where there are fewer rows than shards."""
        each, more = divmod(size, self.count)
        start = self.index * each + min(self.index, more)
        return slice(start, start + each + (self.index < more))

    def is_idle(self, rows: np.ndarray) -> bool:
        """Return whether no row of a batch is in the shard."""
        return len(rows) <= self.index

    def of(self, rows: np.ndarray) -> np.ndarray:
        """Return the rows of the shard; the first row if there are none, because every rank computes something."""
        return rows[:1] if self.is_idle(rows) else rows[self.slice(len(rows))]


ALL_ROWS = RankShard(0, 1)
"""All rows."""


CONNECTION_WORDS = ("gloo", "nccl", "connection closed", "connection reset", "broken pipe", "timed out", "timeout")
"""Words in the messages of PyTorch's backends, in lower case; not all of their errors have a class of their own."""
Result = TypeVar("Result")
_shared_store = functools.cache(open_store)
"""The connection of a process, which keeps the store that it hosts."""


class Ranks:
    """One rank among ``count``. This class itself is the only rank of a training in one process."""

    index = 0
    count = 1
    local_index = 0  # the index among the ranks of this machine
    restarts = 0  # how often torchrun has started the training again
    advice: Callable[[], str] = staticmethod(lambda: "start the training again")
    """Returns what to do if a rank dies, in words."""

    @property
    def is_rank_zero(self) -> bool:
        """Whether this is rank 0, which writes files and reports."""
        return self.index == 0

    @property
    def shard(self) -> RankShard:
        """The shard of every batch that this rank computes."""
        return RankShard(self.index, self.count)

    def gather(self, numbers: Sequence[float]) -> np.ndarray:
        """Return the numbers of every rank ``(ranks, numbers)``, float64; every rank gives equally many."""
        return np.array([numbers], dtype=np.float64)

    def gather_bytes(self, content: bytes) -> list[bytes]:
        """Return some bytes of every rank, in order."""
        return [content]

    def on_rank_zero(self, work: Callable[[], Result]) -> Result:
        """Do some work on rank 0 only, and return its result, which JSON can represent, on every rank."""
        return work()

    @contextmanager
    def rank_zero_first(self, *, of_machine: bool = False) -> Iterator[None]:
        """Run the ``with`` block on rank 0 before the others; or on one rank of each machine before its others."""
        yield

    @contextmanager
    def barrier_on_error(self) -> Iterator[None]:
        """Within the ``with`` block, if one rank stops with an error, all stop with an error that names it."""
        yield


ONE_RANK = Ranks()
"""The only rank of a training in one process."""


class RanksOfGroup(Ranks):
    """One rank of a process group of PyTorch, which it joins.

    Args:
        environment: what `RANK_VARIABLES` are; see `join_ranks`.
        device: ``cuda`` or ``cpu``, which determines how gradients travel.
        timeout: seconds that a rank waits for the others in a step of training.
    """

    def __init__(self, environment: dict[str, str], device: str, timeout: float) -> None:
        numbers = {name: _integer(name, environment[name]) for name in RANK_VARIABLES if name != "MASTER_ADDR"}
        self.index, self.count, self.local_index = (numbers[name] for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
        self.restarts = _integer("TORCHELASTIC_RESTART_COUNT", os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
        self.calls = 0
        limit, address = timedelta(seconds=timeout), (environment["MASTER_ADDR"], numbers["MASTER_PORT"])
        hosts = self.index == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
        shared = _shared_store(*address, hosts=hosts)
        prefix = f"seriatim/{rendezvous(PrefixStore('seriatim', shared), self.index, self.count, timeout)}"
        self.owns_group = not dist.is_initialized()
        if self.owns_group:
            backend = "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo"
            store = PrefixStore(f"{prefix}/group", shared)
            dist.init_process_group(backend, store=store, rank=self.index, world_size=self.count, timeout=limit)
        self.group = dist.new_group(backend="gloo", timeout=limit)
        self.peers = Peers(self.index, self.count, address, prefix, timeout)

    def gather(self, numbers: Sequence[float]) -> np.ndarray:
        """Return the numbers of every rank; see `Ranks.gather`."""
        return torch.stack(self._all_gather(torch.tensor(numbers, dtype=torch.float64))).numpy()

    def gather_bytes(self, content: bytes) -> list[bytes]:
        """Return some bytes of every rank, in order."""
        sizes: list[int] = self.gather([len(content)])[:, 0].astype(int).tolist()
        padded = torch.frombuffer(bytearray(content.ljust(max(1, *sizes), b"\0")), dtype=torch.uint8)
        return [
            padded_content[:size].numpy().tobytes()
            for padded_content, size in zip(self._all_gather(padded), sizes, strict=True)
        ]

    def _all_gather(self, values: torch.Tensor) -> list[torch.Tensor]:
        gathered = [torch.empty_like(values) for _ in range(self.count)]
        dist.all_gather(gathered, values, group=self.group)
        return gathered

    def on_rank_zero(self, work: Callable[[], Result]) -> Result:
        """Do some work on rank 0 only; see `Ranks.on_rank_zero`."""
        self.calls += 1
        key = f"result/{self.calls}"
        if self.is_rank_zero:
            result = work()
            self.peers.store.set(key, json.dumps(result))
            return result
        received: Result = json.loads(self.peers.wait(key, writer=0))
        return received

    @contextmanager
    def rank_zero_first(self, *, of_machine: bool = False) -> Iterator[None]:
        """Run the ``with`` block on one rank before the others; see `Ranks.rank_zero_first`."""
        self.calls += 1
        first = self.index - self.local_index if of_machine else 0
        key = f"first/{self.calls}/{first}"
        if self.index != first:
            self.peers.wait(key, writer=first)
        yield
        if self.index == first:
            self.peers.store.set(key, "done")

    @contextmanager
    def barrier_on_error(self) -> Iterator[None]:
        """Stop with the others; see `Ranks.barrier_on_error`. A note of the error says whether this rank reports it."""
        try:
            yield
        except BaseException as error:
            with terminations_ignored():  # torchrun terminates the other ranks as soon as one has died
                reason = self._reason(error)
            traceback.clear_frames(error.__traceback__)  # models that refer to the group keep its connections open
            gc.collect()
            if reason is error:
                raise
            raise reason from None
        finally:
            self.peers.close()
            dist.destroy_process_group(None if self.owns_group else self.group)

    def _reason(self, error: BaseException) -> BaseException:
        """Return the error with which this rank stops, with a note that says whether it reports it."""
        # An exchange fails on all ranks when one of them stops; only that one's error says what happened.
        reason = error
        try:
            if is_lost_connection(error):
                reason = self.peers.explain(error)
            if isinstance(reason, RankError):
                text, kind = str(reason), reason.kind
                reason = RankError(f"{text}; {self.advice()}") if kind is None else input_error(text, kind)
            elif not isinstance(reason, Interrupted):
                self.peers.post(reason)
            reports = self.peers.reports()
        except RuntimeError:  # the store is gone
            reason, reports = RankError(f"torchrun has ended; {self.advice()}"), self.is_rank_zero

        # Whoever reads a message must know on which machine to look.
        if reason is error and self.index and isinstance(error, errors.InputError | errors.TrainingError):
            message = f"rank {self.index}: {error}"
            reason = (
                error.with_message(message) if isinstance(error, errors.InputError) else errors.TrainingError(message)
            )
        reason.add_note(errors.REPORTED_HERE if reports else errors.REPORTED_ELSEWHERE)
        return reason


def is_lost_connection(error: BaseException) -> bool:
    """Return whether an error is that of an exchange between ranks, and not of the work of this rank."""
    if isinstance(error, errors.TrainingError) or not isinstance(error, RuntimeError):
        return False
    return isinstance(error, dist.DistError) or any(word in str(error).lower() for word in CONNECTION_WORDS)


def world_size() -> int:
    """Return the number of processes that torchrun has started, or 1."""
    return _integer("WORLD_SIZE", os.environ.get("WORLD_SIZE", "1"))


def _integer(name: str, text: str) -> int:
    if not (text.isascii() and text.isdecimal()):
        raise errors.RangeError(f"{name}: must be a whole number, got {shown(text)}; start the ranks with torchrun")
    return int(text)


def refuse_ranks(what: str, option: str) -> None:
    """Raise InputError if torchrun has started several processes for work that is divided with an option instead."""
    if world_size() > 1:
        raise errors.NotSupportedError(f"{what} is not divided by torchrun; start it without torchrun, with {option}")


def join_ranks(device: str, timeout: float) -> Ranks:
    """Join the ranks that ``torchrun`` has started; return the only rank if it has not, or has started one.

    The arguments are those of `RanksOfGroup`.

    Raises:
        InputError: the environment variables of ``torchrun`` are incomplete.
    """
    if world_size() == 1:
        only = Ranks()
        only.restarts = _integer("TORCHELASTIC_RESTART_COUNT", os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
        return only
    environment = {name: os.environ[name] for name in RANK_VARIABLES if name in os.environ}
    if missing := [name for name in RANK_VARIABLES if name not in environment]:
        raise errors.RequiredError(
            f"WORLD_SIZE is {os.environ['WORLD_SIZE']}, but {missing[0]} is not set; start the ranks with torchrun"
        )
    return RanksOfGroup(environment, device, timeout)

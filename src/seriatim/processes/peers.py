"""The other ranks of a training: meeting them, which of them are alive, what stopped them, and who reports it.

Every rank writes a counter into the store of ``torchrun`` twice a second, from a thread. A rank whose counter stands
still has died or is suspended. If an exchange between ranks takes too long, a rank that is alive and waits for no
exchange hangs. A rank that stops with an error writes it into the store, so that the others stop with the same error,
and only one of them reports it.
"""

import json
import threading
import time
import uuid
from collections.abc import Iterable
from datetime import timedelta

from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]

from ..core.errors import SHOWN, InputError, TrainingError, first_line, known_reason

BEAT_SECONDS = 0.5
"""Seconds between two signs of life."""
SILENT_SECONDS = 2.0
"""Seconds without a sign of life after which a rank counts as dead, if an exchange with it has failed."""
WAITING_SILENT_SECONDS = 30.0
"""The same while another rank works alone, when a long call may delay its sign of life."""
NAMING_SECONDS = 10.0
"""Seconds to find out which rank made an exchange fail."""
REPORT_SECONDS = 2.0
"""Seconds that a rank leaves to rank 0 to report an error."""
POLL_SECONDS = 0.05


class RankError(TrainingError):
    """Another rank stopped; ``kind`` is that of its `InputError`, and None if its input was not the reason."""

    def __init__(self, message: str, *, kind: str | None = None) -> None:
        super().__init__(message)
        self.kind = kind


def open_store(host: str, port: int, *, hosts: bool = False) -> Store:
    """Connect to the store of all ranks, which the process that ``hosts`` it also starts."""
    return TCPStore(host, port, is_master=hosts, wait_for_workers=False, timeout=timedelta(seconds=60))


class Peers:
    """The ranks of a training, which share a store.

    Args:
        index: the index of this rank.
        count: the number of ranks.
        address: the host and the port of the store.
        prefix: begins every key.
        timeout: seconds that the other ranks wait for a rank that hangs.
    """

    def __init__(self, index: int, count: int, address: tuple[str, int], prefix: str, timeout: float) -> None:
        self.index, self.count, self.timeout = index, count, timeout
        self.store, beats = (PrefixStore(prefix, open_store(*address)) for _ in range(2))
        self._seen: dict[int, tuple[bytes, float]] = {}  # the last sign of life of each rank, and when it was new
        self._stopped = threading.Event()
        threading.Thread(target=self._beat, args=(beats,), name="signs of life", daemon=True).start()

    def _beat(self, store: Store) -> None:
        """Write signs of life until the training ends or the store is gone."""
        number = 0
        try:
            while not self._stopped.wait(BEAT_SECONDS if number else 0):
                number += 1
                store.set(f"beat/{self.index}", str(number))
        except RuntimeError:  # torchrun has ended
            return

    def close(self) -> None:
        """Stop the signs of life."""
        self._stopped.set()

    def wait(self, key: str, writer: int) -> bytes:
        """Return the value of a key that another rank writes, however long it takes, if that rank is alive.

        Raises:
            RankError: a rank has stopped.
        """
        checked = time.monotonic()
        while not self.store.check([key]):
            time.sleep(POLL_SECONDS)
            if time.monotonic() - checked > BEAT_SECONDS:
                checked = time.monotonic()
                self._raise_if_stopped([writer], WAITING_SILENT_SECONDS)
        content: bytes = self.store.get(key)
        return content

    def explain(self, error: BaseException) -> RankError:
        """Return why an exchange failed: which rank stopped, died or hangs."""
        self.store.set(f"noticed/{self.index}", "yes")
        deadline = time.monotonic() + NAMING_SECONDS
        while time.monotonic() < deadline:
            try:
                self._raise_if_stopped(range(self.count), SILENT_SECONDS)
            except RankError as reason:
                return reason
            time.sleep(POLL_SECONDS)
        hanging = [rank for rank in self._look_at(range(self.count)) if not self.store.check([f"noticed/{rank}"])]
        if hanging:
            return RankError(f"{named(hanging)} did not answer within {self.timeout:g} seconds (training.rank_timeout)")
        return RankError(f"the connection between the ranks was lost ({first_line(error)[:SHOWN]})")

    def post(self, error: BaseException) -> None:
        """Tell the others what stops this rank."""
        reason = known_reason(error) if isinstance(error, Exception) else None
        text = reason or f"{type(error).__name__}: {first_line(error)}"
        self.store.set("failed", json.dumps([self.index, text, error.kind if isinstance(error, InputError) else None]))

    def reports(self) -> bool:
        """Return whether this rank reports the error that stops the training: rank 0 if it can, else the first."""
        try:
            deadline = time.monotonic() + (REPORT_SECONDS if self.index else 0)
            while time.monotonic() < deadline and not self.store.check(["reported"]):
                time.sleep(POLL_SECONDS)
            name = str(self.index)
            return bool(self.store.compare_set("reported", "", name).decode() == name)
        except RuntimeError:  # the store is gone
            return True

    def _raise_if_stopped(self, ranks: Iterable[int], silent_seconds: float) -> None:
        """Raise RankError if any rank has posted an error, or one of ``ranks`` gave no sign of life for so long."""
        if self.store.check(["failed"]):
            rank, text, kind = json.loads(self.store.get("failed"))
            if rank != self.index:
                raise RankError(f"rank {rank}: {text}", kind=kind)
        seen, now = self._look_at(ranks), time.monotonic()
        silent = [rank for rank in seen if now - self._seen[rank][1] > silent_seconds]
        if silent:
            raise RankError(f"{named(silent)} died or was suspended (no sign of life for {silent_seconds:g} seconds)")

    def _look_at(self, ranks: Iterable[int]) -> list[int]:
        """Read the signs of life of other ranks, and return those that have given one."""
        alive = [rank for rank in ranks if rank != self.index and self.store.check([f"beat/{rank}"])]
        for rank in alive:
            content = self.store.get(f"beat/{rank}")
            if rank not in self._seen or self._seen[rank][0] != content:
                self._seen[rank] = content, time.monotonic()
        return alive


def named(ranks: list[int]) -> str:
    """Return ranks in words."""
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"


def rendezvous(store: Store, index: int, count: int, seconds: float) -> str:
    """Agree with the other ranks on a name that no earlier start of a training had; every rank calls this.

    ``torchrun`` starts ranks again after a failure, and a program can train several times; all of them share one store,
    in which keys of earlier starts may be left. The number of restarts does not tell the starts apart: each machine
    counts its own. Therefore every rank leaves a fresh number, and rank 0 answers exactly that number.

    Args:
        store: shared by all ranks.
        index: the index of this rank.
        count: the number of ranks.
        seconds: to wait for the others.

    Raises:
        RankError: a rank did not come in time.
    """
    # Rank 0 may read the number of an earlier start first, so that its answer names the number that it is for.
    deadline = time.monotonic() + seconds
    if index:
        number = uuid.uuid4().hex
        store.set(f"hello/{index}", number)
        _wait_for(store, f"answer/{index}/{number}", deadline, seconds)
        name: str = store.get(f"answer/{index}/{number}").decode()
        store.set(f"here/{name}/{index}", "yes")
        return name

    # A rank is there when it has read the name; until then it may leave a new number, which is answered again.
    name, answered, missing = uuid.uuid4().hex, set[str](), list(range(1, count))
    while missing:
        for rank in missing:
            if store.check([f"hello/{rank}"]):
                key = f"answer/{rank}/{store.get(f'hello/{rank}').decode()}"  # may be that of an earlier start
                if key not in answered:
                    answered.add(key)
                    store.set(key, name)
        missing = [rank for rank in missing if not store.check([f"here/{name}/{rank}"])]
        if missing and time.monotonic() > deadline:
            raise RankError(f"{named(missing)} did not join within {seconds:g} seconds (training.rank_timeout)")
        time.sleep(POLL_SECONDS if missing else 0)
    return name


def _wait_for(store: Store, key: str, deadline: float, seconds: float) -> None:
    while not store.check([key]):
        if time.monotonic() > deadline:
            raise RankError(f"rank 0 did not join within {seconds:g} seconds (training.rank_timeout)")
        time.sleep(POLL_SECONDS)

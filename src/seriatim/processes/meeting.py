"""A name for one start of a training, which all its ranks know and no earlier start had.

``torchrun`` starts ranks again after a failure, and a program can train several times; all of them share one store, in
which keys of earlier starts may be left. The number of restarts does not tell the starts apart: each machine counts its
own. Therefore every rank leaves a fresh number, and the leader answers exactly that number.
"""

import time
import uuid

from torch.distributed import Store  # type: ignore[attr-defined]

from .peers import POLL_SECONDS, RankError, named


def meet(store: Store, index: int, count: int, seconds: float) -> str:
    """Return the name of this start; every rank calls this.

    Args:
        store: shared by all ranks.
        index: the index of this rank.
        count: the number of ranks.
        seconds: to wait for the others.

    Raises:
        RankError: a rank did not come in time.
    """
    deadline = time.monotonic() + seconds
    if index:
        number = uuid.uuid4().hex
        store.set(f"hello/{index}", number)
        _wait_for(store, f"answer/{index}/{number}", deadline, seconds)
        name: str = store.get(f"answer/{index}/{number}").decode()
        store.set(f"here/{name}/{index}", "yes")
        return name
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

"""The limits of a server."""

import contextlib
import os
from dataclasses import dataclass, field
from pathlib import Path

from ..decoding.continuous_batch import MEMORY

MEMORY_FRACTION = 0.25
CONTROL_GROUPS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)
"""Files with the memory that a container may use, and that it uses."""


def _batch_bytes() -> int:
    """Return a quarter of the memory that is free when the server starts, in its container if it is in one."""
    free = 0
    with contextlib.suppress(OSError, ValueError, AttributeError):  # there is no such number on other systems
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for limit, used in CONTROL_GROUPS:
        with contextlib.suppress(OSError, ValueError):  # there is no limit, or none of this kind
            free = min(free, int(Path(limit).read_text()) - int(Path(used).read_text()))
    return max(MEMORY, int(MEMORY_FRACTION * free))


@dataclass(frozen=True)
class Limits:
    """How much of everything a server allows. What exceeds a limit is refused before any work is done.

    Attributes:
        max_running: texts in the batch of one model at once.
        max_waiting: texts, or inputs, that wait for one model.
        max_texts: texts of one request, which is prompts times ``n``.
        max_tokens: tokens that one text may generate.
        max_prompt_tokens: tokens of a prompt.
        max_inputs: inputs of one request that asks for answers or scores.
        max_scores: log probabilities in the answer to one request: tokens, and alternatives to them.
        max_body: size of a request in bytes.
        max_state: size in bytes of the state of a session that is restored.
        max_sessions: sessions of one model; the one that was not used for the longest time is removed.
        session_seconds: the time after which an unused session is removed.
        session_bytes: total size of the states of the sessions of one model.
        batch_bytes: memory that the texts of all models may need, as estimated when they enter a batch.
        cache_bytes: size of the states of beginnings of prompts that are kept for one model.
        page_seconds: the time for which pages of `inspect` are kept.
    """

    max_running: int = 64
    max_waiting: int = 256
    max_texts: int = 128
    max_tokens: int = 4096
    max_prompt_tokens: int = 65_536
    max_inputs: int = 1024
    max_scores: int = 1 << 18
    max_body: int = 4 << 20
    max_state: int = 256 << 20
    max_sessions: int = 1000
    session_seconds: float = 3600.0
    session_bytes: int = 1 << 30
    batch_bytes: int = field(default_factory=_batch_bytes)
    cache_bytes: int = 1 << 28
    page_seconds: float = 600.0

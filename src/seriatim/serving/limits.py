"""The limits of a server."""

from dataclasses import dataclass, field

from ..decoding.continuous_batch import MEMORY
from ..processes.executors import machine_memory

MEMORY_FRACTION = 0.25


def _batch_bytes() -> int:
    """Return a quarter of the memory that is free when the server starts, in its container if it is in one."""
    return max(MEMORY, int(MEMORY_FRACTION * machine_memory(free=True)))


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

"""Sessions: texts in progress whose states stay on the server between requests.

A client sends only what is new. Nothing of the text itself is kept, but which tokens it has, for the repetition
penalty.
"""

import tempfile
import time
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from ..core.errors import InputError, MismatchError
from ..core.state import State, state_bytes, state_leaves
from ..data.tokenizers import Decoder
from ..decoding.sampling import TextState
from ..runs.run import Run
from .json_bodies import HttpError
from .limits import Limits


@dataclass
class Session:
    """A text in progress.

    Attributes:
        name: chosen by the client.
        text: its state; None before it has read anything.
        last: its last token.
        seen_tokens: which tokens it has ``(vocabulary,)``.
        num_tokens: read and generated.
        created: seconds since 1970.
        last_used: seconds since 1970.
        is_busy: whether a request uses it.
        decoder: of its text, which may hold the first bytes of a character.
    """

    name: str
    last: int
    seen_tokens: Tensor
    text: TextState | None = None
    num_tokens: int = 0
    created: float = field(default_factory=time.time)
    last_used: float = field(default_factory=time.time)
    is_busy: bool = False
    decoder: Decoder | None = None

    @property
    def state_bytes(self) -> int:
        """The size of the state, with all that is kept beside it."""
        if self.text is None:
            return 0
        beside = (tensor for tensor in (self.text.logits, self.seen_tokens) if tensor is not None)
        return state_bytes(self.text.state) + sum(tensor.nbytes for tensor in beside)

    def extend(self, text: TextState, tokens: list[int], decoder: Decoder) -> None:
        """Note that tokens were added to the text."""
        self.text, self.num_tokens, self.decoder = text, self.num_tokens + len(tokens), decoder
        self.seen_tokens[tokens] = True
        self.last = tokens[-1] if tokens else self.last

    def described(self) -> dict[str, object]:
        """Return what clients are told about the session."""
        return {
            "id": self.name,
            "object": "session",
            "tokens": self.num_tokens,
            "state_bytes": self.state_bytes,
            "created": int(self.created),
            "last_used": int(self.last_used),
            "busy": self.is_busy,
        }


class SessionStore:
    """The sessions of one model, used in the event loop only. Old ones are removed when there are too many."""

    def __init__(self, run: Run, limits: Limits) -> None:
        self.run, self.limits = run, limits
        self._sessions: OrderedDict[str, Session] = OrderedDict()  # the one used last is last

    def __len__(self) -> int:
        return len(self._sessions)

    def __contains__(self, name: str) -> bool:
        return name in self._sessions

    @property
    def bytes(self) -> int:
        """Total size of the states."""
        return sum(session.state_bytes for session in self._sessions.values())

    def remove_old(self) -> None:
        """Remove the sessions that have not been used for too long."""
        limit = time.time() - self.limits.session_seconds
        while (oldest := self._oldest()) is not None and self._sessions[oldest].last_used < limit:
            del self._sessions[oldest]

    def all(self) -> Iterable[Session]:
        """Return the sessions, those used last first."""
        self.remove_old()
        return reversed(self._sessions.values())

    def find(self, name: str, *, must_be_free: bool = False) -> Session:
        """Return a session; raise HttpError if there is none, or if a request uses it and it ``must_be_free``."""
        self.remove_old()
        session = self._sessions.get(name)
        if session is None:
            raise HttpError(404, f"session: {name!r} does not exist or has expired; begin it again")
        if session.is_busy and must_be_free:
            raise HttpError(409, f"session: {name!r} is used by another request; wait for it")
        return session

    def open(self, name: str) -> Session:
        """Return a session for one request, a new one if there is none; it must be given back by `close`.

        Raises:
            HttpError: another request uses the session, or all places are taken by sessions in use.
        """
        self.remove_old()
        if name not in self._sessions:
            if len(self._sessions) >= self.limits.max_sessions:
                if (oldest := self._oldest()) is None:
                    raise HttpError(429, "session: all sessions are in use; try again", headers={"Retry-After": "1"})
                del self._sessions[oldest]
            tokenizer = self.run.tokenizer
            seen = torch.zeros(tokenizer.vocabulary_size, dtype=torch.bool)
            self._sessions[name] = Session(name, tokenizer.begin, seen)
        session = self.find(name, must_be_free=True)
        session.is_busy = True
        return session

    def close(self, session: Session) -> None:
        """Give a session back. One that has read nothing is removed."""
        session.is_busy, session.last_used = False, time.time()
        if session.text is None:
            self._sessions.pop(session.name, None)
        elif session.name in self._sessions:
            self._sessions.move_to_end(session.name)
        total = self.bytes
        while total > self.limits.session_bytes and (oldest := self._oldest()) is not None:
            total -= self._sessions.pop(oldest).state_bytes

    def remove(self, name: str) -> None:
        """Remove a session; raise HttpError if there is none, or if it is in use."""
        del self._sessions[self.find(name, must_be_free=True).name]

    def _oldest(self) -> str | None:
        return next((name for name, session in self._sessions.items() if not session.is_busy), None)


def save_session(run: Run, session: Session) -> bytes:
    """Return the state of a session as the file that `Stream.load` reads."""
    stream = run.stream()
    if session.text is not None:
        stream.continue_from(session.text, session.last, session.seen_tokens, session.num_tokens)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "state.safetensors"
        stream.save(path)
        return path.read_bytes()


def load_session(run: Run, session: Session, data: bytes) -> None:
    """Set a session to the state in a file that `Stream.save` or `save_session` wrote.

    Raises:
        InputError: the file is damaged, or of another run; the session is unchanged.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "state.safetensors"
        path.write_bytes(data)
        try:
            stream = run.stream().load(path)
        except InputError as error:
            reason = str(error).removeprefix(f"{path}: ").partition(";")[0]
            raise MismatchError(f"state: {reason}; send one that was saved from a text of this model") from None
    session.text, session.last = TextState(stream.state, stream.logits), stream.last
    session.seen_tokens, session.decoder = stream.seen_tokens, None
    session.num_tokens = max(stream.num_tokens, _num_read(stream.state) - 1)


def _num_read(state: State) -> int:
    """Return the number of tokens that a state says it has read, the boundary included; 0 if it does not say it."""
    counts = [leaf for leaf in state_leaves(state) if leaf.dim() == 1 and not leaf.is_floating_point()]
    return max((int(leaf.max()) for leaf in counts), default=0)

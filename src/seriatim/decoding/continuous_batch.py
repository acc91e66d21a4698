"""Generates many texts in one batch that texts leave as they end and others enter.

Each text has its own prompt, seed and settings. Its tokens are those that it would have alone: no step mixes rows.
"""

import warnings
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..core.key_value_cache import without_unused
from ..core.state import State, join_states, select_state, state_bytes
from ..models.base_models import TextModel
from .penalties import Penalties
from .sampling import CUT_OFF, MANY, SEEDS, DrawsNext, draw_tokens, draws_itself, read, uniform_numbers
from .sampling_settings import Sampling

MEMORY = 1 << 28
"""Largest size of a batch in bytes, as estimated by `row_bytes`."""
MAX_ROWS = 256
COPIES = 8
"""Arrays of a row's logits, in float64, that are in memory while a token is sampled."""
EXPECTED_TOKENS = 2048
"""The length of a text for which memory is planned, if it may be longer: most texts end before."""
MAX_ENDED_SHARE = 0.5
"""If this share of the rows has ended, they are removed even if no text waits for their place."""


@dataclass(frozen=True, eq=False)
class TextRequest:
    """A text to generate.

    Attributes:
        prompt: its tokens, at least one: the boundary that begins a text.
        seed: of the random choices.
        max_tokens: the largest number of tokens, at least 1.
        sampling: how to draw.
        biases: numbers that are added to the logits of tokens.
    """

    prompt: Sequence[int]
    seed: int
    max_tokens: int
    sampling: Sampling = field(default_factory=Sampling)
    biases: Mapping[int, float] = field(default_factory=dict)


class _Row:
    """A text in the batch."""

    def __init__(self, request: TextRequest, device: torch.device, max_bytes: float) -> None:
        self.request, self.max_bytes, self.left = request, max_bytes, request.max_tokens
        self.generator = torch.Generator().manual_seed(request.seed % SEEDS)
        self.penalties = Penalties(request.sampling, request.biases, 1, request.prompt[1:], device)
        self.has_ended = False


@dataclass
class _Beginning:
    """A prompt that has been read."""

    prompt: Sequence[int]
    logits: Tensor  # of the next token (1, vocabulary)
    state: State
    growth: float  # bytes that the state grew by with each token


class ContinuousBatch:
    """A batch of texts in progress, and the texts that wait for a place in it.

    Args:
        model: a language model in evaluation mode.
        stop: the token that ends a text and is not returned; None for texts without end.
        banned: tokens that are never drawn.
        max_rows: the largest number of texts at once; there are fewer if they would need more than ``memory`` bytes.
    """

    def __init__(
        self,
        model: TextModel,
        *,
        stop: int | None = None,
        banned: Sequence[int] = (),
        max_rows: int | None = None,
        memory: int | None = None,
    ) -> None:
        self.model, self.stop = model, stop
        self.max_rows = MAX_ROWS if max_rows is None else max_rows
        self.memory = MEMORY if memory is None else memory
        self.excluded = torch.tensor(banned, dtype=torch.long, device=model.device)
        self.waiting: deque[TextRequest] = deque()
        self.rows: list[_Row] = []
        self._state: State = ()
        self._drawing = model if isinstance(model, DrawsNext) and model.vocabulary_size >= MANY else None
        self._logits: Tensor | None = None  # of the next tokens, unless the model can draw from its state
        self._tokens: list[int] | None = None  # drawn, but not yet read by the model
        self._beginning: _Beginning | None = None  # of the last prompt that was read

    def add(self, request: TextRequest) -> None:
        """Let a text wait for a place."""
        self.waiting.append(request)

    @property
    def is_empty(self) -> bool:
        """Whether no text is in progress or waits."""
        return not self.waiting and all(row.has_ended for row in self.rows)

    def end(self, request: TextRequest) -> None:
        """End a text early, for instance because a stop string is complete. There is no event for it any more."""
        if request in self.waiting:
            self.waiting.remove(request)
        for row in self.rows:
            row.has_ended |= row.request is request

    @torch.inference_mode()
    def advance(self) -> list[tuple[TextRequest, int | None]]:
        """Read the last tokens, let texts enter, and draw one token of every text in the batch.

        Returns:
            Texts with their new tokens; None says that a text has ended. A text with its last token occurs twice.

        Warns:
            UserWarning: a text ended because every token that may follow has probability 0.
        """
        self._remove_ended()
        self._read_tokens()
        self._let_enter()
        if not self.rows:
            return []
        self._tokens, stuck = self._draw()
        events: list[tuple[TextRequest, int | None]] = []
        for row, token, is_stuck in zip(self.rows, self._tokens, stuck, strict=True):
            if row.has_ended:
                continue
            if is_stuck:
                warnings.warn(CUT_OFF, stacklevel=3)
            row.left -= 1
            row.has_ended = is_stuck or token == self.stop
            if not row.has_ended:
                row.penalties.add([token])
                events.append((row.request, token))
                row.has_ended = row.left <= 0
            if row.has_ended:
                events.append((row.request, None))
        return events

    def _remove_ended(self) -> None:
        """Remove rows that have ended, if others wait for their place or if they are many."""
        kept = [i for i, row in enumerate(self.rows) if not row.has_ended]
        ended = len(self.rows) - len(kept)
        if not ended or (kept and not self.waiting and ended < MAX_ENDED_SHARE * len(self.rows)):
            return
        self.rows = [self.rows[i] for i in kept]
        self._tokens = None if self._tokens is None else [self._tokens[i] for i in kept]
        if not kept:
            self._state, self._logits = (), None
        else:
            index = torch.tensor(kept, device=self.model.device)
            self._state = without_unused(select_state(self._state, index))

    def _read_tokens(self) -> None:
        """Let the model read the tokens that were drawn."""
        if self._tokens is None or not self.rows:
            return
        tokens = torch.tensor(self._tokens, device=self.model.device)
        if self._drawing is not None:
            self._state = self._drawing.advance(tokens.unsqueeze(1), self._state)
        else:
            self._logits, self._state = self.model.step(tokens, self._state)
        self._tokens = None

    def _let_enter(self) -> None:
        """Read the prompts of texts that wait, as many as there are places for."""
        states, logits = ([self._state], [self._logits]) if self.rows else (list[State](), list[Tensor | None]())
        entered = len(self.rows)
        while self.waiting and len(self.rows) < self.max_rows:
            request = self.waiting[0]
            begun = self._begin(request.prompt)
            expected = min(request.max_tokens, EXPECTED_TOKENS)
            needed = row_bytes(state_bytes(begun.state) + begun.growth * expected, begun.logits.shape[1], expected)
            largest = max([needed, *(row.max_bytes for row in self.rows)])
            if self.rows and (len(self.rows) + 1) * largest > self.memory:
                break
            self.waiting.popleft()
            self.rows.append(_Row(request, self.model.device, needed))
            states.append(begun.state)
            logits.append(begun.logits)
        if len(self.rows) == entered:
            return
        self._state = states[0] if len(states) == 1 else join_states(states)
        self._logits = None if self._drawing is not None else torch.cat([part for part in logits if part is not None])

    def _begin(self, prompt: Sequence[int]) -> _Beginning:
        """Read a prompt, unless it was the last one that was read."""
        last = self._beginning
        if last is not None and (last.prompt is prompt or last.prompt == prompt):
            return last
        beginning = self.model.initial_state(1)
        logits, state = read(self.model, torch.tensor([prompt], device=self.model.device), beginning)
        growth = max(0, state_bytes(state) - state_bytes(beginning)) / len(prompt)
        self._beginning = _Beginning(prompt, logits, state, growth)
        return self._beginning

    def _draw(self) -> tuple[list[int], list[bool]]:
        """Draw a token of every row; rows with equal settings are drawn together."""
        groups: dict[tuple[Sampling, bool], list[int]] = defaultdict(list)
        for i, row in enumerate(self.rows):
            groups[row.request.sampling, row.penalties.changes].append(i)
        uniform = uniform_numbers([row.generator for row in self.rows])
        tokens, stuck = torch.zeros(len(self.rows), dtype=torch.long), torch.zeros(len(self.rows), dtype=torch.bool)
        for (sampling, changes), members in groups.items():
            rows = torch.tensor(members, device=self.model.device)
            state, logits = self._state, self._logits
            if len(members) < len(self.rows):
                logits = None if logits is None else logits[rows]
                state = state if self._drawing is None else select_state(state, rows)
            if self._drawing is not None and (changes or not draws_itself(self.model, sampling, MANY)):
                logits = self._drawing.next_logits(state)
            if changes and logits is not None:
                penalties = [self.rows[i].penalties for i in members]
                logits = torch.cat([one.apply(logits[i : i + 1]) for i, one in enumerate(penalties)])
            drawn = draw_tokens(self.model, state, logits, sampling, self.excluded, uniform[members])
            tokens[members], stuck[members] = drawn[0].cpu(), drawn[1].cpu()
        return tokens.tolist(), stuck.tolist()


def row_bytes(state_size: float, vocabulary_size: int, max_tokens: int) -> float:
    """Return the bytes that a text needs in a batch, given those of its state at its end."""
    return 2 * state_size + COPIES * 8 * vocabulary_size + 64 * max_tokens  # 64: a piece of text

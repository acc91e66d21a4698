"""Generates many texts in one batch that texts leave as they end and others enter.

Each text has its own prompt, seed and settings. Its tokens are those that it would have alone: no step mixes rows.
Prompts are read window by window between the steps.
"""

import warnings
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from ..core.key_value_cache import without_unused
from ..core.state import State, join_states, map_state, select_state, state_bytes
from ..layers.positions import learned_positions
from ..models.base_models import TextModel
from .next_token_scores import CandidateScore, score_tokens
from .penalties import Penalties
from .prefix_cache import MAX_BYTES, PrefixCache
from .prompt_reading import PromptReader, TextState, prompt_window
from .sampling import CUT_OFF, MANY, SEEDS, DrawsNext, draw_tokens, draws_itself, uniform_numbers
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
        prompt: its tokens; those of a new text begin with the boundary that begins a text.
        seed: of the random choices.
        max_tokens: the largest number of tokens; 0 only reads the prompt.
        sampling: how to draw.
        biases: numbers that are added to the logits of tokens.
        start: the text that the prompt continues; None for a new one.
        read_before: the tokens of that text, for the repetition penalty.
        keeps_state: whether the text can be continued after its end.
        num_alternatives: of each generated token, in its score; None for no scores.
        scores_prompt: whether the tokens of the prompt are scored, too.
    """

    prompt: Sequence[int]
    seed: int
    max_tokens: int
    sampling: Sampling = field(default_factory=Sampling)
    biases: Mapping[int, float] = field(default_factory=dict)
    start: TextState | None = None
    read_before: Sequence[int] = ()
    keeps_state: bool = False
    num_alternatives: int | None = None
    scores_prompt: bool = False


class PromptRead(NamedTuple):
    """The prompt of a text has been read."""

    request: TextRequest
    scores: Sequence[CandidateScore]  # of its tokens, if they were wanted
    num_cached: int  # tokens whose state was known


class TokenDrawn(NamedTuple):
    """A text has one more token."""

    request: TextRequest
    token: int
    score: CandidateScore | None


class TextEnded(NamedTuple):
    """A text has ended by itself. Its state is that after the text, if the request ``keeps_state``.

    ``score`` is that of the token that ended it, if it was wanted and there was one.
    """

    request: TextRequest
    state: TextState | None
    score: CandidateScore | None = None


TextEvent: TypeAlias = PromptRead | TokenDrawn | TextEnded


class _Row:
    """A text in the batch."""

    def __init__(self, request: TextRequest, device: torch.device, max_bytes: float) -> None:
        self.request, self.max_bytes, self.left = request, max_bytes, request.max_tokens
        self.generator = torch.Generator().manual_seed(request.seed % SEEDS)
        read = [*request.read_before, *(request.prompt[1:] if request.start is None else request.prompt)]
        self.penalties = Penalties(request.sampling, request.biases, 1, read, device)
        self.has_ended = False


class ContinuousBatch:
    """A batch of texts in progress, and the texts that wait for a place in it.

    Args:
        model: a language model in evaluation mode.
        stop: the token that ends a text and is not returned; None for texts without end.
        banned: tokens that are never drawn.
        max_rows: the largest number of texts at once; there are fewer if they would need more than ``memory`` bytes.
        memory: see there.
        cache_bytes: largest size of the states of prompts that are kept for texts with the same beginning.

    Attributes:
        cache: these states.
        waiting: the texts whose prompts have not been looked at yet.
    """

    def __init__(
        self,
        model: TextModel,
        *,
        stop: int | None = None,
        banned: Sequence[int] = (),
        max_rows: int | None = None,
        memory: int | None = None,
        cache_bytes: int = MAX_BYTES,
    ) -> None:
        self.model, self.stop = model, stop
        self.max_rows = MAX_ROWS if max_rows is None else max_rows
        self.memory = MEMORY if memory is None else memory
        self.excluded = torch.tensor(banned, dtype=torch.long, device=model.device)
        self.cache = PrefixCache(prompt_window(model), cache_bytes)
        self.waiting: deque[TextRequest] = deque()
        self.rows: list[_Row] = []
        self._has_limit = learned_positions(model) is not None  # a text that has ended must not be read on
        self._reading: tuple[TextRequest, PromptReader] | None = None
        self._state: State = ()
        self._drawing = model if isinstance(model, DrawsNext) and model.vocabulary_size >= MANY else None
        self._logits: Tensor | None = None  # of the next tokens, unless the model can draw from its state
        self._tokens: list[int] | None = None  # drawn, but not yet read by the model

    def add(self, request: TextRequest) -> None:
        """Let a text wait for a place."""
        self.waiting.append(request)

    @property
    def is_empty(self) -> bool:
        """Whether no text is in progress or waits."""
        return not self.waiting and self._reading is None and not self.num_running

    @property
    def num_running(self) -> int:
        """The number of texts in the batch that have not ended."""
        return sum(not row.has_ended for row in self.rows)

    def end(self, request: TextRequest) -> TextState | None:
        """End a text early, for instance because a stop string is complete. There is no event for it any more.

        Returns:
            The text so far, if its prompt has been read and the request ``keeps_state``.
        """
        if request in self.waiting:
            self.waiting.remove(request)
        if self._reading is not None and self._reading[0] is request:
            self._reading = None
        for i, row in enumerate(self.rows):
            if row.request is request and not row.has_ended:
                row.has_ended = True
                return self._kept(i, () if self._tokens is None else (self._tokens[i],))
        return None

    @torch.inference_mode()
    def advance(self) -> list[TextEvent]:
        """Read the last tokens and a part of a prompt, let texts enter, and draw one token of every text in the batch.

        Returns:
            What happened, in order. A text with its last token has two events.

        Warns:
            UserWarning: a text ended because every token that may follow has probability 0.
        """
        self._remove_ended()
        self._read_tokens()
        events = self._let_enter()
        if not self.rows:
            return events
        self._tokens, stuck, scores = self._draw()
        for i, (row, token) in enumerate(zip(self.rows, self._tokens, strict=True)):
            if row.has_ended:
                continue
            if stuck[i]:
                warnings.warn(CUT_OFF, stacklevel=3)
            row.left -= 1
            row.has_ended = stuck[i] or token == self.stop
            if row.has_ended:
                events.append(TextEnded(row.request, self._kept(i, ()), None if stuck[i] else scores.get(i)))
                continue
            row.penalties.add([token])
            events.append(TokenDrawn(row.request, token, scores.get(i)))
            row.has_ended = row.left <= 0
            if row.has_ended:
                events.append(TextEnded(row.request, self._kept(i, (token,))))
        return events

    @torch.inference_mode()
    def _kept(self, row: int, unread: tuple[int, ...]) -> TextState | None:
        """Return the text of a row, given its last tokens that the model has not read yet."""
        if not self.rows[row].request.keeps_state:
            return None
        index = torch.tensor([row], device=self.model.device)
        state, logits = without_unused(select_state(self._state, index)), None
        if not unread:
            logits = self._drawing.next_logits(state) if self._logits is None and self._drawing else self._logits
            logits = logits if logits is None or logits is not self._logits else logits[index]
        return TextState(state, logits, unread)

    def _remove_ended(self) -> None:
        """Remove rows that have ended, if others wait for their place or if they are many."""
        kept = [i for i, row in enumerate(self.rows) if not row.has_ended]
        ended, others = len(self.rows) - len(kept), bool(self.waiting) or self._reading is not None
        may_stay = kept and not others and not self._has_limit and ended < MAX_ENDED_SHARE * len(self.rows)
        if not ended or may_stay:
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

    def _let_enter(self) -> list[TextEvent]:
        """Read one window of prompts, and let texts enter whose prompts have been read, if there are places."""
        events, entering, budget = list[TextEvent](), list[PromptReader](), self.cache.window
        while len(self.rows) < self.max_rows and (self._reading or self.waiting):
            if self._reading is None:
                request = self.waiting.popleft()
                scored = (request.num_alternatives or 0) if request.scores_prompt else None
                self._reading = (
                    request,
                    PromptReader(self.model, request.prompt, self.cache, start=request.start, scored=scored),
                )
            request, reader = self._reading
            while not reader.is_complete and budget > 0:
                budget -= reader.read_window()
            if not reader.is_complete:
                break
            row = _Row(request, self.model.device, self._max_bytes(request, reader))
            if self.rows and (len(self.rows) + 1) * max(each.max_bytes for each in (row, *self.rows)) > self.memory:
                break
            self._reading = None
            events.append(PromptRead(request, reader.scores, reader.cached))
            if request.max_tokens:
                self.rows.append(row)
                entering.append(reader)
            else:
                state = map_state(Tensor.clone, reader.state)  # without a buffer for more keys and values
                kept = TextState(state, reader.logits) if request.keeps_state else None
                events.append(TextEnded(request, kept))
        self._join(entering)
        return events

    def _max_bytes(self, request: TextRequest, reader: PromptReader) -> float:
        """Return the bytes that a text is expected to need at its end."""
        expected = min(request.max_tokens, EXPECTED_TOKENS)
        size = state_bytes(reader.state) + reader.growth * expected
        return row_bytes(size, self.model.vocabulary_size, expected)

    def _join(self, entering: Sequence[PromptReader]) -> None:
        """Join texts, for which there are rows already, with the batch."""
        if not entering:
            return
        was_empty = len(self.rows) == len(entering)
        states = [*([] if was_empty else [self._state]), *(reader.state for reader in entering)]
        self._state = states[0] if len(states) == 1 else join_states(states)
        if self._drawing is None:
            logits = [*([] if was_empty else [self._logits]), *(reader.logits for reader in entering)]
            self._logits = torch.cat([part for part in logits if part is not None])

    def _draw(self) -> tuple[list[int], list[bool], dict[int, CandidateScore]]:
        """Draw a token of every row; rows with equal settings are drawn together.

        Returns:
            The tokens; which rows are stuck; and the scores of those tokens whose requests want them, by row.
        """
        groups: dict[tuple[Sampling, bool], list[int]] = defaultdict(list)
        for i, row in enumerate(self.rows):
            groups[row.request.sampling, row.penalties.changes].append(i)
        uniform = uniform_numbers([row.generator for row in self.rows])
        tokens, stuck = torch.zeros(len(self.rows), dtype=torch.long), torch.zeros(len(self.rows), dtype=torch.bool)
        for (sampling, changes), members in groups.items():
            state, logits = self._state, self._logits
            if len(members) < len(self.rows):
                rows = torch.tensor(members, device=self.model.device)
                logits = None if logits is None else logits[rows]
                state = state if self._drawing is None else select_state(state, rows)
            if self._drawing is not None and (changes or not draws_itself(self.model, sampling, MANY)):
                logits = self._drawing.next_logits(state)
            if changes and logits is not None:
                penalties = [self.rows[i].penalties for i in members]
                logits = torch.cat([one.apply(logits[i : i + 1]) for i, one in enumerate(penalties)])
            drawn = draw_tokens(self.model, state, logits, sampling, self.excluded, uniform[members])
            tokens[members], stuck[members] = drawn[0].cpu(), drawn[1].cpu()
        drawn_tokens = tokens.tolist()
        return drawn_tokens, stuck.tolist(), self._scores(drawn_tokens)

    def _scores(self, tokens: Sequence[int]) -> dict[int, CandidateScore]:
        """Return the scores of the tokens of those rows whose requests want them, by row."""
        by_number: dict[int, list[int]] = defaultdict(list)
        for i, row in enumerate(self.rows):
            if row.request.num_alternatives is not None and not row.has_ended:
                by_number[row.request.num_alternatives].append(i)
        scores: dict[int, CandidateScore] = {}
        for number, members in by_number.items():
            rows = torch.tensor(members, device=self.model.device)
            if self._logits is not None:
                logits = self._logits[rows]
            else:
                assert self._drawing is not None
                logits = self._drawing.next_logits(select_state(self._state, rows))
            scores |= zip(members, score_tokens(self.model, logits, [tokens[i] for i in members], number), strict=True)
        return scores


def row_bytes(state_size: float, vocabulary_size: int, max_tokens: int) -> float:
    """Return the bytes that a text needs in a batch, given those of its state at its end."""
    return 2 * state_size + COPIES * 8 * vocabulary_size + 64 * max_tokens  # 64: a piece of text

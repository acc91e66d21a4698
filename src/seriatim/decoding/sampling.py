"""The decoder loop: draw a token of every text of a batch, and let the model read them.

Everything that samples runs this loop: a stream is a batch of one text, `sample` is a batch whose texts begin and end
together, and texts enter and leave a `continuous_batch.ContinuousBatch` at any time. Each text has its own settings,
penalties and random generator, so that its tokens are those that it would have alone.
"""

import math
import warnings
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from ..core.errors import RangeError, check_text, iterate_items
from ..core.key_value_cache import without_unused
from ..core.state import State, join_states, select_state
from ..models.base_models import TextModel
from ..models.probabilities import NotFiniteError, gives_log_probabilities, token_log_probabilities
from .token_draws import Penalties, Sampling, draw

WINDOW = 512
"""Tokens of a prompt that are read at once: about as fast as a whole sequence, in bounded memory."""
SEEDS = 1 << 64
"""Number of different seeds of a generator; other integers are reduced modulo this number."""
CUT_OFF = (
    "a text was cut off because every token that may follow has probability 0; an n-gram model with another "
    "model.options.smoothing has none of these"
)
"""The warning about a text that ends because nothing can follow."""
MANY = 4096
"""For a smaller vocabulary, drawing from the logits of a batch is faster than `DrawsNext`."""


class NextToken(Protocol):
    """The part of a model that decoding calls: ids ``(batch,)`` and a state to logits and the next state."""

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State]: ...  # noqa: D102


@runtime_checkable
class DrawsNext(Protocol):
    """A model that can draw from its own distribution at less cost than from logits; used without other settings.

    ``draw_next`` takes a state, a uniform number of each row ``(batch,)`` and the banned tokens. It returns tokens
    ``(batch,)``, none of which is banned or has probability 0, and −1 for rows that must be drawn from the logits.
    """

    vocabulary_size: int

    def draw_next(self, state: State, uniform: Tensor, banned: Sequence[int]) -> Tensor: ...  # noqa: D102

    def advance(self, tokens: Tensor, state: State) -> State: ...  # noqa: D102  (ids (batch, time))

    def next_logits(self, state: State) -> Tensor: ...  # noqa: D102  ((batch, vocabulary))


class TextState(NamedTuple):
    """A text in progress, which can be continued.

    Attributes:
        state: of the model.
        logits: of the next token ``(1, vocabulary)``; None if they are not known.
        unread: tokens that belong to the text, but that the model has not read yet.
    """

    state: State
    logits: Tensor | None
    unread: tuple[int, ...] = ()


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


class TextRow:
    """A text in a batch: what was asked for, and what its next token depends on beside the model.

    ``max_bytes`` is the memory that it is expected to need at its end, for batches with a limit.
    """

    def __init__(self, request: TextRequest, device: torch.device, max_bytes: float = 0.0) -> None:
        self.request, self.max_bytes = request, max_bytes
        self.tokens_left, self.has_ended = request.max_tokens, False
        self.generator = torch.Generator().manual_seed(request.seed % SEEDS)
        read = [*request.read_before, *(request.prompt[1:] if request.start is None else request.prompt)]
        self.penalties = Penalties(request.sampling, request.biases, read, device)


class NextTokens(NamedTuple):
    """What was drawn for each row of a batch; meaningless for rows that had ended before."""

    tokens: list[int]
    has_ended: list[bool]  # the token ends the text and does not belong to it
    was_cut_off: list[bool]  # no token could follow, and the token is meaningless


class TextBatch:
    """Texts that are generated together: `draw` and `read` take turns.

    Args:
        model: in evaluation mode.
        device: of the model.
        stop: the token that ends a text and is not returned; None for texts without end.
        banned: tokens that are never drawn.

    Attributes:
        rows: the texts, in the order of the batch.
        state: of the model.
        logits: of the next tokens ``(batch, vocabulary)``; None if the model draws from its state.
        drawing: the model, if it can draw from its state; logits are computed for those settings that need them.
    """

    def __init__(
        self, model: NextToken, device: torch.device, *, stop: int | None = None, banned: Sequence[int] = ()
    ) -> None:
        self.model, self.stop = model, stop
        self.excluded = torch.tensor(banned, dtype=torch.long, device=device)
        self.rows: list[TextRow] = []
        self._groups: dict[tuple[Sampling, bool], list[int]] = {}  # rows with equal settings; whether logits change
        self.state: State = ()
        self.logits: Tensor | None = None
        self.drawing = model if isinstance(model, DrawsNext) and model.vocabulary_size >= MANY else None
        self.unread: Tensor | None = None  # the token of each row that was drawn, but not read (batch,)

    def add(self, rows: Sequence[TextRow], states: Sequence[State], logits: Sequence[Tensor | None]) -> None:
        """Add texts, given the states after their prompts and the logits of their first tokens, in any batches."""
        states = [*([self.state] if self.rows else []), *states]
        self.state = states[0] if len(states) == 1 else join_states(states)
        if self.drawing is None:
            known = [self.logits if self.rows else None, *logits]
            self.logits = torch.cat([each for each in known if each is not None])
        self._set_rows([*self.rows, *rows])

    def keep(self, indices: Sequence[int]) -> None:
        """Remove all texts but some."""
        self._set_rows([self.rows[i] for i in indices])
        if not indices:
            self.state, self.logits, self.unread = (), None, None
            return
        index = torch.tensor(indices, device=self.excluded.device)
        self.state = without_unused(select_state(self.state, index))
        self.logits = None if self.logits is None else self.logits[index]
        self.unread = None if self.unread is None else self.unread[index]

    def _set_rows(self, rows: list[TextRow]) -> None:
        self.rows, self._groups = rows, defaultdict(list)
        for i, row in enumerate(rows):
            self._groups[row.request.sampling, row.penalties.changes].append(i)

    def logits_of(self, indices: Sequence[int]) -> Tensor:
        """Return the logits of the next tokens of some rows ``(rows, vocabulary)``."""
        state, logits = self._select(indices)
        if logits is None:
            assert self.drawing is not None
            logits = self.drawing.next_logits(state)
        return logits

    def draw(self) -> NextTokens:
        """Draw the next token of every row; rows with equal settings are drawn together.

        Warns:
            UserWarning: a text ends because every token that may follow has probability 0.
        """
        uniform = uniform_numbers([row.generator for row in self.rows])

        # Most batches have one group, whose tensors are then taken as they are: a stream draws one token at a time.
        draws = [self._draw_group(members, *setting, uniform) for setting, members in self._groups.items()]
        drawn, impossible = draws[0]
        if len(draws) > 1:
            order = torch.tensor([i for members in self._groups.values() for i in members]).argsort()
            drawn, impossible = (torch.cat(each)[order] for each in zip(*draws, strict=True))
        self.unread = drawn
        tokens, was_cut_off = drawn.tolist(), impossible.tolist()

        # Penalties see a token at once, so that the next draw does not depend on when the model reads it.
        ends = [is_cut or token == self.stop for token, is_cut in zip(tokens, was_cut_off, strict=True)]
        for i, row in enumerate(self.rows):
            if was_cut_off[i] and not row.has_ended:
                warnings.warn(CUT_OFF, stacklevel=4)
            elif row.penalties.changes and not (ends[i] or row.has_ended):
                row.penalties.add(tokens[i])
        return NextTokens(tokens, ends, was_cut_off)

    def _draw_group(
        self, members: Sequence[int], sampling: Sampling, is_penalized: bool, uniform: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Draw tokens of rows with one setting ``(members,)``; see `draw_from_logits` for what is returned."""
        uniform = uniform if len(members) == len(self.rows) else uniform[members]
        if self.drawing is not None and sampling.is_plain and not is_penalized:
            return self._draw_from_state(self.drawing, members, sampling, uniform)
        logits = self.logits_of(members)
        if is_penalized:
            logits = torch.cat([self.rows[i].penalties.apply(logits[j : j + 1]) for j, i in enumerate(members)])
        return draw_from_logits(self.model, sampling, logits, self.excluded, uniform)

    def _draw_from_state(
        self, model: DrawsNext, members: Sequence[int], sampling: Sampling, uniform: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Let the model draw, and draw from logits only for the rows where it cannot."""
        state, _ = self._select(members)
        tokens = model.draw_next(state, uniform, self.excluded.tolist())
        impossible = torch.zeros(len(members), dtype=torch.bool)
        rows = (tokens < 0).nonzero().squeeze(1)
        if len(rows):
            logits = model.next_logits(state)[rows]
            drawn = draw_from_logits(self.model, sampling, logits, self.excluded, uniform[rows])
            tokens[rows], impossible[rows] = drawn
        return tokens, impossible

    def _select(self, indices: Sequence[int]) -> tuple[State, Tensor | None]:
        """Return the state and the logits of some rows; the state only if there are no logits."""
        if len(indices) == len(self.rows):
            return self.state, self.logits
        index = torch.tensor(indices, device=self.excluded.device)
        if self.logits is not None:
            return (), self.logits[index]
        return select_state(self.state, index), None

    def read(self) -> None:
        """Let the model read the tokens that were drawn."""
        if self.unread is None or not self.rows:
            return
        if self.drawing is None:
            self.logits, self.state = self.model.step(self.unread, self.state)
        else:
            self.state = self.drawing.advance(self.unread.unsqueeze(1), self.state)
        self.unread = None


class Drawn(NamedTuple):
    """One more token of every row."""

    tokens: list[int | None]  # None where a row has ended
    logits: Tensor | None  # for the tokens after them (batch, vocabulary); None: `DrawsNext.next_logits` has them
    state: State  # after them


@torch.inference_mode()
def read(model: TextModel, tokens: Tensor, state: State) -> tuple[Tensor, State]:
    """Read tokens ``(batch, time)``, at least one, in windows, and return the last logits and the state."""
    *windows, last = torch.split(tokens, WINDOW, dim=1)
    for window in windows:
        state = model.advance(window, state)
    return model.read(last, state)


@torch.inference_mode()
def sample(
    model: NextToken,
    logits: Tensor,
    state: State,
    sampling: Sampling,
    *,
    max_tokens: int,
    seeds: Sequence[int],
    stop: int | None = None,
    banned: Sequence[int] = (),
    biases: Mapping[int, float] | None = None,
    read_before: Sequence[int] = (),
) -> Iterator[Drawn]:
    """Draw tokens for every row of a batch, each row with its own random generator, until all have ended.

    Args:
        model: in evaluation mode.
        logits: of the first token to draw ``(batch, vocabulary)``; not used if the model draws from its state.
        state: that goes with them.
        sampling: how to draw.
        max_tokens: largest number of tokens of a row.
        seeds: one a row; the tokens of a row depend on its own seed only.
        stop: the token that ends a row and is not returned; None for rows without end.
        banned: tokens that are never drawn.
        biases: numbers that are added to the logits of tokens.
        read_before: the tokens of the text so far, for the repetition penalty; the same for all rows.

    Warns:
        UserWarning: a row ended because every token that may follow has probability 0.
    """
    batch = TextBatch(model, logits.device, stop=stop, banned=banned)
    requests = [TextRequest((), seed, max_tokens, sampling, biases or {}, read_before=read_before) for seed in seeds]
    batch.add([TextRow(request, logits.device) for request in requests], [state], [logits])

    # Rows that have ended stay: without compiled steps, a smaller batch would round differently.
    for _ in range(max_tokens):
        drawn = batch.draw()
        for row, ended in zip(batch.rows, drawn.has_ended, strict=True):
            row.has_ended |= ended
        if all(row.has_ended for row in batch.rows):
            return
        batch.read()
        tokens = [None if row.has_ended else token for row, token in zip(batch.rows, drawn.tokens, strict=True)]
        yield Drawn(tokens, batch.logits, batch.state)


def draw_from_logits(
    model: NextToken, sampling: Sampling, logits: Tensor, excluded: Tensor, uniform: Tensor
) -> tuple[Tensor, Tensor]:
    """Draw a token of each row.

    Args:
        model: that gave the logits.
        sampling: how to draw.
        logits: of the tokens ``(batch, vocabulary)``, to which penalties and biases have been added.
        excluded: tokens that are never drawn.
        uniform: a random number of each row ``(batch,)``, as `uniform_numbers` returns them.

    Returns:
        Tokens ``(batch,)``; and for which rows no token can follow, so that the one returned is meaningless.

    Raises:
        NotFiniteError: a logit is NaN or +∞, or a network finds every token impossible.
    """
    given = logits
    if logits.dtype.itemsize < 4:
        logits = logits.float()
    if len(excluded):
        logits = logits.index_fill(1, excluded, -math.inf)
    peak = logits.amax(1, keepdim=True)  # NaN if any logit is
    impossible = (peak == -math.inf).squeeze(1)

    # An n-gram model may give every token the probability 0. Anywhere else that is a failure, as NaN and +∞ are.
    if not math.isfinite(peak.sum().item()):
        has_failed = ~(peak.squeeze(1) < math.inf)
        if not gives_log_probabilities(model):
            has_failed |= given.amax(1) == -math.inf
        if bool(has_failed.any()):
            raise NotFiniteError
        logits, peak = (values.masked_fill(impossible.unsqueeze(1), 0.0) for values in (logits, peak))
    return draw(sampling, logits, peak, uniform), impossible


def uniform_numbers(generators: Sequence[torch.Generator]) -> Tensor:
    """Return one number of each generator ``(generators,)``, in float64, at least 0 and below 1."""
    return torch.cat([torch.rand(1, dtype=torch.float64, generator=generator) for generator in generators])


class CandidateScore(NamedTuple):
    """A token of a text, with natural logarithms of probabilities.

    They are those of the model itself: before temperature, filters, penalties and biases.
    """

    log_probability: float
    alternatives: tuple[tuple[int, float], ...]  # the most likely tokens, the first one first


def score_tokens(
    model: TextModel, logits: Tensor, tokens: Sequence[int], num_alternatives: int
) -> list[CandidateScore]:
    """Score a token for each row of the model's logits ``(rows, vocabulary)``."""
    if not len(tokens):
        return []
    scores = token_log_probabilities(model, logits)
    chosen = scores.gather(1, torch.tensor(tokens, device=scores.device).unsqueeze(1)).squeeze(1).tolist()
    values, ids = scores.topk(min(num_alternatives, scores.shape[1]), dim=1)
    return [
        CandidateScore(score, tuple(zip(row_ids, row_values, strict=True)))
        for score, row_ids, row_values in zip(chosen, ids.tolist(), values.tolist(), strict=True)
    ]


class StopStrings:
    """Passes a text on, chunk by chunk, up to the stop string that is complete first.

    A chunk may end within a stop string. The longest end of the text that begins a stop string is therefore withheld
    until more text shows whether the string is completed. Of stop strings that are complete at the same character, the
    longest counts. How the text is divided into chunks makes no difference.

    Attributes:
        has_ended: whether a stop string is complete; text after it is dropped.
    """

    def __init__(self, strings: Sequence[str]) -> None:
        self.strings, self.withheld, self.has_ended = tuple(strings), "", False

    def feed(self, chunk: str) -> str:
        """Return the text that this chunk releases."""
        if self.has_ended or not self.strings:
            return "" if self.has_ended else chunk
        text = self.withheld + chunk
        found = [(start + len(stop), start) for stop in self.strings if (start := text.find(stop)) >= 0]
        if found:
            self.has_ended, self.withheld = True, ""
            return text[: min(found)[1]]

        # The longest end of the text that begins a stop string is withheld; the empty end always does.
        longest = max(map(len, self.strings)) - 1
        ends = (text[start:] for start in range(max(0, len(text) - longest), len(text) + 1))
        self.withheld = next(end for end in ends if any(stop.startswith(end) for stop in self.strings))
        return text[: len(text) - len(self.withheld)]

    def finish(self) -> str:
        """Return the text that was withheld, at the end of the text."""
        text, self.withheld = self.withheld, ""
        return text


def check_stop_strings(strings: object) -> tuple[str, ...]:
    """Return stop strings as a tuple; raise InputError for anything but a list of texts that are not empty."""
    stops = tuple(iterate_items(strings, "stop"))
    for stop in stops:
        check_text(stop, "stop")
        if not stop:
            raise RangeError("stop: a stop string is empty; give at least one character, or leave it out")
    return stops

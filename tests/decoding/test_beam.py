"""Beam search: against brute force, against greedy search, one row at a time."""

import itertools
import math

import pytest
import torch
from torch import Tensor

import seriatim
from seriatim.core.state import State, select_state
from seriatim.decoding.beam import Beam, Hypothesis, beam_search, best
from seriatim.decoding.ensemble import EncoderDecoders
from seriatim.models import LanguageModel
from seriatim.recurrence import uncompiled

from ..models.test_ngram import model as counted
from ..models.test_ngram import text
from ..refusals import refused

ROWS = 5


def model(vocabulary: int, seed: int = 0, name: str = "gru") -> LanguageModel:
    torch.manual_seed(seed)
    made = LanguageModel(seriatim.layer(name, 6, 6), vocabulary).double().eval()
    torch.nn.init.normal_(made.output.weight)
    return made


def states(made, rows: int = ROWS) -> State:
    """Rows that differ: each has read a text of its own."""
    torch.manual_seed(9)
    tokens = torch.randint(0, made.vocabulary_size, (rows, 3))
    with torch.no_grad():
        return made(tokens, made.initial_state(rows))[1]


def row_of(state: State, row: int) -> State:
    return select_state(state, torch.tensor([row]))


@torch.no_grad()
def every_sequence(made, state: State, *, longest: int, shortest: int, alpha: float, banned=()) -> list[Hypothesis]:
    """All sequences of one row, the best first, each scored by itself."""
    found: list[Hypothesis] = []
    allowed = [token for token in range(1, made.vocabulary_size) if token not in banned]
    for length in range(shortest, longest + 1):
        for tokens in itertools.product(allowed, repeat=length):
            with uncompiled():
                logits, _ = made(torch.tensor([[0, *tokens]]), state)
            log_p = torch.log_softmax(logits[0], 1)
            total = sum(float(log_p[i, token]) for i, token in enumerate([*tokens, 0]))
            found.append(Hypothesis(tokens, total / ((6 + length) / 6) ** alpha, total))
    return sorted(found, key=lambda one: -one.score)


def assert_same(ours: list[Hypothesis], theirs: list[Hypothesis]) -> None:
    assert [one.tokens for one in ours] == [one.tokens for one in theirs]
    for a, b in zip(ours, theirs, strict=True):
        assert a.score == pytest.approx(b.score, abs=1e-10)
        assert a.log_probability == pytest.approx(b.log_probability, abs=1e-10)


@pytest.mark.parametrize("shortest", [0, 2])
@pytest.mark.parametrize("alpha", [0.0, pytest.param(0.6, marks=pytest.mark.exhaustive), 3.0])
@pytest.mark.parametrize("banned", [(), (2,)])
def test_a_beam_as_wide_as_there_are_sequences_finds_the_best(alpha: float, shortest: int, banned) -> None:
    made = model(4)
    state, size = states(made), 4 - len(banned)
    for longest in (shortest, 3, 4):
        width = sum((size - 1) ** length for length in range(longest + 1))
        options = {"length_penalty": alpha, "min_length": shortest, "banned": banned}
        n_best = min(3, width)
        found = beam_search(made, state, Beam(width, n_best=n_best, **options), max_length=longest)
        for row in range(ROWS):
            theirs = every_sequence(
                made, row_of(state, row), longest=longest, shortest=shortest, alpha=alpha, banned=banned
            )
            assert_same(found[row], theirs[:n_best])


@pytest.mark.filterwarnings("ignore:too few")
@pytest.mark.parametrize("alpha", [0.0, pytest.param(0.6, marks=pytest.mark.exhaustive), 3.0])
@pytest.mark.parametrize("order", [1, 3, *(pytest.param(n, marks=pytest.mark.exhaustive) for n in (2, 5))])
def test_over_an_ngram_model_too(order: int, alpha: float) -> None:
    """Sequences may be as likely there as others; whichever of them are found, none is better."""
    made = counted(text(300), order)
    state = states(made)
    for shortest, longest, banned in ((0, 3, ()), (2, 3, (4,)), (1, 4, (1, 3))):
        size = made.vocabulary_size - 1 - len(banned)
        width = sum(size**length for length in range(longest + 1))
        beam = Beam(width, n_best=9, length_penalty=alpha, min_length=shortest, banned=banned)
        found = beam_search(made, state, beam, max_length=longest)
        for row in range(ROWS):
            expected = every_sequence(
                made, row_of(state, row), longest=longest, shortest=shortest, alpha=alpha, banned=banned
            )
            scores = {one.tokens: one.score for one in expected}
            assert [one.score for one in found[row]] == pytest.approx([one.score for one in expected[:9]])
            assert [one.score for one in found[row]] == pytest.approx([scores[one.tokens] for one in found[row]])
            assert len({one.tokens for one in found[row]}) == 9


@torch.no_grad()
def plain(made, state: State, *, width: int, longest: int, alpha: float, shortest: int) -> list[Hypothesis]:
    """The definition, for one row, hypothesis by hypothesis, without stopping early."""
    live, ended = [((), 0.0, made.step(torch.tensor([0]), state))], []
    while live:
        options = []
        for tokens, total, (logits, kept) in live:
            for token, log_p in enumerate(torch.log_softmax(logits[0], 0).tolist()):
                ends, long = token == 0, len(tokens) == longest
                if ends if len(tokens) < shortest else long and not ends:
                    continue
                options.append((total + log_p, tokens, token, kept))
        options = sorted(options, key=lambda option: -option[0])[: width - len(ended)]
        live = []
        for total, tokens, token, kept in options:
            if token == 0:
                ended.append(Hypothesis(tokens, total / ((6 + len(tokens)) / 6) ** alpha, total))
            else:
                live.append(((*tokens, token), total, made.step(torch.tensor([token]), kept)))
    return sorted(ended, key=lambda one: -one.score)


@pytest.mark.parametrize("name", ["gru", "transformer", pytest.param("lstm", marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("alpha", [0.0, 1.0])
@pytest.mark.parametrize("width", [1, 2, 5])
def test_agrees_with_the_definition_and_stopping_early_loses_nothing(name: str, alpha: float, width: int) -> None:
    made = model(7, seed=width, name=name)
    state = states(made, 6)
    for shortest, n_best in ((0, 1), (3, width)):
        beam = Beam(width, length_penalty=alpha, min_length=shortest, n_best=n_best)
        found = beam_search(made, state, beam, max_length=8)
        for row in range(6):
            with uncompiled():
                theirs = plain(made, row_of(state, row), width=width, longest=8, alpha=alpha, shortest=shortest)
            assert_same(found[row], theirs[:n_best])


@pytest.mark.exhaustive
@pytest.mark.parametrize("alpha", [0.0, 2.0])
def test_a_beam_of_one_is_greedy_search(alpha: float) -> None:
    made = model(6)
    state = states(made, 10)
    found = beam_search(made, state, Beam(1, length_penalty=alpha), max_length=10)
    for row in range(10):
        tokens, kept, last = [], row_of(state, row), torch.tensor([0])
        with torch.no_grad():
            while len(tokens) < 10:
                logits, kept = made.step(last, kept)
                last = logits.argmax(1)
                if int(last) == 0:
                    break
                tokens.append(int(last))
        assert found[row][0].tokens == tuple(tokens)


def test_a_batch_gives_what_its_rows_give_alone_each_with_its_own_longest() -> None:
    made = model(9)
    state, longest = states(made, 8), torch.tensor([0, 1, 2, 3, 20, 20, 5, 1])
    beam = Beam(4, length_penalty=0.8, n_best=3, min_length=1)
    whole = beam_search(made, state, beam, max_length=longest)
    for row in range(8):
        (alone,) = beam_search(made, row_of(state, row), beam, max_length=longest[row : row + 1])
        assert_same(whole[row], alone)
        assert all(len(one.tokens) <= longest[row] for one in alone)
    assert whole[0] == [Hypothesis((), whole[0][0].score, whole[0][0].log_probability)]
    assert beam_search(made, select_state(state, torch.tensor([], dtype=torch.long)), Beam(4), max_length=3) == []


class Table:
    """A model whose state is a memory that does not change and a count; it notes how rows came to their memory."""

    def __init__(self, vocabulary: int) -> None:
        self.vocabulary, self.memories = vocabulary, []

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        memory, count = state
        self.memories.append(memory)
        assert (memory[:, :1] == memory).all()
        seeds = (memory[:, 0] * 31 + count * 7 + tokens).unsqueeze(1) * torch.arange(1, self.vocabulary + 1)
        return torch.sin(seeds.double()) * 3, (memory, count + 1)


def test_a_memory_is_not_copied_while_the_hypotheses_of_a_row_change_places() -> None:
    """And each row keeps its own when others leave."""
    memory = torch.arange(6).unsqueeze(1).expand(6, 4).contiguous()
    made = Table(11)
    whole = beam_search(made, (memory, torch.zeros(6).long()), Beam(3, min_length=12), max_length=30)
    again = [
        beam_search(made, (memory[i : i + 1], torch.zeros(1).long()), Beam(3, min_length=12), max_length=30)
        for i in range(6)
    ]
    assert whole == [found for (found,) in again]
    kept = made.memories[1:12]
    assert all(one is kept[0] for one in kept)


def test_equal_hypotheses_come_in_order_of_their_tokens() -> None:
    class Even:
        def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
            return torch.zeros(len(tokens), 3), state

    (found,) = beam_search(Even(), torch.zeros(1), Beam(15, n_best=15), max_length=3)
    assert [one.tokens for one in found[:7]] == [(), (1,), (2,), (1, 1), (1, 2), (2, 1), (2, 2)]
    (narrow,) = beam_search(Even(), torch.zeros(1), Beam(2, n_best=2), max_length=3)
    assert [one.tokens for one in narrow] == [(), (1,)]


@pytest.mark.parametrize(("size", "kinds"), [(10, 4), (128, 20), (1000, 30), (1000, 10**6)])
def test_the_greatest_values_come_first_and_of_equal_ones_the_first(size: int, kinds: int) -> None:
    torch.manual_seed(0)
    values = torch.randint(0, kinds, (50, size)).double()
    values[:10] = -math.inf
    values[:5, 7] = 1.0
    for count in (1, 3, 10):
        top, places = best(values, count)
        expected = values.sort(dim=1, descending=True, stable=True)
        torch.testing.assert_close(top, expected.values[:, :count])
        finite = top.isfinite()
        assert torch.equal(places[finite], expected.indices[:, :count][finite])


def test_an_ensemble_averages_probabilities() -> None:
    one, two = model(5, seed=1), model(5, seed=2, name="window")
    both, tokens = EncoderDecoders([one, two]), torch.tensor([[1, 2, 3], [0, 4, 4]])
    with torch.no_grad():
        expected = sum(torch.softmax(made(tokens)[0], 2) for made in (one, two)) / 2
        state: State = (one.initial_state(2), two.initial_state(2))
        for t in range(3):
            step, state = both.step(tokens[:, t], state)
            torch.testing.assert_close(step.exp(), expected[:, t])
    same, beam = EncoderDecoders([one, one, one]), Beam(3, n_best=3)
    for ours, theirs in zip(
        beam_search(same, (one.initial_state(2),) * 3, beam, max_length=6),
        beam_search(one, one.initial_state(2), beam, max_length=6),
        strict=True,
    ):
        assert_same(ours, theirs)


@pytest.mark.parametrize(
    ("options", "kind", "place"),
    [
        ({"width": 0}, "range", "beam"),
        ({"width": 100_000}, "range", "beam"),
        ({"width": 1.5}, "range", "beam"),
        ({"n_best": 3}, "range", "n_best"),
        ({"length_penalty": -1.0}, "range", "length_penalty"),
        ({"length_penalty": math.nan}, "range", "length_penalty"),
        ({"length_penalty": 1e308}, "range", "length_penalty"),
        ({"length_penalty": True}, "range", "length_penalty"),
        ({"min_length": -1}, "range", "min_length"),
        ({"min_length": 5}, "conflict", "min_length"),
        ({"max_length": -1}, "range", "max_length"),
        ({"banned": (0,)}, "range", "banned"),
    ],
)
def test_values_outside_their_range_are_refused(options: dict, kind: str, place: str) -> None:
    made, settings = model(4), {"width": 2, "max_length": 4, **options}
    max_length = settings.pop("max_length")
    with refused(kind, place):
        beam_search(made, made.initial_state(1), Beam(**settings), max_length=max_length)

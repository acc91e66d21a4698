"""N-grams: counts against counting by hand, probabilities that add up, the contract, ARPA files, another library."""

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from seriatim.core.state import state_leaves
from seriatim.counting.ngram import NGram, UnigramCache
from seriatim.counting.ngrams import table
from seriatim.counting.ngrams.counts import Level, Unigrams, count_ngrams
from seriatim.counting.ngrams.resources import ArrayAllocator
from seriatim.counting.ngrams.smoothing import Smoothing, smoothed
from seriatim.counting.ngrams.table import orders_of
from seriatim.models.mixture import Mixture, fit_weights

pytestmark = pytest.mark.filterwarnings("ignore:too few")
SMOOTHINGS = ("kneser-ney", "absolute", "witten-bell", "add-k")
TEXTS = st.lists(st.integers(0, 4), min_size=1, max_size=60).map(lambda ids: np.array(ids, dtype=np.int32))
V = 5
USUAL = Smoothing()


def model(ids: np.ndarray, order: int, how: Smoothing = USUAL) -> NGram:
    return NGram(orders_of(smoothed(count_ngrams(ids, order, V), V, how)))


def text(tokens: int, seed: int = 0) -> np.ndarray:
    """Tokens of which some go together."""
    generator = np.random.default_rng(seed)
    ids = [0]
    while len(ids) <= tokens:
        ids.append(int((ids[-1] * 2 + generator.integers(0, 3)) % V))
    return np.array([*ids[1:tokens], 0], dtype=np.int32)


def read(level: Unigrams | Level) -> dict[str, np.ndarray]:
    """All n-grams of an order."""
    blocks = level.blocks
    assert [block.grams.start for block in blocks] == [0, *(block.grams.stop for block in blocks[:-1])]
    found = {
        name: np.concatenate([getattr(level, name)(block) for block in blocks])
        for name in ("contexts", "words", "counts")
    }
    return found | {"suffix": level.suffix, "starts": np.arange(level.size) < level.starting}


def by_hand(ids: list[int], order: int) -> list[Counter[tuple[int, ...]]]:
    whole, found = [0, *ids], [Counter[tuple[int, ...]]() for _ in range(order)]
    for n in range(1, order + 1):
        for start in range(len(whole) - n + 1):
            words = tuple(whole[start : start + n])
            if 0 not in words[1:-1] and not (n == 1 and start == 0):
                found[n - 1][words] += 1
    return found


@settings(max_examples=60, deadline=None)
@given(TEXTS, st.integers(1, 7), st.sampled_from([V, 1 << 17]))
def test_counts_are_those_of_counting_by_hand(ids: np.ndarray, order: int, size: int) -> None:
    """Also where an integer holds few words."""
    expected, before = by_hand(ids.tolist(), order), [()]
    for n, level in enumerate(count_ngrams(ids, order, size), 1):
        grams = read(level)
        pairs = zip(grams["contexts"].tolist(), grams["words"].tolist(), strict=True)
        words = [before[context] * (n > 1) + (word,) for context, word in pairs]
        assert words == sorted(words)
        counts = zip(words, grams["counts"].tolist(), strict=True)
        assert {key: count for key, count in counts if count} == expected[n - 1]
        if n > 1:
            assert [before[suffix] for suffix in level.suffix.tolist()] == [key[1:] for key in words]
            assert [i < level.starting for i in range(level.size)] == [key[0] == 0 for key in words]
        before = words


@settings(max_examples=60, deadline=None)
@given(TEXTS, st.integers(1, 7), st.sampled_from([1, 2, 7, 64]))
def test_parts_and_files_give_the_same_counts(ids: np.ndarray, order: int, part: int) -> None:
    whole = count_ngrams(ids, order, V)
    for level, again in zip(
        whole, count_ngrams(ids, order, V, arrays=ArrayAllocator(64), chunk_size=part), strict=True
    ):
        expected, found = read(level), read(again)
        assert all(np.array_equal(expected[name], found[name]) for name in expected)


@pytest.mark.parametrize("block", [1, 2, 7])
@pytest.mark.parametrize("prune", [(0,), (0, 1, 1, 2)])
def test_blocks_of_any_size_give_the_same_bits(block: int, prune: tuple[int, ...], monkeypatch) -> None:
    for ids in (text(1), text(2), text(300), text(900, seed=4)):
        whole = list(orders_of(smoothed(count_ngrams(ids, 5, V), V, Smoothing(prune=prune))))
        with monkeypatch.context() as patched:
            patched.setattr("seriatim.counting.ngrams.counts.BLOCK_SIZE", block)
            patched.setattr("seriatim.counting.ngrams.smoothing.BLOCK_SIZE", block)
            again = orders_of(smoothed(count_ngrams(ids, 5, V), V, Smoothing(prune=prune)))
        for order, other in zip(whole, again, strict=True):
            assert all(map(np.array_equal, order, other))


def test_arrays_beyond_a_limit_lie_in_files() -> None:
    arrays = ArrayAllocator(1000)
    first, second = arrays.empty(100, np.int64), arrays.empty(100, np.int64)
    assert (isinstance(first, np.memmap), isinstance(second, np.memmap)) == (False, True)
    second[:] = np.arange(100)
    assert second.sum() == 4950
    del first
    assert not isinstance(arrays.empty(125, np.int64), np.memmap)


@settings(max_examples=40, deadline=None)
@given(TEXTS, st.integers(1, 5), st.sampled_from(SMOOTHINGS), st.sampled_from([(0,), (0, 0, 1), (0, 1, 1, 2)]))
def test_probabilities_add_up_to_one(ids: np.ndarray, order: int, name: str, prune: tuple[int, ...]) -> None:
    made = model(ids, order, Smoothing(name, k=0.3, prune=prune))
    contexts = torch.from_numpy(np.random.default_rng(0).integers(0, V, (30, max(1, order - 1) + 1)))
    logits, _ = made(contexts)
    torch.testing.assert_close(logits.double().exp().sum(2), torch.ones(contexts.shape).double(), rtol=0, atol=1e-6)
    found = made.table.distributions(contexts.numpy())
    assert np.abs(found.sum(1) - 1).max() < 1e-9
    assert (found >= 0).all()


@settings(max_examples=60, deadline=None)
@given(TEXTS, st.integers(1, 4), st.sampled_from([*SMOOTHINGS, "maximum-likelihood", "stupid-backoff"]), st.data())
def test_draws_follow_the_distribution(ids: np.ndarray, order: int, name: str, data: st.DataObject) -> None:
    """Uniform numbers at equal distances fall into the intervals of the words."""
    made, banned = model(ids, order, Smoothing(name, k=0.3)), data.draw(st.lists(st.integers(0, V - 1), max_size=2))
    context = np.array([data.draw(st.lists(st.integers(-1, V - 1), min_size=3, max_size=3))])
    expected = made.table.distributions(context)[0]
    expected[banned] = 0
    uniform, rows = (np.arange(1000) + 0.5) / 1000, context.repeat(1000, 0)
    found = made.table.draw_next(rows, uniform, banned)
    if expected.sum() < 1e-9:
        assert expected.any() or (found == -1).all()
        return
    counts = np.bincount(found[found >= 0], minlength=V)
    assert (found < 0).sum() <= 1
    np.testing.assert_allclose(counts / 1000, expected / expected.sum(), atol=0.005)
    assert not counts[expected == 0].any()
    assert (made.table.draw_next(rows[:40], uniform[::25], banned) == found[::25]).all()


def test_draws_of_many_words_need_no_logits() -> None:
    """A vocabulary that is large enough; the logits are NaN."""
    from seriatim.decoding.sampling import MANY, Sampling, sample

    ids = np.concatenate([np.random.default_rng(0).integers(2, MANY, 9000), [0]]).astype(np.int32)
    made = NGram(orders_of(smoothed(count_ngrams(ids, 3, MANY), MANY, USUAL)))
    state, nothing = made.initial_state(3), torch.full((3, MANY), torch.nan)
    drawn = list(sample(made, nothing, state, Sampling(), max_tokens=20, seeds=range(3), banned=(0, 1)))
    assert len(drawn) == 20
    assert made.next_logits(drawn[3].state).equal(made.step(torch.tensor(drawn[3].tokens), drawn[2].state)[0])
    assert not {0, 1} & {token for step in drawn for token in step.tokens}
    alone = sample(made, nothing[:1], state[:1], Sampling(), max_tokens=20, seeds=[1], banned=(0, 1))
    assert [step.tokens[0] for step in alone] == [step.tokens[1] for step in drawn]


def test_maximum_likelihood_is_relative_frequency() -> None:
    ids = text(400)
    made, counts = model(ids, 3, Smoothing("maximum-likelihood")), by_hand(ids.tolist(), 3)
    for words, count in counts[2].items():
        found = made.table.distributions(np.array([words[:2]]))[0][words[2]]
        total = sum(other for key, other in counts[2].items() if key[:2] == words[:2])
        assert found == pytest.approx(count / total)


def test_stupid_backoff_takes_the_order_below() -> None:
    """Relative frequencies; 0.4 of the order below where there are none."""
    ids = text(60, seed=3)
    made, counts = model(ids, 2, Smoothing("stupid-backoff")), by_hand(ids.tolist(), 2)
    found = made.table.distributions(np.array([[3]]))[0]
    total = sum(count for key, count in counts[1].items() if key[0] == 3)
    for word in range(V):
        below = counts[0][(word,)] / len(ids)
        assert found[word] == pytest.approx(counts[1][3, word] / total if counts[1][3, word] else 0.4 * below)


def test_a_closed_vocabulary_gives_the_unknown_word_nothing() -> None:
    ids = np.array([1, 2, 1, 3, 0], dtype=np.int32)
    for closed in (False, True):
        pieces = smoothed(count_ngrams(ids, 2, V), V, Smoothing(closed=closed), unknown=4)
        found = NGram(orders_of(pieces)).table.distributions(np.array([[2]]))[0]
        assert (found[4] == 0) == closed
        assert found.sum() == pytest.approx(1)


TEXT_MODELS = {
    "ngram": lambda: model(text(300), 4),
    "unigram": lambda: model(text(300), 1),
    "cache": lambda: UnigramCache(V, 3),
    "mixture": lambda: Mixture([model(text(300), 3), UnigramCache(V, 4)], [0.7, 0.3]),
}


@pytest.mark.parametrize("name", TEXT_MODELS)
def test_the_contract(name: str) -> None:
    """Splitting changes nothing, steps equal a call, padding and other rows do not matter, the state is not changed."""
    made, tokens = TEXT_MODELS[name](), torch.randint(0, V, (3, 9), generator=torch.Generator().manual_seed(1))
    targets = tokens.roll(-1, 1)
    whole, end = made(tokens)
    losses, _ = made.token_losses(tokens, targets)
    gathered = -torch.log_softmax(whole.double(), 2).gather(2, targets.unsqueeze(2)).squeeze(2)
    torch.testing.assert_close(losses.double(), gathered, rtol=1e-5, atol=1e-5)
    for cut in (1, 4, 8):
        first, state = made(tokens[:, :cut])
        kept = [leaf.clone() for leaf in state_leaves(state)]
        second, again = made(tokens[:, cut:], state)
        torch.testing.assert_close(torch.cat([first, second], 1), whole)
        assert all(map(torch.equal, kept, state_leaves(state)))
        assert all(map(torch.equal, state_leaves(again), state_leaves(end)))
    state, stepped = made.initial_state(3), []
    for t in range(9):
        logits, state = made.step(tokens[:, t], state)
        stepped.append(logits)
    torch.testing.assert_close(torch.stack(stepped, 1), whole)
    lengths = torch.tensor([9, 0, 5])
    some, ended = made(tokens, lengths=lengths)
    torch.testing.assert_close(some[2, :5], whole[2, :5])
    alone = made(tokens[2:, :5])[1]
    rows = [leaf[2:] for leaf in state_leaves(ended)]
    assert all(map(torch.equal, rows, state_leaves(alone)))
    assert made.token_losses(tokens, targets, lengths=lengths)[0][1].eq(0).all()


def test_a_whole_text_as_its_windows() -> None:
    ids, made = text(500), model(text(300), 4)
    whole = made.text_losses(ids)
    inputs = torch.from_numpy(np.concatenate([[0], ids[:-1]]).astype(np.int64))
    losses, _ = made.token_losses(inputs.unsqueeze(0), torch.from_numpy(ids.astype(np.int64)).unsqueeze(0))
    torch.testing.assert_close(torch.from_numpy(whole), losses[0])


@pytest.mark.parametrize("order", [1, 2, 3, 5])
@pytest.mark.parametrize("tokens", [0, 1, 2, 40, 1000])
def test_compiled_code_looks_up_the_same(order: int, tokens: int, monkeypatch) -> None:
    made, ids = model(text(300), order), text(tokens + 1)[:tokens].astype(np.int64)
    ids[::7] = -1  # no token
    indices, log_probabilities = made.table.look_up(ids)
    assert (log_probabilities[ids < 0] == 0).all()
    monkeypatch.setattr(table, "typed_library", lambda *_, **__: None)
    as_arrays = made.table.look_up(ids) if tokens else (np.empty((order, 0)), np.empty(0))
    np.testing.assert_array_equal(indices, as_arrays[0])
    after = np.flatnonzero(ids[1:] >= 0) + 1
    np.testing.assert_allclose(log_probabilities[after], as_arrays[1][after], rtol=1e-14)


def test_weights_of_a_mixture_rise_the_likelihood() -> None:
    ids = text(400, seed=5)
    losses = np.stack([model(text(300), order).text_losses(ids) for order in (1, 2, 4)])
    found = fit_weights(losses)

    def loss(weights: list[float]) -> float:
        return float(-np.log(np.array(weights) @ np.exp(-losses)).mean())

    assert sum(found) == pytest.approx(1)
    assert loss(found) <= min(loss([1 / 3] * 3), *(float(part.mean()) for part in losses)) + 1e-5
    for i in range(3):  # no other share is better
        for step in (-1e-3, 1e-3):
            moved = np.clip(np.array(found) + step * np.eye(3)[i], 0, 1)
            assert loss((moved / moved.sum()).tolist()) >= loss(found) - 1e-5
    impossible = np.full((3, 5), np.inf)
    assert fit_weights(np.concatenate([losses, impossible], axis=1)) == found
    assert fit_weights(impossible) == [1 / 3] * 3


def test_discounts_that_counts_do_not_give_are_said() -> None:
    with pytest.warns(UserWarning, match="too few n-grams of order 1, 2 .*; 0.5, 1.0, 1.5 used instead"):
        model(np.array([1, 2, 0], dtype=np.int32), 2)


@pytest.mark.parametrize("name", SMOOTHINGS)
def test_longer_contexts_say_more(name: str) -> None:
    """On other text of the same kind a bigram is better than a unigram, which is better than every word alike."""
    ids, other = text(3000), text(500, seed=9)
    found = [model(ids, order, Smoothing(name)).text_losses(other).mean() for order in (1, 2)]
    assert found[1] < found[0] - 0.2 < np.log(V)


def test_kneser_ney_by_its_definition() -> None:
    """Every probability of a small model by the formula of Chen & Goodman, from counts made by hand."""
    ids = text(900, seed=4)
    made, counts = model(ids, 2), by_hand(ids.tolist(), 2)
    pairs, before = counts[1], Counter(key[1] for key in counts[1])

    def taken(values: list[int]) -> list[float]:
        t = [sum(value == i for value in values) for i in range(5)]
        if 0 in t[1:]:
            return [0, 0.5, 1.0, 1.5]
        y = t[1] / (t[1] + 2 * t[2])
        found = [i - (i + 1) * y * t[i + 1] / t[i] for i in (1, 2, 3)]
        return [0, *found] if all(0 <= d <= i for i, d in enumerate(found, 1)) else [0, 0.5, 1.0, 1.5]

    def smooth(own: dict[int, int], discounts: list[float], below: list[float]) -> list[float]:
        total, left = sum(own.values()), sum(discounts[min(count, 3)] for count in own.values())
        return [(own.get(w, 0) - discounts[min(own.get(w, 0), 3)]) / total + left / total * below[w] for w in range(V)]

    unigrams = smooth(dict(before), taken([before.get(w, 0) for w in range(V)]), [1 / V] * V)
    for first in range(V):
        follow = {key[1]: count for key, count in pairs.items() if key[0] == first}
        expected = smooth(follow, taken(list(pairs.values())), unigrams) if follow else unigrams
        np.testing.assert_allclose(made.table.distributions(np.array([[first]]))[0], expected, rtol=1e-12)

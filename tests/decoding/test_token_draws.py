"""Draws follow the reference distribution, and rows do not depend on each other."""

import dataclasses

import pytest
import torch

from seriatim.decoding import token_draws
from seriatim.decoding.sampling import Sampling, sample
from seriatim.decoding.token_draws import NUM_CANDIDATES, Penalties, draw, largest

from ..refusals import refused

DRAWS = 1000
SETTINGS = [
    {},
    {"temperature": 0.6},
    {"temperature": 3.0},
    {"top_k": 1},
    {"top_k": 20},
    {"top_k": 700},
    {"top_p": 0.5},
    {"top_p": 0.97},
    {"top_p": 1.0},
    {"min_p": 0.1},
    {"min_p": 1e-4},
    {"min_p": 1.0},
    {"typical": 0.3},
    {"typical": 0.95},
    {"typical": 1.0},
    {"top_k": 50, "top_p": 0.8, "min_p": 0.02, "typical": 0.7, "temperature": 1.3},
    {"top_p": 0.9, "min_p": 0.01},
    {"top_p": 0.99, "min_p": 1e-5, "temperature": 2.0},
    {"top_p": 0.9, "typical": 0.5},
    {"min_p": 1e-3, "typical": 0.8, "temperature": 2.0},
    {"top_p": 0.98, "min_p": 1e-6, "typical": 0.9, "temperature": 3.0},
]


def some_logits(vocabulary: int, spread: float = 2.5) -> torch.Tensor:
    generator = torch.Generator().manual_seed(vocabulary)
    logits = spread * torch.randn(1, vocabulary, generator=generator)
    logits[0, torch.randperm(vocabulary, generator=generator)[: vocabulary // 10]] = -torch.inf
    return logits


def draws(sampling: Sampling, logits: torch.Tensor, seed: int = 0) -> torch.Tensor:
    """Tokens drawn from one row of logits, a hundred rows at a time."""
    uniform = torch.rand(DRAWS, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    rows = logits.expand(100, -1)
    peak = rows.amax(1, keepdim=True)
    return torch.cat([draw(sampling, rows, peak, part) for part in uniform.split(100)])


def chi_squared(tokens: torch.Tensor, probabilities: torch.Tensor) -> float:
    """The statistic over groups of tokens with about equal probabilities, in standard deviations."""
    order = probabilities.argsort(descending=True)
    groups = (probabilities[order].cumsum(0) * 40).floor().clamp(max=39).long()
    group_of = torch.empty_like(groups).scatter_(0, order, groups)
    expected = DRAWS * torch.zeros(40).double().scatter_add_(0, group_of, probabilities)
    counts = torch.bincount(group_of[tokens], minlength=40)
    used = expected > 5
    if int(used.sum()) < 2:
        return 0.0
    statistic = ((counts - expected)[used] ** 2 / expected[used]).sum()
    freedom = int(used.sum()) - 1
    return float((statistic - freedom) / (2 * freedom) ** 0.5)


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("vocabulary", [7, 1100])
def test_draws_follow_the_reference(vocabulary: int, settings: dict) -> None:
    sampling, logits = Sampling(**settings), some_logits(vocabulary)
    probabilities = sampling.distribution(logits)[0]
    tokens = draws(sampling, logits)
    assert (probabilities[tokens] > 0).all()
    assert chi_squared(tokens, probabilities) < 5


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("spread", [0.0, 0.01, 1.0, 10.0])
def test_a_token_is_drawn_from_the_probabilities_of_the_reference(
    spread: float, settings: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn_from = {}

    def pick_of(tokens: torch.Tensor, weights: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
        drawn_from["now"] = torch.zeros(1, 3001).double().scatter_(1, tokens, weights.double())
        return tokens[:, 0]

    monkeypatch.setattr(token_draws, "_pick_of", pick_of)
    monkeypatch.setattr(
        token_draws, "_pick_in_blocks", lambda *given: pick_of(torch.arange(3001).expand(1, -1), *given)
    )
    logits = spread * some_logits(3001, 1.0).nan_to_num(neginf=-3.0)
    expected = Sampling(**settings).distribution(logits)
    draw(Sampling(**settings), logits, logits.amax(1, keepdim=True), torch.tensor([0.5]).double())
    found = drawn_from["now"] / drawn_from["now"].sum()
    difference = (found.sort().values - expected.sort().values).abs().sum()  # of equal tokens, any may be kept
    least = expected[expected > 0].min().item()
    assert difference < 1e-5 + 4 * least  # rounding may decide about one token
    if spread >= 1:
        torch.testing.assert_close(found, expected, atol=1e-6 + 2 * least, rtol=1e-3)


def test_the_settings_reach_every_way_of_drawing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some need few candidates, and some search the whole vocabulary."""
    calls = []
    monkeypatch.setattr(
        token_draws,
        "_smallest_set_of_many",
        lambda *given: calls.append(1) or torch.ones_like(given[0], dtype=torch.bool),
    )
    for settings, expected in (
        ({"top_p": 0.5}, 0),
        ({"top_p": 0.97}, 1),
        ({"typical": 0.3}, 0),
        ({"typical": 0.95}, 1),
    ):
        calls.clear()
        logits = some_logits(8000, 3.0 if settings in ({"top_p": 0.5}, {"typical": 0.3}) else 0.1)
        token_draws.draw(Sampling(**settings), logits, logits.amax(1, keepdim=True), torch.tensor([0.5]).double())
        assert len(calls) == expected, settings


@pytest.mark.parametrize("size", [1, 5, 128, 1000, 12_345])
@pytest.mark.parametrize("k", [1, 3, *NUM_CANDIDATES])
def test_largest_is_topk(size: int, k: int) -> None:
    values = torch.randn(3, size, generator=torch.Generator().manual_seed(size))
    k = min(k, size)
    found, tokens = largest(values, k)
    assert found.equal(values.topk(k).values)
    assert values.gather(1, tokens).equal(found)


@pytest.mark.parametrize("size", [5, 128, 1000, 12_345])
def test_temperature_zero_takes_the_first_of_the_likeliest(size: int) -> None:
    logits = torch.randint(0, 4, (20, size), generator=torch.Generator().manual_seed(size)).float()
    assert draw(Sampling(0.0), logits, logits.amax(1, keepdim=True), torch.zeros(20)).equal(logits.argmax(1))


@pytest.mark.parametrize("settings", [*SETTINGS, {"temperature": 2.0**-126}, {"temperature": 2**126}], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_rows_do_not_depend_on_each_other(settings: dict, dtype: torch.dtype) -> None:
    class Table:
        """The logits of the next token depend on the token before."""

        logits = torch.cat([some_logits(3001, spread) for spread in (0.02, 1.0, 4.0, 20.0)]).to(dtype)

        def step(self, tokens, state):
            return self.logits[(tokens + state) % 4], state

    penalties = {"repetition_penalty": 1.2, "frequency_penalty": 0.3, "presence_penalty": 0.1}
    for more in ({}, penalties):
        given = {
            "max_tokens": 6,
            "stop": 5,
            "banned": (7, 8),
            "biases": {3: 2.0, 5: 4.0} if more else {},
            "read_before": (1, 2, 2),
        }
        model, sampling = Table(), Sampling(**settings, **more)
        logits, state = model.logits, torch.arange(4)
        together = [step.tokens for step in sample(model, logits, state, sampling, seeds=range(4), **given)]
        for row in range(4):
            only = sample(model, logits[row : row + 1], state[row : row + 1], sampling, seeds=[row], **given)
            tokens = [step.tokens[0] for step in only]
            assert tokens == [step[row] for step in together if step[row] is not None]
            assert not {5, 7, 8} & set(tokens)


def test_penalties_change_the_tokens_of_the_text_only() -> None:
    logits = torch.tensor([[2.0, -1.0, 0.5, -torch.inf, 3.0], [1.0, -2.0, 0.25, -torch.inf, 0.0]])
    sampling = Sampling(repetition_penalty=2.0, frequency_penalty=0.5, presence_penalty=0.25)
    penalties = [Penalties(sampling, {4: 1.5}, [1, 3], logits.device) for _ in logits]
    penalties[0].add(0)
    penalties[1].add(2)
    penalties[0].add(0)
    expected = torch.tensor(
        [[1.0 - 2 * 0.5 - 0.25, -2.0, 0.5, -torch.inf, 4.5], [1.0, -4.0, 0.125 - 0.75, -torch.inf, 1.5]]
    )
    before = logits.clone()
    found = torch.cat([each.apply(logits[row : row + 1]) for row, each in enumerate(penalties)])
    torch.testing.assert_close(found, expected)
    assert logits.equal(before)


def test_many_generated_tokens_are_counted() -> None:
    logits, penalties = torch.zeros(1, 500), Penalties(Sampling(frequency_penalty=1.0), {}, [], torch.device("cpu"))
    tokens = torch.randint(0, 500, (2000,), generator=torch.Generator().manual_seed(0))
    for token in tokens.tolist():
        penalties.add(token)
    assert penalties.apply(logits)[0].equal(-torch.bincount(tokens, minlength=500).float())


def test_neutral_penalties_change_nothing() -> None:
    logits = some_logits(300)
    penalties = Penalties(Sampling(), {}, [3, 4], logits.device)
    penalties.add(5)
    assert penalties.apply(logits) is logits
    neutral = Penalties(Sampling(repetition_penalty=1.5), {9: 0.0}, [], logits.device)
    assert neutral.apply(logits).equal(logits)


@pytest.mark.parametrize(
    "settings",
    [
        *({"typical": value} for value in (0, 1.5, "0.2", True, float("nan"))),
        *({"repetition_penalty": value} for value in (0, -1, float("inf"), None)),
        *({name: value} for name in ("frequency_penalty", "presence_penalty") for value in (float("nan"), "1", None)),
    ],
)
def test_values_out_of_range_are_refused(settings: dict) -> None:
    with refused("range", next(iter(settings))):
        Sampling(**settings)


def test_typical_keeps_the_tokens_closest_to_the_entropy() -> None:
    probabilities = torch.tensor([[0.5, 0.2, 0.15, 0.1, 0.05]]).double()
    # −log p is 0.69, 1.61, 1.90, 2.30, 3.00, and the entropy 1.33.
    kept = Sampling(typical=0.3).distribution(probabilities.log()) > 0
    assert kept.tolist() == [[False, True, True, False, False]]
    everything = Sampling(typical=1.0).distribution(probabilities.log())
    torch.testing.assert_close(everything, probabilities)
    assert dataclasses.asdict(Sampling())["typical"] is None

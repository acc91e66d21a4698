"""A batch that texts enter and leave at any time draws the tokens that each text has alone."""

from collections import defaultdict

import pytest
import torch

import seriatim
from seriatim.core.key_value_cache import KeyValueCache, without_unused
from seriatim.core.state import state_bytes, state_leaves
from seriatim.decoding.continuous_batch import ContinuousBatch, TextRequest
from seriatim.decoding.sampling import Sampling, read, sample
from seriatim.models.language_model import LanguageModel

SETTINGS = (
    Sampling(),
    Sampling(temperature=0),
    Sampling(top_k=3),
    Sampling(repetition_penalty=1.5, frequency_penalty=0.2),
)
WORDS = 12
STOP = 0


def language_model(name: str) -> LanguageModel:
    torch.manual_seed(0)
    return LanguageModel(seriatim.layer(name, 8, 8, num_layers=2), WORDS).double().eval()


def requests(count: int, most: int = 12) -> list[TextRequest]:
    random = torch.Generator().manual_seed(1)

    def number(low: int, high: int) -> int:
        return int(torch.randint(low, high, (1,), generator=random))

    return [
        TextRequest(
            [STOP, *torch.randint(1, WORDS, (number(0, 9),), generator=random).tolist()],
            seed=number(0, 1000),
            max_tokens=number(1, most),
            sampling=SETTINGS[number(0, len(SETTINGS))],
            biases={3: 2.0} if number(0, 3) == 0 else {},
        )
        for _ in range(count)
    ]


def alone(model: LanguageModel, request: TextRequest) -> list[int]:
    logits, state = read(model, torch.tensor([request.prompt]), model.initial_state(1))
    drawn = sample(
        model, logits, state, request.sampling,
        max_tokens=request.max_tokens, seeds=[request.seed], stop=STOP, banned=[5],
        biases=request.biases, read_before=request.prompt[1:],
    )  # fmt: skip
    return [token for step in drawn for token in step.tokens if token is not None]


def together(batch: ContinuousBatch, arriving: list[list[TextRequest]]) -> dict[TextRequest, list[int]]:
    """Return the tokens of requests that arrive over time."""
    tokens: dict[TextRequest, list[int]] = defaultdict(list)
    ended: list[TextRequest] = []
    for group in arriving:
        for request in group:
            batch.add(request)
        for request, token in batch.advance():
            ended.append(request) if token is None else tokens[request].append(token)
    while not batch.is_empty:
        for request, token in batch.advance():
            ended.append(request) if token is None else tokens[request].append(token)
    assert len(ended) == len(set(ended))
    assert set(ended) == {request for group in arriving for request in group}
    return tokens


@pytest.mark.parametrize("max_rows", [1, 3, 100])
@pytest.mark.parametrize("name", [name for name in seriatim.layers.names() if name != "prior"])
def test_texts_that_enter_and_leave_are_those_alone(name: str, max_rows: int) -> None:
    model, texts = language_model(name), requests(10)
    batch = ContinuousBatch(model, stop=STOP, banned=[5], max_rows=max_rows)
    tokens = together(batch, [texts[:2], [], [], texts[2:7], [], texts[7:]])
    for request in texts:
        assert tokens[request] == alone(model, request)
        assert 5 not in tokens[request]


def test_a_text_can_be_ended_early() -> None:
    model, texts = language_model("transformer"), requests(4, most=2)
    long = TextRequest([STOP, 3], 1, 50, Sampling(temperature=0), {STOP: -100.0})
    batch = ContinuousBatch(model, stop=STOP)
    for request in (long, *texts):
        batch.add(request)
    events = batch.advance()
    assert (long, None) not in events
    batch.end(long)
    while not batch.is_empty:
        assert all(request is not long for request, _ in batch.advance())
    batch.add(long)
    batch.end(long)
    assert batch.is_empty
    assert batch.advance() == []


def test_no_more_rows_than_memory_allows() -> None:
    model = language_model("transformer")
    texts = [TextRequest([STOP, 1, 2], seed, 4) for seed in range(6)]
    free, tight = ContinuousBatch(model), ContinuousBatch(model, memory=10_000)
    assert together(free, [texts]) == together(tight, [texts])
    for batch in (free, tight):
        for request in texts:
            batch.add(request)
        batch.advance()
    assert len(free.rows) == 6
    assert 1 <= len(tight.rows) < 6


def test_caches_shrink_when_long_texts_have_left() -> None:
    model = language_model("transformer")
    batch = ContinuousBatch(model)
    batch.add(TextRequest([STOP] * 400, 1, 3))
    batch.advance()
    large = state_bytes(batch._state)
    for _ in range(3):
        batch.add(TextRequest([STOP, 1], 1, 50))
        batch.advance()
    assert state_bytes(batch._state) < large / 4


def test_unused_entries_are_those_before_the_longest_row() -> None:
    kept = torch.arange(2 * 2 * 6.0).view(2, 2, 6, 1)
    state = (torch.zeros(2, 1), KeyValueCache(kept, torch.tensor([1, 4])))
    leaves = state_leaves(without_unused(state))
    assert torch.equal(leaves[1], kept[:, :, 2:])
    empty = KeyValueCache(kept[:0], torch.zeros(0, dtype=torch.long))
    assert without_unused(empty).kept.shape == (0, 2, 0, 1)

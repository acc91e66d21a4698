"""A batch that texts enter and leave at any time draws the tokens that each text has alone."""

from collections import defaultdict

import pytest
import torch

import seriatim
from seriatim.core.key_value_cache import KeyValueCache, without_unused
from seriatim.core.state import state_bytes, state_leaves
from seriatim.decoding.continuous_batch import (
    ContinuousBatch,
    PromptRead,
    TextEnded,
    TextEvent,
    TokenDrawn,
)
from seriatim.decoding.sampling import Sampling, TextRequest, sample
from seriatim.decoding.sampling import read as read_prompt
from seriatim.models.language_model import LanguageModel

from ..exhaustive import parameters

SETTINGS = (
    Sampling(),
    Sampling(temperature=0),
    Sampling(top_k=3),
    Sampling(repetition_penalty=1.5, frequency_penalty=0.2),
)
WORDS = 12
LAYERS = parameters(
    [name for name in seriatim.layers.names() if name != "prior"], everyday=("lstm", "transformer", "mamba")
)
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
    logits, state = read_prompt(model, torch.tensor([request.prompt]), model.initial_state(1))
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
    groups = list(arriving)
    while groups or not batch.is_empty:
        for request in groups.pop(0) if groups else ():
            batch.add(request)
        for event in batch.advance():
            if isinstance(event, TokenDrawn):
                tokens[event.request].append(event.token)
            elif isinstance(event, TextEnded):
                ended.append(event.request)
    assert len(ended) == len(set(ended))
    assert set(ended) == {request for group in arriving for request in group}
    return tokens


@pytest.mark.parametrize("max_rows", [1, 3, 100])
@pytest.mark.parametrize("name", LAYERS)
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
    assert TextEnded(long, None) not in batch.advance()
    batch.end(long)
    while not batch.is_empty:
        assert all(event.request is not long for event in batch.advance())
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
    assert len(free.texts.rows) == 6
    assert 1 <= len(tight.texts.rows) < 6


def test_caches_shrink_when_long_texts_have_left() -> None:
    model = language_model("transformer")
    batch = ContinuousBatch(model)
    batch.add(TextRequest([STOP] * 400, 1, 3))
    for _ in range(2):
        batch.advance()
    large = state_bytes(batch.texts.state)
    for _ in range(3):
        batch.add(TextRequest([STOP, 1], 1, 50))
        batch.advance()
    assert state_bytes(batch.texts.state) < large / 4


def test_unused_entries_are_those_before_the_longest_row() -> None:
    kept = torch.arange(2 * 2 * 6.0).view(2, 2, 6, 1)
    state = (torch.zeros(2, 1), KeyValueCache(kept, torch.tensor([1, 4])))
    leaves = state_leaves(without_unused(state))
    assert torch.equal(leaves[1], kept[:, :, 2:])
    empty = KeyValueCache(kept[:0], torch.zeros(0, dtype=torch.long))
    assert without_unused(empty).kept.shape == (0, 2, 0, 1)


def run_all(batch: ContinuousBatch, *texts: TextRequest) -> list[TextEvent]:
    for request in texts:
        batch.add(request)
    events = []
    while not batch.is_empty:
        events += batch.advance()
    return events


@pytest.mark.parametrize("name", ["lstm", "transformer"])
def test_texts_go_on_while_a_long_prompt_is_read(name: str) -> None:
    model = language_model(name)
    batch = ContinuousBatch(model)
    short, long = TextRequest([STOP, 1], 1, 30), TextRequest([STOP] * (3 * batch.cache.window + 1), 2, 2)
    batch.add(short)
    batch.advance()
    batch.add(long)
    kinds = [[type(event) for event in batch.advance()] for _ in range(3)]
    assert kinds == [[TokenDrawn]] * 3
    assert [type(event) for event in batch.advance()] == [PromptRead, TokenDrawn, TokenDrawn]


@pytest.mark.parametrize("name", LAYERS)
def test_a_shared_beginning_is_read_once(name: str) -> None:
    model = language_model(name)
    batch = ContinuousBatch(model, stop=STOP, banned=[5])
    shared = [STOP, *(1 + i % 7 for i in range(batch.cache.window + 20))]
    first, second = (TextRequest([*shared, 1 + i], i, 5) for i in range(2))
    again = TextRequest(first.prompt, 0, 5)
    events = run_all(batch, first, second, again)
    cached = {event.request: event.num_cached for event in events if isinstance(event, PromptRead)}
    assert cached == {first: 0, second: batch.cache.window, again: len(first.prompt)}
    tokens = {
        text: [event.token for event in events if isinstance(event, TokenDrawn) and event.request is text]
        for text in (first, second, again)
    }
    assert tokens[first] == tokens[again] == alone(model, first)
    assert tokens[second] == alone(model, second)


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("ends", ["by length", "by a stop token", "early"])
def test_a_text_in_parts_is_the_text_in_one(name: str, ends: str) -> None:
    model = language_model(name)
    greedy = Sampling(temperature=0)
    batch = ContinuousBatch(model)
    first = TextRequest([STOP, 3, 4], 1, 50 if ends == "early" else 4, greedy, keeps_state=True)
    if ends == "early":
        batch.add(first)
        events = [event for _ in range(4) for event in batch.advance()]
        state = batch.end(first)
    else:
        events = run_all(batch, first)
        if ends == "by a stop token":
            stop = events[-2].token
            batch = ContinuousBatch(model, stop=stop)
            events = run_all(batch, first)
        state = events[-1].state
    read = [event.token for event in events if isinstance(event, TokenDrawn)]
    more = TextRequest([5, 6], 2, 3, greedy, start=state, read_before=[3, 4, *read])
    batch.texts.stop = None
    continued = [event.token for event in run_all(batch, more) if isinstance(event, TokenDrawn)]
    whole = TextRequest([STOP, 3, 4, *read, 5, 6], 2, 3, greedy)
    logits, begun = read_prompt(model, torch.tensor([whole.prompt]), model.initial_state(1))
    drawn = sample(model, logits, begun, greedy, max_tokens=3, seeds=[2])
    assert continued == [token for step in drawn for token in step.tokens]


@pytest.mark.parametrize("name", LAYERS)
def test_scores_are_log_probabilities(name: str) -> None:
    model = language_model(name)
    prompt = [STOP, *(1 + i % 7 for i in range(300))]
    batch = ContinuousBatch(model, stop=STOP)
    request = TextRequest(prompt, 1, 3, Sampling(temperature=0.5), num_alternatives=2, scores_prompt=True)
    read, *rest = run_all(batch, request)
    tokens = [event.token for event in rest if isinstance(event, TokenDrawn)]
    scores = [*read.scores, *(event.score for event in rest if isinstance(event, TokenDrawn))]
    ids = torch.tensor([[*prompt, *tokens]])
    with torch.no_grad():
        expected = torch.log_softmax(model(ids[:, :-1])[0][0], dim=1)
    chosen = expected.gather(1, ids[0, 1:].unsqueeze(1)).squeeze(1)
    torch.testing.assert_close(
        torch.tensor([score.log_probability for score in scores]).double(), chosen, atol=1e-6, rtol=0
    )
    likeliest = expected.topk(2).indices.tolist()
    assert [[token for token, _ in score.alternatives] for score in scores] == likeliest


def test_a_prompt_can_be_scored_without_a_text() -> None:
    model = language_model("gru")
    (read, ended) = run_all(
        ContinuousBatch(model), TextRequest([STOP, 1, 2], 1, 0, scores_prompt=True, keeps_state=True)
    )
    assert len(read.scores) == 2
    assert ended.state is not None
    assert ended.state.logits.shape == (1, WORDS)


def test_the_cache_of_beginnings_has_bounded_memory() -> None:
    model = language_model("transformer")
    batch = ContinuousBatch(model, cache_bytes=300_000)
    for seed in range(30):
        run_all(batch, TextRequest([STOP, *(1 + (seed * i) % 7 for i in range(200))], seed, 1))
        assert batch.cache.bytes <= 300_000
    assert len(batch.cache) > 0
    run_all(batch, TextRequest([STOP] * 3000, 1, 1))  # its end is larger than the whole cache
    assert batch.cache.bytes <= 300_000
    assert len(batch.cache) > 0
    batch.cache.clear()
    assert (len(batch.cache), batch.cache.bytes) == (0, 0)


def test_a_cached_window_has_no_logits_of_an_earlier_one() -> None:
    model = language_model("lstm")
    batch = ContinuousBatch(model, stop=STOP, banned=[5])
    window, text = batch.cache.window, [STOP, *(1 + (i * i) % 11 for i in range(900))]
    texts = [TextRequest(text[:length], 1, 4) for length in (window, 3 * window - 5, 2 * window)]
    for request in texts:
        tokens = [event.token for event in run_all(batch, request) if isinstance(event, TokenDrawn)]
        assert tokens == alone(model, request)


def test_kept_states_have_no_more_memory_than_they_need() -> None:
    model = language_model("transformer")
    batch = ContinuousBatch(model)
    request = TextRequest([STOP, *[1] * 300], 1, 0, scores_prompt=True, keeps_state=True)
    state = run_all(batch, request)[-1].state
    for leaf in (*state_leaves(state.state), state.logits):
        assert leaf.untyped_storage().nbytes() == leaf.numel() * leaf.element_size()


@pytest.mark.parametrize("name", LAYERS)
def test_with_compiled_steps_a_batch_computes_the_bits_of_single_texts(name: str) -> None:
    torch.manual_seed(0)
    model = LanguageModel(seriatim.layer(name, 16, 16, num_layers=2), WORDS).eval()
    texts = [
        TextRequest(
            [STOP, *(1 + (i * j) % 11 for j in range(3 + 7 * i))], i, 12, Sampling(temperature=0), num_alternatives=0
        )
        for i in range(5)
    ]

    def results(*requests: TextRequest) -> list[list[tuple[int, float]]]:
        events = [event for event in run_all(ContinuousBatch(model), *requests) if isinstance(event, TokenDrawn)]
        return [
            [(each.token, each.score.log_probability) for each in events if each.request is text] for text in requests
        ]

    assert results(*texts) == [results(text)[0] for text in texts]

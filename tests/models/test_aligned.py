"""A sum over the positions of the source: it is that of all alignments, and alike in parallel, by steps and by rows."""

import itertools
from functools import partial

import pytest
import torch
from torch import Tensor, nn

import seriatim
from seriatim.core.state import state_leaves
from seriatim.layers import Bidirectional
from seriatim.models import aligned
from seriatim.models.aligned import EXPECTED, AlignedEncoderDecoder
from seriatim.models.attention_decoder import LOCATION_SCALE, REACH, luong_decoder
from seriatim.models.copying import NOT_COPIED

SIZE, TARGETS = 4, 5
COPIED = torch.tensor([NOT_COPIED, NOT_COPIED, 2, 3, 4, NOT_COPIED])
SOURCE, LENGTHS = torch.tensor([[2, 3, 4, 5], [3, 2, 0, 0], [0, 0, 0, 0]]), torch.tensor([4, 2, 0])
TOKENS, TARGET_LENGTHS = torch.tensor([[1, 2, 0], [3, 0, 0], [0, 0, 0]]), torch.tensor([3, 2, 1])
INPUTS = torch.cat([torch.zeros(3, 1).long(), TOKENS[:, :-1]], dim=1)
BATCH = SOURCE, LENGTHS, INPUTS, TOKENS, TARGET_LENGTHS

layer = partial(seriatim.layer, "lstm")


@pytest.fixture(params=["plain", "copying", "additive"])
def model(request: pytest.FixtureRequest) -> AlignedEncoderDecoder:
    torch.manual_seed(0)
    encoder = Bidirectional(layer(SIZE, SIZE), layer(SIZE, SIZE))
    score = "additive" if request.param == "additive" else "bilinear"
    decoder = luong_decoder(lambda width: layer(width, 6), SIZE, encoder.output_size, score=score, location=True)
    copied = COPIED if request.param == "copying" else None
    made = AlignedEncoderDecoder(encoder, decoder, len(COPIED), TARGETS, SIZE, copied=copied)
    nn.init.normal_(decoder.attend.location, std=0.2)
    if made.copying is not None:
        nn.init.normal_(made.copying.gate.weight)
    return made.double().eval()


def test_the_sum_is_that_over_all_alignments(model: AlignedEncoderDecoder) -> None:
    state, decoder = model.encode(SOURCE[:1]), model.decoder
    hidden, _ = decoder.layer(model.target_embedding(INPUTS[:1]), state.decoder.layer)
    keys = state.decoder.keys if isinstance(state.decoder.keys, Tensor) else state.decoder.memory
    scores, tokens = (
        decoder.attend.scores(hidden, keys)[0],
        model.token_scores(hidden, state.decoder.memory, state.tokens),
    )
    scores[:, 0], positions = -torch.inf, SOURCE.shape[1] + 1

    jumps = (LOCATION_SCALE * decoder.attend.location + torch.tensor(EXPECTED)).tolist()

    def log_p(time: int, before: int, to: int) -> Tensor:
        near = {before + j - REACH: jump for j, jump in enumerate(jumps)}
        return torch.log_softmax(scores[time] + torch.tensor([near.get(n, 0.0) for n in range(positions)]), 0)[to]

    found = []
    for places in itertools.product(range(positions), repeat=3):
        pairs = enumerate(itertools.pairwise((0, *places)))
        found.append(sum(log_p(t, a, b) + tokens[0, t, b, TOKENS[0, t]] for t, (a, b) in pairs))
    expected = torch.logsumexp(torch.stack(found), 0)
    torch.testing.assert_close(-model.token_losses(*BATCH)[0].sum(), expected)


def test_rows_steps_and_pieces_give_the_same(model: AlignedEncoderDecoder) -> None:
    losses, state = model.token_losses(*BATCH), model.encode(SOURCE, LENGTHS)
    for row, (size, time) in enumerate(zip(LENGTHS.tolist(), TARGET_LENGTHS.tolist(), strict=True)):
        one = [x[row : row + 1] for x in BATCH]
        alone = model.token_losses(one[0][:, :size], one[1], one[2][:, :time], one[3][:, :time], one[4])
        torch.testing.assert_close(alone[0], losses[row, :time])
    for time in range(3):
        log_p, state = model.step(INPUTS[:, time], state)
        torch.testing.assert_close(log_p.exp().sum(1), torch.ones(3).double())
        valid = time < TARGET_LENGTHS
        torch.testing.assert_close(-log_p[valid, TOKENS[valid, time]], losses[valid, time])


def test_a_sequence_can_be_split_and_a_row_can_be_empty(model: AlignedEncoderDecoder) -> None:
    state = model.encode(SOURCE, LENGTHS)
    first, between = model(INPUTS[:, :1], state, lengths=torch.ones(3).long())
    second, end = model(INPUTS[:, 1:], between, lengths=TARGET_LENGTHS - 1)
    whole, expected = model(INPUTS, state, lengths=TARGET_LENGTHS)
    torch.testing.assert_close(torch.cat([first, second], 1)[0], whole[0])
    for one, other in zip(state_leaves(end), state_leaves(expected), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_pieces_of_a_batch_have_the_gradients_of_the_whole(
    model: AlignedEncoderDecoder, monkeypatch: pytest.MonkeyPatch, smoothing: float
) -> None:
    model.label_smoothing, results = smoothing, []
    for at_once in (1 << 25, 1):
        monkeypatch.setattr(aligned, "AT_ONCE", at_once)
        model.zero_grad()
        loss = model.loss(*BATCH)
        loss.backward()
        results.append([loss, *(value.grad.clone() for value in model.parameters())])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other)


def test_attention_is_where_each_token_comes_from(model: AlignedEncoderDecoder) -> None:
    with torch.no_grad():
        model.decoder.attend.location[REACH + 1] = 5.0  # always on to the next position
        weights = model.attention(SOURCE[:1], LENGTHS[:1], INPUTS[:1], TARGET_LENGTHS[:1])[0]
    torch.testing.assert_close(weights, torch.eye(3, 4).double(), rtol=0, atol=1e-3)

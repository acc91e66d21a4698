"""Options that give an architecture as textbooks print it: without biases, with full peepholes, with positions."""

import pytest
import torch
from torch import Tensor, nn

import seriatim
from seriatim.config import Model
from seriatim.layers.positions import positions, sinusoids
from seriatim.models import LanguageModel
from seriatim.models.classifier import Classifier
from seriatim.models.encoder_decoder import EncoderDecoder
from seriatim.models.translator import Options, translator, with_implied_options
from seriatim.recurrence import uncompiled

from ..quick_compiler import quickly

_quickly = pytest.fixture(autouse=True, scope="module")(quickly)


D = 6
WITHOUT = [name for name in seriatim.layers.names() if "bias" in seriatim.layers.options_of(name, {"block": False})]
KEPT = {
    "mamba": {"dt_proj.bias"},
    **{name: {"dt_bias"} for name in ("mamba2", "gated-deltanet", "gated-deltanet-2", "kda", "deltaproduct", "m2rnn")},
    "gla": {"gk_b_proj.bias"},
}
"""Decays are functions of a map and this number, which says how large the steps are."""


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(1)


def randn(*sizes: int) -> Tensor:
    return torch.randn(*sizes, dtype=torch.float64)


def stir(module: nn.Module) -> None:
    """Random values for every parameter, as after a training."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(0.5 * torch.randn_like(parameter))


def test_every_layer_with_biases_can_leave_them_out() -> None:
    for name in seriatim.layers.names():
        layer = seriatim.layer(name, D, D, block=False)
        biases = {key for key, _ in layer.named_parameters() if "bias" in key}
        assert name in WITHOUT or biases <= KEPT.get(name, set()), name


@pytest.mark.parametrize("name", WITHOUT)
def test_without_biases_there_are_none(name: str) -> None:
    layer = seriatim.layer(name, D, D, bias=False, block=False).double()
    found = {key for key, _ in layer.named_parameters() if "bias" in key}
    assert found == KEPT.get(name, set())
    inputs = randn(2, 5, D)
    with uncompiled():
        outputs, _ = layer(inputs, lengths=torch.tensor([5, 2]))
        outputs.sum().backward()
        step, _ = layer.step(inputs[:, 0], layer.initial_state(2))
    assert outputs.isfinite().all()
    torch.testing.assert_close(step, outputs[:, 0])


@pytest.mark.parametrize("name", ["transformer", "lstm"])
def test_the_feed_forward_network_of_a_block_has_none_either(name: str) -> None:
    layer = seriatim.layer(name, D, D, bias=False, block=True)
    assert not [key for key, _ in layer.named_parameters() if "bias" in key]


def test_elmans_network_and_its_softmax_are_the_printed_equations() -> None:
    """h_t = tanh(W_h h_{t−1} + W_x x_t) and softmax(W h_t), with nothing else in them."""
    config = Model(layer="rnn", embedding_size=D, hidden_size=D, output_bias=False, options={"bias": False})
    model = LanguageModel.from_config(config, 9, config.options).double()
    assert {key for key, _ in model.named_parameters()} == {
        "embedding.weight",
        "layer.cell.weight_ih_l0",
        "layer.cell.weight_hh_l0",
        "output.weight",
    }
    tokens, h = torch.randint(9, (2, 7)), torch.zeros(2, D, dtype=torch.float64)
    logits, _ = model(tokens)
    for t in range(7):
        x = model.embedding.weight[tokens[:, t]]
        h = torch.tanh(h @ model.layer.cell.weight_hh_l0.T + x @ model.layer.cell.weight_ih_l0.T)
        torch.testing.assert_close(logits[:, t], h @ model.output.weight.T)
    loss, _ = model.loss(tokens, tokens)
    torch.testing.assert_close(
        loss, nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten(), reduction="sum")
    )


def test_a_classifier_without_output_bias() -> None:
    config = Model(embedding_size=D, hidden_size=D, output_bias=False)
    model = Classifier.from_config(config, 9, 3, pooling="mean", options={})
    assert model.output.bias is None
    assert model.loss(torch.randint(9, (2, 4)), None, torch.tensor([0, 2])).isfinite()


@pytest.mark.parametrize("bias", [True, False])
def test_full_peepholes_are_products_with_the_cell(bias: bool) -> None:
    """σ(W [C; h; x] + b), the gates f and i with the cell before the step, the gate o with the cell after it."""
    layer = seriatim.layer("lstm-peephole", D, D, peephole="full", bias=bias).double()
    stir(layer)
    cell = layer.cell
    p_i, p_f, p_o = cell.peepholes
    b_i, b_f, b_c, b_o = cell.w.bias.chunk(4) if bias else torch.zeros(4, D, dtype=torch.float64)
    of_cell = (p_i, p_f, torch.zeros(D, D, dtype=torch.float64), p_o)
    parts = zip(of_cell, cell.u.weight.chunk(4), cell.w.weight.chunk(4), strict=True)
    joined = [torch.cat(part, dim=1) for part in parts]  # W of [C; h; x]
    inputs, (h, c) = randn(3, 6, D), (randn(3, D), randn(3, D))
    outputs, end = layer(inputs, type(layer.initial_state(1))(h, c))
    for t, x in enumerate(inputs.unbind(1)):
        before = torch.cat([c, h, x], dim=1)
        i, f = torch.sigmoid(before @ joined[0].T + b_i), torch.sigmoid(before @ joined[1].T + b_f)
        c = f * c + i * torch.tanh(before @ joined[2].T + b_c)
        o = torch.sigmoid(torch.cat([c, h, x], dim=1) @ joined[3].T + b_o)
        h = o * torch.tanh(c)
        torch.testing.assert_close(outputs[:, t], h)
    torch.testing.assert_close(end[1], c)


def test_full_peepholes_run_in_compiled_code() -> None:
    layer = seriatim.layer("lstm-peephole", D, D, peephole="full")
    assert "compiled code" in seriatim.recurrence.explain(layer.cell)
    stir(layer)
    inputs, found = torch.randn(3, 8, D), []
    for way in (False, True):
        with uncompiled() if way else torch.enable_grad():
            outputs, _ = layer(inputs)
        found.append([outputs, *torch.autograd.grad(outputs.square().sum(), list(layer.parameters()))])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def test_full_peepholes_on_the_diagonal_are_the_papers() -> None:
    paper, full = (seriatim.layer("lstm-peephole", D, D, peephole=kind).double() for kind in ("diagonal", "full"))
    stir(paper)
    weights = paper.state_dict()
    weights["cell.peepholes"] = torch.diag_embed(weights["cell.peepholes"])
    full.load_state_dict(weights)
    inputs = randn(2, 9, D)
    torch.testing.assert_close(paper(inputs)[0], full(inputs)[0])


def bare(inputs: Tensor, scores: Tensor) -> Tensor:
    seen = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    return torch.softmax(scores.masked_fill(~seen, -torch.inf), dim=-1) @ inputs


@pytest.mark.parametrize("position", ["none", "alibi", "sinusoidal", "rotary", "learned"])
def test_bare_attention_with_positions_is_the_equation(position: str) -> None:
    layer = seriatim.layer("self-attention", D, D, position=position).double()
    x = randn(2, 12, D)
    outputs, _ = layer(x)
    places = torch.arange(12)
    if position == "sinusoidal":
        x = x + sinusoids(positions(torch.zeros(2).long(), 12), D)
    if position == "learned":
        x = x + layer.layers[0].table[:12]
    scores = x @ x.mT
    if position == "alibi":
        scores = scores - 2.0**-8 * (places.unsqueeze(1) - places)
    if position == "rotary":  # each pair of features as a complex number, times exp(i t θ)
        pairs = torch.complex(x[..., : D // 2], x[..., D // 2 :])
        angles = places.unsqueeze(1) * 10_000.0 ** (-2 * torch.arange(D // 2, dtype=torch.float64) / D)
        turned = pairs * torch.polar(torch.ones_like(angles), angles)
        scores = (turned @ turned.mH).real
    torch.testing.assert_close(outputs, bare(x, scores))


def test_positions_tell_bare_attention_the_order() -> None:
    """Without them, permuting what came before changes nothing."""
    x = randn(1, 6, D)
    permuted = torch.cat([x[:, [2, 0, 1, 4, 3]], x[:, 5:]], dim=1)
    for position in ("none", "rotary", "alibi", "sinusoidal"):
        layer = seriatim.layer("self-attention", D, D, position=position).double()
        same = torch.allclose(layer(x)[0][:, -1], layer(permuted)[0][:, -1])
        assert same == (position == "none")


@pytest.mark.parametrize("readout", ["tanh", "direct", "tanh-logits"])
@pytest.mark.parametrize("form", ["luong", "bahdanau"])
def test_the_readouts_are_their_equations(readout: str, form: str) -> None:
    """Logits, from the context and the decoder's output, which the decoder itself computes."""
    config = Model(layer="gru", embedding_size=D, hidden_size=D, bidirectional=False, output_bias=False)
    options = with_implied_options(Options(readout=readout, form=form, attention="dot"), config, {})
    model = translator(options, config, {}, 7, 8).double()
    assert isinstance(model, EncoderDecoder)
    stir(model)
    source, targets = torch.randint(7, (2, 5)), torch.randint(8, (2, 4))
    state, joined = model.encode(source), []
    model.decoder.readout = lambda found: joined.append(found) or (found if map_ is None else torch.tanh(map_(found)))
    map_ = model.decoder.map
    logits, _ = model(targets, state)
    (both,) = joined  # [c; h]
    weights, last = model.decoder.attend, model.output.weight
    memory, _ = model.encoder(model.source_embedding(source))
    context, hidden = both.split([D, D], dim=2)
    queries = hidden
    if form == "bahdanau":  # the query is the output before
        first = torch.tanh(model.decoder.bridge.maps[0](memory[:, -1])).unsqueeze(1)
        queries = torch.cat([first, hidden[:, :-1]], dim=1)
    torch.testing.assert_close(context, torch.softmax(queries @ memory.mT, dim=2) @ memory)
    assert weights.score.scale == 1
    expected = {
        "tanh": lambda: torch.tanh(both @ map_.weight.T) @ last.T,
        "direct": lambda: both @ last.T,
        "tanh-logits": lambda: torch.tanh(both @ last.T),
    }[readout]()
    torch.testing.assert_close(logits, expected)
    inputs = torch.cat([torch.zeros(2, 1).long(), targets[:, :-1]], dim=1)
    losses = nn.functional.cross_entropy(model(inputs, state)[0].mT, targets, reduction="none")
    lengths = torch.tensor([4, 2])
    losses[1, 2:] = 0
    torch.testing.assert_close(model.loss(source, None, inputs, targets, lengths), losses.sum(), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(model.token_losses(source, None, inputs, targets, lengths), losses, rtol=1e-9, atol=1e-9)

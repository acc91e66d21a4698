"""Blocks, mixtures of experts, mixed stacks, convolutions and windows, and what the registry makes of options."""

import json
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import seriatim
from seriatim.config import Training
from seriatim.core.auxiliary_losses import collect, contribute
from seriatim.core.errors import InputError
from seriatim.core.lengths import valid_mask
from seriatim.core.state import state_bytes
from seriatim.layers.experts import Experts, balance_loss
from seriatim.layers.feed_forward import GATED, PLAIN, FeedForward
from seriatim.layers.pointwise import Pointwise
from seriatim.training.optimizers import make_optimizer

from ..conftest import randn, small_config
from ..exhaustive import parameters
from ..refusals import refused


@pytest.mark.parametrize("name", ["lstm", "mgu", "window", "attention"])
@pytest.mark.parametrize("norm_first", [True, False])
def test_a_block_is_its_equations(name: str, norm_first: bool) -> None:
    torch.manual_seed(0)
    block = seriatim.layer(name, 8, 8, block=True, norm="layer", norm_first=norm_first, feed_forward="relu").double()
    inner = block.layers[0] if norm_first else block
    mixer, network = inner.layers
    x = randn(2, 5, 8)
    if norm_first:
        u = x + mixer.layer(mixer.norm(x))[0]
        y = block.norm(u + network.layer(network.norm(u))[0])
    else:
        u = mixer.norm(x + mixer.layer(x)[0])
        y = network.norm(u + network.layer(u)[0])
    torch.testing.assert_close(block(x)[0], y)


def test_the_norm_at_the_top_can_be_left_out() -> None:
    """The parameters of a published Transformer of two layers without it, and the same outputs before the norm."""
    sizes = {"num_layers": 2, "norm": "layer", "bias": True, "feed_forward": "relu", "feed_forward_size": 64}
    sizes |= {"position": "learned", "max_length": 128, "num_heads": 2}
    whole, bare = (seriatim.layer("transformer", 64, 64, **sizes, final_norm=final) for final in (True, False))
    count = sum(parameter.numel() for parameter in bare.parameters())
    assert (count, sum(parameter.numel() for parameter in whole.parameters())) == (58_624, 58_624 + 2 * 64)
    bare.load_state_dict({name: value for name, value in whole.state_dict().items() if name in bare.state_dict()})
    x = torch.randn(2, 5, 64)
    torch.testing.assert_close(whole.layers[1].norm(bare(x)[0]), whole(x)[0])
    with refused("unknown"):
        seriatim.layer("transformer", 8, 8, norm_first=False, final_norm=False)


def test_block_false_leaves_the_layer_bare() -> None:
    bare = seriatim.layer("transformer", 8, 8, block=False)
    assert isinstance(bare, seriatim.layers.find("attention"))


@pytest.mark.parametrize("kind", [*PLAIN, *GATED])
def test_feed_forward_networks_are_their_equations(kind: str) -> None:
    torch.manual_seed(0)
    network, x = FeedForward(5, 7, kind=kind, bias=True).double(), randn(3, 5)
    functions = {
        "relu": torch.relu,
        "gelu": F.gelu,
        "gelu-tanh": lambda v: 0.5 * v * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (v + 0.044715 * v**3))),
        "silu": lambda v: v * torch.sigmoid(v),
        "glu": torch.sigmoid,
        "reglu": torch.relu,
        "geglu": F.gelu,
        "geglu-tanh": partial(F.gelu, approximate="tanh"),
        "swiglu": lambda v: v * torch.sigmoid(v),
        "bilinear": lambda v: v,
    }
    hidden = x @ network.up_proj.weight.T + network.up_proj.bias
    if kind in GATED:
        hidden = hidden * functions[kind](x @ network.gate_proj.weight.T + network.gate_proj.bias)
    else:
        hidden = functions[kind](hidden)
    torch.testing.assert_close(network(x), hidden @ network.down_proj.weight.T + network.down_proj.bias)


def test_a_mixture_is_the_gated_sum_of_the_fittest() -> None:
    torch.manual_seed(0)
    experts = [FeedForward(6, 8, kind="gelu") for _ in range(5)]
    mixture, x = Experts(6, experts, per_token=2).double(), randn(3, 4, 6)
    found = mixture(x)
    for row in range(3):
        for t in range(4):
            p = torch.softmax(mixture.router.weight @ x[row, t], 0)
            best = p.topk(2).indices
            expected = sum(p[e] / p[best].sum() * mixture.experts[e](x[row, t]) for e in best)
            torch.testing.assert_close(found[row, t], expected)


def test_one_expert_for_all_is_a_plain_network() -> None:
    torch.manual_seed(0)
    network = FeedForward(6, 8, kind="gelu")
    x = torch.randn(7, 6)
    torch.testing.assert_close(Experts(6, [network], per_token=1)(x), network(x))


def test_experts_are_counted_and_padding_is_not() -> None:
    torch.manual_seed(0)
    layer = seriatim.layer("transformer", 8, 8, num_layers=2, num_experts=4, experts_per_token=3)
    x, lengths = torch.randn(3, 6, 8), torch.tensor([6, 0, 2])
    with seriatim.layers.count_experts(layer) as counts:
        layer(x, lengths=lengths)
    assert len(counts) == 2
    for found in counts.values():
        assert found.sum() == 3 * 8
        assert found.shape == (4,)
    layer(x)
    assert sum(int(found.sum()) for found in counts.values()) == 2 * 3 * 8  # nothing is counted outside


def test_the_balance_is_least_where_experts_share_alike() -> None:
    torch.manual_seed(0)
    mixture, x = Experts(6, [nn.Identity() for _ in range(4)], per_token=1), torch.randn(400, 6)
    nn.init.zeros_(mixture.router.weight)
    even = balance_loss(mixture.router(x))
    mixture.router.weight.data[0] = 5 * x.mean(0) + 1
    uneven = balance_loss(mixture.router(x + 1))
    assert even.item() == pytest.approx(1.0)
    assert uneven > even


def test_training_with_the_balance_evens_the_load() -> None:
    def spread(balance: float) -> float:
        torch.manual_seed(0)
        mixture = Experts(6, [FeedForward(6, 6, kind="relu") for _ in range(4)], per_token=1, balance=balance)
        mixture.router.weight.data[0] += 2
        optimizer, x = torch.optim.Adam(mixture.parameters(), 0.02), torch.randn(256, 6) + 0.5
        for _ in range(60):
            optimizer.zero_grad()
            with collect() as found:
                loss = (mixture(x) - x).square().mean()
            (loss + sum(found)).backward()
            optimizer.step()
        with seriatim.layers.count_experts(mixture) as counts:
            mixture(x)
        return float(counts[""].float().std())

    assert spread(0.5) < 0.5 * spread(0.0)


def test_contributions_are_gathered_only_where_asked_for() -> None:
    contribute(torch.ones(()))
    with collect() as outer:
        contribute(torch.ones(()))
        with collect() as inner:
            contribute(torch.zeros(()))
        assert len(inner) == 1
    assert len(outer) == 1
    mixture = Experts(4, [nn.Identity()] * 2, per_token=1)
    with collect() as found:
        mixture.eval()(torch.randn(3, 4))
    assert not found


def test_a_mixture_trains_from_the_command_configuration(texts, tmp_path) -> None:
    model = {"layer": "transformer", "hidden_size": 16, "options": {"num_experts": 3, "experts_per_token": 1}}
    run = seriatim.train(small_config(texts, tmp_path / "run", model=model))
    with seriatim.layers.count_experts(run.model) as counts:
        run.score(["the cat sees the sea ."])
    (found,) = counts.values()
    assert found.sum() > 0


def test_a_pointwise_layer_computes_no_padding() -> None:
    seen = []

    class Spy(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            seen.append(x.shape)
            return x + 1

    layer, x, lengths = Pointwise(3, 3, module=Spy()), torch.zeros(2, 4, 3), torch.tensor([1, 3])
    outputs, _ = layer(x, lengths=lengths)
    assert seen == [(4, 3)]
    assert torch.equal(outputs, valid_mask(lengths, 4).unsqueeze(2).expand(2, 4, 3).float())


def test_a_stack_may_mix_layers() -> None:
    layer = seriatim.layer("gru,window,transformer", 6, 8, num_layers=2, context=3, num_heads=2)
    assert len(layer.layers) == 6
    assert [len(list(part.parameters())) for part in layer.layers[:3]] == [
        len(list(part.parameters())) for part in layer.layers[3:]
    ]
    outputs, state = layer(torch.randn(2, 5, 6))
    assert outputs.shape == (2, 5, 8)
    assert len(state) == 6


def test_a_window_is_one_matrix_over_the_last_inputs() -> None:
    torch.manual_seed(0)
    layer, x = seriatim.layer("window", 3, 4, context=3).double(), randn(1, 6, 3)
    padded = torch.cat([torch.zeros(1, 2, 3, dtype=torch.float64), x], dim=1)
    expected = [torch.tanh(layer.hidden(padded[:, t : t + 3].flatten(1))) for t in range(6)]
    torch.testing.assert_close(layer(x)[0], torch.stack(expected, dim=1))


def test_a_gated_convolution_is_two_convolutions_of_torch() -> None:
    from seriatim.layers.convolution import GatedConvolution

    torch.manual_seed(0)
    layer, x = GatedConvolution(4, kernel_size=3, dilation=2).double(), randn(2, 9, 4)
    kernel = layer.conv.weight.unflatten(1, (3, 4)).transpose(1, 2)  # (2 · size, size, kernel_size)
    both = F.conv1d(F.pad(x.mT, (4, 0)), kernel, layer.conv.bias, dilation=2).mT
    content, gate = both.chunk(2, dim=2)
    torch.testing.assert_close(layer(x)[0], layer.out_proj(torch.tanh(content) * torch.sigmoid(gate)))


def test_convolutions_reach_as_far_as_they_say() -> None:
    torch.manual_seed(0)
    layer, x = seriatim.layer("convolution", 4, 4, kernel_size=3, depth=3).double(), randn(1, 40, 4)
    reach = 1 + 2 * (2**3 - 1)
    whole = layer(x)[0][:, -1]
    for back, same in ((reach, True), (reach - 1, False)):
        changed = x.clone()
        changed[:, : 40 - back] += 1
        assert torch.allclose(layer(changed)[0][:, -1], whole) == same


@pytest.mark.parametrize("name", seriatim.layers.names())
def test_what_is_said_of_a_layer_is_what_it_does(name: str) -> None:
    told = seriatim.layers.describe(name)
    assert told["keeps"]
    assert told["paper"]
    layer = seriatim.layer(name, 256, 256).eval()
    with torch.no_grad(), seriatim.recurrence.uncompiled():
        for time in (1, 1000):
            assert told["state_bytes"][str(time)] == state_bytes(layer(torch.zeros(1, time, 256))[1])
    assert set(told["options"]) >= {"block"}
    constant = told["state_bytes"]["1000"] == told["state_bytes"]["100000"]
    assert constant == ("all" not in told["keeps"].split())


def test_attention_of_a_running_text_has_a_window_by_default(texts, tmp_path) -> None:
    from seriatim.tasks.lm import STREAM_WINDOW

    stream = seriatim.train(small_config(texts, tmp_path / "stream", model={"layer": "attention"}))
    assert stream.config.model.options == {"window": STREAM_WINDOW}
    assert seriatim.load(tmp_path / "stream").config.model.options == {"window": STREAM_WINDOW}
    lines = small_config(texts, tmp_path / "line", model={"layer": "attention"}, data={"unit": "line"})
    assert seriatim.train(lines).config.model.options == {}
    given = {"layer": "attention", "options": {"window": 8}}
    assert seriatim.train(small_config(texts, tmp_path / "given", model=given)).config.model.options == {"window": 8}


TYPICAL = ("prior", "lstm", "mamba", "transformer")


@pytest.mark.parametrize("name", parameters(seriatim.layers.names(), everyday=TYPICAL))
def test_every_layer_trains_streams_and_is_kept(name: str, texts, tmp_path) -> None:
    config = small_config(texts, tmp_path / "run", model={"layer": name, "hidden_size": 20}, training={"steps": 12})
    run = seriatim.train(config)
    first, second = run.stream(), run.stream()
    first.feed("the cat sees the sea .")
    first.save(tmp_path / "state.safetensors")
    second.load(tmp_path / "state.safetensors")
    assert "".join(first.generate(max_tokens=20, seed=3)) == "".join(second.generate(max_tokens=20, seed=3))


@pytest.mark.parametrize(
    ("model", "kind", "place"),
    [
        ({"layer": "transformer", "options": {"causal": False}}, "unsupported", "model.bidirectional"),
        ({"layer": "lstm", "options": {"block": True, "memory_size": 8}}, "unsupported", "model.options.memory_size"),
        ({"layer": "transformer", "bidirectional": True}, "unsupported", "model.bidirectional"),
        ({"layer": "transformer,", "hidden_size": 16}, "unknown", ""),
        ({"layer": "transformer", "options": {"position": "learned"}}, "conflict", "model.options.position"),
        (
            {"layer": "lstm", "options": {"block": True, "projection_size": 4}},
            "mismatch",
            "residual",
        ),
        ({"layer": "attention", "options": {"num_heads": 7}}, "range", "model.options.num_heads"),
    ],
)
def test_models_that_cannot_be_are_refused(model: dict, kind: str, place: str, texts, tmp_path) -> None:
    with refused(kind, place):
        seriatim.train(small_config(texts, tmp_path / "run", model=model))
    assert not (tmp_path / "run").exists()


def test_the_router_learns_from_a_single_expert() -> None:
    torch.manual_seed(0)
    for per_token in (1, 2):
        mixture = Experts(6, [FeedForward(6, 8, kind="gelu") for _ in range(4)], per_token=per_token, balance=0.0)
        mixture(torch.randn(9, 6)).square().sum().backward()
        assert mixture.router.weight.grad.abs().max() > 1e-3


def test_the_metrics_tell_of_the_balance_and_of_every_experts_tokens(texts, tmp_path) -> None:
    model = {"layer": "transformer", "hidden_size": 16, "options": {"num_experts": 3}}
    run = seriatim.train(small_config(texts, tmp_path / "run", model=model))
    assert "experts" not in run.summary["valid"]
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    train, valid = ([record for record in records if record["kind"] == kind] for kind in ("train", "valid"))
    assert all(0.019 < record["auxiliary"] < 0.06 for record in train)  # 0.01 times at least the 2 chosen
    (counts,) = valid[-1]["experts"].values()
    assert sum(counts) == 2 * valid[-1]["tokens"]


def test_dropout_reaches_every_kind_of_stack() -> None:
    def rates(name: str, **options: object) -> list[str]:
        layer = seriatim.layer(name, 8, 8, dropout=0.5, **options)
        return [type(m).__name__ for m in layer.modules() if "Dropout" in type(m).__name__]

    assert rates("lstm", num_layers=2) == ["Dropout"]
    assert rates("transformer", variational_dropout=True) == ["VariationalDropout"] * 2
    assert rates("lstm,lstm,transformer") == ["Dropout"] * 3
    with refused("conflict", "model.residual"):
        seriatim.layer("lstm,mamba", 8, 8, residual=True)


@pytest.mark.parametrize(
    ("name", "options", "kind", "place", "value"),
    [
        ("lstm", {"norm": "rms"}, "unknown", "", "model.options.block"),
        ("transformer", {"max_length": 9}, "unknown", "", "model.options.position"),
        ("transformer", {"block": False, "num_experts": 2}, "unknown", "", "model.options.block"),
        ("transformer", {"experts_per_token": 2}, "unknown", "", "model.options.num_experts"),
        ("transformer", {"position": "learnt"}, "unknown", "model.options.position", "learned"),
        ("s4d", {"dt_max": float("inf")}, "range", "model.options.dt_max", ""),
        ("transformer", {"num_experts": 2, "balance": float("nan")}, "range", "model.options.balance", ""),
        ("lstm", {"hiden": 2}, "unknown", "", "hiden"),
        ("lstm", {"zoneout": "much"}, "range", "model.options.zoneout", ""),
    ],
)
def test_options_that_cannot_be_say_what_they_need(name: str, options: dict, kind: str, place: str, value: str) -> None:
    with refused(kind, place, value):
        seriatim.layer(name, 8, 8, **options)


@pytest.mark.parametrize("sizes", [("8", 8), (8, 8.0), (0, 8), (8, -1)])
def test_sizes_are_integers(sizes: tuple) -> None:
    with refused("range"):
        seriatim.layer("lstm", *sizes)


def test_lines_longer_than_the_learned_positions_are_refused(texts, tmp_path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("short\n" + 70 * "long" + "\nshort\n")
    model = {"layer": "transformer", "hidden_size": 16, "options": {"position": "learned", "max_length": 64}}
    for split in ("train", "valid"):
        data = {"unit": "line", "train": texts["train"], split: str(text)}
        message = r"text.txt:2: 281 tokens, .* model.options.max_length 281"
        with pytest.raises(InputError, match=message):
            seriatim.train(small_config(texts, tmp_path / "run", model=model, data=data))
    assert not (tmp_path / "run").exists()


def test_weight_decay_spares_what_is_not_a_map() -> None:
    for name, spared in (("s4d", {"log_A_real", "A_imag"}), ("mamba", {"A_log", "conv_weight"})):
        layer = seriatim.layer(name, 8, 8, block=False)
        optimizer = make_optimizer(layer, Training(weight_decay=0.1, learning_rate=0.01))
        decayed = {id(p) for group in optimizer.param_groups if group["weight_decay"] for p in group["params"]}
        matrices = {key for key, p in layer.named_parameters() if p.dim() > 1}
        assert {key for key, p in layer.named_parameters() if id(p) in decayed} == matrices - spared
        assert spared <= matrices

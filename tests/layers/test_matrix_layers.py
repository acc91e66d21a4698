"""Layers with a matrix state against `transformers`, and against products of dense matrices, one step after another."""

import os
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import seriatim
from seriatim.layers.matrix_states import matrix_scan

from .test_matrix_states import assert_same, stirred

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
WIDTH, TIME = 24, 75
Weights = dict[str, Tensor]


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(1)


# Dense matrices: S_t = M_t S_{t−1} + W_t for each head.


def unit(x: Tensor) -> Tensor:
    return x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt()


def dense(transitions: Tensor, writes: Tensor, queries: Tensor) -> Tensor:
    """Outputs ``(B, T, H, V)`` of M ``(B, T, H, K, K)``, W ``(B, T, H, K, V)`` and q ``(B, T, H, K)``."""
    state, outputs = torch.zeros_like(writes[:, 0]), []
    for m, w, q in zip(transitions.unbind(1), writes.unbind(1), queries.unbind(1), strict=True):
        state = m @ state + w
        outputs.append((q.unsqueeze(2) @ state).squeeze(2))
    return torch.stack(outputs, dim=1)


def outer(x: Tensor, y: Tensor) -> Tensor:
    return x.unsqueeze(-1) @ y.unsqueeze(-2)


def by_head(x: Tensor, heads: int = 2) -> Tensor:
    return x.unflatten(-1, (heads, -1))


def scaled_identity(decay: Tensor, size: int) -> Tensor:
    """α I for decays ``(B, T, H)``."""
    return decay[..., None, None] * torch.eye(size, dtype=decay.dtype)


def normed(x: Tensor, gain: Tensor | float = 1.0) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * gain


def convolved(layer: nn.Module, x: Tensor) -> Tensor:
    channels = x.shape[-1]
    weight = layer.conv_weight.T.unsqueeze(1)
    x = F.pad(x.mT, (len(layer.conv_weight) - 1, 0))
    return F.silu(F.conv1d(x, weight, layer.conv_bias, groups=channels)).mT


def linear_attention(layer: nn.Module, x: Tensor) -> Tensor:
    """As attention with the weights φ(q)·φ(k)."""
    q, k, v = (by_head(y).transpose(1, 2) for y in layer.qkv_proj(x).chunk(3, dim=-1))
    weights = ((F.elu(q) + 1) @ (F.elu(k) + 1).mT).tril()
    attended = weights @ v / (weights.sum(-1, keepdim=True) + 1e-6)
    return layer.o_proj(attended.transpose(1, 2).flatten(2))


def retnet(layer: nn.Module, x: Tensor) -> Tensor:
    """As attention without softmax, with decays of the distance; pairs are rotated as complex numbers."""
    q, k, v = (by_head(y).transpose(1, 2) for y in layer.qkv_proj(x).split([8, 8, 16], dim=-1))
    places = torch.arange(x.shape[1], dtype=x.dtype)
    angles = places.unsqueeze(1) * 10_000.0 ** -torch.tensor([0.0, 0.5], dtype=x.dtype)
    turn = torch.polar(torch.ones_like(angles), angles)
    q, k = (torch.complex(y[..., :2], y[..., 2:]) * turn for y in (q, k))
    rates = 1 - 2.0 ** (-5 - torch.arange(2, dtype=x.dtype))
    decays = torch.stack([rate ** (places.unsqueeze(1) - places) for rate in rates]).tril()
    kept = ((q @ k.mH).real / 2 * decays) @ v
    return layer.o_proj(normed(kept).transpose(1, 2).flatten(2) * F.silu(layer.g_proj(x)))


def mamba2(layer: nn.Module, x: Tensor) -> Tensor:
    z, u, delta = layer.in_proj(x).split([16, 16 + 2 * 128, 2], dim=-1)
    u, b, c = convolved(layer, u).split([16, 128, 128], dim=-1)
    u, delta = by_head(u), F.softplus(delta + layer.dt_bias)
    b, c = (y.unsqueeze(2).expand(-1, -1, 2, -1) for y in (b, c))
    transitions = scaled_identity(torch.exp(-delta * layer.A_log.exp()), 128)
    y = dense(transitions, outer(b, u * delta.unsqueeze(-1)), c) + layer.D.unsqueeze(1) * u
    return layer.out_proj(normed(y.flatten(2) * F.silu(z), layer.norm.weight))


def gla(layer: nn.Module, x: Tensor) -> Tensor:
    q, k, v = map(by_head, layer.qkv_proj(x).split([4, 4, 8], dim=-1))
    decay = by_head(torch.sigmoid(layer.gk_b_proj(layer.gk_a_proj(x))) ** (1 / 16))
    y = normed(dense(torch.diag_embed(decay), outer(k, v), q / 2**0.5), layer.o_norm.weight)
    return layer.o_proj(y.flatten(2) * F.silu(layer.g_proj(x)))


def hgrn2(layer: nn.Module, x: Tensor) -> Tensor:
    q, f, v = map(by_head, layer.qfi_proj(x).chunk(3, dim=-1))
    f = torch.sigmoid(f)
    y = dense(torch.diag_embed(f), outer(1 - f, v), F.silu(q))
    return layer.o_proj(normed(y.flatten(2), layer.o_norm.weight))


def delta(layer: nn.Module, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    q, k, v = map(by_head, convolved(layer, layer.qkv_proj(x)).split([8, 8, 8], dim=-1))
    return unit(q) / 2, unit(k), v, torch.eye(4, dtype=x.dtype)


def row_decay(layer: nn.Module, x: Tensor) -> Tensor:
    step = F.softplus(layer.f_b_proj(layer.f_a_proj(x)) + layer.dt_bias)
    return torch.diag_embed(torch.exp(-by_head(step) * layer.A_log.exp().unsqueeze(1)))


def deltanet(layer: nn.Module, x: Tensor) -> Tensor:
    q, k, v, identity = delta(layer, x)
    beta = torch.sigmoid(layer.b_proj(x))[..., None, None]
    y = dense(identity - beta * outer(k, k), beta * outer(k, v), q)
    return layer.o_proj(normed(y, layer.o_norm.weight).flatten(2))


def gated_deltanet(layer: nn.Module, x: Tensor) -> Tensor:
    q, k, v, identity = delta(layer, x)
    b, a = layer.ba_proj(x).chunk(2, dim=-1)
    beta = torch.sigmoid(b)[..., None, None]
    decay = scaled_identity(torch.exp(-layer.A_log.exp() * F.softplus(a + layer.dt_bias)), 4)
    y = dense(decay @ (identity - beta * outer(k, k)), beta * outer(k, v), q)
    return layer.o_proj(normed(y, layer.o_norm.weight).flatten(2) * F.silu(layer.g_proj(x)))


def kda(layer: nn.Module, x: Tensor) -> Tensor:
    q, k, v, identity = delta(layer, x)
    beta = torch.sigmoid(layer.b_proj(x))[..., None, None]
    y = dense((identity - beta * outer(k, k)) @ row_decay(layer, x), beta * outer(k, v), q)
    gate = torch.sigmoid(layer.g_b_proj(layer.g_a_proj(x)))
    return layer.o_proj(normed(y, layer.o_norm.weight).flatten(2) * gate)


def gated_deltanet_2(layer: nn.Module, x: Tensor) -> Tensor:
    q, k, v, identity = delta(layer, x)
    b, w = by_head(torch.sigmoid(layer.b_proj(x))), by_head(torch.sigmoid(layer.w_proj(x)))
    y = dense((identity - outer(k, b * k)) @ row_decay(layer, x), outer(k, w * v), q)
    return layer.o_proj(normed(y, layer.o_norm.weight).flatten(2) * F.silu(layer.g_proj(x)))


def deltaproduct(layer: nn.Module, x: Tensor) -> Tensor:
    """Both steps of an input as one matrix, (I − β₂k₂k₂ᵀ)(I − β₁k₁k₁ᵀ) α."""
    q, k, v = convolved(layer, layer.qkv_proj(x)).split([8, 16, 16], dim=-1)
    (k1, k2), (v1, v2) = (map(by_head, y.chunk(2, dim=-1)) for y in (k, v))
    k1, k2 = unit(k1), unit(k2)
    b1, b2, a = layer.ba_proj(x).chunk(3, dim=-1)
    b1, b2 = (torch.sigmoid(b)[..., None, None] for b in (b1, b2))
    first, second = (torch.eye(4, dtype=x.dtype) - b * outer(k, k) for b, k in ((b1, k1), (b2, k2)))
    decay = scaled_identity(torch.exp(-layer.A_log.exp() * F.softplus(a + layer.dt_bias)), 4)
    writes = second @ (b1 * outer(k1, v1)) + b2 * outer(k2, v2)
    y = dense(second @ first @ decay, writes, unit(by_head(q)) / 2)
    return layer.o_proj(normed(y, layer.o_norm.weight).flatten(2) * F.silu(layer.g_proj(x)))


DENSE = {
    "linear-attention": linear_attention,
    "retnet": retnet,
    "mamba2": mamba2,
    "gla": gla,
    "hgrn2": hgrn2,
    "deltanet": deltanet,
    "gated-deltanet": gated_deltanet,
    "kda": kda,
    "gated-deltanet-2": gated_deltanet_2,
    "deltaproduct": deltaproduct,
}


@pytest.mark.parametrize("name", DENSE)
def test_layers_are_products_of_dense_matrices(name: str) -> None:
    layer, inputs = stirred(name), torch.randn(2, TIME, 6, dtype=torch.float64, requires_grad=True)
    assert_same([layer(inputs)[0]], [DENSE[name](layer, inputs)], [inputs, *layer.parameters()])


# `transformers`, which computes these layers in float32, while ours run in float64.


def compare(theirs: nn.Module, ours: nn.Module, translate: Callable[[Weights], Weights]) -> None:
    """Values, and gradients of the inputs and of every parameter of theirs."""
    for parameter in theirs.parameters():
        nn.init.normal_(parameter, std=0.4)
    weights = dict(theirs.named_parameters())
    assert set(translate(weights)) == {name for name, _ in ours.named_parameters()}
    inputs, direction = torch.randn(2, TIME, WIDTH, requires_grad=True), torch.randn(2, TIME, WIDTH)
    translated = {name: weight.double() for name, weight in translate(weights).items()}
    found = [theirs(inputs), torch.func.functional_call(ours.double(), translated, (inputs.double(),))[0].float()]
    found = [(y, *torch.autograd.grad((y * direction).sum(), [inputs, *weights.values()])) for y in found]
    for expected, value in zip(*found, strict=True):
        size = max(1.0, expected.detach().abs().max().item())
        torch.testing.assert_close(value, expected, rtol=0, atol=1e-5 * size)


def stacked(weights: Weights, *names: str) -> Tensor:
    return torch.cat([weights[name] for name in names])


def test_mamba2_agrees() -> None:
    pytest.importorskip("transformers")
    from transformers import Mamba2Config
    from transformers.models.mamba2.modeling_mamba2 import Mamba2Mixer

    sizes = {"num_heads": 6, "head_dim": 8, "state_size": 16, "n_groups": 2, "chunk_size": 16, "num_hidden_layers": 1}
    theirs = Mamba2Mixer(Mamba2Config(hidden_size=WIDTH, layer_norm_epsilon=1e-5, **sizes), 0)

    def translate(weights: Weights) -> Weights:
        made = {name: weights[name] for name in weights if not name.startswith("conv1d")}
        return {
            **made,
            "conv_weight": weights["conv1d.weight"].squeeze(1).T,
            "conv_bias": weights["conv1d.bias"],
        }

    compare(theirs, seriatim.layers.find("mamba2")(WIDTH, WIDTH, num_heads=6, state_size=16, num_groups=2), translate)


def test_gated_deltanet_agrees() -> None:
    pytest.importorskip("transformers")
    from transformers import Qwen3NextConfig
    from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextGatedDeltaNet

    names = ("num_value_heads", "num_key_heads", "key_head_dim", "value_head_dim")
    sizes = {f"linear_{name}": size for name, size in zip(names, (4, 2, 8, 6), strict=True)}
    config = Qwen3NextConfig(
        hidden_size=WIDTH, num_hidden_layers=1, layer_types=["linear_attention"], rms_norm_eps=1e-5, **sizes
    )

    def translate(weights: Weights) -> Weights:
        q, k, v, z = weights["in_proj_qkvz.weight"].view(2, -1, WIDTH).split([8, 8, 12, 12], dim=1)
        b, a = weights["in_proj_ba.weight"].view(2, 4, WIDTH).chunk(2, dim=1)
        return {
            "qkv_proj.weight": torch.cat([x.flatten(0, 1) for x in (q, k, v)]),
            "g_proj.weight": z.flatten(0, 1),
            "ba_proj.weight": torch.cat([b.flatten(0, 1), a.flatten(0, 1)]),
            "conv_weight": weights["conv1d.weight"].squeeze(1).T,
            "A_log": weights["A_log"],
            "dt_bias": weights["dt_bias"],
            "o_norm.weight": weights["norm.weight"],
            "o_proj.weight": weights["out_proj.weight"],
        }

    ours = seriatim.layers.find("gated-deltanet")(WIDTH, WIDTH, num_heads=4, num_key_heads=2, head_size=8)
    compare(Qwen3NextGatedDeltaNet(config, 0), ours, translate)


def test_gated_deltanet_with_negative_eigenvalues_agrees() -> None:
    pytest.importorskip("transformers")
    from transformers import OlmoHybridConfig
    from transformers.models.olmo_hybrid.modeling_olmo_hybrid import OlmoHybridGatedDeltaNet

    names = ("num_value_heads", "num_key_heads", "key_head_dim", "value_head_dim")
    sizes = {f"linear_{name}": size for name, size in zip(names, (4, 4, 6, 12), strict=True)}
    types = ["linear_attention", "full_attention"]
    config = OlmoHybridConfig(hidden_size=WIDTH, num_attention_heads=4, num_hidden_layers=2, layer_types=types, **sizes)

    def translate(weights: Weights) -> Weights:
        return {
            "qkv_proj.weight": stacked(weights, "q_proj.weight", "k_proj.weight", "v_proj.weight"),
            "ba_proj.weight": stacked(weights, "b_proj.weight", "a_proj.weight"),
            "conv_weight": weights["conv1d.weight"].squeeze(1).T,
            **{name: weights[name] for name in ("g_proj.weight", "A_log", "dt_bias", "o_norm.weight", "o_proj.weight")},
        }

    ours = seriatim.layers.find("gated-deltanet")(WIDTH, WIDTH, num_heads=4, expansion=2, negative_eigenvalues=True)
    compare(OlmoHybridGatedDeltaNet(config, 0), ours, translate)


def test_kda_agrees() -> None:
    pytest.importorskip("transformers")
    from transformers import KimiLinearConfig
    from transformers.models.kimi_linear.modeling_kimi_linear import KimiLinearDeltaAttention

    config = KimiLinearConfig(
        hidden_size=WIDTH,
        num_hidden_layers=1,
        layer_types=["linear_attention"],
        mlp_layer_types=["dense"],
        linear_head_dim=8,
        linear_num_heads=3,
        rms_norm_eps=1e-5,
    )

    def translate(weights: Weights) -> Weights:
        kept = ("b_proj", "g_a_proj", "g_b_proj", "o_norm", "o_proj")
        return {
            "qkv_proj.weight": stacked(weights, "q_proj.weight", "k_proj.weight", "v_proj.weight"),
            "conv_weight": weights["conv1d.weight"].squeeze(1).T,
            "A_log": weights["forget_gate.A_log"].flatten(),
            "dt_bias": weights["forget_gate.dt_bias"],
            **{f"f_{x}_proj.weight": weights[f"forget_gate.f_{x}_proj.weight"] for x in "ab"},
            **{f"{name}.weight": weights[f"{name}.weight"] for name in kept},
        }

    compare(KimiLinearDeltaAttention(config, 0), seriatim.layers.find("kda")(WIDTH, WIDTH, num_heads=3), translate)


def test_the_scan_agrees_with_lightning_attention() -> None:
    pytest.importorskip("transformers")
    from transformers import MiniMaxConfig
    from transformers.models.minimax.modeling_minimax import MiniMaxLightningAttention

    sizes = {"hidden_size": WIDTH, "num_attention_heads": 4, "head_dim": 6, "num_hidden_layers": 2, "block_size": 16}
    theirs = MiniMaxLightningAttention(MiniMaxConfig(layer_types=["linear_attention"] * 2, **sizes), 0).double()
    slopes = theirs.slope_rate
    theirs.query_decay, theirs.key_decay, theirs.diagonal_decay = theirs.decay_factors(slopes)
    inputs = torch.randn(2, TIME, WIDTH, dtype=torch.float64, requires_grad=True)
    expected, end = theirs(inputs, None, None)
    q, k, v = F.silu(theirs.qkv_proj(inputs)).unflatten(2, (4, 18)).chunk(3, dim=3)
    decays = -slopes.flatten().expand(2, TIME, 4)
    found, state = matrix_scan(q, k, v, decays, torch.zeros(2, 4, 6, 6, dtype=torch.float64))
    outputs = theirs.out_proj(torch.sigmoid(theirs.output_gate(inputs)) * theirs.norm(found.flatten(2)))
    # their norm computes in float32
    torch.testing.assert_close(outputs, expected, rtol=0, atol=1e-6)
    assert_same([state], [end], [inputs, theirs.qkv_proj.weight])

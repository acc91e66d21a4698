"""Latent attention: agreement with DeepSeek-V3, its cache, and single queries that read the latent vectors."""

import pytest
import torch
from torch import Tensor

import seriatim
from seriatim.core.state import state_bytes
from seriatim.recurrence import explain, uncompiled

from ..agreement import same_gradients
from ..conftest import randn
from ..refusals import refused

WIDTH, HEADS, HEAD, LATENT, ROTARY, TIME = 12, 3, 4, 5, 6, 9
OPTIONS = {"num_heads": HEADS, "head_size": HEAD, "latent_size": LATENT, "rotary_size": ROTARY, "block": False}


def latent_attention(**options: object) -> seriatim.SequenceLayer:
    torch.manual_seed(0)
    return seriatim.layer("latent-attention", WIDTH, WIDTH, **OPTIONS, **options).double().eval()


@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize("query_latent", [None, 7])
def test_equal_to_deepseek_v3(query_latent: int | None, interleaved: bool) -> None:
    modeling = pytest.importorskip("transformers.models.deepseek_v3.modeling_deepseek_v3")
    config = modeling.DeepseekV3Config(
        hidden_size=WIDTH, num_attention_heads=HEADS, num_key_value_heads=HEADS, q_lora_rank=query_latent,
        kv_lora_rank=LATENT, qk_rope_head_dim=ROTARY, qk_nope_head_dim=HEAD, v_head_dim=HEAD,
        rope_interleave=interleaved, attention_bias=interleaved,
        attn_implementation="sdpa",  # the other one computes in float32
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
    )  # fmt: skip
    torch.manual_seed(0)
    theirs = modeling.DeepseekV3Attention(config, 0).double()
    for name, size in (("kv_a_layernorm", LATENT), ("q_a_layernorm", query_latent)):  # theirs compute in float32
        setattr(theirs, name, size and torch.nn.RMSNorm(size, eps=1e-6).double())
    for name, parameter in theirs.named_parameters():
        torch.nn.init.normal_(parameter, mean=float("norm" in name), std=0.5)

    # rotated features come first here, the first of each pair in the first half
    order = [*range(0, ROTARY, 2), *range(1, ROTARY, 2)] if interleaved else [*range(ROTARY)]
    last = theirs.q_proj if query_latent is None else theirs.q_b_proj
    parts = last.weight.unflatten(0, (HEADS, -1)).split([HEAD, ROTARY], dim=1)
    latent, shared = theirs.kv_a_proj_with_mqa.weight.split([LATENT, ROTARY])
    weights = {
        "kv_a_proj.weight": torch.cat([shared[order], latent]),
        "kv_a_norm.weight": theirs.kv_a_layernorm.weight,
        "kv_b_proj.weight": theirs.kv_b_proj.weight,
        "o_proj.weight": theirs.o_proj.weight,
        "q_proj.weight" if query_latent is None else "q_proj.2.weight": torch.cat(
            [parts[1][:, order], parts[0]], dim=1
        ).flatten(0, 1),
    }
    if query_latent is not None:
        weights["q_proj.0.weight"] = theirs.q_a_proj.weight
        weights["q_proj.1.weight"] = theirs.q_a_layernorm.weight
    if interleaved:
        latent, shared = theirs.kv_a_proj_with_mqa.bias.split([LATENT, ROTARY])
        weights |= {"kv_a_proj.bias": torch.cat([shared[order], latent]), "o_proj.bias": theirs.o_proj.bias}
        weights |= {} if query_latent is None else {"q_proj.0.bias": theirs.q_a_proj.bias}
    ours = latent_attention(query_latent_size=query_latent, bias=interleaved)
    assert weights.keys() == dict(ours.named_parameters()).keys()

    x, mask = randn(2, TIME, WIDTH).requires_grad_(), torch.full((TIME, TIME), -torch.inf).triu(1).double()
    angles = torch.arange(TIME).view(1, -1, 1) * torch.pow(10_000.0, -2 * torch.arange(3).double() / ROTARY)
    angles = torch.cat([angles, angles], dim=2)
    expected, _ = theirs(x, (angles.cos(), angles.sin()), mask)
    found, _ = torch.func.functional_call(ours, weights, (x,))
    same_gradients(found, expected, [x, *theirs.parameters()])


def test_a_single_query_reads_latent_vectors_with_the_same_gradients() -> None:
    layer = latent_attention(query_latent_size=7)
    x = randn(2, TIME, WIDTH).requires_grad_()
    state, outputs = layer.initial_state(2), []
    for t in range(TIME):
        output, state = layer.step(x[:, t], state)
        outputs.append(output)
    same_gradients(torch.stack(outputs, 1), layer(x)[0], [x, *layer.parameters()])


@pytest.mark.parametrize("window", [None, 4])
def test_the_cache_is_the_latent_vector_and_the_shared_key(window: int | None) -> None:
    _, state = latent_attention(window=window)(randn(2, TIME, WIDTH))
    assert state.kept.shape == (2, 1, TIME if window is None else window - 1, ROTARY + LATENT)
    full = seriatim.layer("attention", WIDTH, WIDTH, num_heads=HEADS, head_size=HEAD).double()
    assert state_bytes(state.kept) < state_bytes(full(randn(2, TIME, WIDTH))[1].kept)


@pytest.mark.parametrize("options", [{}, {"window": 3}, {"query_latent_size": 7}], ids=str)
def test_a_compiled_step_is_the_step_as_it_is_written(options: dict[str, int]) -> None:
    layer, x = latent_attention(**options), randn(3, 7, WIDTH)
    assert "one call of compiled code" in explain(layer)
    with torch.no_grad():
        state = reference = layer(x[:, :2], lengths=torch.tensor([2, 0, 1]))[1]
        for t in range(2, 7):
            found, state = layer.step(x[:, t], state)
            with uncompiled():
                expected, reference = layer.step(x[:, t], reference)
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def largest(layer: seriatim.SequenceLayer, x: Tensor) -> float:
    return max(float(value.abs().max()) for value in torch.autograd.grad(layer(x)[0].sum(), [x, *layer.parameters()]))


def test_large_inputs_give_numbers() -> None:
    x = (1e4 * torch.randn(2, TIME, WIDTH)).requires_grad_()
    assert largest(latent_attention().float(), x) < float("inf")


def test_what_does_not_fit_is_refused() -> None:
    with refused("range", "model.options.num_heads"):
        seriatim.layer("latent-attention", WIDTH, WIDTH, num_heads=5)
    for option in ("latent_size", "rotary_size", "head_size", "query_latent_size", "window"):
        with refused("range", option):
            seriatim.layer("latent-attention", WIDTH, WIDTH, **{option: 0})
    with refused("mismatch", "state"):
        latent_attention()(randn(2, 1, WIDTH), seriatim.layer("attention", WIDTH, WIDTH).double().initial_state(2))

"""Agreement with `transformers`: random-weight GPT-2, BERT, Llama, Mistral and Mixtral, values and gradients.

Their parameters are rearranged into ours by differentiable operations, so that gradients can be compared parameter by
parameter: GPT-2 and BERT in float64; the others in float32, which their norms and angles are always computed in.
"""

import os
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import seriatim
from seriatim.layers.feed_forward import feed_forward

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
pytest.importorskip("transformers")

WIDTH, HEADS, INNER, LAYERS, BATCH, TIME = 24, 4, 40, 2, 3, 11
Weights = dict[str, Tensor]


def compare(
    theirs: nn.Module, run: Callable[[Tensor], Tensor], ours: nn.Module, translate: Callable[[Weights], Weights]
) -> None:
    """Values, and gradients of the inputs and of every parameter that has one."""
    weights = dict(theirs.named_parameters())
    dtype = next(iter(weights.values())).dtype
    ours, close = ours.to(dtype).eval(), {torch.float64: 1e-10, torch.float32: 1e-5}[dtype]
    inputs = torch.randn(BATCH, TIME, WIDTH, dtype=dtype, requires_grad=True)
    direction = torch.randn(BATCH, TIME, WIDTH, dtype=dtype)

    def of_ours(x: Tensor) -> Tensor:
        return torch.func.functional_call(ours, translate(weights), (x,))[0]

    assert set(translate(weights)) == {name for name, _ in ours.named_parameters()}
    found = []
    for way in (run, of_ours):
        outputs = way(inputs)
        gradients = torch.autograd.grad((outputs * direction).sum(), [inputs, *weights.values()], allow_unused=True)
        found.append((outputs, gradients))
    pairs = zip((found[0][0], *found[0][1]), (found[1][0], *found[1][1]), strict=True)
    used = 0
    for expected, value in pairs:
        if expected is not None and expected.any():
            used += 1
            torch.testing.assert_close(
                value, expected, rtol=0, atol=close * max(1.0, expected.detach().abs().max().item())
            )
    assert used > 5 * LAYERS


def prepared(model: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model.eval()


def test_gpt2() -> None:
    from transformers import GPT2Config, GPT2Model

    sizes = {"n_embd": WIDTH, "n_head": HEADS, "n_layer": LAYERS, "n_inner": INNER}
    theirs = prepared(
        GPT2Model(GPT2Config(vocab_size=7, n_positions=32, bos_token_id=0, eos_token_id=0, **sizes))
    ).double()
    options = {"norm": "layer", "position": "learned", "max_length": 32, "bias": True, "num_heads": HEADS}
    ours = seriatim.layer(
        "transformer", WIDTH, WIDTH, num_layers=LAYERS, feed_forward="gelu-tanh", feed_forward_size=INNER, **options
    )

    def translate(weights: Weights) -> Weights:
        made = {"layers.0.table": weights["wpe.weight"]}
        for kind in ("weight", "bias"):
            made[f"layers.1.norm.{kind}"] = weights[f"ln_f.{kind}"]
            for i in range(LAYERS):
                theirs, block = f"h.{i}", f"layers.1.layers.{i}.layers"
                names = ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")
                maps = {name: weights[f"{theirs}.{name}.{kind}"] for name in names}
                if kind == "weight":
                    maps = {name: found.mT for name, found in maps.items()}
                made[f"{block}.0.norm.{kind}"] = weights[f"{theirs}.ln_1.{kind}"]
                made[f"{block}.1.norm.{kind}"] = weights[f"{theirs}.ln_2.{kind}"]
                made[f"{block}.0.layer.qkv_proj.{kind}"] = maps["attn.c_attn"]
                made[f"{block}.0.layer.o_proj.{kind}"] = maps["attn.c_proj"]
                made[f"{block}.1.layer.module.up_proj.{kind}"] = maps["mlp.c_fc"]
                made[f"{block}.1.layer.module.down_proj.{kind}"] = maps["mlp.c_proj"]
        return made

    compare(theirs, lambda x: theirs(inputs_embeds=x).last_hidden_state, ours, translate)


def test_bert() -> None:
    from transformers import BertConfig, BertModel

    sizes = {"hidden_size": WIDTH, "num_attention_heads": HEADS, "intermediate_size": INNER}
    theirs = prepared(
        BertModel(BertConfig(vocab_size=7, num_hidden_layers=LAYERS, layer_norm_eps=1e-5, **sizes))
    ).double()
    around = {"norm": "layer", "norm_first": False, "feed_forward": "gelu", "feed_forward_size": INNER}
    ours = seriatim.layer(
        "transformer",
        WIDTH,
        WIDTH,
        num_layers=LAYERS,
        causal=False,
        position="none",
        num_heads=HEADS,
        bias=True,
        **around,
    )

    def translate(weights: Weights) -> Weights:
        made = {}
        for kind in ("weight", "bias"):
            for i in range(LAYERS):
                theirs, block = f"layer.{i}", f"layers.{i}.layers"
                maps = [weights[f"{theirs}.attention.self.{name}.{kind}"] for name in ("query", "key", "value")]
                made[f"{block}.0.layer.qkv_proj.{kind}"] = torch.cat(maps)
                made[f"{block}.0.layer.o_proj.{kind}"] = weights[f"{theirs}.attention.output.dense.{kind}"]
                made[f"{block}.0.norm.{kind}"] = weights[f"{theirs}.attention.output.LayerNorm.{kind}"]
                made[f"{block}.1.layer.module.up_proj.{kind}"] = weights[f"{theirs}.intermediate.dense.{kind}"]
                made[f"{block}.1.layer.module.down_proj.{kind}"] = weights[f"{theirs}.output.dense.{kind}"]
                made[f"{block}.1.norm.{kind}"] = weights[f"{theirs}.output.LayerNorm.{kind}"]
        return made

    encoder = theirs.encoder
    compare(encoder, lambda x: encoder(x).last_hidden_state, ours, translate)


def llama_attention(weights: Weights, theirs: str, block: str) -> Weights:
    """What Llama's and Mixtral's layers share: grouped queries, rotary positions, RMSNorm."""
    *maps, leave = (weights[f"{theirs}.self_attn.{name}_proj.weight"] for name in "qkvo")
    return {
        f"{block}.0.layer.qkv_proj.weight": torch.cat(maps),
        f"{block}.0.layer.o_proj.weight": leave,
        f"{block}.0.norm.weight": weights[f"{theirs}.input_layernorm.weight"],
        f"{block}.1.norm.weight": weights[f"{theirs}.post_attention_layernorm.weight"],
    }


SIZES = {
    "vocab_size": 7,
    "hidden_size": WIDTH,
    "intermediate_size": INNER,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "pad_token_id": None,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0},
}


@pytest.mark.parametrize("window", [None, 4])
def test_llama(window: int | None) -> None:
    from transformers import LlamaConfig, LlamaModel, MistralConfig, MistralModel

    if window is None:
        theirs = prepared(LlamaModel(LlamaConfig(**SIZES)))
    else:
        theirs = prepared(MistralModel(MistralConfig(sliding_window=window, **SIZES)))
    options = {"num_heads": HEADS, "num_kv_heads": 2, "feed_forward_size": INNER, "window": window}
    ours = seriatim.layer("transformer", WIDTH, WIDTH, num_layers=LAYERS, **options)

    def translate(weights: Weights) -> Weights:
        made = {"norm.weight": weights["norm.weight"]}
        for i in range(LAYERS):
            theirs, block = f"layers.{i}", f"layers.{i}.layers"
            made |= llama_attention(weights, theirs, block)
            made[f"{block}.1.layer.module.up_proj.weight"] = weights[f"{theirs}.mlp.up_proj.weight"]
            made[f"{block}.1.layer.module.gate_proj.weight"] = weights[f"{theirs}.mlp.gate_proj.weight"]
            made[f"{block}.1.layer.module.down_proj.weight"] = weights[f"{theirs}.mlp.down_proj.weight"]
        return made

    compare(theirs, lambda x: theirs(inputs_embeds=x).last_hidden_state, ours, translate)


def test_mixtral() -> None:
    from transformers import MixtralConfig, MixtralModel

    experts = {"num_local_experts": 4, "num_experts_per_tok": 2}
    theirs = prepared(
        MixtralModel(MixtralConfig(sliding_window=None, experts_implementation="eager", **SIZES, **experts))
    )
    options = {"num_heads": HEADS, "num_kv_heads": 2, "feed_forward_size": INNER}
    ours = seriatim.layer("transformer", WIDTH, WIDTH, num_layers=LAYERS, num_experts=4, experts_per_token=2, **options)

    def translate(weights: Weights) -> Weights:
        made = {"norm.weight": weights["norm.weight"]}
        for i in range(LAYERS):
            theirs, block = f"layers.{i}", f"layers.{i}.layers"
            made |= llama_attention(weights, theirs, block)
            made[f"{block}.1.layer.module.router.weight"] = weights[f"{theirs}.mlp.gate.weight"]
            for e in range(4):
                expert = f"{block}.1.layer.module.experts.{e}"
                gate, up = weights[f"{theirs}.mlp.experts.gate_up_proj"][e].chunk(2)
                made |= {f"{expert}.gate_proj.weight": gate, f"{expert}.up_proj.weight": up}
                made[f"{expert}.down_proj.weight"] = weights[f"{theirs}.mlp.experts.down_proj"][e]
        return made

    compare(theirs, lambda x: theirs(inputs_embeds=x).last_hidden_state, ours, translate)


def test_a_shared_expert_is_that_of_qwen3_next() -> None:
    modeling = pytest.importorskip("transformers.models.qwen3_next.modeling_qwen3_next")
    config = modeling.Qwen3NextConfig(
        hidden_size=WIDTH, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=INNER,
        shared_expert_intermediate_size=6, experts_implementation="eager",
    )  # fmt: skip
    theirs = prepared(modeling.Qwen3NextSparseMoeBlock(config))
    ours = feed_forward(WIDTH, feed_forward_size=INNER, num_experts=4, shared_expert_size=6)
    names = ("gate_proj", "up_proj", "down_proj")
    weights = {"router.weight": theirs.gate.weight, "shared_gate.weight": theirs.shared_expert_gate.weight}
    weights |= {f"shared.{name}.weight": getattr(theirs.shared_expert, name).weight for name in names}
    for e in range(4):
        maps = (*theirs.experts.gate_up_proj[e].chunk(2), theirs.experts.down_proj[e])
        weights |= {f"experts.{e}.{name}.weight": weight for name, weight in zip(names, maps, strict=True)}
    x = torch.randn(2, 5, WIDTH, requires_grad=True)
    found = [torch.func.functional_call(ours, weights, (x,)), theirs(x)]
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-5)
    gradients = [torch.autograd.grad(value.square().sum(), [x, *theirs.parameters()]) for value in found]
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-4)


def test_the_load_balance_is_that_of_mixtral() -> None:
    from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

    from seriatim.layers.experts import Router, balance_loss

    torch.manual_seed(0)
    router, x = Router(6, 5, per_token=2), torch.randn(40, 6)
    theirs = load_balancing_loss_func((nn.functional.linear(x, router.weight),), num_experts=5, top_k=2)
    torch.testing.assert_close(balance_loss(router(x)), theirs)


def test_mamba() -> None:
    from transformers import MambaConfig, MambaModel

    sizes = {"hidden_size": WIDTH, "num_hidden_layers": LAYERS, "state_size": 5, "pad_token_id": None}
    theirs = prepared(MambaModel(MambaConfig(vocab_size=7, layer_norm_epsilon=1e-5, residual_in_fp32=False, **sizes)))
    ours = seriatim.layer("mamba", WIDTH, WIDTH, num_layers=LAYERS, state_size=5)
    names = ("in_proj.weight", "x_proj.weight", "dt_proj.weight", "dt_proj.bias", "A_log", "D", "out_proj.weight")

    def translate(weights: Weights) -> Weights:
        made = {"norm.weight": weights["norm_f.weight"]}
        for i in range(LAYERS):
            made[f"layers.{i}.norm.weight"] = weights[f"layers.{i}.norm.weight"]
            made[f"layers.{i}.layer.conv_weight"] = weights[f"layers.{i}.mixer.conv1d.weight"].squeeze(1).mT
            made[f"layers.{i}.layer.conv_bias"] = weights[f"layers.{i}.mixer.conv1d.bias"]
            made |= {f"layers.{i}.layer.{name}": weights[f"layers.{i}.mixer.{name}"] for name in names}
        return made

    compare(theirs, lambda x: theirs(inputs_embeds=x).last_hidden_state, ours, translate)

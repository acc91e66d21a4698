"""Sinks, forget gates and rotary positions of a part of each head: agreement, gates, steps and refusals."""

import pytest
import torch
from torch import Tensor

import seriatim
from seriatim.recurrence import explain, uncompiled

from ..agreement import same_gradients
from ..conftest import randn
from ..refusals import refused

WIDTH, HEADS, TIME = 16, 4, 11


def attention(**options: object) -> seriatim.SequenceLayer:
    torch.manual_seed(0)
    return seriatim.layer("attention", WIDTH, WIDTH, num_heads=HEADS, **options).double().eval()


@pytest.mark.parametrize("window", [None, 4])
def test_sinks_are_those_of_gpt_oss(window: int | None) -> None:
    modeling = pytest.importorskip("transformers.models.gpt_oss.modeling_gpt_oss")
    config = modeling.GptOssConfig(
        hidden_size=WIDTH, num_attention_heads=HEADS, num_key_value_heads=2, head_dim=6, num_hidden_layers=1,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0}, attn_implementation="eager",
    )  # fmt: skip
    torch.manual_seed(0)
    theirs = modeling.GptOssAttention(config, 0).double()
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    ours = attention(num_kv_heads=2, head_size=6, sinks=True, window=window, bias=True)
    x, positions = randn(2, TIME, WIDTH).requires_grad_(), torch.arange(TIME).unsqueeze(0)
    distance = torch.arange(TIME).unsqueeze(1) - torch.arange(TIME)
    hidden = (distance < 0) | (distance >= (window or TIME))
    mask = torch.zeros(1, 1, TIME, TIME, dtype=torch.float64).masked_fill(hidden, -torch.inf)
    expected, _ = theirs(x, exact(modeling.GptOssRotaryEmbedding(config), positions, 3), mask)
    weights = {
        "qkv_proj.weight": torch.cat([getattr(theirs, f"{letter}_proj").weight for letter in "qkv"]),
        "qkv_proj.bias": torch.cat([getattr(theirs, f"{letter}_proj").bias for letter in "qkv"]),
        "o_proj.weight": theirs.o_proj.weight, "o_proj.bias": theirs.o_proj.bias, "sinks": theirs.sinks,
    }  # fmt: skip
    found, _ = torch.func.functional_call(ours, weights, (x,))
    same_gradients(found, expected, [x, *theirs.parameters()])


def exact(rotary: torch.nn.Module, positions: Tensor, pairs: int) -> tuple[Tensor, Tensor]:
    """The angles in float64, which the library computes in float32."""
    angles = positions.unsqueeze(-1) * torch.pow(10_000.0, -torch.arange(pairs, dtype=torch.float64) / pairs)
    assert torch.allclose(rotary(torch.zeros(1), positions)[0].double()[..., :pairs], angles.cos(), atol=1e-5)
    return angles.cos(), angles.sin()


def test_output_gates_are_those_of_qwen3_next() -> None:
    modeling = pytest.importorskip("transformers.models.qwen3_next.modeling_qwen3_next")
    config = modeling.Qwen3NextConfig(
        hidden_size=WIDTH, num_attention_heads=HEADS, num_key_value_heads=2, head_dim=6, num_hidden_layers=1,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0}, partial_rotary_factor=1.0,
        rms_norm_eps=1e-5, attn_implementation="sdpa",
    )  # fmt: skip
    torch.manual_seed(0)
    theirs = modeling.Qwen3NextAttention(config, 0).double()
    theirs.q_norm, theirs.k_norm = (torch.nn.RMSNorm(6, eps=1e-5).double() for _ in "qk")  # theirs are in float32
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    ours = attention(num_kv_heads=2, head_size=6, output_gate=True, qk_norm=True)
    x = randn(2, TIME, WIDTH).requires_grad_()
    mask = torch.full((TIME, TIME), -torch.inf, dtype=torch.float64).triu(1)
    angles = exact(modeling.Qwen3NextRotaryEmbedding(config), torch.arange(TIME).unsqueeze(0), 3)
    expected, _ = theirs(x, tuple(torch.cat([angle, angle], dim=-1) for angle in angles), mask)
    queries, gates = theirs.q_proj.weight.unflatten(0, (HEADS, 2, 6)).unbind(1)
    weights = {
        "qkv_proj.weight": torch.cat([queries.flatten(0, 1), theirs.k_proj.weight, theirs.v_proj.weight]),
        "gate_proj.weight": gates.flatten(0, 1), "o_proj.weight": theirs.o_proj.weight,
        "q_norm": theirs.q_norm.weight, "k_norm": theirs.k_norm.weight,
    }  # fmt: skip
    found, _ = torch.func.functional_call(ours, weights, (x,))
    same_gradients(found, expected, [x, *theirs.parameters()])


@pytest.mark.parametrize("window", [None, 4])
def test_a_forget_gate_adds_the_logs_of_the_gates_in_between(window: int | None) -> None:
    """A second derivation: one query, one head and one key after another."""
    layer = attention(forget_gate=True, window=window, position="none")
    x = randn(2, TIME, WIDTH).requires_grad_()
    queries, keys, values = layer.parts(layer.qkv_proj(x).unflatten(2, (-1, WIDTH // HEADS)).transpose(1, 2))
    gate = torch.sigmoid(x @ layer.forget_proj.weight.T + layer.forget_proj.bias)  # (B, T, H)
    rows = []
    for i in range(TIME):
        first, heads = max(0, i - window + 1) if window else 0, []
        for h in range(HEADS):
            scores = [
                (queries[:, h, i] * keys[:, h, j]).sum(-1) / (WIDTH // HEADS) ** 0.5
                + sum((gate[:, m, h].log() for m in range(j + 1, i + 1)), torch.zeros(()))
                for j in range(first, i + 1)
            ]
            weights = torch.softmax(torch.stack(scores, 1), 1).unsqueeze(2)
            heads.append((weights * values[:, h, first : i + 1]).sum(1))
        rows.append(layer.o_proj(torch.cat(heads, 1)))
    same_gradients(layer(x)[0], torch.stack(rows, 1), [x, *layer.parameters()])


@pytest.mark.parametrize("scale", [1e2, 1e4])
def test_extreme_gates_and_sinks_give_numbers_at_any_split(scale: float) -> None:
    layer = attention(forget_gate=True, sinks=True).float()
    with torch.no_grad():
        layer.forget_proj.weight.mul_(scale)
        layer.sinks.copy_(torch.tensor([scale, -scale, 0.0, 1.0]))
    x = torch.randn(3, TIME, WIDTH, generator=torch.Generator().manual_seed(1), requires_grad=True)
    whole, _ = layer(x)
    for split in (1, 4, 10):
        first, state = layer(x[:, :split])
        outputs = torch.cat([first, layer(x[:, split:], state)[0]], dim=1)
        torch.testing.assert_close(outputs, whole)
        gradients = torch.autograd.grad(outputs.sum(), [x, *layer.parameters()])
        assert all(gradient.isfinite().all() for gradient in (outputs, *gradients))


def test_a_long_stream_forgets_as_exactly_as_a_short_one() -> None:
    """The cache holds log f of each entry and no sum since the beginning, which would grow and lose digits."""
    layer = attention(forget_gate=True, window=8).float()
    with torch.no_grad():
        layer.forget_proj.bias.fill_(-30.0)
        x = torch.randn(1, 3_000, WIDTH, generator=torch.Generator().manual_seed(1))
        _, state = layer(x)
        late, _ = layer.step(x[:, 0], state)
        early, _ = layer.step(x[:, 0], layer(x[:, -8:])[1]._replace(seen=state.seen))
    torch.testing.assert_close(late, early, rtol=0, atol=1e-6)


STEPPED = (
    {"sinks": True},
    {"sinks": True, "position": "alibi", "window": 3},
    {"forget_gate": True, "num_kv_heads": 2},
    {"forget_gate": True, "sinks": True, "window": 4, "head_size": 3},
    {"forget_gate": True, "position": "alibi", "num_kv_heads": 1},
    {"rotary_size": 2},
    {"rotary_size": 1},
)


@pytest.mark.parametrize("options", STEPPED, ids=str)
def test_a_compiled_step_is_the_step_as_it_is_written(options: dict[str, object]) -> None:
    layer, x = attention(**options), randn(3, 9, WIDTH)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.5 * randn(*parameter.shape))
        assert "one call of compiled code" in explain(layer)
        state = reference = layer(x[:, :3], lengths=torch.tensor([3, 0, 1]))[1]
        for t in range(3, 9):
            found, state = layer.step(x[:, t], state)
            with uncompiled():
                expected, reference = layer.step(x[:, t], reference)
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
        torch.testing.assert_close(state.kept, reference.kept, rtol=0, atol=1e-12)


def test_only_the_first_features_are_rotated() -> None:
    rotated = attention(rotary_size=2).rotary(torch.ones(1, 1, 2, 4), torch.arange(2).unsqueeze(0), 1)
    assert rotated[0, 0, 1, 2:].tolist() == [1, 1]
    assert rotated[0, 0, 1, :2].tolist() != [1, 1]


def test_what_does_not_fit_is_refused() -> None:
    with refused("conflict", "model.options.forget_gate"):
        attention(forget_gate=True, causal=False)
    with refused("range", "model.options.rotary_size"):
        attention(rotary_size=5)
    for rotary_size in (0, -1):
        with refused("range", "rotary_size"):
            attention(rotary_size=rotary_size)
    with refused("mismatch", "state"):
        attention(forget_gate=True)(randn(2, 1, WIDTH), attention().initial_state(2))

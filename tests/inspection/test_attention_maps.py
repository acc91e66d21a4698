"""Attention maps, compared with other ways to compute the same weights."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import seriatim
from seriatim.compiler.module_cache import HOOKS
from seriatim.inspection.attention_maps import attention_maps, recorded_attention, weights_of_fused
from seriatim.recurrence import uncompiled

from ..conftest import randn, small_config
from ..laws.eight_laws import build, example
from ..refusals import refused

TIME = 7
KINDS = [
    *("self-attention", "attention", "attention-window", "attention-alibi", "attention-alibi-window"),
    *("attention-grouped", "attention-bilinear", "attention-additive", "transformer", "transformer-experts", "encoder"),
]


@pytest.fixture(autouse=True)
def _uncompiled() -> Iterator[None]:
    """Disable compiled code, which these tests do not need and which takes seconds to build."""
    with uncompiled():
        yield


@pytest.mark.parametrize("name", KINDS)
def test_recording_maps_does_not_change_the_outputs(name: str) -> None:
    layer = build(name)
    inputs, _ = example(layer, TIME)
    with torch.no_grad():
        expected, _ = layer(inputs)
        with recorded_attention(layer) as found:
            outputs, _ = layer(inputs)
    assert torch.equal(outputs, expected)
    assert found
    for weights in found.values():
        assert weights.shape[2:] == (TIME, TIME)
        torch.testing.assert_close(weights.sum(3), torch.ones(weights.shape[:3]))
        if layer.causal:
            assert not weights.triu(1).any()
    assert not any(getattr(part, hooks) for part in layer.modules() for hooks in HOOKS)


@pytest.mark.parametrize("heads", [1, 2])
def test_weights_reproduce_the_fused_function(heads: int) -> None:
    queries, keys, values = randn(2, 2, 3, 4), randn(2, heads, 5, 4), randn(2, heads, 5, 4)
    mask = torch.rand(2, 1, 3, 5) > 0.3
    mask[..., 0] = True
    for settings in (
        {},
        {"is_causal": True},
        {"attn_mask": mask},
        {"attn_mask": randn(3, 5), "scale": 0.3},
    ):
        given = (queries, keys, values)
        expected = F.scaled_dot_product_attention(*given, enable_gqa=heads == 1, **settings)
        weights = weights_of_fused(*given, enable_gqa=heads == 1, **settings)
        torch.testing.assert_close(weights @ values, expected)


def test_maps_equal_those_of_torch() -> None:
    """`torch.nn.MultiheadAttention` returns its weights."""
    layer = seriatim.layer("attention", 8, 8, num_heads=2, position="none", causal=False).eval()
    theirs = nn.MultiheadAttention(8, 2, bias=False, batch_first=True)
    theirs.in_proj_weight.data, theirs.out_proj.weight.data = layer.qkv_proj.weight.data, layer.o_proj.weight.data
    inputs = torch.randn(3, TIME, 8)
    with torch.no_grad(), recorded_attention(layer) as found:
        outputs, _ = layer(inputs)
    expected, weights = theirs(inputs, inputs, inputs, average_attn_weights=False)
    torch.testing.assert_close(outputs, expected)
    torch.testing.assert_close(*found.values(), weights)


def translator(folder: Path, layer: str, options: dict) -> seriatim.Run:
    path = folder / "pairs.tsv"
    path.write_text("".join(f"{a} {b}\t{b} {a}\n" for a in ("ab", "cd", "ef") for b in ("gh", "ij")) * 4)
    return seriatim.train(
        {
            "task": "seq2seq",
            "data": {"train": str(path)},
            "tokenizer": {"kind": "char"},
            "model": {"layer": layer, "embedding_size": 8, "hidden_size": 8, "options": options},
            "training": {"baseline": "none", "steps": 2},
            "out": str(folder / "run"),
        }
    )


@pytest.mark.parametrize("options", [{}, {"input_feeding": True}, {"form": "bahdanau", "attention": "additive"}])
def test_the_map_of_a_single_head_is_the_alignment(tmp_path: Path, options: dict) -> None:
    run = translator(tmp_path, "mingru", options)
    (answer,) = run.predict(["ab gh"], alignments=True, details=True)
    if not answer["text"]:
        pytest.skip("this model writes nothing")
    maps = attention_maps(run, ("ab gh", answer["text"])).maps
    (found,) = maps
    assert found.keys == tuple(answer["source_tokens"])
    torch.testing.assert_close(found.weights[0], torch.tensor(answer["alignment"]))


def test_a_translator_of_many_heads_has_three_kinds_of_maps(tmp_path: Path) -> None:
    run = translator(tmp_path, "transformer", {"num_heads": 2})
    found = {one.layer: one for one in attention_maps(run, ("ab gh", "gh")).maps}
    assert {name: tuple(one.weights.shape) for name, one in found.items()} == {
        "encoder, layer 1: transformer": (2, 5, 5),
        "decoder, layer 1: transformer": (2, 3, 3),
        "decoder, layer 1: cross attention": (2, 3, 5),
    }
    crossed = found["decoder, layer 1: cross attention"]
    assert (crossed.queries, crossed.keys) == (("</s>", "g", "h"), tuple("ab gh"))


def test_texts_are_cut_to_the_number_of_learned_positions(tmp_path: Path) -> None:
    path = tmp_path / "labels.tsv"
    path.write_text("label\ttext\n" + "a\tred green\nb\tblue red\n" * 8)
    model = {"layer": "transformer", "embedding_size": 8, "hidden_size": 8}
    run = seriatim.train(
        {
            "task": "classify",
            "data": {"train": str(path)},
            "model": {**model, "options": {"position": "learned", "max_length": 3}},
            "training": {"baseline": "none", "steps": 1},
            "out": str(tmp_path / "run"),
        }
    )
    (found,) = attention_maps(run, "red green blue red").maps
    assert found.queries == ("red", "green", "blue")


def test_the_limits_of_a_map_are_stated(tmp_path: Path, texts: dict[str, str]) -> None:
    run = seriatim.train(small_config(texts, tmp_path / "run", model={"layer": "transformer"}, training={"steps": 1}))
    part, whole = attention_maps(run, "the cat sees it", max_tokens=5), attention_maps(run, "the cat sees it")
    assert whole.limits == ""
    assert part.limits == "The first 5 of 15 tokens."
    torch.testing.assert_close(part.maps[0].weights, whole.maps[0].weights[:, :5, :5])
    with refused("range", "max_tokens"):
        attention_maps(run, "the cat", max_tokens=1000)
    with refused("empty", "text"):
        attention_maps(run, "")

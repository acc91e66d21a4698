"""Runs go out as checkpoints that the transformers library opens, and come back."""

import json
from pathlib import Path

import pytest
import torch

import seriatim
from seriatim.cli.main import main

from .checkpoints import CHECKPOINTS, LINES

transformers = pytest.importorskip("transformers")


@pytest.mark.parametrize("name", CHECKPOINTS)
@torch.no_grad()
def test_what_comes_in_goes_out_again(made, tmp_path, name: str) -> None:
    folder, model, run = made(name)
    out = tmp_path / "again"
    assert main(["export", str(run.path), "--format", "transformers", "--out", str(out)]) == 0
    again = transformers.AutoModelForCausalLM.from_pretrained(out).eval()
    assert type(again) is type(model)
    ids = torch.randint(run.tokenizer.vocabulary_size, (2, 9), generator=torch.Generator().manual_seed(2))
    torch.testing.assert_close(again(ids).logits, model(ids).logits, rtol=0, atol=1e-6)
    there, here = (transformers.AutoTokenizer.from_pretrained(path) for path in (folder, out))
    for line in LINES:
        assert here.encode(line, add_special_tokens=False) == there.encode(line, add_special_tokens=False)
    assert {path.name for path in out.iterdir()} == {
        "config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"
    }  # fmt: skip


OURS = {
    "llama": ("transformer", "bpe", {"num_layers": 2}, {}),
    "mistral": ("transformer", "char", {}, {"window": 5}),
    "qwen2": ("transformer", "byte", {}, {"qkv_bias": True, "num_heads": 4, "num_kv_heads": 2}),
    "qwen3": ("transformer", "unigram", {}, {"qk_norm": True, "head_size": 8, "num_heads": 2}),
    "mixtral": ("transformer", "word", {}, {"num_experts": 3, "experts_per_token": 2}),
    "gpt2": (
        "transformer", "bpe", {"tie_weights": True},
        {"position": "learned", "norm": "layer", "feed_forward": "gelu-tanh", "bias": True, "max_length": 64},
    ),
    "mamba": ("mamba", "char", {"num_layers": 2}, {"state_size": 4}),
    "lfm2": (
        "short-convolution,transformer", "byte", {"tie_weights": True},
        {"qk_norm": True, "num_heads": 2, "num_kv_heads": 1, "kernel_size": 2},
    ),
    "recurrent_gemma": (
        "rg-lru,transformer", "bpe", {"num_layers": 2},
        {
            "num_heads": 2, "rotary_size": 4, "window": 5, "bias": True, "qkv_bias": False, "logit_cap": 3.0,
            "feed_forward": "geglu-tanh",
        },
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", OURS)
def test_runs_of_our_own_go_out_and_come_back(texts, tmp_path, kind: str, capsys) -> None:
    layer, tokens, model, options = OURS[kind]
    run = seriatim.train(
        {
            "task": "lm",
            "data": {"train": texts["train"], "unit": "line"},
            "tokenizer": {"kind": tokens, "vocabulary_size": 300 if tokens in ("bpe", "unigram") else None},
            "model": {
                "layer": layer, "embedding_size": 16, "hidden_size": 16, "output_bias": False, **model,
                "options": options,
            },
            "training": {"baseline": "none", "steps": 5, "batch_size": 8},
            "out": str(tmp_path / "run"),
        }
    )  # fmt: skip
    out = tmp_path / "out"
    assert main(["export", str(run.path), "--format", "transformers", "--out", str(out)]) == 0
    assert json.loads((out / "config.json").read_text())["model_type"] == kind
    there = transformers.AutoModelForCausalLM.from_pretrained(out).eval()
    line = "the cat likes a dog ."
    ids = transformers.AutoTokenizer.from_pretrained(out).encode(line, add_special_tokens=False)
    assert ids == run.tokenizer.encode(line).tolist()
    inputs = torch.tensor([[0, *ids]])
    with torch.no_grad():
        torch.testing.assert_close(there(inputs).logits, run.model(inputs)[0], rtol=0, atol=1e-5)
    if tokens in ("bpe", "byte"):
        assert main(["import", str(out), "--out", str(tmp_path / "back")]) == 0
        back = seriatim.load(tmp_path / "back")
        there_again, here = (each.stream().feed(line).log_probability for each in (back, run))
        assert there_again == pytest.approx(here, rel=1e-5)


def test_what_no_checkpoint_holds_is_not_exported(made, tmp_path, capsys, texts) -> None:
    def refused(path: object, message: str, out: Path = tmp_path / "out") -> None:
        assert main(["export", str(path), "--format", "transformers", "--out", str(out)]) == 2
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1

    def trained(**model: object) -> Path:
        out = tmp_path / f"run{len(list(tmp_path.iterdir()))}"
        sizes = {"embedding_size": 16, "hidden_size": 16, "output_bias": False, "layer": "transformer"}
        seriatim.train(
            {
                "task": "lm",
                "data": {"train": texts["train"], "unit": "line"},
                "model": {**sizes, **model},
                "training": {"baseline": "none", "steps": 1},
                "out": str(out),
            }
        )
        return out

    refused(trained(output_bias=True), "the output layer has a bias")
    refused(trained(layer="lstm"), "layer lstm is in no checkpoint; choose from transformer, mamba")
    refused(trained(embedding_size=8), "another width than the embedding")
    refused(trained(options={"position": "alibi"}), "model.options.position 'alibi' cannot be written")
    refused(trained(options={"norm": "layer"}), "model.options.norm 'layer' cannot be written")
    refused(trained(options={"final_norm": False}), "model.options.final_norm False cannot be written")
    refused(trained(options={"feed_forward": "relu"}), "model.options.feed_forward relu cannot be written")
    refused(trained(options={"qk_norm": True, "window": 3}), "no checkpoint has qk_norm and window")
    refused(made("gpt2")[2].path, "exists; choose another folder", tmp_path)
    refused(made("gpt2")[2].path, "give a folder in one that exists", tmp_path / "no" / "out")
    assert not (tmp_path / "out").exists()


def test_folders_beside_an_export_stay(made, tmp_path) -> None:
    beside = tmp_path / "out.partial"
    beside.mkdir()
    (beside / "mine.txt").write_text("mine")
    out = str(tmp_path / "out")
    assert main(["export", str(made("gpt2")[2].path), "--format", "transformers", "--out", out]) == 0
    assert (beside / "mine.txt").read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "out.partial"]

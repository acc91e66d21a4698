"""Checkpoints of the transformers library become runs: the same logits and tokens, and clear errors."""

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import seriatim
from seriatim.cli.main import main
from seriatim.interchange import new_folders
from seriatim.interchange.formats import import_run

from . import checkpoints
from .checkpoints import CHECKPOINTS, GAPPED, LINES, write

transformers = pytest.importorskip("transformers")


def logits_there(run: seriatim.Run, logits: torch.Tensor) -> torch.Tensor:
    """Return logits in the order of the ids there."""
    order = run.tokenizer.exchanged(torch.arange(logits.shape[-1]).numpy())
    return logits[..., torch.from_numpy(order)]


@pytest.mark.parametrize("name", CHECKPOINTS)
@torch.no_grad()
def test_logits_are_those_of_the_library(made, name: str) -> None:
    _, model, run = made(name)
    ids = torch.randint(run.tokenizer.vocabulary_size, (3, 11), generator=torch.Generator().manual_seed(1))
    expected = model(ids).logits
    ours = torch.from_numpy(run.tokenizer.exchanged(ids.numpy()))
    torch.testing.assert_close(logits_there(run, run.model(ours)[0]), expected, rtol=0, atol=1e-5)
    state = run.model.initial_state(3)
    for time in range(ids.shape[1]):
        logits, state = run.model.step(ours[:, time], state)
        torch.testing.assert_close(logits_there(run, logits), expected[:, time], rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["gpt2", "gpt2-end", "llama", "qwen2"])
def test_the_tokenizer_gives_the_same_tokens_and_texts(made, name: str) -> None:
    folder, _, run = made(name)
    there = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
    loaded = seriatim.load(run.path).tokenizer
    for line in LINES:
        ids = there.encode(line, add_special_tokens=False)
        here = loaded.encode(line)
        assert loaded.exchanged(here).tolist() == ids
        assert loaded.decode(here) == there.decode(ids, clean_up_tokenization_spaces=False)
        ends = loaded.token_ends(line, here)
        assert not len(ends) or ends[-1] == len(line.encode())
    settings = CHECKPOINTS[name][1]
    assert loaded.exchanged([0])[0] == settings["eos_token_id"]
    assert loaded.exchanged([loaded.begin])[0] == settings.get("bos_token_id", settings["eos_token_id"])


@torch.no_grad()
def test_texts_begin_and_end_as_the_library_says(made) -> None:
    """Scores are those of the tokens after <s> and before </s>."""
    _, model, run = made("llama")
    line = "the cat sat"
    ids = run.tokenizer.exchanged(run.tokenizer.encode(line)).tolist()
    whole = torch.tensor([[1, *ids, 2]])
    nats = torch.log_softmax(model(whole).logits.double(), 2)[0, :-1].gather(1, whole[0, 1:, None]).squeeze(1)
    stream = run.stream()
    assert stream.feed(line).log_probability == pytest.approx(nats[:-1].sum().item(), abs=1e-4)
    (units,) = run.surprisal([line], by="token")
    expected = (-nats[:-1] / torch.log(torch.tensor(2.0))).tolist()
    assert [unit.bits for unit in units] == pytest.approx(expected, abs=1e-4)


def test_a_text_in_pieces_has_the_tokens_of_the_whole(made) -> None:
    run = made("llama")[2]
    tokenizer = run.tokenizer
    assert tokenizer.decode(tokenizer.encode("\n")) == "\n"
    whole, parts = tokenizer.encode("the cat sat"), [tokenizer.encode("the"), tokenizer.encode_continued(" cat sat")]
    assert tokenizer.decode([token for part in parts for token in part]) == "the cat sat"
    one, two = run.stream(), run.stream()
    one.feed("the cat sat")
    two.feed("the")
    two.feed(" cat sat")
    if [token for part in parts for token in part] == whole.tolist():
        torch.testing.assert_close(one.logits, two.logits)
    assert len(tokenizer.encode_continued("\n")) == 1
    assert run.score(["the cat sat"])[0].tokens == len(whole) + 1
    first, second = run.surprisal(["the cat", "she"], by="token", carry_context=True)
    assert "".join(unit.text for unit in (*first, *second)) == "the cat\nshe"


@pytest.mark.parametrize("name", ["gpt2", "llama", "mamba"])
def test_an_imported_run_is_a_run(made, name: str, texts, tmp_path, capsys) -> None:
    folder, _, run = made(name)
    out = str(tmp_path / "run")
    assert main(["import", str(folder), "--out", out]) == 0
    assert main(["evaluate", out, "--data", texts["test"], "--json"]) == 0
    metrics = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert metrics["bits_per_byte"] > 0
    assert main(["generate", out, "--prompt", "the cat", "--max-tokens", "5", "--seed", "1"]) == 0
    assert main(["surprisal", out, texts["test"], "--by", "token"]) == 0
    assert main(["import", str(folder), "--out", out]) == 2  # an existing run
    assert main(["import", str(folder), "--out", out, "--overwrite"]) == 0
    tuned = str(tmp_path / "tuned")
    unit = ["--data.unit", run.config.data.unit]
    given = ["--data", texts["train"], *unit, "--init", out, "--training.steps", "2", "--out", tuned]
    assert main(["train", "lm", *given]) == 0
    fine = seriatim.load(tuned)
    assert fine.tokenizer.kind == "pretrained"
    assert fine.config.model.options == run.config.model.options
    state = tmp_path / "state.safetensors"
    stream = run.stream()
    stream.feed("the cat")
    stream.save(state)
    assert "".join(run.stream().load(state).generate(max_tokens=4, seed=2)) == "".join(
        stream.generate(max_tokens=4, seed=2)
    )


def changed(folder: Path, tmp_path: Path, **fields: object) -> Path:
    """Copy a checkpoint, with other fields in its config.json."""
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("run"))
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**config, **fields}))
    return copy


@pytest.mark.parametrize(
    ("name", "fields", "message"),
    [
        ("gpt2", {"model_type": "falcon"}, "model_type 'falcon' is not known; choose from bert, gpt2, lfm2, llama"),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx True is not supported"),
        ("gpt2", {"activation_function": "swish"}, "activation_function 'swish' is not supported; use gelu_new"),
        ("gpt2", {"n_embd": 48}, "has the shape"),
        ("gpt2", {"n_embd": "wide"}, "n_embd must be a positive whole number, got 'wide'"),
        ("gpt2", {"n_embd": 32.0}, "n_embd must be a positive whole number, got 32.0"),
        ("gpt2", {"model_type": ["gpt2"]}, "model_type ['gpt2'] is not known"),
        ("gpt2", {"activation_function": ["gelu"]}, "activation_function ['gelu'] is not supported"),
        ("gpt2", {"layer_norm_epsilon": -1}, "layer_norm_epsilon must be a positive number, got -1"),
        ("mixtral", {"num_experts_per_tok": 1}, "num_experts_per_tok 1 is not supported"),
        ("llama", {"rope_scaling": {"type": "dynamic", "factor": 2}}, "rope_type 'dynamic' is not supported"),
        ("llama", {"layer_types": 5}, "layer_types lists 5; use full_attention or sliding_attention"),
        (
            "qwen2",
            {"layer_types": None, "use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1},
            "only some layers have a window",
        ),
        ("gpt2", {"n_layer": 3}, "the tensor transformer.h.2.attn.c_attn.bias is missing"),
        ("gpt2", {"n_layer": 1}, "no model here has the tensor transformer.h.1.attn.c_attn.bias"),
        ("gpt2", {"eos_token_id": None}, "no eos_token_id, the token that ends a text"),
        ("gpt2", {"auto_map": {"AutoModel": "x.y"}}, "auto_map names code of the checkpoint"),
        (
            "gpt2",
            {"quantization_config": {"quant_method": "gptq"}},
            "quantization_config says that the weights are rounded",
        ),
        ("llama", {"attention_bias": True}, "attention_bias True is not supported"),
        ("llama", {"mlp_bias": True}, "mlp_bias True is not supported"),
        ("llama", {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1.0}}, "rope_type 'yarn' is not supported"),
        ("llama", {"rope_parameters": None, "rope_scaling": {"type": "linear"}}, "rope_type 'linear' is not supported"),
        (
            "llama",
            {"layer_types": ["full_attention", "sliding_attention"]},
            "only some layers have a window",
        ),
        ("mamba", {"use_bias": True}, "use_bias True is not supported"),
        ("lfm2", {"conv_bias": True}, "conv_bias True is not supported"),
        ("lfm2", {"layer_types": ["conv"]}, "layer_types lists ['conv']; give full_attention or conv for each layer"),
        ("recurrent_gemma", {"block_types": ["mamba"]}, "block_types lists ['mamba']; give recurrent or attention"),
        (
            "recurrent_gemma",
            {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.4}},
            "partial_rotary_factor 0.4 rotates 3 features",
        ),
    ],
)
def test_what_is_not_supported_is_named(made, tmp_path, capsys, name: str, fields: dict, message: str) -> None:
    copy, out = changed(made(name)[0], tmp_path, **fields), tmp_path / "out"
    assert main(["import", str(copy), "--out", str(out)]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not out.exists()


def test_damaged_folders(made, tmp_path, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, _, _ = made("llama")

    def refused(change, message: str) -> None:
        copy, out = tmp_path / "copy", tmp_path / "out"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("run"))
        change(copy)
        assert main(["import", str(copy), "--out", str(out)]) == 2
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1
        assert not out.exists()

    shard = next(iter(sorted(path.name for path in folder.glob("model-*.safetensors"))))

    def pickled(name: str) -> Callable[[Path], None]:
        def change(copy: Path) -> None:
            for path in copy.glob("model*"):
                path.unlink()
            (copy / name).write_bytes(b"\x80\x04.")

        return change

    def cut(copy: Path) -> None:
        content = (copy / shard).read_bytes()
        (copy / shard).write_bytes(content[: len(content) // 2])

    def not_finite(copy: Path) -> None:
        content = bytearray((copy / shard).read_bytes())
        start = 8 + struct.unpack("<Q", content[:8])[0]
        content[start : start + 4] = struct.pack("<f", float("nan"))
        (copy / shard).write_bytes(bytes(content))

    refused(lambda copy: (copy / shard).unlink(), f"the file '{shard}' is missing")
    refused(pickled("pytorch_model.bin"), "pytorch_model.bin: pickled weights can run code and are not read")
    refused(pickled("consolidated.00.pth"), "consolidated.00.pth: pickled weights can run code and are not read")
    refused(cut, "damaged")
    refused(lambda copy: (copy / "tokenizer.json").unlink(), "no tokenizer.json")
    refused(lambda copy: (copy / "tokenizer.json").write_text('{"model": {}}'), "tokenizer.json: ")
    refused(lambda copy: (copy / "tokenizer.json").write_text("[1]"), "not a tokenizer")
    refused(lambda copy: (copy / "config.json").write_text("{"), "config.json")
    refused(lambda copy: (copy / "config.json").unlink(), "no config.json")
    monkeypatch.setattr(new_folders, "parameter_shapes", lambda *_: {"weight": (1 << 60,)})
    refused(lambda copy: None, "MB are free; make room")
    monkeypatch.undo()
    refused(not_finite, "holds NaN or infinity")
    run, existing = made("gpt2")[2], tmp_path / "existing"
    shutil.copytree(run.path, existing)
    before = {path.name: path.read_bytes() for path in existing.iterdir() if path.is_file()}
    assert main(["import", str(tmp_path / "copy"), "--out", str(existing), "--overwrite"]) == 2
    assert {path.name: path.read_bytes() for path in existing.iterdir() if path.is_file()} == before
    assert not list(tmp_path.glob(".seriatim*"))


@torch.no_grad()
def test_names_without_their_prefix_and_layers_without_kinds(made, tmp_path) -> None:
    from safetensors.torch import load_file, save_file

    for name, prefix, buffers in (
        ("gpt2", "transformer.", {"h.0.attn.bias": torch.ones(1, 1, 4, 4)}),
        ("mamba", "backbone.", {}),
        ("qwen2", "model.", {}),
    ):
        folder, model, _ = made(name)
        copy = changed(folder, tmp_path / name, layer_types=None)
        tensors = load_file(copy / "model.safetensors")
        renamed = {key.removeprefix(prefix): value for key, value in tensors.items()}
        save_file(renamed | buffers, copy / "model.safetensors", metadata={"format": "pt"})
        run = import_run(str(copy), str(tmp_path / f"{name}-run"))
        ids = torch.randint(run.tokenizer.vocabulary_size, (2, 9))
        ours = torch.from_numpy(run.tokenizer.exchanged(ids.numpy()))
        torch.testing.assert_close(logits_there(run, run.model(ours)[0]), model(ids).logits, rtol=0, atol=1e-5)


def stored(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    """Store a checkpoint with other tensors."""
    from safetensors.torch import load_file, save_file

    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file({name: value.clone() for name, value in tensors.items()}, folder / "model.safetensors")


TIED = [
    ("gpt2", "transformer.wte.weight", "lm_head.weight"),
    ("llama-tied", "model.embed_tokens.weight", "lm_head.weight"),
    ("mamba", "backbone.embeddings.weight", "lm_head.weight"),
    ("bert-cased", "bert.embeddings.word_embeddings.weight", "cls.predictions.decoder.weight"),
    ("bert-cased", "cls.predictions.bias", "cls.predictions.decoder.bias"),
]


@pytest.mark.parametrize("kept", ["first", "second", "both"])
@pytest.mark.parametrize(("name", "first", "second"), TIED)
def test_a_tied_tensor_has_either_of_its_names(made, tmp_path, name: str, first: str, second: str, kept: str) -> None:
    folder, _, run = made(name)
    copy = changed(folder, tmp_path)

    def change(tensors: dict[str, torch.Tensor]) -> None:
        value = tensors.pop(first)
        tensors |= {key: value for key, which in ((first, "first"), (second, "second")) if kept in (which, "both")}

    stored(copy, change)
    again = import_run(str(copy), str(tmp_path / "run"))
    ours, theirs = run.model.state_dict(), again.model.state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(value, theirs[key]) for key, value in ours.items())


@torch.no_grad()
@pytest.mark.parametrize(("name", "first", "second"), TIED[:3])
def test_tied_tensors_that_differ_are_kept_apart(made, tmp_path, name: str, first: str, second: str) -> None:
    copy = changed(made(name)[0], tmp_path)
    stored(copy, lambda tensors: tensors.update({second: tensors[first].flip(0)}))
    with pytest.warns(UserWarning, match=f"{first} and {second} differ"):
        run = import_run(str(copy), str(tmp_path / "run"))
    model = transformers.AutoModelForCausalLM.from_pretrained(copy, tie_word_embeddings=False).eval()
    ids = torch.randint(run.tokenizer.vocabulary_size, (2, 9))
    ours = torch.from_numpy(run.tokenizer.exchanged(ids.numpy()))
    torch.testing.assert_close(logits_there(run, run.model(ours)[0]), model(ids).logits, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("name", "first", "second"), TIED[3:])
def test_tied_tensors_of_bert_must_be_equal(made, tmp_path, capsys, name: str, first: str, second: str) -> None:
    copy = changed(made(name)[0], tmp_path)
    stored(copy, lambda tensors: tensors.update({second: tensors[first].flip(0)}))
    assert main(["import", str(copy), "--out", str(tmp_path / "run")]) == 2
    assert f"{first} and {second} differ" in capsys.readouterr().err


@pytest.mark.parametrize(("name", "token"), [("gpt2", 320), ("llama", 1000), ("mamba", 320), ("bert-cased", 500)])
def test_a_token_beyond_the_rows_is_named(made, tmp_path, capsys, name: str, token: int) -> None:
    copy = changed(made(name)[0], tmp_path)
    content = json.loads((copy / "tokenizer.json").read_text())
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    content["added_tokens"].append({"id": token, "content": "[MORE]", **plain})
    (copy / "tokenizer.json").write_text(json.dumps(content))
    assert main(["import", str(copy), "--out", str(tmp_path / "run")]) == 2
    error = capsys.readouterr().err
    assert "tokenizer.json: the token '[MORE]'" in error
    assert "resize_token_embeddings" in error
    assert not (tmp_path / "run").exists()


@torch.no_grad()
def test_fields_that_are_missing_have_the_values_of_the_library(tmp_path) -> None:
    for name, fields in (
        ("mixtral", ("rope_parameters", "rms_norm_eps")),
        ("mistral", ("rope_parameters", "head_dim")),
        ("mamba", ("time_step_rank", "conv_kernel", "state_size", "layer_norm_epsilon")),
    ):
        folder = tmp_path / name
        write(name, folder)
        config = json.loads((folder / "config.json").read_text())
        for field in fields:
            config.pop(field)
        (folder / "config.json").write_text(json.dumps(config))
        model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
        run = import_run(str(folder), str(tmp_path / f"{name}-run"))
        ids = torch.randint(run.tokenizer.vocabulary_size, (2, 9))
        ours = torch.from_numpy(run.tokenizer.exchanged(ids.numpy()))
        torch.testing.assert_close(logits_there(run, run.model(ours)[0]), model(ids).logits, rtol=0, atol=1e-5)


def test_the_kind_of_tokenizer_needs_a_run(texts, tmp_path, capsys) -> None:
    given = ["--data", texts["train"], "--tokenizer.kind", "pretrained", "--out", str(tmp_path / "run")]
    assert main(["train", "lm", *given]) == 2
    assert "pretrained is that of an imported run; give --init RUN" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_checkpoint_of_the_hub_that_cannot_be_downloaded(tmp_path, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = pytest.importorskip("huggingface_hub")
    out = tmp_path / "out"

    def fails(name: str, **settings: object) -> str:
        raise OSError(f"no network for {name}")

    monkeypatch.setattr(hub, "snapshot_download", fails)
    assert main(["import", "hf:someone/model", "--out", str(out)]) == 2
    assert "hf:someone/model: cannot be downloaded (no network for someone/model)" in capsys.readouterr().err
    assert not out.exists()


def test_a_checkpoint_of_the_hub_is_a_folder(made, tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub, folder = pytest.importorskip("huggingface_hub"), made("gpt2")[0]
    monkeypatch.setattr(hub, "snapshot_download", lambda name, allow_patterns: str(folder))
    assert main(["import", "hf:someone/model", "--out", str(tmp_path / "out")]) == 0


def test_every_family_has_a_checkpoint_here() -> None:
    from seriatim.interchange.checkpoint_families import FAMILIES

    kinds = {kind.lower() for kind, _, _ in (*CHECKPOINTS.values(), *GAPPED.values())}
    assert {family.replace("_", "") for family in FAMILIES} == kinds
    assert checkpoints.TEXT


def test_short_positions_do_not_stop_the_measurement_of_rounding(made, tmp_path, capsys) -> None:
    run, data = made("gpt2")[2], tmp_path / "data.txt"
    data.write_text("the cat sat\nshe likes it\n")
    assert main(["evaluate", str(run.path), "--data", str(data), "--weights", "int8"]) == 0
    assert "weights rounded to int8" in capsys.readouterr().out


def test_an_empty_folder_becomes_a_run(made, tmp_path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    assert main(["import", str(made("gpt2")[0]), "--out", str(out)]) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["out"]

"""Checkpoints of BERT become runs of masked language models and go out again, with the same logits and tokens."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import seriatim
from seriatim.cli.main import main
from seriatim.interchange.formats import export_run, import_run

from .checkpoints import GAPPED, LINES, write

transformers = pytest.importorskip("transformers")

TEXTS = ["the cat sat on the mat .", "she", "héllo wörld and the dog barked , a b c", "[MASK] likes [MASK] ."]


def logits_here(run: seriatim.Run, batch: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    """Return the logits of the tokens of each text, without [CLS] and [SEP], in the order of the ids there."""
    tokenizer, lengths = run.tokenizer, batch["attention_mask"].sum(1) - 2
    ids = torch.from_numpy(tokenizer.exchanged(batch["input_ids"].numpy()))[:, 1:-1]
    gaps = batch["input_ids"][:, 1:-1] == tokenizer.mask
    ids = ids.masked_fill(gaps, run.model.mask)
    logits = run.model(ids, torch.arange(ids.numel()), lengths=lengths).unflatten(0, ids.shape)
    order = torch.from_numpy(tokenizer.exchanged(range(tokenizer.vocabulary_size)))
    return [row[:length, order] for row, length in zip(logits, lengths.tolist(), strict=True)]


def logits_there(model: torch.nn.Module, batch: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    lengths = batch["attention_mask"].sum(1).tolist()
    return [row[1 : length - 1] for row, length in zip(model(**batch).logits, lengths, strict=True)]


def batch_of(folder: Path, texts: list[str] = TEXTS) -> dict[str, torch.Tensor]:
    return transformers.AutoTokenizer.from_pretrained(folder)(texts, padding=True, return_tensors="pt")


@pytest.mark.parametrize("name", GAPPED)
@torch.no_grad()
def test_logits_are_those_of_the_library(made, name: str) -> None:
    folder, model, run = made(name)
    batch = batch_of(folder)
    assert {"input_ids", "attention_mask"} <= set(batch)
    torch.testing.assert_close(logits_here(run, batch), logits_there(model, batch), rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", GAPPED)
def test_the_tokenizer_gives_the_same_tokens_and_texts(made, name: str) -> None:
    folder, _, run = made(name)
    there, here = transformers.AutoTokenizer.from_pretrained(folder), seriatim.load(run.path).tokenizer
    scripts = ["the " + "".join(map(chr, range(start, start + 20))) + " cat" for start in range(0x20, 0xD000, 400)]
    for line in [*LINES, *TEXTS, *scripts]:
        ids = there.encode(line, add_special_tokens=False)
        assert here.exchanged(here.encode(line)).tolist() == ids
        assert here.decode(here.encode(line)) == there.decode(ids, clean_up_tokenization_spaces=False)
    assert here.exchanged([here.begin, 0]).tolist() == [there.cls_token_id, there.sep_token_id]
    assert here.mask == there.mask_token_id
    assert [here.describe(token) for token in (here.begin, 0)] == ["[CLS]", "[SEP]"]


@pytest.mark.parametrize("name", GAPPED)
@torch.no_grad()
def test_what_comes_in_goes_out_again(made, tmp_path, name: str) -> None:
    folder, model, run = made(name)
    out = tmp_path / "again"
    assert main(["export", str(run.path), "--format", "transformers", "--out", str(out)]) == 0
    again = transformers.AutoModelForMaskedLM.from_pretrained(out).eval()
    assert type(again) is type(model)
    batch = batch_of(folder)
    torch.testing.assert_close(again(**batch).logits, model(**batch).logits, rtol=0, atol=5e-6)
    assert batch_of(out)["input_ids"].tolist() == batch["input_ids"].tolist()
    back = import_run(str(out), str(tmp_path / "back"))
    torch.testing.assert_close(logits_here(back, batch), logits_there(model, batch), rtol=0, atol=1e-5)


@torch.no_grad()
def test_every_token_is_predicted_between_cls_and_sep(made, tmp_path) -> None:
    """The pseudo-likelihood is that of each token masked alone; [CLS] and [SEP] are not predicted."""
    folder, model, run = made("bert")
    data = tmp_path / "data.txt"
    data.write_text("the cat sat on the mat .\n\nshe likes it\n")
    losses = []
    for line in data.read_text().splitlines():
        ids = batch_of(folder, [line])["input_ids"]
        for place in range(1, ids.shape[1] - 1):
            masked = ids.index_fill(1, torch.tensor([place]), run.tokenizer.mask)
            losses.append(-torch.log_softmax(model(masked).logits[0, place], 0)[ids[0, place]].item())
    metrics = run.evaluate(str(data), exact=True)
    assert metrics["tokens"] == len(losses)
    assert metrics["loss"] == pytest.approx(sum(losses) / len(losses), abs=1e-5)


@torch.no_grad()
def test_gaps_are_filled_with_the_probabilities_of_the_library(made) -> None:
    folder, model, run = made("bert")
    there = transformers.AutoTokenizer.from_pretrained(folder)
    lines = ["the [MASK] sat on the mat.", "[MASK] likes ([MASK])", "no gap", ""]
    answers = list(run.predict(lines, details=True))
    for line, answer in zip(lines, answers, strict=True):
        ids = there(line, return_tensors="pt")["input_ids"]
        shares = torch.softmax(model(ids).logits[0, ids[0] == there.mask_token_id], 1)
        assert len(answer["masks"]) == len(shares)
        for share, listed in zip(shares, answer["masks"], strict=True):
            for each in listed:
                word = each["token"]
                name = word.removeprefix(" ") if word.startswith(" ") or word in "(.," else f"##{word}"
                token = there.convert_tokens_to_ids(name)
                assert each["probability"] == pytest.approx(share[token].item(), abs=1e-6)
    assert answers[2]["text"] == "no gap"
    assert "  " not in answers[0]["text"]
    assert not answers[1]["text"].startswith((" ", "##", "["))
    assert " )" not in answers[1]["text"]


@pytest.mark.exhaustive
def test_an_imported_run_is_a_run(made, texts, tmp_path, capsys) -> None:
    folder, _, _ = made("bert")
    out, tuned, exported, page = (str(tmp_path / name) for name in ("run", "tuned", "exported", "page.html"))
    assert main(["import", str(folder), "--out", out]) == 0
    assert main(["evaluate", out, "--data", texts["test"]]) == 0
    blank = tmp_path / "blank.txt"
    blank.write_text("\u200b\n\n\u200b\n")  # the normalizer removes such characters
    assert main(["evaluate", out, "--data", str(blank)]) == 2
    assert "blank.txt:1: empty, no text to read" in capsys.readouterr().err
    assert main(["inspect", out, "--text", "the cat sat\nshe [MASK] it", "--data", texts["test"], "--out", page]) == 0
    assert "[CLS]" in Path(page).read_text()
    given = ["--data", texts["train"], "--data.unit", "line", "--init", out, "--training.steps", "2", "--out", tuned]
    assert main(["train", "mlm", *given]) == 2
    assert "38, or set model.options.max_length to 66" in capsys.readouterr().err
    assert main(["train", "mlm", *given, "--training.sequence_length", "38"]) == 0
    run = seriatim.load(tuned)
    assert run.config.model.options == seriatim.load(out).config.model.options | {"mask_rate": 0.15}
    assert main(["export", tuned, "--format", "transformers", "--out", exported]) == 0
    again, batch = transformers.AutoModelForMaskedLM.from_pretrained(exported).eval(), batch_of(folder)
    with torch.no_grad():  # the output for [MASK] itself is that of a row that is not trained as an input
        for here, there in zip(logits_here(run, batch), logits_there(again, batch), strict=True):
            here[:, run.tokenizer.mask] = there[:, run.tokenizer.mask] = 0
            torch.testing.assert_close(here, there, rtol=0, atol=1e-5)
    given = ["--data", texts["train"], "--data.unit", "line", "--init", out, "--out", str(tmp_path / "lm")]
    assert main(["train", "lm", *given]) == 2
    assert "a masked language model has no token that ends a line" in capsys.readouterr().err


def changed(folder: Path, tmp_path: Path, name: str = "config.json", **fields: object) -> Path:
    """Copy a checkpoint, with other fields in one of its files."""
    copy = tmp_path / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("run"))
    (copy / name).write_text(json.dumps({**json.loads((copy / name).read_text()), **fields}))
    return copy


@pytest.mark.parametrize(
    ("file", "fields", "message"),
    [
        ("config.json", {"is_decoder": True}, "is_decoder True is not supported, only False"),
        ("config.json", {"add_cross_attention": True}, "add_cross_attention True is not supported"),
        ("config.json", {"position_embedding_type": "relative_key"}, "position_embedding_type 'relative_key' is not"),
        ("config.json", {"tie_word_embeddings": False}, "tie_word_embeddings False is not supported"),
        ("config.json", {"hidden_act": "mish"}, "hidden_act 'mish' is not supported; use gelu_new"),
        ("config.json", {"layer_norm_eps": 0}, "layer_norm_eps must be a positive number, got 0"),
        ("config.json", {"max_position_embeddings": 2}, "max_position_embeddings must be at least 3, got 2"),
        ("config.json", {"num_attention_heads": 5}, "cannot be divided by 5"),
        ("config.json", {"num_hidden_layers": 3}, "the tensor bert.encoder.layer.2.attention.output"),
        ("config.json", {"num_hidden_layers": 1}, "the tensor bert.encoder.layer.1.attention.output"),
        ("config.json", {"intermediate_size": 40}, "has the shape"),
        ("config.json", {"model_type": "roberta"}, "model_type 'roberta' is not known; choose from bert, gpt2"),
        ("tokenizer_config.json", {"mask_token": "<gap>"}, "no mask_token_id, the token that stands for a gap"),
        ("tokenizer_config.json", {"cls_token": None}, "no cls_token_id, the token that begins a text"),
        ("tokenizer_config.json", {"do_lower_case": False}, "do_lower_case is False in tokenizer_config.json, but"),
        ("tokenizer.json", {"decoder": {"type": "BPEDecoder", "suffix": "_"}}, "its tokens are joined by BPEDecoder"),
    ],
)
def test_what_is_not_supported_is_named(made, tmp_path, capsys, file: str, fields: dict, message: str) -> None:
    copy, out = changed(made("bert")[0], tmp_path, file, **fields), tmp_path / "out"
    assert main(["import", str(copy), "--out", str(out)]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not out.exists()


def whole(folder: Path, tmp_path: Path, change: Callable[[dict], dict]) -> Path:
    """Copy a checkpoint, with other tensors in a single file."""
    copy = changed(folder, tmp_path)
    tensors = {name: value for path in folder.glob("*.safetensors") for name, value in load_file(path).items()}
    for path in copy.glob("model*"):
        path.unlink()
    save_file(change(tensors), copy / "model.safetensors", metadata={"format": "pt"})
    return copy


def test_damaged_weights(made, tmp_path, capsys) -> None:
    folder, out = made("bert")[0], str(tmp_path / "out")

    def without(start: str) -> Callable[[dict], dict]:
        return lambda tensors: {name: value for name, value in tensors.items() if not name.startswith(start)}

    for change, message in (
        (without("cls."), "no tensor cls.predictions.*, so nothing predicts masked tokens"),
        (without("bert.embeddings.token"), "the tensor bert.embeddings.token_type_embeddings.weight is missing"),
        (without("cls.predictions.bias"), "the tensor cls.predictions.bias is missing"),
        (
            lambda tensors: tensors | {"classifier.weight": torch.ones(2)},
            "no model here has the tensor classifier.weight",
        ),
        (lambda tensors: tensors | {"cls.predictions.bias": torch.ones(2)}, "cls.predictions.bias has the shape (2,)"),
        (
            lambda tensors: tensors | {"bert.embeddings.token_type_embeddings.weight": torch.ones(2, 1)},
            "position_embeddings.weight has the shape (40, 32), (2, 1)",
        ),
    ):
        assert main(["import", str(whole(folder, tmp_path, change)), "--out", out]) == 2
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1


@torch.no_grad()
def test_the_names_of_older_checkpoints(made, tmp_path) -> None:
    folder, model, _ = made("bert")
    ends = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}

    def older(tensors: dict) -> dict:
        ours = {name: next((end for end in ends if name.endswith(end)), "") for name in tensors}
        renamed = {name.removesuffix(end) + ends.get(end, ""): tensors[name] for name, end in ours.items()}
        decoder = {"cls.predictions.decoder.weight": tensors["bert.embeddings.word_embeddings.weight"].clone()}
        return renamed | decoder | {"bert.embeddings.position_ids": torch.arange(40.0).unsqueeze(0)}

    run = import_run(str(whole(folder, tmp_path, older)), str(tmp_path / "out"))
    batch = batch_of(folder)
    torch.testing.assert_close(logits_here(run, batch), logits_there(model, batch), rtol=0, atol=1e-5)


def test_what_is_left_out_is_said(tmp_path) -> None:
    folder = tmp_path / "there"
    write("bert-cased", folder)
    model = transformers.BertForPreTraining(transformers.BertConfig.from_pretrained(folder))
    model.save_pretrained(folder)
    with pytest.warns(UserWarning, match=r"left out, as no model here has them: bert\.pooler.*cls\.seq_relationship"):
        import_run(str(folder), str(tmp_path / "run"))


def test_what_bert_does_not_have_is_not_exported(texts, tmp_path, capsys) -> None:
    form = {
        "position": "learned", "position_norm": True, "max_length": 70, "norm": "layer", "norm_first": False,
        "bias": True, "feed_forward": "gelu",
    }  # fmt: skip

    def refused(message: str, *, layer: str = "transformer", options: dict, **model: object) -> None:
        out = tmp_path / f"run{len(list(tmp_path.iterdir()))}"
        sizes = {"embedding_size": 16, "hidden_size": 16, "tie_weights": True}
        model = {**sizes, **model, "layer": layer, "options": options}
        data = {"train": texts["train"], "unit": "line"}
        run = seriatim.train({"task": "mlm", "data": data, "model": model, "training": {"steps": 1}, "out": str(out)})
        with pytest.raises(ValueError, match=message):
            export_run(run, "transformers", str(tmp_path / "out"))

    refused("layer gru is in no checkpoint; choose from transformer", layer="gru", options={})
    refused("position 'rotary' cannot be written; train with 'learned'", options={})
    refused("position_norm False cannot be written", options={**form, "position_norm": False})
    refused(
        "transform_activation 'gelu' cannot be written; train with 'relu'", options={**form, "feed_forward": "relu"}
    )
    refused("the output layer has no bias, which every checkpoint has", options=form, output_bias=False)
    refused("the output layer must share the embedding", options=form, tie_weights=False)
    refused(r"no token for masked words, such as \[MASK\]", options=form)
    assert not (tmp_path / "out").exists()


@torch.no_grad()
@pytest.mark.exhaustive
def test_an_onnx_model_reads_the_ids_of_the_library(made, tmp_path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    folder, model, run = made("bert-cased")
    export_run(run, "onnx", str(tmp_path / "out"))
    facts, batch = json.loads((tmp_path / "out" / "model.json").read_text()), batch_of(folder)
    ids, lengths = batch["input_ids"], batch["attention_mask"].sum(1)
    read = ids.masked_fill(ids == run.tokenizer.mask, facts["mask"])
    session = onnxruntime.InferenceSession(str(tmp_path / "out" / "sequence.onnx"))
    (logits,) = session.run(None, {"tokens": read.numpy(), "lengths": lengths.numpy()})
    valid = torch.arange(ids.shape[1]) < lengths.unsqueeze(1)
    torch.testing.assert_close(torch.from_numpy(logits)[valid], model(**batch).logits[valid], rtol=0, atol=1e-5)


WORDS = ["the cat sat on the mat .", "she", "héllo wörld, and the dogs barked", "  spaced   out ", "", "!"]


def pseudo_bits(model: torch.nn.Module, ids: list[int], masked: list[int], there) -> tuple[float, float, int]:
    """Return bits, entropy and rank of the first of some masked tokens of a text, as the library computes them."""
    whole = torch.tensor([[there.cls_token_id, *ids, there.sep_token_id]])
    whole[0, [place + 1 for place in masked]] = there.mask_token_id
    nats = torch.log_softmax(model(whole).logits[0, masked[0] + 1].double(), 0)
    of_target = nats[ids[masked[0]]]
    ln2 = torch.log(torch.tensor(2.0, dtype=torch.float64))
    return (-of_target / ln2).item(), (-(nats.exp() * nats).sum() / ln2).item(), int((nats > of_target).sum()) + 1


@pytest.mark.parametrize("name", GAPPED)
@torch.no_grad()
def test_surprisals_are_those_of_the_library(made, name: str) -> None:
    """The tokens of a word from left to right, with those that follow in it masked, too; of --by token, one alone."""
    folder, model, run = made(name)
    there = transformers.AutoTokenizer.from_pretrained(folder)
    by_word, by_token = (list(run.surprisal(WORDS, by=by)) for by in ("word", "token"))
    for line, words, tokens in zip(WORDS, by_word, by_token, strict=True):
        pieces = [there.encode(word, add_special_tokens=False) for word in line.split()]
        ids, first = [token for word in pieces for token in word], 0
        assert there.encode(line, add_special_tokens=False) == ids
        assert [word.text for word in words] == line.split()
        assert len(tokens) == len(ids)
        for place, token in enumerate(tokens):
            bits, entropy, rank = pseudo_bits(model, ids, [place], there)
            assert (token.bits, token.entropy, token.rank) == pytest.approx((bits, entropy, rank), abs=1e-4)
        for word, parts in zip(words, pieces, strict=True):
            places = range(first, first + len(parts))
            found = [pseudo_bits(model, ids, list(places[i:]), there) for i in range(len(parts))]
            assert word.bits == pytest.approx(sum(bits for bits, _, _ in found), abs=1e-4)
            assert (word.entropy, word.rank) == pytest.approx(found[0][1:], abs=1e-4)
            assert word.tokens == len(parts)
            first += len(parts)


def test_surprisals_of_tokens_sum_to_the_exact_evaluation(made, tmp_path) -> None:
    run = made("bert-cased")[2]
    lines = [line for line in WORDS if line.strip()]
    (tmp_path / "text.txt").write_text("".join(f"{line}\n" for line in lines))
    metrics = run.evaluate(str(tmp_path / "text.txt"), exact=True)
    bits = sum(token.bits for line in run.surprisal(lines, by="token") for token in line)
    assert metrics["loss"] * metrics["tokens"] == pytest.approx(bits * torch.log(torch.tensor(2.0)).item(), rel=1e-4)


def test_the_table_of_surprisals_names_them(made, tmp_path, capsys) -> None:
    bert, gpt, text = str(made("bert")[2].path), str(made("gpt2")[2].path), tmp_path / "text.txt"
    text.write_text("the cat sat\nshe likes it\n")
    assert main(["surprisal", bert, gpt, str(text)]) == 0
    heading, *rows = capsys.readouterr().out.splitlines()
    assert [column.rpartition(".")[2] for column in heading.split(",")[3:]] == [
        *("pseudo_bits", "entropy", "rank", "tokens", "unknown"),
        *("bits", "entropy", "rank", "tokens", "unknown"),
    ]
    assert len(rows) == 6
    text.write_text("the cat sat\n" + "the " * 39 + "\n")
    assert main(["surprisal", bert, str(text)]) == 2
    printed = capsys.readouterr()
    assert f"{text}:2: 41 tokens" in printed.err
    assert printed.out == ""
    text.write_text("the cat sat\n")
    assert main(["surprisal", bert, str(text), "--context", "text"]) == 2
    assert "separate lines" in capsys.readouterr().err

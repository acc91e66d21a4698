"""Masked language models: what is masked, what is predicted, the pseudo-likelihood, and gaps filled."""

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import seriatim
from seriatim.cli.main import main
from seriatim.config import Tokenizer, resolve
from seriatim.data.batches import cut
from seriatim.data.corpus import Corpus
from seriatim.data.encoding import Statistics
from seriatim.data.tokenizers import END
from seriatim.data.vocabulary import fit_tokenizer
from seriatim.evaluation import pseudo_likelihood
from seriatim.evaluation.pseudo_likelihood import pseudo_losses
from seriatim.models import MaskedLanguageModel
from seriatim.tasks import new_task
from seriatim.tasks.mlm import WindowBatch, choose, find_gaps

from ..conftest import sentences, small_config
from ..refusals import refused

ENCODERS = {"gru": {"bidirectional": True}, "transformer": {"causal": False}, "window": {}}
BERT = {
    "layer": "transformer",
    "hidden_size": 768,
    "embedding_size": 768,
    "num_layers": 12,
    "tie_weights": True,
    "options": {
        "num_heads": 12,
        "feed_forward": "gelu",
        "feed_forward_size": 3072,
        "norm": "layer",
        "position": "learned",
        "position_norm": True,
        "max_length": 512,
        "norm_first": False,
    },
}


def model(name: str = "gru", **options: Any) -> MaskedLanguageModel:
    torch.manual_seed(0)
    layer = seriatim.layer(name, 6, 12, **ENCODERS[name])
    return MaskedLanguageModel(layer, 11, **options).double().eval()


def corpus(lines: list[int] | None = None) -> Corpus:
    """Random tokens of a stream, or of lines of these lengths."""
    ids = np.random.default_rng(0).integers(1, 11, size=sum(lines) if lines else 150)
    ends = np.cumsum(lines) if lines else None
    statistics = Statistics(tokens=len(ids), lines=5, words=100, bytes=600, spelling_nats=3.0)
    return Corpus(ids, ends, statistics, "random")


def bert(**options: Any) -> tuple[int, MaskedLanguageModel]:
    settings = {**BERT, "options": {**BERT["options"], **options}}
    task = new_task(resolve({"task": "mlm", "model": settings}))
    with torch.device("meta"):
        made = task.builder.build(SimpleNamespace(tokenizer=SimpleNamespace(vocabulary_size=30_522, frames=False)))
    return sum(parameter.numel() for parameter in made.parameters()), made


def test_the_size_of_bert_base_is_in_reach() -> None:
    """Embeddings, 512 positions, 12 blocks and the head that predicts; as published, 110 M."""
    count, made = bert()
    assert count == pytest.approx(110e6, rel=0.01)
    assert made.layer.causal is False


def test_with_biases_it_is_bert_base_but_for_segments() -> None:
    transformers = pytest.importorskip("transformers")
    with torch.device("meta"):
        theirs = transformers.BertForMaskedLM(transformers.BertConfig())
    segments = "token_type_embeddings.weight"
    kept = [value.numel() for name, value in theirs.named_parameters() if not name.endswith(segments)]
    assert bert(bias=True)[0] == sum(kept) + 768  # the mask symbol has a row of its own, beside the 30,522


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("name", ENCODERS)
def test_the_loss_is_cross_entropy_at_the_chosen_positions(name: str, tied: bool) -> None:
    made = model(name, tie_weights=tied)
    tokens, lengths = torch.randint(0, 12, (4, 9)), torch.tensor([9, 0, 4, 1])
    positions, targets = torch.tensor([0, 7, 8, 18, 21, 27]), torch.randint(0, 11, (6,))
    ours = made.loss(tokens, positions, targets, lengths=lengths)
    alone = [made(tokens[p // 9, : lengths[p // 9]].unsqueeze(0), torch.tensor([p % 9])) for p in positions]
    logits = torch.cat(alone)
    theirs = F.cross_entropy(logits, targets, reduction="sum")
    torch.testing.assert_close(ours, theirs)
    found = [torch.autograd.grad(loss, list(made.parameters()), materialize_grads=True) for loss in (ours, theirs)]
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b)
    losses, hits = made.losses_and_hits(tokens, positions, targets, lengths=lengths)
    torch.testing.assert_close(losses.double().sum(), theirs)
    assert torch.equal(hits, logits.argmax(1) == targets)


def test_of_the_chosen_eight_in_ten_are_masked_and_one_is_random() -> None:
    torch.manual_seed(0)
    size, lengths = 1000, torch.tensor([500, 0, 200, 100] * 20)
    inputs = torch.randint(0, size, (80, 500))
    batch = WindowBatch(np.arange(len(inputs)), inputs, lengths, terms=round(0.5 * int(lengths.sum())))
    read, positions, targets = choose(batch, size)
    assert len(set(positions.tolist())) == len(positions) == batch.terms
    assert (positions % 500 < lengths[positions // 500]).all()
    assert torch.equal(targets, inputs.flatten()[positions])
    others = torch.ones(inputs.numel(), dtype=torch.bool).index_fill(0, positions, False)
    assert torch.equal(read.flatten()[others], inputs.flatten()[others])
    there = read.flatten()[positions]
    assert (there == size).double().mean().item() == pytest.approx(0.8, abs=0.02)
    assert (there == targets).double().mean().item() == pytest.approx(0.1, abs=0.02)
    torch.manual_seed(0)
    assert not torch.equal(choose(batch, size)[0], read)  # other numbers were drawn in between


@pytest.mark.parametrize("lines", [None, [1, 16, 17, 3, 40]])
def test_windows_hold_every_token_once_and_never_two_lines(lines: list[int] | None) -> None:
    text = corpus(lines)
    windows = cut(text, 16)
    covered = np.concatenate([np.arange(a, a + n) for a, n in zip(windows.starts, windows.lengths, strict=True)])
    assert (covered == np.arange(len(text.ids))).all()
    assert windows.lengths.max() <= 16
    assert windows.lengths.min() >= 1
    if lines:
        begins, ends = text.spans(1)
        assert (windows.starts >= begins[windows.lines]).all()
        assert (windows.starts + windows.lengths <= ends[windows.lines]).all()


@pytest.mark.parametrize("every", [None, 7, 1])
@pytest.mark.parametrize("lines", [None, [1, 16, 17, 3, 40]])
@pytest.mark.parametrize("name", ENCODERS)
def test_the_pseudo_likelihood_is_its_definition(
    name: str, lines: list[int] | None, every: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Window by window and token by token; in batches of any size."""
    made, text = model(name), corpus(lines)
    windows, expected, hits = cut(text, 16), 0.0, 0
    for start, length in zip(windows.starts, windows.lengths, strict=True):
        ids = torch.from_numpy(text.ids[start : start + length])
        for t in range(length):
            place = torch.arange(length)
            masked = (place % every == t % every) if every else place == t
            logits = made(torch.where(masked, made.mask, ids).unsqueeze(0), torch.tensor([t]))
            expected += F.cross_entropy(logits, ids[t : t + 1]).item()
            hits += int(logits.argmax() == ids[t])
    for together in (64, 3):
        monkeypatch.setattr(pseudo_likelihood, "TOGETHER", together)
        sums = pseudo_losses(made, windows, every)
        assert len(sums) == (5 if lines else 10)
        assert sums.sum(0) == pytest.approx([expected, hits, len(text.ids)], rel=1e-5)


def config(texts: dict[str, str], out: Path | str, **sections: Any) -> dict[str, Any]:
    settings = {"data": {"unit": "line"}, "tokenizer": {"kind": "word"}, "training": {"steps": 60, "batch_size": 16}}
    for name, section in sections.items():
        settings[name] = {**settings.get(name, {}), **section}
    return {**small_config(texts, out, **settings), "task": "mlm"}


@pytest.fixture(scope="module")
def run(texts: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> seriatim.Run:
    return seriatim.train(config(texts, tmp_path_factory.mktemp("mlm") / "run"))


def test_it_learns_from_both_sides(run: seriatim.Run, texts: dict[str, str]) -> None:
    valid = run.summary["valid"]
    assert valid["perplexity"] < 0.5 * run.summary["baseline"]["perplexity"]
    assert valid["loss_low"] < valid["loss"] < valid["loss_high"]
    assert valid["perplexity"] == pytest.approx(math.exp(valid["loss"]))
    assert valid["bits_per_byte"] == pytest.approx(valid["loss"] * valid["tokens"] / valid["bytes"] / math.log(2))
    assert 0 < valid["accuracy"] < 1
    found = run.evaluate(texts["test"], exact=True)
    assert found == run.evaluate(texts["test"], exact=True)
    assert found["loss"] != run.evaluate(texts["test"])["loss"]


def test_gaps_are_filled_and_nothing_else_is_touched(run: seriatim.Run) -> None:
    lines = ["the cat sees   [MASK] moon .", "", "no gap, Unheard-of words", "[MASK]", "she [MASK] [MASK] wine ."]
    answers = list(run.predict(lines, details=True))
    assert len(answers) == len(lines)
    assert [len(answer["masks"]) for answer in answers] == [1, 0, 0, 1, 2]
    assert answers[0]["text"] == "the cat sees   the moon ."
    assert answers[1]["text"] == ""
    assert answers[2]["text"] == lines[2]
    assert answers[4]["text"].endswith(" red wine .")
    for answer, line in zip(answers, lines, strict=True):
        words = iter([mask[0]["token"] for mask in answer["masks"]])
        assert answer["text"] == "".join(part + next(words, "") for part in line.split("[MASK]"))
        for mask in answer["masks"]:
            shares = [choice["probability"] for choice in mask]
            assert len(shares) == 5
            assert shares == sorted(shares, reverse=True)
            assert sum(shares) <= 1
            assert not {choice["token"] for choice in mask} & {"</s>", "<unk>"}


def test_gaps_are_filled_the_same_alone_and_together(run: seriatim.Run) -> None:
    lines = [
        "the cat sees [MASK] moon .",
        "[MASK]",
        "",
        "she " * 40 + "[MASK] " + "likes " * 40 + "[MASK]",
        "no gap",
    ] * 20
    together = list(run.predict(lines, details=True))
    for line, answer in zip(lines[:5], together, strict=False):
        (alone,) = run.predict([line], details=True)
        assert alone["text"] == answer["text"]
        for one, other in zip(alone["masks"], answer["masks"], strict=True):
            assert [gap["token"] for gap in one] == [gap["token"] for gap in other]
            assert [gap["probability"] for gap in one] == pytest.approx([gap["probability"] for gap in other])


@pytest.mark.parametrize("kind", ["byte", "char", "word", "bpe"])
def test_a_gap_is_one_token_of_the_line(kind: str) -> None:
    size = 400 if kind == "bpe" else None  # enough for whole words
    tokenizer = fit_tokenizer(Tokenizer(kind=kind, vocabulary_size=size), sentences(200))
    tokens = tokenizer.encode("our friend sees the moon .").tolist()
    texts = [tokenizer.token_bytes(token).decode() for token in tokens]
    for place in range(len(tokens)):
        space = " " if kind == "bpe" and texts[place].startswith(" ") else ""
        line = (" " if kind == "word" else "").join([*texts[:place], f"{space}[MASK]", *texts[place + 1 :]])
        gaps = find_gaps(line, tokenizer, 999, "line")
        assert gaps.ids.tolist() == [*tokens[:place], 999, *tokens[place + 1 :], END]


@pytest.mark.parametrize(("kind", "unit"), [("byte", "stream"), ("char", "line"), ("word", "stream"), ("bpe", "line")])
def test_every_tokenizer_fills_gaps(kind: str, unit: str, texts: dict[str, str], tmp_path: Path) -> None:
    """One line in, one line out, longer ones than the model reads at once among them."""
    settings = config(
        texts,
        tmp_path / "run",
        data={"unit": unit},
        tokenizer={"kind": kind, "vocabulary_size": 300 if kind == "bpe" else None},
        training={"steps": 3},
    )
    run = seriatim.train(settings)
    lines = ["the [MASK] sees it", "[MASK]", "the c[MASK][MASK] sees " * 20, "", "ἀ[MASK]"]
    answers = list(run.predict(lines))
    assert len(answers) == len(lines)
    for line, answer in zip(lines, answers, strict=True):
        assert "[MASK]" not in answer
        assert "\n" not in answer
        assert answer.startswith(line.split("[MASK]")[0].rstrip())
        assert answer.endswith(line.split("[MASK]")[-1])
    assert run.evaluate(texts["test"])["accuracy_low"] >= 0


@pytest.mark.parametrize("unit", ["line", "stream"])
def test_a_training_that_was_cut_off_ends_with_the_same_bits(texts: dict[str, str], tmp_path: Path, unit: str) -> None:
    sections = {"data": {"unit": unit}, "model": {"dropout": 0.1, "layer": "transformer", "tie_weights": True}}
    whole, _ = (
        seriatim.train(
            config(
                texts, tmp_path / name, training={"steps": steps, "schedule": "constant", "keep": "last"}, **sections
            )
        )
        for name, steps in (("whole", 14), ("cut", 9))
    )
    resumed = seriatim.resume(tmp_path / "cut", overrides={"training.steps": 14})
    for (name, mine), other in zip(whole.model.named_parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(mine, other), name


def test_from_the_command_line(run: seriatim.Run, texts: dict[str, str], tmp_path: Path, capsys) -> None:
    path = tmp_path / "lines.txt"
    path.write_text("the [MASK] sees it .\n\nshe likes it .\n")
    assert main(["predict", str(run.path), str(path), "--json"]) == 0
    answers = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [answer["text"] for answer in answers][1:] == ["", "she likes it ."]
    assert main(["evaluate", str(run.path), "--data", texts["test"]]) == 0
    assert "pseudo-perplexity" in capsys.readouterr().out
    assert main(["check", "mlm", "--data", texts["train"]]) == 0
    assert "pseudo-likelihoods" in (run.path / "README.md").read_text()
    assert main(["generate", str(run.path)]) == 2


@pytest.mark.parametrize(
    ("sections", "kind", "place"),
    [
        ({"model": {"options": {"mask_rate": 1.5}}}, "range", "model.options.mask_rate"),
        (
            {"model": {"layer": "transformer", "options": {"position": "learned", "max_length": 8}}},
            "size",
            "training.sequence_length",
        ),
        (
            {"model": {"layer": "transformer", "options": {"memory_size": 8}}},
            "unsupported",
            "model.options.memory_size",
        ),
    ],
)
def test_what_cannot_be_is_named(texts: dict[str, str], tmp_path: Path, sections: dict, kind: str, place: str) -> None:
    with refused(kind, place):
        seriatim.train(config(texts, tmp_path / "none", **sections))

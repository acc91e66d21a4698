"""Language modelling: tokens that occur once train the unknown token."""

from pathlib import Path

import pytest
import torch

import seriatim
from seriatim.config import resolve
from seriatim.models.base_models import UNKNOWN_TOKEN

from ..preparing import prepare

TEXT = "a b a b once a b\na b rare a b\nb a b single\nb a a b b\na b a b\n"
RARE = {"once", "rare", "single"}


def config(folder: Path, text: str = TEXT, *, kind: str = "word", **options: object) -> dict:
    path = folder / "text.txt"
    path.write_text(text)
    return {
        "data": {"train": str(path), "unit": "line"},
        "tokenizer": {"kind": kind},
        "model": {"layer": "rnn", "embedding_size": 8, "hidden_size": 8, "options": options},
        "training": {"steps": 300, "batch_size": 2, "learning_rate": 0.03, "baseline": "none", "sequence_length": 4},
    }


def test_batches_know_the_tokens_that_occur_once(tmp_path) -> None:
    job = prepare(resolve(config(tmp_path)))
    words = ["", "<unk>", *job.settled.vocabulary.tokenizer.words]
    seen = set()
    for batch in job.batches.read(job.batches.shuffled(1, 0)):
        tokens = torch.cat([batch.inputs[:, :1], batch.targets], dim=1)
        assert batch.rare.equal(torch.tensor([[words[token] in RARE for token in row] for row in tokens.tolist()]))
        seen |= {words[token] for token in tokens[batch.rare].tolist()}
    assert seen == RARE


@pytest.mark.parametrize(("kind", "text"), [("word", TEXT + "a <unk> b\n"), ("byte", TEXT), ("word", "a b\n" * 9)])
def test_tokens_are_replaced_only_if_no_unknown_token_is_in_the_text(tmp_path, kind: str, text: str) -> None:
    job = prepare(resolve(config(tmp_path, text, kind=kind)))
    assert all(batch.rare is None for batch in job.batches.read(job.batches.shuffled(1, 0)))


def test_a_replaced_token_is_unknown_as_a_target_and_as_the_next_input(tmp_path, monkeypatch) -> None:
    job = prepare(resolve(config(tmp_path, word_dropout=0.5)))
    seen = []
    monkeypatch.setattr(type(job.model), "loss", lambda model, *pair, **_: (seen.append(pair[:2]), None))
    for _ in range(20):
        for batch in job.batches.read(job.batches.shuffled(1, 0)):
            job.task.objective.loss(job.model.train(), batch, None)
            inputs, targets = seen[-1]
            assert inputs[:, 1:].equal(targets[:, :-1])
            replaced = targets == UNKNOWN_TOKEN
            assert targets.where(~replaced, batch.targets).equal(batch.targets)
            assert batch.rare[:, 1:][replaced].all()
            job.task.objective.loss(job.model.eval(), batch, None)
            assert seen[-1][1].equal(batch.targets)
    unknown = sum(int((targets == UNKNOWN_TOKEN).sum()) for _, targets in seen)
    assert 10 < unknown < 50  # of 20 × 3


@pytest.mark.exhaustive
def test_unknown_words_become_likely(tmp_path) -> None:
    def unknown_loss(rate: float) -> float:
        run = seriatim.train({**config(tmp_path, word_dropout=rate), "out": str(tmp_path / f"run{rate}")})
        return -run.score(["a b new a b"])[0].log_probability

    assert unknown_loss(0.5) < unknown_loss(0.0) - 1

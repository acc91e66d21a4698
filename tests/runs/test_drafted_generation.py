"""Runs and the command write the same texts with drafts as without them."""

import itertools
import os

import pytest
import torch

import seriatim
from seriatim.core.state import map_state
from seriatim.decoding.speculative import PromptLookup

from ..refusals import refused


@pytest.fixture(scope="module")
def ngram_run(texts, tmp_path_factory: pytest.TempPathFactory) -> seriatim.Run:
    out = tmp_path_factory.mktemp("draft") / "ngram"
    model = {"layer": "ngram", "options": {"order": 5, "smoothing": "witten-bell"}}
    data = {"train": texts["train"], "valid": texts["valid"], "unit": "line"}
    return seriatim.train({"data": data, "tokenizer": {"kind": "char"}, "model": model, "out": str(out)})


def test_a_run_writes_the_same_text_with_a_draft(runs, ngram_run, tmp_path) -> None:
    run = runs["char-line"]
    for draft in ("lookup", ngram_run, str(ngram_run.path), ngram_run.path, run):
        for settings in ({"temperature": 0}, {"seed": 3}, {"seed": 4, "temperature": 0.5, "top_k": 3}):
            expected = "".join(run.generate("the cat ", max_tokens=30, **settings))
            assert "".join(run.generate("the cat ", max_tokens=30, draft=draft, **settings)) == expected


def test_a_stream_goes_on_after_drafts(runs, tmp_path) -> None:
    """Also where the reader stops in the middle of a draft."""
    run = runs["char-stream"]
    for read_pieces in (1, 5, 11, 30):
        streams = run.stream(), run.stream()
        for stream, draft in zip(streams, (None, PromptLookup(4, 1)), strict=True):
            stream.feed("the cat")
            pieces = stream.generate(max_tokens=30, seed=1, draft=draft)
            list(itertools.islice(pieces, read_pieces))
        one, other = streams
        assert one.last == other.last
        torch.testing.assert_close(one.logits, other.logits)
        other.save(tmp_path / "state.safetensors")
        moved = run.stream().load(tmp_path / "state.safetensors")
        map_state(lambda a, b: torch.testing.assert_close(a, b) or a, one.state, moved.state)
        assert other.feed(" a").log_probability == pytest.approx(one.feed(" a").log_probability, abs=1e-4)


def test_the_command_drafts(capsys, runs, ngram_run) -> None:
    from seriatim.cli.main import main

    settings = ("--prompt", "the", "--seed", "1", "--max-tokens", "30")

    def call(*arguments: str) -> tuple[int, str, str]:
        code = main(["generate", str(runs["char-line"].path), *arguments, *settings])
        return (code, *capsys.readouterr())

    for more in ([], ["--samples", "2"], ["--json"]):
        expected = call(*more)
        assert expected[0] == 0
        assert call("--draft", "lookup", *more) == expected
        assert call("--draft", str(ngram_run.path), *more) == expected
    for wrong, message in ((str(runs["word-line"].path), "another vocabulary"), ("nowhere", "no such run")):
        code, printed, errors = call("--draft", wrong)
        assert (code, printed, errors.count("\n")) == (2, "", 1)
        assert message in errors
    with refused("range", "draft"):
        runs["char-line"].generate(draft=3)
    with refused("missing"):
        runs["char-line"].generate(draft="look" + os.sep)

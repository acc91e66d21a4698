"""Texts that are too long for learned positions: named by file and line before any work, by all verbs alike."""

import io
import json
from pathlib import Path

import pytest

import seriatim
from seriatim.cli.main import main

from ..refusals import refused

LIMIT = 12
LEARNED = {"position": "learned", "max_length": LIMIT, "num_heads": 1}
MODEL = {"layer": "transformer", "embedding_size": 4, "hidden_size": 4, "options": LEARNED}
FITS, LONG = " ".join(["the"] * (LIMIT - 1)), " ".join(["the"] * LIMIT)
"""With the boundary before them they have as many tokens as there are positions, and one more."""


def settings(folder: Path, task: str, train: Path) -> dict[str, object]:
    return {
        "task": task,
        "data": {"train": str(train), "valid": "none", **({"unit": "line"} if task in ("lm", "mlm") else {})},
        "tokenizer": {"kind": "word"},
        "model": MODEL,
        "training": {"steps": 1, "baseline": "none", "sequence_length": LIMIT},
        "out": str(folder / task),
    }


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> seriatim.Run:
    folder = tmp_path_factory.mktemp("limited")
    (folder / "train.txt").write_text("the cat sat\na dog\n" * 5)
    return seriatim.train(settings(folder, "lm", folder / "train.txt"))


@pytest.mark.parametrize("piped", [False, True])
@pytest.mark.parametrize("verb", ["evaluate", "surprisal", "generate", "minimal pairs"])
def test_verbs_name_the_line_before_any_work(run, tmp_path, capsys, monkeypatch, verb: str, piped: bool) -> None:
    lines = [*["the cat"] * 100, FITS, LONG, LONG]
    content = "".join(f"{line}\n" for line in lines)
    if verb == "minimal pairs":
        content = "".join(json.dumps({"sentence_good": "a dog", "sentence_bad": line}) + "\n" for line in lines)
    (tmp_path / "many.txt").write_text(content)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content.encode())))
    monkeypatch.setattr("seriatim.data.sources.spool", lambda spec: tmp_path / "many.txt")
    file = "-" if piped else str(tmp_path / "many.txt")
    arguments = {
        "evaluate": ["evaluate", str(run.path), "--data", file],
        "surprisal": ["surprisal", str(run.path), file],
        "generate": ["generate", str(run.path), "--prompts", file, "--max-tokens", "1"],
        "minimal pairs": ["evaluate", str(run.path), "--data", file, "--format", "jsonl", "--minimal-pairs"],
    }
    assert main(arguments[verb]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    number = 101 if verb == "generate" else 102  # after a prompt a token follows
    name = "<stdin>" if piped else str(tmp_path / "many.txt")
    assert f"{name}:{number}: " in printed.err
    assert f"the model reads {LIMIT}" in printed.err
    assert printed.err.count("\n") == 1


def test_lines_of_as_many_tokens_as_positions_are_read(run, tmp_path, capsys) -> None:
    (tmp_path / "fits.txt").write_text(f"{FITS}\n")
    assert main(["evaluate", str(run.path), "--data", str(tmp_path / "fits.txt")]) == 0
    assert main(["surprisal", str(run.path), str(tmp_path / "fits.txt")]) == 0
    assert run.score([FITS])[0].tokens == LIMIT
    run.stream().feed(FITS)


def test_python_names_the_item(run) -> None:
    for work in (run.score, lambda lines: list(run.surprisal(lines))):
        with refused("size", value=f"item 1: {LIMIT + 1}"):
            work(["the cat", LONG])
    with refused("size", "prompts"):
        list(run.generate_many(["the cat", LONG]))
    with refused("size", "the text", f"{LIMIT + 1}"):
        run.generate(LONG)


def test_a_stream_that_refuses_a_text_goes_on_as_before(run) -> None:
    one, two = run.stream(), run.stream()
    for stream in (one, two):
        stream.feed("the cat")
    with refused("size", "the text", f"{LIMIT}"):
        one.feed(FITS)
    assert (one.num_tokens, one.feed("a dog")) == (two.num_tokens, two.feed("a dog"))


def test_texts_end_with_the_positions_unless_more_tokens_are_asked_for(run, capsys) -> None:
    endless = {"logit_bias": {"</s>": -100.0}, "seed": 1}
    for prompt in ("", "the cat"):
        left = LIMIT - 1 - len(prompt.split())
        text = "".join(run.generate(prompt, **endless))
        assert len(text.split()) == left
        assert text == "".join(run.generate(prompt, max_tokens=left, **endless))
        assert [text] == run.samples(1, prompt, **endless)
        for generate in (run.generate, lambda prompt, **given: run.samples(2, prompt, **given)):
            with refused("size", value=f"{LIMIT + 1}"):
                generate(prompt, max_tokens=left + 1, **endless)
    assert main(["generate", str(run.path), "--prompt", "the cat", "--max-tokens", "50"]) == 2
    assert capsys.readouterr().out == ""
    assert main(["generate", str(run.path), "--prompt", "the cat", "--seed", "1"]) == 0


TRAINING = {
    "lm": ("{0}\n", 3),
    "classify": ("a\t{0}\nb\t{0}\n", 6),
    "tag": ("{0}\n\n", None),
    "seq2seq": ("{0}\t{0}\n", 3),
}


@pytest.mark.parametrize("share", ["none", "50%"])
@pytest.mark.parametrize("task", TRAINING)
def test_training_names_the_line(tmp_path, task: str, share: str) -> None:
    form, number = TRAINING[task]
    words = ["the cat sat", "a dog", LONG + " the", "the end", "a cat", "a cat sat", "the dog sat", "the cat"]
    if task == "tag":
        words = ["".join(f"{word}\t{word[-1]}\n" for word in line.split()).rstrip("\n") for line in words]
        number = 1 + sum(len(lines.split("\n")) + 1 for lines in words[:2])
    header = "label\ttext\n" if task == "classify" else ""
    path = tmp_path / {"lm": "a.txt", "tag": "a.conll"}.get(task, "a.tsv")
    path.write_text(header + "".join(form.format(line) for line in words))
    given = settings(tmp_path, task, path)
    given["data"]["valid"] = share
    with refused("size", f":{number}", f"{LIMIT}"):
        seriatim.train(given)

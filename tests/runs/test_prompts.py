"""Texts for many prompts: those of each prompt alone, in order, from lists, files and pipes."""

import gzip
import json

import pytest

import seriatim
from seriatim.core.errors import InputError

from ..refusals import refused

PROMPTS = ["the cat", "", "a dog likes", "the cat", "she"]


def call(capsys, *arguments: str) -> tuple[int, str, str]:
    from seriatim.cli.main import main

    code = main(["generate", *arguments])
    return (code, *capsys.readouterr())


def expected(run: seriatim.Run, prompts=PROMPTS, seed: int = 3, **settings: object) -> list[str]:
    return ["".join(run.generate(text, max_tokens=25, seed=seed + i, **settings)) for i, text in enumerate(prompts)]


@pytest.mark.parametrize("name", ["char-line", "char-stream", "word-line"])
def test_texts_are_those_of_each_prompt_alone(runs, name: str) -> None:
    run = runs[name]
    for settings in ({}, {"temperature": 0}, {"top_p": 0.8, "repetition_penalty": 1.3, "stop": ["e", "."]}):
        assert list(run.generate_many(PROMPTS, max_tokens=25, seed=3, **settings)) == expected(run, **settings)
    assert list(run.generate_many([], seed=1)) == []
    assert list(run.generate_many(PROMPTS, max_tokens=0, seed=1)) == [""] * len(PROMPTS)


def test_prompts_are_read_while_texts_are_generated(runs) -> None:
    taken = []

    def endless():
        while True:
            taken.append(len(taken))
            yield "the"

    texts = runs["char-line"].generate_many(endless(), max_tokens=3, seed=0)
    assert [next(texts) for _ in range(3)] == runs["char-line"].samples(3, "the", max_tokens=3, seed=0)
    assert len(taken) < 100

    def broken():
        yield from ("the", "the")
        raise RuntimeError("no more")

    texts = runs["char-line"].generate_many(broken(), max_tokens=3, seed=0)
    assert [next(texts), next(texts)] == runs["char-line"].samples(2, "the", max_tokens=3, seed=0)
    with pytest.raises(RuntimeError, match="no more"):
        next(texts)


def test_texts_before_a_prompt_that_cannot_be_read_are_complete(runs, tmp_path, capsys) -> None:
    run = runs["char-line"]
    texts = run.generate_many(["the", "a", "Ü", "she"], max_tokens=5, seed=3)
    assert [next(texts), next(texts)] == run.samples(1, "the", max_tokens=5, seed=3) + run.samples(
        1, "a", max_tokens=5, seed=4
    )
    with refused("unknown", "prompts"):
        next(texts)
    path = tmp_path / "prompts.txt"
    path.write_text("the\nÜ\n", encoding="utf-8")
    code, printed, errors = call(capsys, str(run.path), "--prompts", str(path), "--max-tokens", "5")
    assert (code, errors.count("\n")) == (2, 1)
    assert printed.startswith("--- prompt 1, seed")
    assert f"{path}:2: the text has characters" in errors
    for damage in (b"\xff\n", b"\0\n"):
        path.write_bytes(b"the\na\n" + damage + b"she\n")
        code, printed, errors = call(capsys, str(run.path), "--prompts", str(path), "--max-tokens", "5")
        assert (code, printed.count("--- prompt"), errors.count("\n")) == (2, 2, 1)
        assert f"{path}:3" in errors
    for wrong in ("one text", 3, [1]):
        with pytest.raises(InputError):
            list(run.generate_many(wrong))


def test_files_and_pipes(runs, tmp_path, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    run, settings = runs["char-line"], ("--max-tokens", "25", "--seed", "3")
    files = {"a.txt": "\n".join(PROMPTS) + "\n", "b.txt": "\ufeff" + "\r\n".join(PROMPTS)}
    files |= {"c.jsonl": "".join(json.dumps({"prompt": text, "other": 1}) + "\n" for text in PROMPTS)}
    files |= {"d.jsonl": "".join(json.dumps({"text": text}) + "\n" for text in PROMPTS)}
    texts = expected(run)
    titles = [
        f"--- prompt {i + 1}, seed {3 + i} ---\n{prompt}{text}\n"
        for i, (prompt, text) in enumerate(zip(PROMPTS, texts, strict=True))
    ]
    for name, content in files.items():
        path = tmp_path / name
        path.write_bytes(content.encode())
        assert call(capsys, str(run.path), "--prompts", str(path), *settings) == (0, "\n".join(titles), "")
    (tmp_path / "e.txt.gz").write_bytes(gzip.compress(files["a.txt"].encode()))
    (tmp_path / "f.json").write_text(files["c.jsonl"], encoding="utf-8")
    given = ("--prompts", str(tmp_path / "f.json"), "--format", "jsonl")
    assert call(capsys, str(run.path), *given, *settings) == (0, "\n".join(titles), "")
    code, printed, _ = call(capsys, str(run.path), "--prompts", str(tmp_path / "e.txt.gz"), "--json", *settings)
    rows = [json.loads(line) for line in printed.splitlines()]
    assert code == 0
    assert rows == [
        {"seed": 3 + i, "prompt": prompt, "text": text}
        for i, (prompt, text) in enumerate(zip(PROMPTS, texts, strict=True))
    ]


def test_bad_input(runs, tmp_path, capsys) -> None:
    run = str(runs["char-line"].path)
    (tmp_path / "bad.jsonl").write_text('{"prompt": "the"}\n{"prompt": 3}\n', encoding="utf-8")
    (tmp_path / "none.jsonl").write_text('{"words": "the"}\n', encoding="utf-8")
    (tmp_path / "binary.txt").write_bytes(b"the\xff\n")
    (tmp_path / "good.txt").write_text("the\n", encoding="utf-8")
    good = str(tmp_path / "good.txt")
    for arguments, message in (
        (["--prompts", str(tmp_path / "bad.jsonl"), "--max-tokens", "3"], 'bad.jsonl:2: no string field "prompt"'),
        (["--prompts", str(tmp_path / "none.jsonl")], 'none.jsonl:1: no string field "prompt"'),
        (["--prompts", str(tmp_path / "binary.txt")], "binary.txt:1"),
        (["--prompts", str(tmp_path / "nowhere.txt")], "nowhere.txt"),
        (["--prompts", ""], "the name of the text is empty"),
        (["--prompts", good, "--prompt", "the"], "cannot be combined with --prompt"),
        (["--prompts", good, "--samples", "2"], "cannot be combined with --samples"),
        (["--prompts", good, "--draft", "lookup"], "cannot be combined with --draft"),
        (["--prompts", good, "--max-tokens", "0"], "--max-tokens: 0 is out of range"),
        (["--prompts", good, "--stop", ""], "stop string is empty"),
    ):
        code, _, errors = call(capsys, run, *arguments)
        assert (code, errors.count("\n")) == (2, 1), errors
        assert message in errors

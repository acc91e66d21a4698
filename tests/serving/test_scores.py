"""Scores and tokens."""

import math

import pytest

from seriatim.data.tokenizers import END
from seriatim.runs.run import Run
from seriatim.serving.answers import spans

from .conftest import Served

WRITERS = ("chars", "bytes", "lm", "lm-lines", "lm-words", "ngram")


@pytest.mark.parametrize("model", WRITERS)
def test_scores_are_those_of_the_run(served: Served, model: str) -> None:
    run: Run = served.service.models[model].run
    texts = ["the cat sees the sea .", "a dog", ""]
    answer = served.post("/v1/score", model=model, input=texts, top_logprobs=2).raise_for_status().json()
    expected = run.score(texts)
    for text, data, score in zip(texts, answer["data"], expected, strict=True):
        is_line = run.config.data.unit == "line"
        if is_line:  # the end of the line is scored, too
            assert math.isclose(data["log_probability"], score.log_probability, rel_tol=1e-5)
            assert data["tokens"][-1]["text"] == "</s>"
        else:
            stream = run.stream()
            assert math.isclose(data["log_probability"], stream.feed(text).log_probability, rel_tol=1e-5, abs_tol=1e-9)
        assert len(data["tokens"]) == score.tokens - (0 if is_line else len(run.tokenizer.encode_continued("\n")))
        assert math.isclose(sum(token["logprob"] for token in data["tokens"]), data["log_probability"], abs_tol=1e-9)
        assert data["bytes"] == len(text.encode())
        ends = [token["end"] for token in data["tokens"]]
        assert ends == sorted(ends)
        assert not ends or ends[-1] == len(text)
        for token in data["tokens"]:
            assert len(token["top"]) == 2
            if token["text"] != "</s>" and "\N{REPLACEMENT CHARACTER}" not in token["text"]:
                assert text[token["start"] : token["end"]].strip() == token["text"].strip()


def test_characters_of_several_bytes(served: Served) -> None:
    (data,) = served.post("/v1/score", model="bytes", input="né🙂").json()["data"]
    spans = [(token["start"], token["end"]) for token in data["tokens"]]
    assert spans == [(0, 1), (1, 2), (1, 2), (2, 3), (2, 3), (2, 3), (2, 3)]
    assert data["text"] == "né🙂"


@pytest.mark.parametrize("name", ["word-line", "char-line", "bpe-line", "word-stream"])
def test_the_end_of_a_text_covers_no_character(runs, name: str) -> None:
    tokenizer = runs[name].tokenizer
    for text in ("the cat", "the", ""):
        ids = tokenizer.encode(text).tolist()
        *inner, end = spans(tokenizer, text, [*ids, END])
        assert inner == spans(tokenizer, text, ids)
        assert (end["start"], end["end"]) == (len(text), len(text))


def test_unknown_words_are_scored(served: Served) -> None:
    (data,) = served.post("/v1/score", model="lm-words", input="the zyzzyva sees").json()["data"]
    (expected,) = served.service.models["lm-words"].run.score(["the zyzzyva sees"])
    assert len(data["tokens"]) == expected.tokens - 1
    assert data["unknown_tokens"] == 1
    known = served.post("/v1/score", model="lm-words", input="the cat sees").json()["data"][0]
    assert known["unknown_tokens"] == 0
    assert math.isclose(known["bits_per_byte"], -known["log_probability"] / math.log(2) / known["bytes"])
    assert data["bits_per_byte"] > -data["log_probability"] / math.log(2) / data["bytes"]


def test_bits_per_byte_are_those_of_an_evaluation(served: Served, tmp_path) -> None:
    text = "the zyzzyva sees the sea ."
    (tmp_path / "text.txt").write_text(f"{text}\n")
    run = served.service.models["lm-words"].run
    (data,) = served.post("/v1/score", model="lm-words", input=f"{text}\n").json()["data"]
    assert math.isclose(data["bits_per_byte"], run.evaluate(str(tmp_path / "text.txt"))["bits_per_byte"], rel_tol=1e-4)


def test_a_line_model_reads_lines(served: Served) -> None:
    status, message = served.error("/v1/score", model="lm-lines", input=["a dog", "a\nb"])
    assert status == 400
    assert message.startswith("input.1: contains a line end")


def test_tokens(served: Served) -> None:
    answer = served.post("/v1/tokenize", model="lm-words", input="the cat sees").raise_for_status().json()
    assert [token["text"].strip() for token in answer["data"]] == ["the", "cat", "sees"]
    tokenizer = served.service.models["lm-words"].run.tokenizer
    assert [token["id"] for token in answer["data"]] == tokenizer.encode("the cat sees").tolist()
    assert served.post("/v1/tokenize", model="tag", input="").json()["data"] == []


@pytest.mark.exhaustive
def test_as_many_texts_as_a_request_may_have(served: Served) -> None:
    answer = served.post("/v1/score", model="lm", input=["the cat"] * 1024).raise_for_status().json()
    assert len(answer["data"]) == 1024
    status, message = served.error("/v1/score", model="lm", input=["the cat sees the sea ."] * 1024, top_logprobs=20)
    assert (status, message[:22]) == (400, "the answer has at most")
    assert served.error("/v1/tokenize", model="lm", input="a" * 65_537)[0] == 400
    assert served.error("/v1/tag", model="tag", input="a " * 65_537)[0] == 400

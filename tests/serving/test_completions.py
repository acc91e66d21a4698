"""Completions: as the client of OpenAI asks for them, with the texts that runs generate alone."""

import json
import math
import socket
import threading

import openai
import pytest

import seriatim
from seriatim.serving import completions

from ..conftest import small_config
from .conftest import Served, serving

WRITERS = ("chars", "bytes", "lm", "lm-lines", "lm-words", "ngram")


@pytest.fixture(scope="module")
def client(served: Served):
    with openai.OpenAI(base_url=f"{served.address}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.mark.parametrize("model", WRITERS)
@pytest.mark.parametrize("settings", [{"temperature": 0}, {"seed": 3}, {"seed": 3, "top_p": 0.8, "temperature": 0.7}])
def test_a_text_is_that_of_the_run(client, served: Served, model: str, settings: dict) -> None:
    run = served.service.models[model].run
    expected = "".join(run.generate("the cat ", max_tokens=30, **settings))
    answer = client.completions.create(model=model, prompt="the cat ", max_tokens=30, **settings)
    assert answer.choices[0].text == expected
    pieces = client.completions.create(model=model, prompt="the cat ", max_tokens=30, stream=True, **settings)
    assert "".join(piece.choices[0].text for piece in pieces) == expected
    assert answer.usage.prompt_tokens == len(run.tokenizer.encode("the cat "))
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_texts_of_one_request_have_seeds_in_order(client, served: Served) -> None:
    run = served.service.models["chars"].run
    answer = client.completions.create(model="chars", prompt=["the ", "a "], n=2, seed=7, max_tokens=12)
    prompts = ["the ", "the ", "a ", "a "]
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert [choice.text for choice in answer.choices] == [
        "".join(run.generate(prompt, max_tokens=12, seed=7 + i)) for i, prompt in enumerate(prompts)
    ]
    stream = client.completions.create(model="chars", prompt=["the ", "a "], n=2, seed=7, max_tokens=12, stream=True)
    texts = [""] * 4
    for piece in stream:
        texts[piece.choices[0].index] += piece.choices[0].text
    assert texts == [choice.text for choice in answer.choices]


def test_penalties_biases_and_stop_strings(client, served: Served) -> None:
    run = served.service.models["chars"].run
    token = int(run.tokenizer.encode("e")[0])
    settings = {"frequency_penalty": 0.5, "presence_penalty": 0.3, "seed": 5, "max_tokens": 30}
    answer = client.completions.create(
        model="chars", prompt="the ", logit_bias={str(token): -100}, stop=["sea", "."],
        extra_body={"repetition_penalty": 1.2, "min_p": 0.01, "top_k": 20}, **settings,
    )  # fmt: skip
    more = {"repetition_penalty": 1.2, "min_p": 0.01, "top_k": 20}
    assert answer.choices[0].text == "".join(
        run.generate("the ", logit_bias={"e": -100}, stop=["sea", "."], **settings, **more)
    )
    assert "e" not in answer.choices[0].text


@pytest.mark.parametrize("model", WRITERS)
def test_log_probabilities_are_those_of_the_run(client, served: Served, model: str) -> None:
    run = served.service.models[model].run
    prompt = "the cat sees"
    answer = client.completions.create(model=model, prompt=prompt, max_tokens=0, echo=True, logprobs=3)
    choice = answer.choices[0]
    assert choice.text == prompt
    stream = run.stream()
    assert math.isclose(sum(choice.logprobs.token_logprobs), stream.feed(prompt).log_probability, rel_tol=1e-5)
    tokens = len(run.tokenizer.encode(prompt))
    for values in (choice.logprobs.tokens, choice.logprobs.top_logprobs, choice.logprobs.text_offset):
        assert len(values) == tokens
    for text, value, top in zip(
        choice.logprobs.tokens, choice.logprobs.token_logprobs, choice.logprobs.top_logprobs, strict=True
    ):
        assert 1 <= len(top) <= 3
        assert value <= max(top.values()) + 1e-9
        assert text not in top or math.isclose(top[text], value, abs_tol=1e-9)


def test_offsets_say_where_tokens_begin(client) -> None:
    answer = client.completions.create(
        model="chars", prompt="the cat", max_tokens=10, echo=True, logprobs=0, temperature=0
    )
    choice = answer.choices[0]
    assert choice.text.startswith("the cat")
    for token, offset in zip(choice.logprobs.tokens, choice.logprobs.text_offset, strict=True):
        assert choice.text[offset : offset + len(token)] == token


@pytest.mark.parametrize("stop", ["a", "ho", " "])
def test_tokens_after_a_stop_string_are_not_returned(client, stop: str) -> None:
    settings = {
        "model": "chars",
        "prompt": "she likes",
        "max_tokens": 40,
        "logprobs": 1,
        "temperature": 0,
        "stop": stop,
    }
    whole = client.completions.create(**settings).choices[0]
    assert stop not in whole.text
    assert "".join(whole.logprobs.tokens) == whole.text
    pieces = [piece.choices[0] for piece in client.completions.create(**settings, stream=True)]
    assert "".join(piece.text for piece in pieces) == whole.text
    assert [
        token for piece in pieces for token in (piece.logprobs.tokens if piece.logprobs else [])
    ] == whole.logprobs.tokens
    assert [piece.finish_reason for piece in pieces if piece.finish_reason] == [whole.finish_reason]


def test_prompts_of_token_ids(client, served: Served) -> None:
    tokenizer = served.service.models["chars"].run.tokenizer
    settings = {"model": "chars", "max_tokens": 10, "temperature": 0}
    ids = [tokenizer.encode(text).tolist() for text in ("the cat", "a dog")]
    expected = [client.completions.create(prompt=text, **settings).choices[0].text for text in ("the cat", "a dog")]
    assert [choice.text for choice in client.completions.create(prompt=ids, **settings).choices] == expected
    assert client.completions.create(prompt=ids[0], **settings).choices[0].text == expected[0]
    begun = client.completions.create(prompt=[0, *ids[0]], echo=True, **settings).choices[0]
    assert begun.text == "the cat" + expected[0]


def test_characters_are_never_divided(client) -> None:
    """Random bytes under a model of bytes are seldom UTF-8; what is sent is text all the same."""
    settings = {"model": "bytes", "prompt": "é", "max_tokens": 200, "temperature": 50, "seed": 1}
    pieces = [piece.choices[0].text for piece in client.completions.create(**settings, stream=True)]
    assert "".join(pieces) == client.completions.create(**settings).choices[0].text
    echoed = client.completions.create(model="bytes", prompt="naïve 🙂", max_tokens=0, echo=True, logprobs=0).choices[0]
    assert echoed.text == "naïve 🙂"
    assert echoed.logprobs.text_offset == [0, 1, 2, 2, 3, 4, 5, 6, 6, 6, 6]


def test_the_end_of_a_stream(served: Served) -> None:
    fields = {
        "model": "chars",
        "prompt": "the",
        "max_tokens": 5,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    lines = served.post("/v1/completions", **fields).text.split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    assert json.loads(lines[-3].removeprefix("data: "))["usage"]["completion_tokens"] == 5
    assert json.loads(lines[-3].removeprefix("data: "))["choices"] == []


def test_many_clients_get_the_texts_that_they_get_alone(served: Served) -> None:
    prompts = [("chars", f"{'the cat ' * (i % 5)}a dog", i) for i in range(24)]
    prompts += [("ngram", "the cat sees", i) for i in range(12)] + [("lm-words", "she likes", i) for i in range(12)]

    def ask(i: int, texts: list) -> None:
        model, prompt, seed = prompts[i]
        texts[i] = served.text(model=model, prompt=prompt, seed=seed, max_tokens=25)

    alone, together = [None] * len(prompts), [None] * len(prompts)
    for i in range(len(prompts)):
        ask(i, alone)
    threads = [threading.Thread(target=ask, args=(i, together)) for i in range(len(prompts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert together == alone


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("model", ["lm", "ngram"])
def test_a_client_that_goes_away_frees_its_place(served: Served, model: str, stream: bool) -> None:
    body = json.dumps(
        {"model": model, "prompt": "the", "max_tokens": 4096, "stream": stream, "logit_bias": {"0": -100}}
    )
    head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json"
    with socket.create_connection(("127.0.0.1", int(served.address.rpartition(":")[2]))) as connection:
        connection.sendall(f"{head}\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
        served.wait_until(lambda: served.running(model) == 1)
        if stream:
            assert connection.recv(16)
    assert served.wait_until(lambda: served.running(model) == 0) < 1


def test_a_stream_that_waits_is_kept_alive(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Comments are sent before the first event, too, so that no proxy gives up."""
    monkeypatch.setattr(completions, "PING_SECONDS", 0.05)
    block = threading.Event()
    served.service.models["chars"].engine.call(lambda: block.wait(20))
    fields = {"model": "chars", "prompt": "the", "max_tokens": 3, "stream": True}
    with served.http.stream("POST", "/v1/completions", json=fields) as answer:
        lines = answer.iter_lines()
        assert [next(lines) for _ in range(4)] == [": waiting", "", ": waiting", ""]
        block.set()
        assert [line for line in lines if line][-1] == "data: [DONE]"


def test_an_error_after_the_first_event_is_an_event(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(completions, "PING_SECONDS", 0.05)
    engine = served.service.models["bytes"].engine
    block = threading.Event()
    engine.call(lambda: block.wait(20))
    fields = {"model": "bytes", "prompt": "the", "max_tokens": 3, "stream": True}
    with served.http.stream("POST", "/v1/completions", json=fields) as answer:
        lines = answer.iter_lines()
        assert next(lines) == ": waiting"
        engine.call(lambda: engine.fail(RuntimeError("a secret")))
        block.set()
        (error,) = [json.loads(line[6:])["error"] for line in lines if line.startswith("data: ")]
    assert error["message"] == "internal error; see the log of the server"


def test_a_known_prompt_is_not_read_again(served: Served) -> None:
    prompt = "the old man sees the sea . " * 30
    fields = {"model": "chars", "max_tokens": 3, "temperature": 0}
    first = served.post("/v1/completions", prompt=prompt + "a", **fields).json()
    second = served.post("/v1/completions", prompt=prompt + "she", **fields).json()
    known = second["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert first["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert len(prompt) - 256 < known <= len(prompt)


@pytest.mark.filterwarnings("ignore:too few n-grams")
@pytest.mark.parametrize("layer", ["lstm", "transformer", "ngram"])
def test_answers_of_a_batch_are_bit_for_bit_those_of_single_texts(texts, tmp_path, layer: str) -> None:
    """With compiled steps; see the page on serving."""
    model = {"layer": layer} if layer == "ngram" else {"layer": layer, "embedding_size": 24}
    run = seriatim.train(small_config(texts, tmp_path / layer, model=model, training={"steps": 20}))
    prompts = ["the cat", "a dog sees the", "she", "our friend likes it . the old man"] * 3
    fields = {"max_tokens": 20, "temperature": 0, "logprobs": 2, "logit_bias": {"0": -100}}
    with serving({layer: run}, compiled=True) as served:
        alone = [served.post("/v1/completions", prompt=prompt, **fields).json()["choices"][0] for prompt in prompts]
        together = served.post("/v1/completions", prompt=prompts, **fields).json()["choices"]
    for one, other in zip(alone, together, strict=True):
        assert (one["text"], one["logprobs"]) == (other["text"], other["logprobs"])


def test_what_lm_evaluation_harness_sums(client, served: Served) -> None:
    """It sends ids with ``echo`` and one token to generate, and sums ``token_logprobs[context:-1]``."""
    run = served.service.models["lm-lines"].run
    context, continuation = "the cat", " sees the sea ."
    ids = run.tokenizer.encode(context + continuation).tolist()
    settings = {"model": "lm-lines", "max_tokens": 1, "temperature": 0, "logprobs": 1, "echo": True}
    first, second = run.stream(), len(run.tokenizer.encode(context))
    first.feed(context)
    expected = first.feed(continuation).log_probability
    for bias in ({}, {"0": 100}):  # with the latter, the generated token is the end
        for begin in ([], [0]):
            answer = client.completions.create(prompt=[*begin, *ids], logit_bias=bias, **settings)
            found = answer.choices[0].logprobs.token_logprobs
            assert len(found) == len(begin) + len(ids) + 1
            assert answer.usage.prompt_tokens == len(begin) + len(ids)
            assert math.isclose(sum(found[len(begin) + second : -1]), expected, rel_tol=1e-5)
            assert (found[0] is None) == bool(begin)


def test_known_tokens_are_at_most_all(served: Served) -> None:
    for _ in range(2):
        usage = served.post("/v1/completions", model="chars", prompt="a known prompt", max_tokens=1).json()["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == usage["prompt_tokens"] == 14


def raw(name: str) -> bytes:
    """Return the bytes of a token by its name."""
    if not name.startswith("bytes:"):
        return name.encode()
    return name.removeprefix("bytes:").encode().decode("unicode_escape").encode("latin-1")


@pytest.fixture(scope="module")
def undecided(tmp_path_factory: pytest.TempPathFactory):
    """A server of a model of bytes that finds all of them about equally likely."""
    folder = tmp_path_factory.mktemp("bytes")
    (folder / "text.txt").write_text("😀é東京\u2028 " * 40)
    texts = {"train": str(folder / "text.txt"), "valid": "none"}
    settings = small_config(texts, folder / "run", tokenizer={"kind": "byte"}, training={"steps": 1})
    with serving({"bytes": seriatim.train(settings)}) as served:
        yield served


def test_parts_of_characters_have_names_of_their_own(undecided: Served) -> None:
    given = {"prompt": "é😀", "max_tokens": 30, "logprobs": 5, "seed": 1, "n": 2, "echo": True}
    choices = undecided.post("/v1/completions", **given).raise_for_status().json()["choices"]
    for choice in choices:
        scores = choice["logprobs"]
        assert {len(alternatives) for alternatives in scores["top_logprobs"]} == {5}
        assert all("\N{REPLACEMENT CHARACTER}" not in name for top in scores["top_logprobs"] for name in top)
        assert any(name.startswith("bytes:") for top in scores["top_logprobs"] for name in top)
        tokens = [name for name in scores["tokens"] if name != "</s>"]
        assert b"".join(map(raw, tokens)).decode("utf-8", "replace") == choice["text"]
        assert tokens[:6] == ["bytes:\\xc3", "bytes:\\xa9", "bytes:\\xf0", "bytes:\\x9f", "bytes:\\x98", "bytes:\\x80"]
        for name, value, top in zip(scores["tokens"], scores["token_logprobs"], scores["top_logprobs"], strict=True):
            assert name not in top or top[name] == pytest.approx(value)
    found: list[list[str]] = [[], []]
    for line in undecided.post("/v1/completions", **given, stream=True).text.splitlines():
        if line not in ("", "data: [DONE]"):
            (choice,) = json.loads(line.removeprefix("data: "))["choices"]
            found[choice["index"]] += choice["logprobs"]["tokens"]
    assert found == [choice["logprobs"]["tokens"] for choice in choices]
    (scored,) = undecided.post("/v1/score", input="é", top_logprobs=5).json()["data"]
    assert [token["text"] for token in scored["tokens"]] == ["bytes:\\xc3", "bytes:\\xa9"]
    assert all(len({other["text"] for other in token["top"]}) == 5 for token in scored["tokens"])
    tokens = undecided.post("/v1/tokenize", input="é").json()["data"]
    assert [token["text"] for token in tokens] == ["bytes:\\xc3", "bytes:\\xa9"]


def test_no_json_has_a_line_end_of_unicode(undecided: Served) -> None:
    text = "a\u2028b\u2029c\x85d"
    given = {"prompt": text, "max_tokens": 1, "echo": True}
    whole = undecided.post("/v1/completions", **given)
    assert whole.json()["choices"][0]["text"].startswith(text)
    stream = undecided.post("/v1/completions", **given, stream=True)
    lines = [line for line in stream.text.splitlines() if line]
    assert all(line.startswith("data: ") for line in lines)
    pieces = [json.loads(line.removeprefix("data: "))["choices"][0]["text"] for line in lines[:-1]]
    assert "".join(pieces).startswith(text)
    others = [undecided.post("/v1/score", input=text), undecided.post("/v1/tokenize", input=text)]
    others.append(undecided.post("/v1/completions", model=text, prompt="a"))
    for answer in (whole, *others):
        assert len(answer.text.splitlines()) == 1

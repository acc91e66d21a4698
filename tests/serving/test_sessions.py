"""Sessions: a text in parts is the text in one, on the server, in a file, and in another process."""

import asyncio
import json
import threading
import time

import pytest

import seriatim
from seriatim.decoding import sampling
from seriatim.serving.completions import TextGeneration
from seriatim.serving.limits import Limits

from ..conftest import small_config
from .conftest import Served, serving

WRITERS = ("chars", "lm", "lm-words", "ngram")
STATE = {"Content-Type": "application/octet-stream"}


@pytest.mark.parametrize("model", WRITERS)
def test_a_text_in_parts_is_the_text_of_a_stream(served: Served, model: str) -> None:
    run = served.service.models[model].run
    stream, name = run.stream(), f"parts-{model}"
    for part, seed in (("the cat ", 1), ("sees ", 2), ("", 3), ("the sea .", 4)):
        stream.read(part)
        expected = "".join(stream.generate(max_tokens=6, seed=seed, repetition_penalty=1.1))
        fields = {"model": model, "prompt": part, "max_tokens": 6, "seed": seed, "repetition_penalty": 1.1}
        assert served.text(**fields, session=name) == expected
    described = served.http.get(f"/v1/sessions/{name}", params={"model": model}).json()
    assert described["tokens"] > 20
    assert not described["busy"]
    score = served.post("/v1/score", model=model, input=" a dog", session=name).json()["data"][0]
    assert score["log_probability"] == pytest.approx(stream.feed(" a dog").log_probability, rel=1e-5)


@pytest.mark.parametrize("model", WRITERS)
def test_a_session_can_be_downloaded_and_restored(served: Served, model: str, tmp_path) -> None:
    run = served.service.models[model].run
    served.text(model=model, prompt="the cat ", session="one", max_tokens=5, seed=1)
    state = served.http.get("/v1/sessions/one/state", params={"model": model})
    assert state.headers["content-type"] == "application/octet-stream"
    (tmp_path / "state").write_bytes(state.content)
    stream = run.stream().load(tmp_path / "state")
    expected = "".join(stream.generate(max_tokens=10, seed=9))
    restored = served.http.put("/v1/sessions/two/state", params={"model": model}, content=state.content, headers=STATE)
    assert restored.status_code == 201
    for name in ("one", "two"):
        assert served.text(model=model, prompt="", session=name, max_tokens=10, seed=9) == expected
    stream.save(tmp_path / "later")
    params = {"model": model}
    again = served.http.put(
        "/v1/sessions/one/state", params=params, content=(tmp_path / "later").read_bytes(), headers=STATE
    )
    assert again.status_code == 200
    later = "".join(stream.generate(max_tokens=5, seed=2))
    assert served.text(model=model, session="one", max_tokens=5, seed=2) == later
    for name in ("one", "two"):
        assert served.http.delete(f"/v1/sessions/{name}", params=params).json()["deleted"]
        assert served.http.get(f"/v1/sessions/{name}", params=params).status_code == 404


def test_a_damaged_state_is_refused(served: Served) -> None:
    served.text(model="chars", prompt="the", session="whole", max_tokens=3)
    before = served.http.get("/v1/sessions/whole/state", params={"model": "chars"}).content
    other = served.http.get("/v1/sessions/whole/state", params={"model": "chars"}).content
    for data in (b"", b"x" * 100, before[:-8], other.replace(b"seriatim 1", b"seriatim 9")):
        answer = served.http.put("/v1/sessions/whole/state", params={"model": "chars"}, content=data, headers=STATE)
        assert answer.status_code == 400, answer.text
        assert "/tmp" not in answer.text
    served.text(model="lm", prompt="the", session="foreign", max_tokens=3)
    foreign = served.http.get("/v1/sessions/foreign/state", params={"model": "lm"}).content
    answer = served.http.put("/v1/sessions/whole/state", params={"model": "chars"}, content=foreign, headers=STATE)
    assert answer.status_code == 400
    assert served.http.get("/v1/sessions/whole/state", params={"model": "chars"}).content == before
    missing = served.http.put("/v1/sessions/none/state", params={"model": "chars"}, content=b"", headers=STATE)
    assert missing.status_code == 400
    assert served.http.get("/v1/sessions/none", params={"model": "chars"}).status_code == 404


def test_two_requests_cannot_use_a_session_at_once(served: Served) -> None:
    fields = {"model": "lm", "prompt": "the", "session": "shared", "logit_bias": {"0": -100}}
    thread = threading.Thread(target=served.post, args=("/v1/completions",), kwargs={**fields, "max_tokens": 2000})
    thread.start()
    served.wait_until(lambda: served.running("lm") == 1)
    assert served.error("/v1/completions", **fields)[0] == 409
    assert served.http.delete("/v1/sessions/shared", params={"model": "lm"}).status_code == 409
    thread.join(60)
    assert served.text(**fields)


@pytest.mark.parametrize("name", ["", "a b", "../x", ".hidden", "x" * 65, "ü"])
def test_names_are_checked(served: Served, name: str) -> None:
    assert served.error("/v1/completions", model="lm", prompt="the", session=name)[0] == 400


def test_a_session_is_free_when_its_answer_is_complete(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client who sends the next request at once finds the new state, however slowly a request is closed."""
    close = TextGeneration._close

    async def close_slowly(generation: TextGeneration) -> None:
        await asyncio.sleep(0.05)
        await close(generation)

    monkeypatch.setattr(TextGeneration, "_close", close_slowly)
    session = {"model": "bytes", "session": "at-once"}
    served.post("/v1/score", **session, input="the").raise_for_status()
    assert described(served, "at-once")["tokens"] == 3
    assert served.text(**session, prompt="abc", max_tokens=0) == ""
    assert described(served, "at-once")["tokens"] == 6
    fields = {**session, "prompt": "de", "max_tokens": 2, "stream": True, "logit_bias": {str(ord("a")): 100}}
    with served.http.stream("POST", "/v1/completions", json=fields) as answer:
        for line in answer.iter_lines():
            if line.startswith("data: {") and json.loads(line[6:])["choices"][0]["finish_reason"]:
                break
        assert described(served, "at-once")["tokens"] == 10


def described(served: Served, session: str) -> dict:
    """What the server says about a session of the model ``bytes`` that no request uses."""
    answer = served.http.get(f"/v1/sessions/{session}", params={"model": "bytes"}).json()
    assert not answer["busy"]
    return answer


def test_a_request_for_several_texts_has_no_session(served: Served) -> None:
    status, message = served.error("/v1/completions", model="lm", prompt="the", session="s", n=2)
    assert (status, message.split(":")[0]) == (400, "session")
    status, message = served.error("/v1/score", model="lm", input=["a", "b"], session="s")
    assert (status, message.split(":")[0]) == (400, "session")
    status, message = served.error("/v1/score", model="lm-lines", input="a", session="s")
    assert (status, message[:41]) == (400, "session: the model reads single lines, wh")


def test_a_failed_request_leaves_the_session_as_it_was(served: Served) -> None:
    params = {"model": "lm"}
    served.text(**params, prompt="the cat", session="kept", max_tokens=3)
    before = served.http.get("/v1/sessions/kept/state", params=params).content
    assert served.error("/v1/completions", **params, prompt="\u4e2d", session="kept")[0] == 400
    assert served.error("/v1/completions", **params, prompt="\u4e2d", session="new")[0] == 400
    assert served.http.get("/v1/sessions/kept/state", params=params).content == before
    assert served.http.get("/v1/sessions/new", params=params).status_code == 404


def test_old_sessions_are_removed(runs) -> None:
    limits = Limits(max_sessions=2, session_seconds=0.5)
    with serving({"lm": runs["char-stream"]}, limits) as served:
        for name in ("a", "b", "a", "c"):
            served.text(prompt="the", session=name, max_tokens=2)
        assert [each["id"] for each in served.http.get("/v1/sessions").json()["data"]] == ["c", "a"]
        time.sleep(0.6)
        assert served.http.get("/v1/sessions").json()["data"] == []
    with serving({"lm": runs["char-stream"]}, Limits(session_bytes=1000)) as served:
        for name in ("a", "b", "c"):
            served.text(prompt="the", session=name, max_tokens=2)
            sizes = [each["state_bytes"] for each in served.http.get("/v1/sessions").json()["data"]]
            assert sum(sizes) <= 1000


def test_a_client_that_goes_away_leaves_what_was_written(served: Served) -> None:
    fields = {"model": "lm", "prompt": "the", "session": "left", "max_tokens": 4000, "logit_bias": {"0": -100}}
    with served.http.stream("POST", "/v1/completions", json={**fields, "stream": True}) as response:
        next(response.iter_lines())
    served.wait_until(lambda: served.running("lm") == 0, 1)
    served.wait_until(lambda: not served.http.get("/v1/sessions/left", params={"model": "lm"}).json()["busy"])
    tokens = served.http.get("/v1/sessions/left", params={"model": "lm"}).json()["tokens"]
    assert 3 < tokens < 4000
    assert served.text(model="lm", session="left", max_tokens=2) != ""


def test_a_saved_stream_of_the_run_is_a_session(served: Served, tmp_path) -> None:
    run = seriatim.load(served.service.models["chars"].run.path)
    stream = run.stream()
    stream.feed("the old man ")
    stream.save(tmp_path / "state")
    served.http.put(
        "/v1/sessions/mine/state", params={"model": "chars"}, content=(tmp_path / "state").read_bytes(), headers=STATE
    ).raise_for_status()
    expected = "".join(stream.generate(max_tokens=8, temperature=0))
    assert served.text(model="chars", session="mine", max_tokens=8, temperature=0) == expected


def test_a_model_that_draws_without_logits(inspected, monkeypatch: pytest.MonkeyPatch) -> None:
    """As an n-gram model of many words does."""
    monkeypatch.setattr(sampling, "MANY", 2)
    run = inspected["ngram"]
    with serving({"ngram": run}) as served:
        assert served.service.models["ngram"].engine.batch.texts.drawing is run.answering
        stream = run.stream()
        for part, seed in (("the cat", 1), ("sees", 2), ("", 3), ("", 4), ("the sea .", 5)):
            score = stream.feed(part)
            fields = {"prompt": part, "session": "s", "seed": seed, "max_tokens": 5, "echo": True, "logprobs": 1}
            choice = served.post("/v1/completions", **fields).raise_for_status().json()["choices"][0]
            scores = choice["logprobs"]["token_logprobs"][: score.tokens]
            assert sum(scores) == pytest.approx(score.log_probability, rel=1e-5, abs=1e-9)
            assert choice["text"] == part + "".join(stream.generate(max_tokens=5, seed=seed))
        state = served.http.get("/v1/sessions/s/state").content
        assert served.http.put("/v1/sessions/t/state", content=state, headers=STATE).status_code == 201
        expected = "".join(stream.generate(max_tokens=5, seed=9))
        for name in ("s", "t"):
            assert served.text(prompt="", session=name, seed=9, max_tokens=5) == expected


def test_a_stop_string_that_ends_with_the_last_token(served: Served) -> None:
    fields = {"model": "lm", "prompt": "the cat", "temperature": 0, "logit_bias": {"0": -100}}
    text = served.text(**fields, max_tokens=5)
    assert served.text(**fields, max_tokens=5, stop=text[3:5], session="full") == text[: text.index(text[3:5])]
    described = served.http.get("/v1/sessions/full", params={"model": "lm"}).json()
    assert described["tokens"] == len("the cat") + text.index(text[3:5]) + 2
    run = served.service.models["lm"].run
    stream = run.stream()
    stream.read("the cat")
    "".join(stream.generate(max_tokens=described["tokens"] - 7, temperature=0, logit_bias={"</s>": -100}))
    expected = "".join(stream.generate(max_tokens=4, temperature=0))
    assert served.text(model="lm", session="full", temperature=0, max_tokens=4) == expected


def test_a_character_in_two_requests(served: Served) -> None:
    """Every request gives one byte; those of a character come with its last one."""
    run = served.service.models["bytes"].run
    token = [int(token) for token in run.tokenizer.encode("ü")]
    texts = []
    for i, each in enumerate([*token, *token]):
        fields = {"prompt": "the" if i == 0 else "", "logit_bias": {str(each): 100}, "temperature": 0}
        texts.append(served.text(model="bytes", session="half", max_tokens=1, **fields))
    assert texts == ["", "ü", "", "ü"]


def test_a_character_that_was_begun_survives_a_request_that_fails(served: Served, monkeypatch) -> None:
    run = served.service.models["bytes"].run
    first, second = (int(token) for token in run.tokenizer.encode("ü"))
    fields = {"model": "bytes", "session": "begun", "max_tokens": 1, "temperature": 0}
    assert served.text(**fields, prompt="the", logit_bias={str(first): 100}) == ""

    def fail(self) -> None:
        raise RuntimeError("for a test")

    monkeypatch.setattr(type(served.service.models["bytes"].engine), "work", fail)
    assert served.post("/v1/completions", **fields).status_code == 500
    monkeypatch.undo()
    assert served.text(**fields, logit_bias={str(second): 100}) == "ü"
    assert served.text(**fields, logit_bias={str(first): 100}) == ""
    assert served.text(**fields, prompt=[second], logit_bias={str(run.tokenizer.encode("a")[0]): 100}) == "a"


def test_sessions_count_what_they_keep(served: Served) -> None:
    served.post("/v1/score", model="lm-words", input="the cat sees the sea", session="bytes").raise_for_status()
    session = served.service.models["lm-words"].sessions.find("bytes")
    assert session.state_bytes >= session.text.logits.nbytes + session.seen_tokens.nbytes
    logits = session.text.logits
    assert logits.untyped_storage().nbytes() == logits.nbytes


def test_a_state_that_says_that_it_has_read_nothing(texts, tmp_path) -> None:
    """It is not believed: a position beyond the learned ones would end the texts of all clients."""
    options = {"position": "learned", "max_length": 40}
    model = {"layer": "transformer", "options": options, "embedding_size": 24}
    run = seriatim.train(
        small_config(texts, tmp_path / "short", data={"unit": "line"}, model=model, training={"steps": 2})
    )
    with serving({"short": run}) as served:
        endless = {"logit_bias": {"0": -100}}
        served.text(prompt="the cat", max_tokens=20, session="s", **endless)
        state = served.http.get("/v1/sessions/s/state").content
        forged = state.replace(b'"num_tokens":"27"', b'"num_tokens":"00"')
        assert forged != state
        served.http.put("/v1/sessions/t/state", content=forged, headers=STATE).raise_for_status()
        assert served.http.get("/v1/sessions/t").json()["tokens"] >= 26
        assert served.error("/v1/completions", prompt="a", max_tokens=15, session="t", **endless)[0] == 400
        answers = [None] * 3

        def ask(i: int, prompt: str, max_tokens: int) -> None:
            answers[i] = served.post("/v1/completions", prompt=prompt, max_tokens=max_tokens, **endless).status_code

        parts = [("the cat sees the sea . the", 13), ("a", 30), ("the", 30)]
        threads = [threading.Thread(target=ask, args=(i, *part)) for i, part in enumerate(parts)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert answers == [200, 200, 200]

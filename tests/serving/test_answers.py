"""Answers of models that classify, tag, translate and fill gaps."""

import socket
import threading
import time

import pytest

from seriatim.serving.prediction_engine import PredictionRequest
from seriatim.serving.service import ServedPredictor

from ..refusals import refused
from .conftest import Served

INPUTS = {
    "classify": ["the cat sees the sea .", "a dog likes it ."],
    "tag": ["the cat sees the sea .", "a dog"],
    "seq2seq": ["abcd", "fedc", ""],
    "seq2seq-heads": ["abcd", "fedc"],
    "ctc": ["abcd"],
    "mlm": ["the [MASK] sees the sea .", "a dog"],
}


def assert_near(one: object, other: object) -> None:
    """Numbers anywhere in two answers are equal up to rounding, and all else is equal."""
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for name, value in one.items():
            assert_near(value, other[name])
    elif isinstance(one, list):
        for value, another in zip(one, other, strict=True):
            assert_near(value, another)
    elif isinstance(one, float):
        assert one == pytest.approx(other, abs=1e-4)
    else:
        assert one == other


@pytest.mark.parametrize("model", INPUTS)
def test_answers_are_those_of_the_run(served: Served, model: str) -> None:
    served_model = served.service.models[model]
    inputs = INPUTS[model]
    answer = served.post(served_model.endpoints[0], model=model, input=inputs).raise_for_status().json()
    expected = list(served_model.run.predict(inputs, details=True))
    assert [data["index"] for data in answer["data"]] == list(range(len(inputs)))
    for data, one in zip(answer["data"], expected, strict=True):
        assert data.keys() - {"object", "index"} == one.keys()
        for name in one.keys() - {"seconds"}:
            assert_near(data[name], one[name])
    single = served.post(served_model.endpoints[0], model=model, input=inputs[0]).json()
    assert [data["text"] for data in single["data"]] == [expected[0]["text"]]


def test_settings_of_the_task(served: Served) -> None:
    run = served.service.models["seq2seq"].run
    settings = {"beam": 3, "n_best": 2, "length_penalty": 0.5, "alignments": True}
    (data,) = served.post("/v1/translate", model="seq2seq", input="abcd", **settings).raise_for_status().json()["data"]
    (expected,) = run.predict(["abcd"], details=True, **settings)
    assert data["text"] == expected["text"]
    assert [each["text"] for each in data["n_best"]] == [each["text"] for each in expected["n_best"]]
    assert data.keys() - {"object", "index"} == expected.keys()
    listed = served.http.get("/v1/models/seq2seq").json()["settings"]["properties"]
    assert {"beam", "n_best", "temperature", "alignments"} <= listed.keys()


def test_words_can_be_given(served: Served) -> None:
    answer = served.post("/v1/tag", input=[["the", "cat"], "a dog"]).raise_for_status().json()
    assert [data["words"] for data in answer["data"]] == [["the", "cat"], ["a", "dog"]]
    status, message = served.error("/v1/classify", model="classify", input=[["the", "cat"]])
    assert (status, message.split(":")[0]) == (400, "input.0")


@pytest.mark.parametrize(
    ("path", "fields", "status", "begin"),
    [
        ("/v1/translate", {"model": "seq2seq", "input": "a", "beam": 65}, 400, "beam: 65 does not fit"),
        ("/v1/translate", {"model": "seq2seq", "input": "a", "beam": "x"}, 400, "beam: 'x' does not fit"),
        ("/v1/translate", {"model": "seq2seq", "input": "a", "bean": 5}, 400, "bean: unknown field; did you mean"),
        ("/v1/translate", {"model": "seq2seq", "input": "a", "beam": 2, "temperature": 1}, 400, "beam: cannot be used"),
        ("/v1/translate", {"model": "ctc", "input": "a", "temperature": 0.5}, 400, "temperature, seed: this model"),
        ("/v1/classify", {"input": "a"}, 400, "model: must be given; choose from classify, classify-forwards"),
        ("/v1/classify", {"model": "chars", "input": "a"}, 400, "model: 'chars' was trained to lm"),
        ("/v1/completions", {"model": "tag", "prompt": "a"}, 400, "model: 'tag' was trained to tag"),
        ("/v1/completions", {"model": "char", "prompt": "a"}, 404, "model: 'char' is not served; did you mean"),
        ("/v1/tag", {"input": []}, 400, "input: must be 1 to 1,024 texts, got 0"),
        ("/v1/tag", {"input": ["a"] * 1025}, 400, "input: must be 1 to 1,024 texts, got 1,025"),
        ("/v1/tag", {}, 400, "input"),
    ],
)  # fmt: skip
def test_bad_requests_are_refused(served: Served, path: str, fields: dict, status: int, begin: str) -> None:
    assert served.error(path, **fields)[0] == status
    assert served.error(path, **fields)[1].startswith(begin)


def test_requests_that_wait_are_answered_together(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    model = served.service.models["classify"]
    assert isinstance(model, ServedPredictor)
    sizes, answer = [], model.run.predictor.answer

    def counted(network, vocabulary, items, **settings):
        sizes.append(len(items))
        time.sleep(0.2)
        return answer(network, vocabulary, items, **settings)

    monkeypatch.setattr(model.run.task.predictor, "answer", counted)
    threads = [
        threading.Thread(target=served.post, args=("/v1/classify",), kwargs={"model": "classify", "input": f"the {i}"})
        for i in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sum(sizes) == 6
    assert len(sizes) < 6


def test_a_long_request_does_not_stop_the_others(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    model = served.service.models["classify"]
    order, answer = [], model.run.predictor.answer

    def slow(network, vocabulary, items, **settings):
        order.extend(items)
        time.sleep(0.03 * len(items))
        return answer(network, vocabulary, items, **settings)

    monkeypatch.setattr(model.run.task.predictor, "answer", slow)
    text = "the cat " * 20
    long = {"model": "classify", "input": [text] * 40}
    thread = threading.Thread(target=served.post, args=("/v1/classify",), kwargs=long)
    thread.start()
    served.wait_until(lambda: order)
    assert served.post("/v1/classify", model="classify", input="a dog").status_code == 200
    assert order.count(text) < 40
    thread.join(30)


def test_one_bad_input_does_not_harm_the_others(served: Served) -> None:
    model = served.service.models["seq2seq"]
    assert isinstance(model, ServedPredictor)
    engine = model.engine
    bad = {"beam": 2, "temperature": 1.0}
    asked = [("abcd", {}), ("abcd", bad), ("abc", bad), ("dcba", {})]
    questions = [PredictionRequest([item], settings, [4]) for item, settings in asked]
    engine.call(lambda: [engine._waiting.append(question) for question in questions])
    assert questions[0].answers.result(20)[0]["text"] is not None
    assert questions[3].answers.result(20)[0]["text"] is not None
    for question in questions[1:3]:
        with refused("conflict", "beam"):
            question.answers.result(20)


def test_a_question_whose_client_went_away_is_not_answered(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    model = served.service.models["tag"]
    engine, answered, answer = model.engine, [], model.run.predictor.answer

    def counted(network, vocabulary, items, **settings):
        answered.extend(items)
        return answer(network, vocabulary, items, **settings)

    monkeypatch.setattr(model.run.task.predictor, "answer", counted)
    block = threading.Event()
    engine.call(lambda: block.wait(20))
    body = b'{"input": "a dog"}'
    head = b"POST /v1/tag HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 18\r\n\r\n"
    with socket.create_connection(("127.0.0.1", int(served.address.rpartition(":")[2]))) as connection:
        connection.sendall(head + body)
        served.wait_until(lambda: engine.num_waiting == 1)
    served.wait_until(lambda: engine.num_waiting == 0, 2)
    block.set()
    assert served.post("/v1/tag", input="the sea").raise_for_status()
    assert answered == ["the sea"]

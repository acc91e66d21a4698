"""The whole server: bad input, limits, failures, keys and metrics."""

import json
import math
import shutil
import subprocess
import threading
import time

import httpx
import pytest
import torch

import seriatim
from seriatim.serving import text_engine
from seriatim.serving.application import AccessRules
from seriatim.serving.limits import Limits
from seriatim.serving.service import Service, model_names
from seriatim.serving.text_engine import ModelThread

from ..golden.answers import GOLDEN
from ..refusals import refused
from .conftest import Served, serving

GENERATE = {"model": "chars", "prompt": "the", "max_tokens": 2}


@pytest.mark.parametrize(
    ("fields", "status", "begin"),
    [
        ({"max_tokens": 4097}, 400, "max_tokens: must be at most 4,096, got 4,097"),
        ({"max_tokens": -1}, 400, "max_tokens: -1 does not fit"),
        ({"max_tokens": 1.5}, 400, "max_tokens: 1.5 does not fit"),
        ({"max_tokens": True}, 400, "max_tokens: true does not fit"),
        ({"n": 129}, 400, "n: 129 does not fit"),
        ({"n": 0}, 400, "n: 0 does not fit"),
        ({"n": 64, "prompt": ["a"] * 3}, 400, "prompt: the number of prompts times n must be 1 to 128, got 192"),
        ({"prompt": []}, 400, "prompt: the number of prompts times n must be 1 to 128, got 0"),
        ({"best_of": 2}, 400, "best_of: must be equal to n"),
        ({"temperature": 1e-308}, 400, "temperature: 1e-308"),
        ({"repetition_penalty": 1e-308}, 400, "repetition_penalty: 1e-308 is not a number from"),
        ({"presence_penalty": -1e308}, 400, "presence_penalty: -1e+308 does not fit"),
        ({"logit_bias": {"1": 1e308}}, 400, "logit_bias.1: 1e+308 does not fit"),
        ({"temperature": "hot"}, 400, "temperature: 'hot' does not fit"),
        ({"temperature": -1}, 400, "temperature: -1 does not fit"),
        ({"top_p": 0}, 400, "top_p: 0 does not fit"),
        ({"stop": "x" * 1_000_000}, 400, "stop: 'xxx"),
        ({"stop": ["x" * 1_000_000]}, 400, "stop.0: 'xxx"),
        ({"stop": ["x"] * 17}, 400, "stop: a list does not fit"),
        ({"stop": ""}, 400, "stop: '' does not fit"),
        ({"logit_bias": {"1": 101}}, 400, "logit_bias.1: 101 does not fit"),
        ({"logit_bias": {"e": 1}}, 400, "logit_bias: 'e' is no token id"),
        ({"logit_bias": {"99999": 1}}, 400, "logit_bias: '99999' is no token id"),
        ({"logprobs": 21}, 400, "logprobs: 21 does not fit"),
        ({"suffix": "end"}, 400, "suffix: 'end' does not fit"),
        ({"max_token": 5}, 400, "max_token: unknown field; did you mean 'max_tokens'?"),
        ({"prompt": "中"}, 400, "prompt: the text has characters never seen in training"),
        ({"prompt": ["the", "中"]}, 400, "prompt.1: the text has characters never seen in training"),
        ({"prompt": [5, 99999]}, 400, "prompt: there is no token 99999"),
        ({"prompt": [[5], [-1]]}, 400, "prompt"),
        ({"prompt": {"a": 1}}, 400, "prompt"),
        ({"model": "nothing"}, 404, "model: 'nothing' is not served"),
        ({"seed": 1 << 70}, 400, "seed: 1180591620717411303424 does not fit"),
        ({"stream_options": {"usage": True}}, 400, "stream_options.usage: unknown field"),
    ],
)
def test_bad_fields_are_refused_by_name(served: Served, fields: dict, status: int, begin: str) -> None:
    got, message = served.error("/v1/completions", **{**GENERATE, **fields})
    assert (got, message[: len(begin)]) == (status, begin)
    assert len(message) < 1000
    assert served.running("chars") == 0


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"{", 400),
        (b"", 400),
        (b"[]", 400),
        (b'{"prompt": NaN}', 400),
        (b'{"temperature": Infinity}', 400),
        (b'{"temperature": 1e999}', 400),
        (b'{"prompt": "\xff"}', 400),
        (b'{"prompt": "\\ud800"}', 400),
        (b'{"prompt": "a", "prompt": "b"}', 400),
        (b"[" * 1_000_000, 400),
        (b'{"a":' * 500_000, 400),
        (b'{"max_tokens": ' + b"9" * 5000 + b"}", 400),
        (b'{"prompt": "' + b"a" * (10 << 20) + b'"}', 413),
    ],
    ids=lambda value: str(value)[:20],
)
def test_bad_bodies_are_refused(served: Served, body: bytes, status: int) -> None:
    try:
        answer = served.http.post("/v1/completions", content=body, headers={"Content-Type": "application/json"})
    except httpx.WriteError:  # the server closed the connection before it had all of the body
        assert status == 413
    else:
        assert answer.status_code == status
        assert answer.json()["error"]["message"]
    assert served.http.get("/health").status_code == 200


def test_a_long_prompt_is_refused_before_it_is_read(runs) -> None:
    with serving({"chars": runs["char-stream"]}, Limits(max_prompt_tokens=100)) as served:
        status, message = served.error("/v1/completions", prompt="a" * 101)
        assert (status, message[:44]) == (400, "prompt: must have at most 100 tokens, got 10")
        status, message = served.error("/v1/score", input=["a", "a" * 101])
        assert (status, message[:8]) == (400, "input.1:")


def test_a_context_that_is_too_short_is_said_before(texts, tmp_path) -> None:
    from ..conftest import small_config

    options = {"position": "learned", "max_length": 40}
    model = {"layer": "transformer", "options": options, "embedding_size": 24}
    run = seriatim.train(
        small_config(texts, tmp_path / "short", data={"unit": "line"}, model=model, training={"steps": 2})
    )
    with serving({"short": run}) as served:
        assert served.http.get("/v1/models").json()["data"][0]["context"] == 40
        status, message = served.error("/v1/completions", prompt="the cat", max_tokens=60)
        assert (status, message[:50]) == (400, "max_tokens: the prompt and max_tokens need 67 toke")
        for path, field in (("completions", "prompt"), ("score", "input")):
            status, message = served.error(f"/v1/{path}", **{field: ["a", "the cat " * 10]})
            assert (status, message[:9]) == (400, f"{field}.1: "[:9])
            assert "the model reads 40" in message
        endless = {"logit_bias": {"0": -100}}
        assert served.post("/v1/completions", prompt="the cat", max_tokens=33, **endless).status_code == 200
        for _ in range(2):
            assert served.post("/v1/completions", prompt="a", max_tokens=15, session="s", **endless).status_code == 200
        assert served.error("/v1/completions", prompt="a", max_tokens=15, session="s")[0] == 400
        state = served.http.get("/v1/sessions/s/state").content
        served.http.put("/v1/sessions/t/state", content=state, headers={"Content-Type": "application/octet-stream"})
        assert served.error("/v1/completions", prompt="a", max_tokens=15, session="t")[0] == 400


@pytest.mark.exhaustive
def test_too_many_texts_are_told_when_to_try_again(runs) -> None:
    limits = Limits(max_running=2, max_waiting=3)
    with serving({"chars": runs["char-stream"]}, limits) as served:
        fields = {"prompt": "the", "max_tokens": 2000, "logit_bias": {"0": -100}}
        threads = [threading.Thread(target=served.post, args=("/v1/completions",), kwargs=fields) for _ in range(5)]
        for thread in threads:
            thread.start()
        engine = served.service.models["chars"].engine
        served.wait_until(lambda: len(engine.texts) == 5 and engine.batch.num_running == 2)
        answer = served.post("/v1/completions", **fields)
        assert answer.status_code == 429
        assert 1 <= int(answer.headers["retry-after"]) <= 60
        metrics = served.http.get("/metrics").text
        assert 'seriatim_running_texts{model="chars"} 2' in metrics
        assert 'seriatim_waiting_texts{model="chars"} 3' in metrics
        for thread in threads:
            thread.join(60)
        assert served.post("/v1/completions", prompt="the").status_code == 200


def test_a_failing_step_fails_its_texts_only(runs, monkeypatch: pytest.MonkeyPatch, caplog) -> None:
    with serving({"chars": runs["char-stream"]}) as served:
        model = served.service.models["chars"].run.answering
        step = model.step

        def failing(tokens, state):
            if len(tokens) > 1:
                raise RuntimeError("a secret of the server")
            return step(tokens, state)

        monkeypatch.setattr(model, "step", failing)
        answer = served.post("/v1/completions", prompt="the", n=2, max_tokens=5)
        assert answer.status_code == 500
        assert "secret" not in answer.text
        assert "a secret of the server" in caplog.text
        with served.http.stream("POST", "/v1/completions", json={"prompt": "the", "n": 2, "stream": True}) as stream:
            lines = list(stream.iter_lines())
        assert stream.status_code == 500 or json.loads(lines[-2].removeprefix("data: "))["error"]["message"]
        assert served.text(prompt="the", max_tokens=5)
        assert served.http.get("/health").json()["status"] == "ok"


def test_health_says_that_a_model_is_dead(runs, monkeypatch: pytest.MonkeyPatch, caplog) -> None:
    def die(self) -> None:
        raise SystemExit

    with serving({"chars": runs["char-stream"], "bytes": runs["byte-stream"]}) as served:
        engine = served.service.models["chars"].engine
        monkeypatch.setattr(type(engine), "work", die)
        assert served.post("/v1/completions", model="chars", prompt="the").status_code == 503
        monkeypatch.undo()
        health = served.http.get("/health")
        assert health.status_code == 503
        assert health.json() == {"status": "dead", "models": {"chars": "dead", "bytes": "ok"}}
        assert served.post("/v1/completions", model="chars", prompt="the").status_code == 503
        assert served.post("/v1/completions", model="bytes", prompt="the").status_code == 200


def test_a_thread_that_hangs_counts_as_dead(runs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_engine, "STALLED_SECONDS", 0.1)
    with serving({"chars": runs["char-stream"]}) as served:
        served.service.models["chars"].engine.call(lambda: time.sleep(0.6))
        served.wait_until(lambda: served.http.get("/health").status_code == 503, 2)
        served.wait_until(lambda: served.http.get("/health").status_code == 200, 5)


def test_a_removed_run_is_still_served(runs, tmp_path) -> None:
    folder = tmp_path / "gone"
    shutil.copytree(runs["char-stream"].path, folder)
    run = seriatim.load(folder)
    with serving({"gone": run}) as served:
        before = served.text(prompt="the", seed=1)
        shutil.rmtree(folder)
        assert served.text(prompt="the", seed=1) == before
        assert served.error("/v1/inspect", input="the cat")[0] in (400, 501)
        assert served.http.get("/health").status_code == 200


def test_a_key_is_needed_where_there_is_one(runs) -> None:
    rules = AccessRules(key="open-sesame")
    with serving({"chars": runs["char-stream"]}, rules=rules) as served:
        assert served.http.get("/").status_code == 200
        assert served.http.get("/health").status_code == 200
        for path in ("/v1/models", "/metrics", "/openapi.json"):
            assert served.http.get(path).status_code == 401
            assert served.http.get(path, headers={"Authorization": "Bearer open-sesame"}).status_code == 200
        assert served.post("/v1/completions", prompt="the").status_code == 401


def test_metrics_count_tokens(runs) -> None:
    with serving({"chars": runs["char-stream"]}) as served:
        served.text(prompt="the cat", max_tokens=5, logit_bias={"0": -100}, session="s")
        served.text(prompt="the cat", max_tokens=5, logit_bias={"0": -100})
        served.text(prompt="the cat", max_tokens=5, logit_bias={"0": -100})
        path = 'seriatim_http_requests_total{method="POST",path="/v1/completions",status="200"}'
        served.wait_until(lambda: f"{path} 3" in served.http.get("/metrics").text)  # counted after the answer
        lines = dict(
            line.rpartition(" ")[::2]
            for line in served.http.get("/metrics").text.splitlines()
            if not line.startswith("#")
        )
    assert float(lines['seriatim_generated_tokens_total{model="chars"}']) == 15
    assert float(lines['seriatim_prompt_tokens_total{model="chars"}']) == 21
    assert float(lines['seriatim_cached_prompt_tokens_total{model="chars"}']) >= 7
    assert float(lines['seriatim_time_to_first_token_seconds_count{model="chars"}']) == 3
    assert float(lines['seriatim_sessions{model="chars"}']) == 1
    assert float(lines["process_resident_memory_bytes"]) > 1e7


def test_curl(served: Served) -> None:
    curl = shutil.which("curl")
    if curl is None:
        pytest.skip("curl is not installed")
    arguments = ["-sN", f"{served.address}/v1/completions", "-H", "Content-Type: application/json"]
    done = subprocess.run(
        [curl, *arguments, "-d", json.dumps({**GENERATE, "stream": True})], capture_output=True, text=True, timeout=30
    )
    assert done.stdout.endswith("data: [DONE]\n\n")


def test_names_of_models() -> None:
    assert model_names(["runs/a", "b=runs/x", "runs/c,runs/d"]) == {
        "a": "runs/a",
        "b": "runs/x",
        "c+d": "runs/c,runs/d",
    }
    with refused("duplicate", "a"):
        model_names(["runs/a", "other/a"])
    with refused("malformed", "a"):
        model_names(["=runs/a"])


def test_a_request_needs_a_model_that_can(runs) -> None:
    with serving({"chars": runs["char-stream"]}) as served:
        assert served.error("/v1/classify", input="a")[0] == 404
        assert served.http.get("/v1/models/none").status_code == 404
        assert served.http.get("/nothing").status_code == 404
        answer = served.http.get("/v1/completions")
        assert (answer.status_code, answer.headers["allow"]) == (405, "POST")


def test_calls_to_a_thread_that_ended_are_refused() -> None:
    class Idle(ModelThread):
        has_work = False

        def prepare(self) -> None:
            pass

        def fail(self, error: Exception) -> None:
            pass

    thread = Idle("idle")
    thread.start()
    assert thread.call(lambda: 5).result(5) == 5
    with pytest.raises(ZeroDivisionError):
        thread.call(lambda: 1 / 0).result(5)
    thread.end()
    assert thread.wait(5)
    assert not thread.is_alive
    with pytest.raises(Exception, match="does not answer any more"):
        thread.call(lambda: 5)


def test_a_service_has_metrics_of_its_own(runs) -> None:
    one, two = Service({"a": runs["char-stream"]}), Service({"a": runs["char-stream"]})
    assert one.metrics.registry is not two.metrics.registry


def test_an_ensemble_has_all_parameters_and_no_page(runs) -> None:
    one, other = runs["char-stream"], seriatim.load(runs["char-stream"].path)
    with serving({"both": seriatim.ensemble([one, other])}) as served:
        described = served.http.get("/v1/models/both").json()
        assert described["parameters"] == 2 * one.summary["parameters"]
        assert "/v1/inspect" not in described["endpoints"]


def test_a_busy_thread_does_not_hold_up_the_end(runs) -> None:
    service = Service({"chars": runs["char-stream"]})
    service.start()
    service.models["chars"].engine.call(lambda: time.sleep(0.7))
    began = time.monotonic()
    assert not service.stop(0.2)
    assert time.monotonic() - began < 0.6
    assert service.stop()


def test_each_model_chooses_among_all_threads(runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """The number that one thread chooses becomes that of new threads in PyTorch."""
    seen = []
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    service = Service({"a": runs["char-stream"], "b": runs["byte-stream"]})
    monkeypatch.undo()
    monkeypatch.setattr(text_engine, "use_fastest_threads", lambda work, most: seen.append(most))
    service.start()
    service.stop()
    assert seen == [3, 3]


def test_scores_that_are_nan_are_refused_in_one_line() -> None:
    """Whatever was done to a model after it was loaded; other models go on."""
    kinds = ("lm-gru", "mlm-gru", "classify-max", "tag-crf", "seq2seq-dot", "seq2seq-ctc")
    runs = {kind: seriatim.load(GOLDEN / kind, device="cpu") for kind in kinds}
    with serving(runs) as server:
        for run in runs.values():
            next(value for name, value in run.model.named_parameters() if "bias" in name).data.fill_(math.nan)
        for kind, model in server.service.models.items():
            text = "the [MASK] sees" if kind == "mlm-gru" else "the cat"
            for path in {*model.endpoints} & {"/v1/score", "/v1/fill", "/v1/classify", "/v1/tag", "/v1/translate"}:
                status, message = server.error(path, model=kind, input=text)
                assert (status, "\n" in message) == (400, False), (kind, path)
                assert f"{GOLDEN / kind}: the scores that the model computes are NaN or infinite" in message
        for more in ({}, {"temperature": 0}, {"logprobs": 2, "echo": True}, {"n": 2}):
            status, message = server.error("/v1/completions", model="lm-gru", prompt="the", **more)
            assert (status, f"{GOLDEN / 'lm-gru'}: the scores" in message, "default" in message) == (400, True, False)
        answer = server.post("/v1/completions", model="lm-gru", prompt="the", stream=True)
        assert "NaN or infinite" in answer.text
        assert set(server.http.get("/health").json()["models"].values()) == {"ok"}

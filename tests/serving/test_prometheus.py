"""The metrics of requests and of the process, as Prometheus reads them."""

import asyncio
import os
import time
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.testclient import TestClient

from seriatim.serving.application import RequestMetrics
from seriatim.serving.service import ServerMetrics


def read(metrics: ServerMetrics) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    families = text_string_to_metric_families(metrics.exposition().decode())
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="no /proc")
def test_the_process() -> None:
    values = {name: value for (name, _), value in read(ServerMetrics()).items()}
    assert 1e6 < values["process_resident_memory_bytes"] < values["process_virtual_memory_bytes"]
    assert 3 <= values["process_open_fds"] <= values["process_max_fds"]
    assert abs(values["process_start_time_seconds"] - os.stat(f"/proc/{os.getpid()}").st_ctime) < 86400
    assert values["process_start_time_seconds"] < time.time() + 60
    assert values["process_cpu_seconds_total"] > 0


async def serve(request: Request) -> Response:
    return PlainTextResponse("served")


def test_requests_are_counted_by_their_routes() -> None:
    metrics = ServerMetrics()
    app = Starlette(routes=[Route("/things/{id}", serve), Route("/", serve)])
    client = TestClient(RequestMetrics(app, metrics, ["/", "/things/{id}"]))
    for path in ("/things/1", "/things/2", "/", "/nothing", "/things/1/2"):
        client.get(path)
    client.request("NONSENSE", "/things/1")
    series = read(metrics)

    def count(method: str, path: str, status: str) -> float:
        return series["seriatim_http_requests_total", (("method", method), ("path", path), ("status", status))]

    assert count("GET", "/things/{id}", "200") == 2
    assert count("GET", "/", "200") == 1
    assert count("GET", "other", "404") == 2
    assert count("other", "/things/{id}", "405") == 1
    key = (("method", "GET"), ("path", "/things/{id}"))
    assert series["seriatim_http_request_duration_seconds_count", key] == 2


def test_a_request_without_an_answer_is_counted() -> None:
    async def leave(scope: object, receive: object, send: object) -> None:
        raise asyncio.CancelledError

    metrics = ServerMetrics()
    app = RequestMetrics(leave, metrics, [])
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(app({"type": "http", "method": "GET", "path": "/"}, None, None))
    labels = (("method", "GET"), ("path", "other"), ("status", "499"))
    assert read(metrics)["seriatim_http_requests_total", labels] == 1


def test_no_series_says_when_another_was_created() -> None:
    assert b"_created" not in ServerMetrics().exposition()

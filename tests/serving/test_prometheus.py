"""The text format of Prometheus, and the metrics of requests and of the process."""

import asyncio
import math
import os
import re
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.testclient import TestClient

from seriatim.serving.prometheus import Registry
from seriatim.serving.request_metrics import RequestMetrics, add_process_metrics

SAMPLE = re.compile(r'([a-zA-Z_:][\w:]*)(?:\{((?:\w+="(?:[^"\\\n]|\\["\\n])*",?)*)\})? (\S+)')
LABEL = re.compile(r'(\w+)="((?:[^"\\\n]|\\["\\n])*)"')
ESCAPES = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}
Series = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def parse(text: str) -> Series:
    """Read the format as its specification describes it; every line must fit."""
    assert text.endswith("\n")
    series: Series = {}
    for line in text[:-1].split("\n"):
        if not line.startswith(("# HELP ", "# TYPE ")):
            match = SAMPLE.fullmatch(line)
            assert match is not None, line
            labels = tuple(
                (name, re.sub(r'\\["\\n]', lambda escape: ESCAPES[escape[0]], value))
                for name, value in LABEL.findall(match[2] or "")
            )
            assert (match[1], labels) not in series
            series[match[1], labels] = float(match[3].replace("Inf", "inf"))
    return series


def test_the_format() -> None:
    registry = Registry()
    registry.counter("a_total", "Things,\nwith a \\.").add(2)
    registry.gauge("b", "A number.", ("x", "y")).set(-0.5, x='say "hi"', y="a\\b\nc")
    registry.gauge("c", "Read at the scrape.", read=lambda: math.inf)
    registry.gauge("d", "Read, with labels.", ("m",), read=lambda: {("one",): 1, ("two",): math.nan})
    registry.gauge("e", "Unreadable.", read=lambda: 1 / 0)
    seconds = registry.histogram("f_seconds", "Times.", (0.1, 1), ("p",))
    for value in (0.05, 0.1, 0.5, 3):
        seconds.observe(value, p="/x")
    assert registry.exposition() == (
        "# HELP a_total Things,\\nwith a \\\\.\n# TYPE a_total counter\na_total 2\n"
        '# HELP b A number.\n# TYPE b gauge\nb{x="say \\"hi\\"",y="a\\\\b\\nc"} -0.5\n'
        "# HELP c Read at the scrape.\n# TYPE c gauge\nc +Inf\n"
        '# HELP d Read, with labels.\n# TYPE d gauge\nd{m="one"} 1\nd{m="two"} NaN\n'
        "# HELP e Unreadable.\n# TYPE e gauge\n"
        '# HELP f_seconds Times.\n# TYPE f_seconds histogram\nf_seconds_bucket{p="/x",le="0.1"} 2\n'
        'f_seconds_bucket{p="/x",le="1"} 3\nf_seconds_bucket{p="/x",le="+Inf"} 4\n'
        'f_seconds_sum{p="/x"} 3.65\nf_seconds_count{p="/x"} 4\n'
    )


@given(st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), st.floats(allow_nan=False), max_size=5))
@settings(max_examples=50, deadline=None)
def test_any_label_and_number_can_be_read_back(values: dict[str, float]) -> None:
    registry = Registry()
    gauge = registry.gauge("g", "Help.", ("label",))
    for label, value in values.items():
        gauge.set(value, label=label)
    assert parse(registry.exposition()) == {("g", (("label", label),)): value for label, value in values.items()}


@given(st.lists(st.floats(-1e6, 1e6)))
@settings(max_examples=50, deadline=None)
def test_histograms_count_what_is_at_most_the_bound(values: list[float]) -> None:
    registry = Registry()
    histogram = registry.histogram("h", "Help.", (-5, 0, 0.5, 100))
    for value in values:
        histogram.observe(value)
    series = parse(registry.exposition()) if values else {}
    for bound in (-5, 0, 0.5, 100, math.inf) if values else ():
        label = "+Inf" if bound == math.inf else f"{bound:g}"
        assert series["h_bucket", (("le", label),)] == sum(value <= bound for value in values)
    if values:
        assert series["h_count", ()] == len(values)
        assert math.isclose(series["h_sum", ()], sum(values), abs_tol=1e-6)


def test_the_reference_parser_reads_the_format() -> None:
    parser = pytest.importorskip("prometheus_client.parser")
    registry = Registry()
    add_process_metrics(registry)
    registry.counter("a_total", "Things.", ("x",)).add(2, x='"\\\n')
    registry.histogram("f_seconds", "Times.", (0.1, 1)).observe(0.5)
    families = {family.name: family for family in parser.text_string_to_metric_families(registry.exposition())}
    assert families["a"].type == "counter"
    assert families["a"].samples[0].labels == {"x": '"\\\n'}
    assert families["f_seconds"].type == "histogram"
    assert families["process_open_fds"].type == "gauge"


def test_threads_lose_nothing() -> None:
    registry = Registry()
    counter = registry.counter("a_total", "Things.")
    threads = [threading.Thread(target=lambda: [counter.add() for _ in range(2000)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert parse(registry.exposition())["a_total", ()] == 8000


def test_mistakes() -> None:
    registry = Registry()
    counter = registry.counter("a_total", "Things.", ("x",))
    with pytest.raises(ValueError, match="exists already"):
        registry.gauge("a_total", "Things.")
    with pytest.raises(ValueError, match="the labels are x"):
        counter.add(y="1")
    with pytest.raises(ValueError, match="cannot fall"):
        counter.add(-1, x="1")
    with pytest.raises(ValueError, match="name: must match"):
        registry.counter("a-b", "Things.")
    with pytest.raises(ValueError, match="the bounds must rise"):
        registry.histogram("h", "Things.", (1, 0))


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="no /proc")
def test_the_process() -> None:
    registry = Registry()
    add_process_metrics(registry)
    values = {name: value for (name, _), value in parse(registry.exposition()).items()}
    assert 1e6 < values["process_resident_memory_bytes"] < values["process_virtual_memory_bytes"]
    assert 3 <= values["process_open_fds"] <= values["process_max_fds"]
    assert abs(values["process_start_time_seconds"] - os.stat(f"/proc/{os.getpid()}").st_ctime) < 86400
    assert values["process_start_time_seconds"] < time.time() + 60
    assert values["process_cpu_seconds_total"] > 0


async def serve(request: Request) -> Response:
    return PlainTextResponse("served")


def test_requests_are_counted_by_their_routes() -> None:
    registry = Registry()
    app = Starlette(routes=[Route("/things/{id}", serve), Route("/", serve)])
    client = TestClient(RequestMetrics(app, registry, ["/", "/things/{id}"]))
    for path in ("/things/1", "/things/2", "/", "/nothing", "/things/1/2"):
        client.get(path)
    client.request("NONSENSE", "/things/1")
    series = parse(registry.exposition())

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

    registry = Registry()
    app = RequestMetrics(leave, registry, [])
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(app({"type": "http", "method": "GET", "path": "/"}, None, None))
    assert 'status="499"} 1' in registry.exposition()

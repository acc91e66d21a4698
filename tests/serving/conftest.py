"""A server in a thread, with small runs of all tasks."""

import asyncio
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext

import httpx
import pytest

import seriatim
from seriatim.recurrence import uncompiled
from seriatim.serving.application import AccessRules, make_application
from seriatim.serving.limits import Limits
from seriatim.serving.server import LimitedServer, ServerSettings, open_socket
from seriatim.serving.service import Service


class Served:
    """A running server."""

    def __init__(self, service: Service, port: int) -> None:
        self.service, self.address = service, f"http://127.0.0.1:{port}"
        self.http = httpx.Client(base_url=self.address, timeout=60)

    def post(self, path: str, **fields: object) -> httpx.Response:
        return self.http.post(path, json=fields)

    def text(self, **fields: object) -> str:
        """The text of a completion."""
        return self.post("/v1/completions", **fields).raise_for_status().json()["choices"][0]["text"]

    def error(self, path: str, **fields: object) -> tuple[int, str]:
        """The status and the message of a refused request."""
        response = self.post(path, **fields)
        return response.status_code, response.json()["error"]["message"]

    def running(self, model: str) -> int:
        return self.service.models[model].engine.batch.num_running

    def wait_until(self, reached, seconds: float = 10) -> float:
        """Wait until a condition holds, and return the seconds that it took."""
        began = time.monotonic()
        while not reached():
            assert time.monotonic() < began + seconds
            time.sleep(0.005)
        return time.monotonic() - began


@contextmanager
def serving(
    runs: Mapping[str, seriatim.Run],
    limits: Limits | None = None,
    rules: AccessRules | None = None,
    *,
    compiled: bool = False,
) -> Iterator[Served]:
    """A server; without compiled code it starts sooner."""
    with nullcontext() if compiled else uncompiled():
        service = Service(runs, limits)
    listening = open_socket("127.0.0.1", 0)
    port = listening.getsockname()[1]
    server = LimitedServer(make_application(service, rules), ServerSettings(shutdown_seconds=5))
    thread = threading.Thread(target=lambda: asyncio.run(server.serve([listening])))
    thread.start()
    served = Served(service, port)
    try:
        served.wait_until(lambda: server.started, 60)
        yield served
    finally:
        served.http.close()
        server.should_exit = True
        thread.join(20)
        assert not thread.is_alive()


@pytest.fixture(scope="session")
def served(runs, inspected) -> Iterator[Served]:
    """A server of language models and of models of all other tasks."""
    with serving({"chars": runs["char-stream"], "bytes": runs["byte-stream"], **inspected}) as server:
        yield server

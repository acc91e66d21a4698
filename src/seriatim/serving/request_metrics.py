"""Metrics of the requests and of the process."""

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from starlette.routing import compile_path
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .http_errors import CLIENT_CLOSED
from .prometheus import Registry

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 60, 300)
PROC = Path("/proc/self")


class RequestMetrics:
    """An ASGI middleware that counts requests and measures how long each takes, until the end of its response.

    Args:
        app: The application. The middleware should lie around everything else.
        registry: Where the metrics are added.
        templates: The paths of the routes, like ``/v1/models/{id}``. The path of a request is counted under its route,
            and under "other" if it has none: clients must not be able to create series without bound.
    """

    def __init__(self, app: ASGIApp, registry: Registry, templates: Sequence[str]) -> None:
        self.app = app
        self._routes = [(compile_path(template)[0], template) for template in templates]
        self._requests = registry.counter(
            "seriatim_http_requests_total",
            "Requests that were answered; status 499 is a client that went away before the answer.",
            ("method", "path", "status"),
        )
        self._seconds = registry.histogram(
            "seriatim_http_request_duration_seconds",
            "Time from the headers of a request to the end of its response.",
            SECONDS,
            ("method", "path"),
        )

    def template(self, path: str) -> str:
        """Return the route of a path, or "other"."""
        return next((template for pattern, template in self._routes if pattern.match(path)), "other")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, and count it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        status = CLIENT_CLOSED
        start = time.perf_counter()

        async def send_and_see(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self.app(scope, receive, send_and_see)
        finally:
            method = scope["method"] if scope["method"] in METHODS else "other"
            path = self.template(scope["path"])
            self._requests.add(method=method, path=path, status=str(status))
            self._seconds.observe(time.perf_counter() - start, method=method, path=path)


def add_process_metrics(registry: Registry) -> None:
    """Add the usual metrics of a process, where the system has ``/proc``."""
    if not (PROC / "stat").exists():
        return
    page, ticks = os.sysconf("SC_PAGE_SIZE"), os.sysconf("SC_CLK_TCK")
    start = _boot_seconds() + int(_stat()[19]) / ticks
    readings: list[tuple[str, str, str, Callable[[], float]]] = [
        ("resident_memory_bytes", "Resident memory in bytes.", "gauge", lambda: int(_stat()[21]) * page),
        ("virtual_memory_bytes", "Virtual memory in bytes.", "gauge", lambda: int(_stat()[20])),
        ("open_fds", "Open file descriptors.", "gauge", lambda: len(os.listdir(PROC / "fd"))),
        ("max_fds", "The largest number of open file descriptors.", "gauge", _descriptor_limit),
        ("start_time_seconds", "Start of the process in seconds since 1970.", "gauge", lambda: start),
        ("cpu_seconds_total", "Processor time of the process in seconds.", "counter", time.process_time),
    ]
    for name, text, kind, read in readings:
        registry.gauge(f"process_{name}", text, read=read, kind=kind)


def _stat() -> list[str]:
    """Return the fields of ``/proc/self/stat`` after the name of the program, which may contain spaces."""
    return (PROC / "stat").read_text(encoding="ascii", errors="replace").rpartition(") ")[2].split()


def _boot_seconds() -> float:
    lines = (PROC.parent / "stat").read_text(encoding="ascii").splitlines()
    return next((float(line.split()[1]) for line in lines if line.startswith("btime ")), 0.0)


def _descriptor_limit() -> float:
    import resource

    return float(resource.getrlimit(resource.RLIMIT_NOFILE)[0])

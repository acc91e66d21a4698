"""The metrics of a server, for Prometheus: requests, generated texts, sessions, and the process."""

import time
from collections.abc import Callable, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, disable_created_metrics
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from starlette.routing import compile_path
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .http_errors import CLIENT_CLOSED
from .text_engine import GenerationStream

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
REQUEST_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 60, 300)
TOKEN_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)

disable_created_metrics()  # a time of creation beside each counter would double the number of series


class ServerMetrics:
    """The metrics, in a registry of their own: a process may have several servers."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.requests = self._counter(
            "http_requests",
            "Requests that were answered; status 499 is a client that went away before the answer.",
            ["method", "path", "status"],
        )
        text = "Time from the headers of a request to the end of its response."
        self.request_seconds = self._histogram("http_request_duration", text, ["method", "path"], REQUEST_SECONDS)
        text = "Time from the arrival of a request to the first token of a text."
        self.first_token_seconds = self._histogram("time_to_first_token", text, ["model"], TOKEN_SECONDS)

        # Of the language models; their gauges are read when the metrics are asked for (see `watch`).
        self.prompt_tokens = self._counter("prompt_tokens", "Tokens of prompts, known ones included.")
        self.cached_tokens = self._counter("cached_prompt_tokens", "Tokens of prompts that were read for another text.")
        self.generated_tokens = self._counter("generated_tokens", "Tokens that were generated.")
        self.cancelled_texts = self._counter("cancelled_texts", "Texts whose clients went away.")
        self._gauges = {
            name: Gauge(f"seriatim_{name}", text, ["model"], registry=self.registry)
            for name, text in (
                ("running_texts", "Texts in the batch."),
                ("waiting_texts", "Texts that wait for a place in the batch."),
                ("prefix_cache_bytes", "Size of the states of prompts."),
                ("sessions", "Sessions on the server."),
                ("session_bytes", "Size of the states of sessions."),
            )
        }

    def _counter(self, name: str, text: str, labels: Sequence[str] = ("model",)) -> Counter:
        return Counter(f"seriatim_{name}_total", text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str, labels: Sequence[str], buckets: Sequence[float]) -> Histogram:
        return Histogram(f"seriatim_{name}_seconds", text, labels, buckets=buckets, registry=self.registry)

    def watch(self, model: str, **readings: Callable[[], float]) -> None:
        """Read the gauges of a language model by functions, each time the metrics are asked for."""
        for name, read in readings.items():
            self._gauges[name].labels(model).set_function(read)

    def observe_text(self, model: str, text: GenerationStream, *, is_cancelled: bool) -> None:
        """Count a text that has ended or was cancelled."""
        self.prompt_tokens.labels(model).inc(text.num_prompt if text.is_read else 0)
        self.cached_tokens.labels(model).inc(text.num_cached)
        self.generated_tokens.labels(model).inc(text.num_generated)
        if is_cancelled:
            self.cancelled_texts.labels(model).inc()
        if text.first_token is not None:
            self.first_token_seconds.labels(model).observe(text.first_token - text.arrived)

    def exposition(self) -> bytes:
        """Return all metrics in the text format of Prometheus."""
        return generate_latest(self.registry)


class RequestMetrics:
    """An ASGI middleware that counts requests and measures how long each takes, until the end of its response.

    Args:
        app: The application. The middleware should lie around everything else.
        metrics: Where the requests are counted.
        templates: The paths of the routes, like ``/v1/models/{id}``. The path of a request is counted under its route,
            and under "other" if it has none: clients must not be able to create series without bound.
    """

    def __init__(self, app: ASGIApp, metrics: ServerMetrics, templates: Sequence[str]) -> None:
        self.app, self.metrics = app, metrics
        self._routes = [(compile_path(template)[0], template) for template in templates]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, and count it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        # A client who goes away before the response begins leaves no other status.
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
            path = next((template for pattern, template in self._routes if pattern.match(scope["path"])), "other")
            self.metrics.requests.labels(method, path, str(status)).inc()
            self.metrics.request_seconds.labels(method, path).observe(time.perf_counter() - start)

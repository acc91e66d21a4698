"""What a server serves: models by name, each with its thread and its sessions, and the metrics of all of it."""

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from fastapi import Depends
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, disable_created_metrics
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from starlette.requests import Request

from ..core.errors import DuplicateError, MalformedError, NotSupportedError, nearest
from ..layers.positions import learned_positions
from ..pages import missing_packages
from ..runs.run import Run
from ..training.run_files import identity, weights_digest
from .json_bodies import HttpError
from .limits import Limits
from .prediction_engine import PredictionEngine
from .schemas import answer_request
from .session_store import SessionStore
from .text_engine import GenerationStream, ModelDeadError, ModelThread, TextEngine

INSPECT = "/v1/inspect"
STOP_SECONDS = 5.0
"""The time that a thread has to end what it computes."""
FINGERPRINT = 16
"""Digits of a fingerprint."""


# The metrics, for Prometheus: requests, generated texts, sessions, and the process.

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
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


# The models.


class ServedModel:
    """A run that is served.

    Attributes:
        name: its id in requests.
        run: the run.
        engine: the thread of the model.
        endpoints: the addresses of what the model does, the main one first.
    """

    engine: ModelThread

    def __init__(self, name: str, run: Run, *endpoints: str) -> None:
        self.name, self.run = name, run
        self.created = int(time.time())
        owner = identity(run.config, run.vocabulary)
        digest = hashlib.sha256(f"{owner}{weights_digest(run.answering)}{run.weights}".encode()).hexdigest()
        self.fingerprint = f"seriatim-{digest[:FINGERPRINT]}"
        inspects = not missing_packages() and run.num_combined == 1  # a page shows a single run
        self.endpoints = (*endpoints, "/v1/tokenize", *((INSPECT,) if inspects else ()))

    def described(self) -> dict[str, object]:
        """Return what ``/v1/models`` tells about the model."""
        # The parameters of an ensemble are those of all its models; a summary knows those of one.
        config = self.run.config
        parameters = sum(parameter.numel() for parameter in self.run.model.parameters())
        return {
            "id": self.name,
            "object": "model",
            "created": self.created,
            "owned_by": "seriatim",
            "task": config.task,
            "endpoints": list(self.endpoints),
            "layer": config.model.layer,
            "parameters": (self.run.summary.get("parameters") if self.run.num_combined == 1 else None) or parameters,
            "vocabulary_size": self.run.tokenizer.vocabulary_size,
            "tokenizer": self.run.tokenizer.kind,
            "weights": self.run.weights,
            "context": learned_positions(self.run.model),
            "max_tokens": None,
            "sessions": False,
            "settings": None,
        }


class ServedLanguageModel(ServedModel):
    """A run of a task that continues texts, with its sessions."""

    engine: TextEngine

    def __init__(self, name: str, run: Run, limits: Limits) -> None:
        super().__init__(name, run, "/v1/completions", "/v1/score")
        self.engine, self.sessions = TextEngine(name, run, limits), SessionStore(run, limits)

    def described(self) -> dict[str, object]:
        """Return what ``/v1/models`` tells about the model."""
        return {**super().described(), "sessions": True, "max_tokens": self.engine.limits.max_tokens}


class ServedPredictor(ServedModel):
    """A run of a task with answers."""

    engine: PredictionEngine

    def __init__(self, name: str, run: Run, limits: Limits) -> None:
        super().__init__(name, run, f"/v1/{run.task.kind.endpoint}")
        self.engine = PredictionEngine(name, run, limits)

    def described(self) -> dict[str, object]:
        """Return what ``/v1/models`` tells about the model."""
        fields = answer_request(self.run.task.kind).model_json_schema()["properties"]
        settings = {name: field for name, field in fields.items() if name not in ("model", "input")}
        return {**super().described(), "settings": {"type": "object", "properties": settings}}


class Service:
    """The models of a server.

    Args:
        runs: by the names of the models.
        limits: of the server.

    Attributes:
        models: by name.
        metrics: of the requests, the texts and the process.
    """

    def __init__(self, runs: Mapping[str, Run], limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self.models: dict[str, ServedModel] = {}
        self.metrics, self._has_started = ServerMetrics(), False
        num_texts = sum(run.task.kind.generates_text for run in runs.values())
        divided = replace(self.limits, batch_bytes=self.limits.batch_bytes // max(1, num_texts))
        for name, run in runs.items():
            if run.config.data.features:
                raise NotSupportedError(f"{run.path}: reads columns (data.features), which requests lack; use predict")
            kind = ServedLanguageModel if run.task.kind.generates_text else ServedPredictor
            self.models[name] = kind(name, run, divided)
        for model in self.language_models:
            self._watch(model)

    @property
    def language_models(self) -> list[ServedLanguageModel]:
        """The models that continue texts."""
        return [model for model in self.models.values() if isinstance(model, ServedLanguageModel)]

    def _watch(self, model: ServedLanguageModel) -> None:
        engine, sessions = model.engine, model.sessions
        self.metrics.watch(
            model.name,
            running_texts=lambda: engine.batch.num_running,
            waiting_texts=lambda: engine.num_waiting,
            prefix_cache_bytes=lambda: engine.batch.cache.bytes,
            sessions=lambda: len(sessions),
            session_bytes=lambda: sessions.bytes,
        )

    def start(self) -> None:
        """Start the threads of all models, and wait until they are ready; again, it does nothing."""
        if not self._has_started:
            self._has_started = True
            for model in self.models.values():
                model.engine.start().result()

    def stop(self, seconds: float = STOP_SECONDS) -> bool:
        """End the threads of all models, wait for them, and return whether they have ended."""
        for model in self.models.values():
            model.engine.end()
        until = time.monotonic() + seconds
        have_ended = [model.engine.wait(until - time.monotonic()) for model in self.models.values()]
        return all(have_ended)

    def named(self, name: str) -> ServedModel:
        """Return the model of a name; raise HttpError if there is none."""
        if name not in self.models:
            hint = nearest(name, list(self.models))
            raise HttpError(404, f"model: {name!r} is not served; {hint}", code="model_not_found")
        return self.models[name]

    def find(self, name: str | None, endpoint: str) -> ServedModel:
        """Return the model of a request to an endpoint; without a name, the only one that has it.

        Raises:
            HttpError: there is no such model, several may be meant, or its thread is dead.
        """
        # Without a name, the address decides, so that a server of one model needs no names.
        able = [model.name for model in self.models.values() if endpoint in model.endpoints]
        if not able:
            raise HttpError(404, f"model: none that is served has {endpoint}; see /v1/models", code="model_not_found")
        if name is None and len(able) > 1:
            raise HttpError(400, f"model: must be given; choose from {', '.join(able)}")
        model = self.named(able[0] if name is None else name)
        if endpoint not in model.endpoints:
            able_to = f"was trained to {model.run.config.task} and has no {endpoint}; use {model.endpoints[0]}"
            raise HttpError(400, f"model: {model.name!r} {able_to}")
        if not model.engine.is_alive:
            raise ModelDeadError
        return model

    def language_model(self, name: str | None, endpoint: str) -> ServedLanguageModel:
        """Return the language model of a request; see `find`."""
        model = self.find(name, endpoint)
        assert isinstance(model, ServedLanguageModel)
        return model


async def _current_service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


CurrentService = Annotated[Service, Depends(_current_service)]
"""The type of the argument by which the function of a route gets the models of its server."""


def model_names(arguments: Sequence[str]) -> dict[str, str]:
    """Return the folders of runs by the names of their models, given as ``RUN`` or ``NAME=RUN``.

    Raises:
        InputError: two models have the same name, or a name is empty or very long.
    """
    folders: dict[str, str] = {}
    for argument in arguments:
        name, equals, folder = argument.partition("=")
        if not equals or "/" in name:
            folder = argument
            name = "+".join(Path(path).resolve().name for path in argument.split(","))
        if not 0 < len(name) <= 256 or not name.isprintable():
            raise MalformedError(
                f"{argument}: the name of a model must have 1 to 256 visible characters; write NAME=RUN"
            )
        if name in folders:
            raise DuplicateError(f"{argument}: another run is served as {name!r}; name this one: NAME={folder}")
        folders[name] = folder
    return folders

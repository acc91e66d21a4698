"""The application of the server: all endpoints and the playground, and around them access and the count of requests."""

import asyncio
import contextlib
import hmac
import ipaddress
import re
import time
from collections.abc import AsyncIterator, Collection, Sequence
from dataclasses import dataclass
from typing import Annotated

from fastapi import FastAPI, Path
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import compile_path
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..core.errors import MalformedError, shown
from ..core.json_object import JsonObject
from ..training.hardware import return_freed_memory
from ..version import __version__
from . import answers, completions, inspection_pages, session_endpoints
from .inspection_pages import InspectionPages
from .json_bodies import (
    CLIENT_CLOSED,
    EXCEPTION_HANDLERS,
    MEANINGS,
    HttpError,
    JsonResponse,
    described_errors,
    error_response,
    new_router,
)
from .playground import playground_html, playground_policy
from .schemas import Health, ModelList, ModelObject
from .service import CONTENT_TYPE, STOP_SECONDS, CurrentService, ServerMetrics, Service

# Who may use the server: keys, the names of the host, the origins of web pages, and headers for browsers.

LOOPBACK_HOSTS = frozenset({"localhost", "127.0.0.1", "[::1]"})
HOST = re.compile(r"(\[[0-9a-f:.]+\]|[^:\[\]/?#@*\s]+)(?::([0-9]{1,5}))?")
"""A host with an optional port, in small letters."""
ORIGIN = re.compile(r"(https?)://" + HOST.pattern)
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
CORS_METHODS = "GET, HEAD, POST, PUT, DELETE"
OPEN_PATHS, OPEN_BELOW = frozenset({"/", "/health"}), "/pages/"
"""What needs no key: some paths, and all below one, where the addresses of pages are secret."""
CORS_SECONDS = 600
"""The time for which a browser may remember the answer to a preflight request."""


@dataclass(frozen=True)
class AccessRules:
    """What a request needs to be served.

    Attributes:
        key: The key that ``Authorization: Bearer KEY`` must have; None asks for none.
        hosts: The names that the header Host may have, without ports; None allows all (see `hosts_for`).
        origins: Origins of other web pages that may use the server, like ``https://example.org``; ``*`` is all pages.
    """

    key: str | None = None
    hosts: Collection[str] | None = None
    origins: Collection[str] = ()

    def __post_init__(self) -> None:
        """Check the key, and bring the origins to the form that browsers send."""
        key = self.key
        if key is not None and not (key and key.isascii() and key.isprintable() and " " not in key):
            raise MalformedError("key: it cannot be sent; give visible ASCII characters without spaces")
        object.__setattr__(self, "origins", frozenset(map(check_origin, self.origins)))

    def is_open(self, path: str) -> bool:
        """Return whether a path needs no key."""
        return path in OPEN_PATHS or path.startswith(OPEN_BELOW)

    def has_key(self, authorization: str) -> bool:
        """Return whether the header Authorization has the key; the time does not tell how much of it is right."""
        scheme, _, key = authorization.partition(" ")
        right = (self.key or "").encode()
        return scheme.lower() == "bearer" and hmac.compare_digest(key.strip().encode("latin-1"), right)


def hosts_for(host: str) -> frozenset[str] | None:
    """Return the names by which a server that is bound to ``host`` may be called; None is every name.

    A web page of a stranger can let the name of its own server point to 127.0.0.1 (DNS rebinding), and then read from
    a server that only this machine can reach. Its requests have the stranger's name in the header Host.
    """
    name = host.lower().strip("[]")
    try:
        loopback = ipaddress.ip_address(name.partition("%")[0]).is_loopback
    except ValueError:
        loopback = name == "localhost" or name.endswith(".localhost")
    return LOOPBACK_HOSTS | {f"[{name}]" if ":" in name else name} if loopback else None


def check_origin(origin: str) -> str:
    """Return an origin as browsers send it; raise InputError for what is none."""
    if origin == "*":
        return origin
    match = ORIGIN.fullmatch(origin.lower().rstrip("/"))
    if match is None:
        raise MalformedError(
            f"--cors-origin: {shown(origin)} is not an origin; write https://example.org, http://localhost:3000 or *"
        )
    return _origin(match[1], match[2], match[3])


def _origin(scheme: str, host: str, port: str | None) -> str:
    usual = {"http": "80", "https": "443"}[scheme]
    return f"{scheme}://{host}" if port in (None, usual) else f"{scheme}://{host}:{port}"


class Access:
    """An ASGI middleware that refuses requests against the rules, and adds headers for browsers to all responses.

    It must lie around the whole application, so that it sees the responses to exceptions, too.
    """

    def __init__(self, app: ASGIApp, rules: AccessRules) -> None:
        self.app = app
        self.rules = rules

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        # All responses get the headers, refusals too: a page must be able to read why it was refused.
        headers = Headers(scope=scope)
        origin = headers.get("origin")

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                answer = MutableHeaders(scope=message)
                answer["X-Content-Type-Options"] = "nosniff"
                answer["Referrer-Policy"] = "no-referrer"
                answer.setdefault("Cache-Control", "no-store")
                self._add_cors(answer, origin)
            await send(message)

        refusal = self._refusal(scope, headers)
        if refusal is not None:
            await error_response(refusal)(scope, receive, send_with_headers)
        elif origin is not None and _is_preflight(scope, headers) and self._allowed(origin):
            await _preflight_response(headers)(scope, receive, send_with_headers)
        else:
            await self.app(scope, receive, send_with_headers)

    def _refusal(self, scope: Scope, headers: Headers) -> HttpError | None:
        """Return why a request is refused, or None."""
        rules = self.rules

        # A page of a stranger must not reach a server of this machine by a name of its own (see `hosts_for`).
        hosts = headers.getlist("host")
        match = HOST.fullmatch(hosts[0].lower()) if len(hosts) == 1 else None
        if rules.hosts is not None and (match is None or match[1] not in rules.hosts):
            name, known = "".join(hosts[:1]), ", ".join(sorted(rules.hosts))
            if not name:
                problem = f"the header Host is {'empty' if hosts else 'missing'}; send one of this server's names"
                return HttpError(403, f"{problem}: {known}")
            return HttpError(403, f"this server is not {shown(name)}; call it by one of its names: {known}")

        # Browsers say from which page a request comes. A question (GET) has no effects, and its answer cannot be read.
        origin, preflight = headers.get("origin"), _is_preflight(scope, headers)
        if origin is not None and (preflight or scope["method"] not in SAFE_METHODS):
            served = _origin(scope["scheme"], match[1], match[2]) if match is not None else None
            if origin.lower() != served and not self._allowed(origin):
                hint = "start the server with --cors-origin ORIGIN to allow it"
                return HttpError(403, f"web pages of {shown(origin)} may not use this server; {hint}")

        # A browser sends no key with its question before a request.
        if rules.key is None or preflight or rules.is_open(scope["path"]):
            return None
        authorization = headers.get("authorization", "")
        if rules.has_key(authorization):
            return None
        reason = "the key is wrong" if authorization else "a key is needed"
        message = f"{reason}; send the header Authorization: Bearer KEY with the server's key"
        return HttpError(401, message, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})

    def _allowed(self, origin: str) -> bool:
        return "*" in self.rules.origins or origin.lower() in self.rules.origins

    def _add_cors(self, answer: MutableHeaders, origin: str | None) -> None:
        """Let the pages of allowed origins read a response. Cookies are never allowed; the server has none."""
        if "*" in self.rules.origins:
            answer["Access-Control-Allow-Origin"] = "*"
        elif self.rules.origins:
            answer.add_vary_header("Origin")
            if origin is not None and self._allowed(origin):
                answer["Access-Control-Allow-Origin"] = origin
        if "Access-Control-Allow-Origin" in answer:
            answer["Access-Control-Expose-Headers"] = "Retry-After"


def _is_preflight(scope: Scope, headers: Headers) -> bool:
    """Return whether a browser asks with a request whether it may send another; such a request has no key."""
    return scope["method"] == "OPTIONS" and "origin" in headers and "access-control-request-method" in headers


def _preflight_response(headers: Headers) -> Response:
    answer = {
        "Access-Control-Allow-Methods": CORS_METHODS,
        "Access-Control-Max-Age": str(CORS_SECONDS),
        "Vary": "Access-Control-Request-Headers",
    }
    if names := headers.get("access-control-request-headers"):  # clients add headers of their own
        answer["Access-Control-Allow-Headers"] = names
    if headers.get("access-control-request-private-network") == "true":  # from a public page to a private address
        answer["Access-Control-Allow-Private-Network"] = "true"
    return Response(status_code=204, headers=answer)


# How many requests are answered, and how long each takes.

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


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


# The endpoints.

CLEANING_SECONDS = 10.0
"""How often old sessions are removed and freed memory is returned."""
UNAUTHORIZED = {
    "description": MEANINGS[401],
    "headers": {"WWW-Authenticate": {"schema": {"type": "string"}}},
    "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
}
general = new_router()
"""The endpoints that describe the server and its models."""


def make_application(
    service: Service, rules: AccessRules | None = None, inspect_options: tuple[str, ...] = ()
) -> ASGIApp:
    """Return the application that serves some models, as an ASGI application.

    Args:
        service: the models. Their threads run from the start to the end of the application (its lifespan).
        rules: who may use it; by default everybody who can connect.
        inspect_options: more options of ``seriatim inspect``, for runs that need code from outside the library.
    """
    rules = rules or AccessRules()
    app = Application(service, rules)
    app.state.service, app.state.pages = service, InspectionPages(service, inspect_options)
    # The routes are added one by one, not as nested routers, so that an answer 405 can name all methods of a path.
    for router in (
        completions.router,
        answers.router,
        answers.prediction_router(),
        session_endpoints.router,
        inspection_pages.router,
        general,
    ):
        app.router.routes.extend(router.routes)
    app.add_route("/", _show_playground)
    # Access sees the responses to exceptions, too, and the metrics count what it refuses.
    templates = [*app.openapi()["paths"], "/", "/openapi.json"]
    return RequestMetrics(Access(app, rules), service.metrics, templates)


class Application(FastAPI):
    """FastAPI with the errors, the rules of access and the lifespan of the server."""

    def __init__(self, service: Service, rules: AccessRules) -> None:
        self.rules = rules
        super().__init__(
            title="Seriatim",
            version=__version__,
            lifespan=lambda _: _running(service),
            exception_handlers=EXCEPTION_HANDLERS,
            redirect_slashes=False,
            docs_url=None,
            redoc_url=None,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request; HEAD is served as GET, of which the server drops the body."""
        if scope["type"] == "http" and scope["method"] == "HEAD":
            scope = {**scope, "method": "GET"}
        await super().__call__(scope, receive, send)

    def openapi(self) -> JsonObject:
        """Return the document of FastAPI, with the key, and without the status 422, with which nothing is answered."""
        if self.openapi_schema is not None:
            return self.openapi_schema

        # The key is asked for by `Access`, before FastAPI sees a request, and bad requests are answered with 400.
        document = super().openapi()
        for path, operations in document["paths"].items():
            for operation in operations.values():
                described = operation.pop("description", operation["summary"])  # the docstring, if there is one
                operation["summary"] = described.partition("\n")[0]
                operation["responses"].pop("422", None)
                if self.rules.key is not None and not self.rules.is_open(path):
                    operation["responses"]["401"] = UNAUTHORIZED
                    operation["security"] = [{"key": []}]

        for name in ("HTTPValidationError", "ValidationError"):
            document["components"]["schemas"].pop(name, None)
        if self.rules.key is not None:
            document["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        return document


@contextlib.asynccontextmanager
async def _running(service: Service) -> AsyncIterator[None]:
    """Run the threads of the models, and clean up from time to time."""
    service.start()
    cleaning = asyncio.create_task(_clean_up(service))
    try:
        yield
    finally:
        cleaning.cancel()
        until = time.monotonic() + STOP_SECONDS
        with contextlib.suppress(asyncio.CancelledError):  # a second signal
            while not service.stop(0.0) and time.monotonic() < until:
                await asyncio.sleep(0.05)


async def _clean_up(service: Service) -> None:
    while True:
        await asyncio.sleep(CLEANING_SECONDS)
        for model in service.language_models:
            model.sessions.remove_old()
        # glibc keeps freed memory that lies between blocks in use, and texts of many lengths leave ever more of it.
        await asyncio.to_thread(return_freed_memory)


async def _show_playground(request: Request) -> Response:
    return HTMLResponse(playground_html(), headers={"Content-Security-Policy": playground_policy()})


@general.get("/v1/models", response_model=ModelList)
async def list_models(service: CurrentService) -> Response:
    """List the models."""
    return JsonResponse({"object": "list", "data": [model.described() for model in service.models.values()]})


@general.get("/v1/models/{model}", response_model=ModelObject, responses=described_errors(404))
async def show_model(
    service: CurrentService, model: Annotated[str, Path(description="The id of the model.", min_length=1)]
) -> Response:
    """Describe a model."""
    return JsonResponse(service.named(model).described())


@general.get(
    "/health",
    response_model=Health,
    responses={503: {"model": Health, "description": "A model does not answer."}},
)
async def health(service: CurrentService) -> Response:
    """Say whether the models answer."""
    states = {name: "ok" if model.engine.is_alive else "dead" for name, model in service.models.items()}
    is_ok = set(states.values()) <= {"ok"}
    return JsonResponse({"status": "ok" if is_ok else "dead", "models": states}, 200 if is_ok else 503)


@general.get(
    "/metrics",
    response_class=Response,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
)
async def metrics(service: CurrentService) -> Response:
    """Return metrics for Prometheus."""
    return Response(service.metrics.exposition(), media_type=CONTENT_TYPE)

"""The application of the server: all endpoints, the playground, access and metrics."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import FastAPI, Path
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from ..config import Fields
from ..version import __version__
from . import answers, completions, inspection_pages, session_endpoints
from .access import Access, AccessRules
from .http_errors import EXCEPTION_HANDLERS, MEANINGS, described_errors
from .inspection_pages import InspectionPages
from .json_bodies import JsonResponse, new_router
from .limits import BodyLimits
from .metrics import CONTENT_TYPE, RequestMetrics
from .playground import playground_html, playground_policy
from .schemas import Health, ModelList, ModelObject
from .service import STOP_SECONDS, CurrentService, Service

OPEN_PATHS = frozenset({"/", "/health", "/pages/"})
"""What needs no key; the addresses of pages are secret."""
CLEANING_SECONDS = 30.0
"""The time between two removals of old sessions."""
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
    rules = rules or AccessRules(open_paths=OPEN_PATHS)
    app = Application(service, rules)
    app.state.service, app.state.pages = service, InspectionPages(service, inspect_options)
    app.state.body_limits = BodyLimits(service.limits.max_body)
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

    def openapi(self) -> Fields:
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
    """Run the threads of the models, and remove old sessions from time to time."""
    service.start()
    cleaning = asyncio.create_task(_remove_old_sessions(service))
    try:
        yield
    finally:
        cleaning.cancel()
        until = time.monotonic() + STOP_SECONDS
        with contextlib.suppress(asyncio.CancelledError):  # a second signal
            while not service.stop(0.0) and time.monotonic() < until:
                await asyncio.sleep(0.05)


async def _remove_old_sessions(service: Service) -> None:
    while True:
        await asyncio.sleep(CLEANING_SECONDS)
        for model in service.language_models:
            model.sessions.remove_old()


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

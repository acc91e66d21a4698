"""The ASGI application of the server: endpoints, the playground, access and metrics."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.types import ASGIApp

from ..tasks import TASKS
from ..version import __version__
from . import response_fields as answers
from .access import Access, AccessRules
from .answers import Answers
from .completions import Completions
from .endpoints import Endpoint, Handler, Parameter, make_routes
from .http_errors import EXCEPTION_HANDLERS
from .inspection_pages import InspectionPages
from .metrics import CONTENT_TYPE, RequestMetrics
from .model_endpoints import Models
from .openapi_document import openapi_document
from .playground import playground_html, playground_policy
from .request_fields import CompletionRequest, InspectRequest, ScoreRequest, TokenizeRequest, answer_request
from .scores import Scores
from .service import STOP_SECONDS, Service
from .session_endpoints import STATE_TYPE, Sessions
from .strict_json import JsonResponse

OPEN_PATHS = frozenset({"/", "/health", "/pages/"})
"""What needs no key; the addresses of pages are secret."""
SESSION = Parameter("session", "path", "The name of the session.", r"^[A-Za-z0-9_-][A-Za-z0-9_.-]{0,63}$")
MODEL = Parameter("model", "query", "The id of the model; may be left out if one language model is served.")
CLEANING_SECONDS = 30.0
"""The time between two removals of old sessions."""
BUSY = (404, 409, 429, 503)


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
    pages = InspectionPages(service, inspect_options)
    handlers = [*_text_handlers(service), *_answer_handlers(service), *_other_handlers(service, pages)]
    document = openapi_document([each for each, _ in handlers], "Seriatim", __version__, key=rules.key is not None)

    async def show_document(request: Request) -> Response:
        return JsonResponse(document)

    described = Endpoint("GET", "/openapi.json", "Describe all endpoints.", {200: "application/json"})
    routes = make_routes([*handlers, (described, show_document), _playground()])

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
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

    app = Starlette(routes=routes, exception_handlers=EXCEPTION_HANDLERS, lifespan=lifespan)
    app.router.redirect_slashes = False
    guarded = Access(app, rules)
    return RequestMetrics(guarded, service.metrics, [route.path for route in routes])


async def _remove_old_sessions(service: Service) -> None:
    while True:
        await asyncio.sleep(CLEANING_SECONDS)
        for model in service.writers:
            model.sessions.remove_old()


def _playground() -> tuple[Endpoint, Handler]:
    html, headers = playground_html(), {"Content-Security-Policy": playground_policy()}

    async def show(request: Request) -> Response:
        return HTMLResponse(html, headers=headers)

    return Endpoint("GET", "/", "Show the playground.", {200: "text/html"}, secured=False), show


def _text_handlers(service: Service) -> list[tuple[Endpoint, Handler]]:
    texts, scores, sessions = Completions(service), Scores(service), Sessions(service)
    one, every, state = "/v1/sessions/{session}", "/v1/sessions", "/v1/sessions/{session}/state"
    named = (SESSION, MODEL)
    return [
        (
            Endpoint(
                "POST", texts.path, "Generate texts.", {200: answers.CompletionAnswer}, CompletionRequest,
                streams=True, errors=BUSY,
            ),
            texts.respond,
        ),
        (
            Endpoint("POST", scores.path, "Score texts.", {200: answers.ScoreAnswer}, ScoreRequest, errors=BUSY),
            scores.respond,
        ),
        (
            Endpoint(
                "GET", every, "List the sessions.", {200: answers.SessionList}, parameters=(MODEL,), errors=(404, 503)
            ),
            sessions.list,
        ),
        (
            Endpoint("GET", one, "Describe a session.", {200: answers.SessionObject}, parameters=named, errors=(503,)),
            sessions.show,
        ),
        (
            Endpoint(
                "DELETE", one, "Remove a session.", {200: answers.DeletedSession}, parameters=named, errors=(409, 503)
            ),
            sessions.delete,
        ),
        (
            Endpoint("GET", state, "Download a state.", {200: STATE_TYPE}, parameters=named, errors=(409, 429, 503)),
            sessions.download,
        ),
        (
            Endpoint(
                "PUT", state, "Restore a state.", {200: answers.SessionObject, 201: answers.SessionObject}, STATE_TYPE,
                parameters=named, errors=(409, 429, 503),
            ),
            sessions.restore,
        ),
    ]  # fmt: skip


def _answer_handlers(service: Service) -> list[tuple[Endpoint, Handler]]:
    """Return the endpoint of each task with answers, whether one of its models is served or not."""
    tasks = {task.endpoint: task for task in TASKS.values() if not task.continues_text}
    result = list[tuple[Endpoint, Handler]]()
    for name, task in tasks.items():
        handler = Answers(service, f"/v1/{name}")
        summary = (task.__doc__ or "").splitlines()[0]
        described = Endpoint(
            "POST", handler.path, summary, {200: answers.AnswerList}, answer_request(task), errors=(404, 429, 503)
        )
        result.append((described, handler.respond))
    return result


def _other_handlers(service: Service, pages: InspectionPages) -> list[tuple[Endpoint, Handler]]:
    models = Models(service)
    model, page = Parameter("model", "path", "The id of the model."), Parameter("page", "path", "The name of the page.")
    health = {200: answers.Health, 503: answers.Health}
    return [
        (Endpoint("GET", "/v1/models", "List the models.", {200: answers.ModelList}), models.list),
        (
            Endpoint("GET", "/v1/models/{model}", "Describe a model.", {200: answers.ModelObject}, parameters=(model,)),
            models.show,
        ),
        (
            Endpoint(
                "POST", "/v1/tokenize", "Divide a text into tokens.", {200: answers.TokenList}, TokenizeRequest,
                errors=(404, 503),
            ),
            models.tokenize,
        ),
        (
            Endpoint(
                "POST", "/v1/inspect", "Write a page about a model and a text.", {200: answers.PageAnswer},
                InspectRequest, errors=(404, 429, 501, 503),
            ),
            pages.write,
        ),
        (
            Endpoint("GET", "/pages/{page}", "Show a page.", {200: "text/html"}, parameters=(page,), secured=False),
            pages.show,
        ),
        (Endpoint("GET", "/health", "Say whether the models answer.", health, secured=False), models.health),
        (Endpoint("GET", "/metrics", "Return metrics for Prometheus.", {200: CONTENT_TYPE}), models.metrics),
    ]  # fmt: skip

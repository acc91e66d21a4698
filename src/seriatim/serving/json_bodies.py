"""What endpoints share: JSON bodies, which are read within limits and validated strictly, and the errors that refuse.

Errors have the form of OpenAI's: one line that says what is wrong and what to do.
"""

import asyncio
import json
import logging
import re
from collections.abc import Callable, Coroutine, Mapping
from contextlib import aclosing
from typing import TypeVar

from fastapi.routing import APIRoute, APIRouter
from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from ..core.errors import InputError, RangeError, is_out_of_memory, nearest, shown
from ..core.problems import UNKNOWN, Path, Problem, problems_of
from ..storage.files import json_line, unique_fields
from .schemas import Error

# Errors

LOGGER = logging.getLogger("seriatim.serving")
CLIENT_CLOSED = 499
"""The status of a request whose client went away. No client sees it; logs and metrics do (the number is nginx's)."""
FIELD = re.compile(r"[A-Za-z_]\w*(\.\w+)*")
"""The name of a field at the beginning of a message; positions in lists are parts of it (``stop.0``)."""
MEANINGS = {
    400: "The request is wrong.",
    401: "The key is missing or wrong.",
    403: "The host or the origin is not allowed.",
    404: "What the path names does not exist.",
    408: "The body arrived too slowly.",
    409: "What the path or the body names is in use.",
    413: "The body is too large.",
    415: "The content type or the encoding is not supported.",
    429: "Too many requests wait.",
    500: "The server failed.",
    501: "An optional package is missing.",
    503: "The server cannot answer now.",
}
RETRY_AFTER = {"headers": {"Retry-After": {"schema": {"type": "integer", "minimum": 0}}}}
BODY_ERRORS = (400, 408, 413, 415)
"""The statuses of the errors that every request with a body can have."""


def described_errors(*statuses: int) -> dict[int | str, dict[str, object]]:
    """Return the argument ``responses`` of a FastAPI route that can answer these errors."""
    return {
        status: {"model": Error, "description": MEANINGS[status], **(RETRY_AFTER if status == 429 else {})}
        for status in statuses
    }


class HttpError(HTTPException):
    """A request that is answered by an error.

    Args:
        status: The HTTP status, from 400 to 599.
        message: What is wrong, and what to do, in one line. It may quote the request: control characters are escaped.
        param: The field of the request that is wrong; by default the one with which the message begins.
        code: A name that programs can compare, like ``model_not_found``.
        headers: More headers of the response.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.status = status
        self.message = str(RangeError(message))
        field, colon, _ = message.partition(": ")
        self.param = param or (field if colon and FIELD.fullmatch(field) else None)
        self.code = code
        super().__init__(status, self.message, dict(headers or {}))


def error_body(error: HttpError) -> bytes:
    """Return the body of the response to an error, with OpenAI's names of types; streams send it as an event."""
    kind = "rate_limit_error" if error.status == 429 else "invalid_request_error"
    kind = "server_error" if error.status >= 500 else kind
    fields = {"message": error.message, "type": kind, "param": error.param, "code": error.code}
    return json_line({"error": fields}).encode(errors="backslashreplace")


def error_response(error: HttpError) -> Response:
    """Return the JSON response to an error."""
    return Response(error_body(error), error.status, error.headers, "application/json")


def as_http_error(error: Exception) -> HttpError:
    """Return an exception as an error of the interface.

    What is not the client's fault becomes status 500, without internals: the caller logs the exception.
    """
    if isinstance(error, HttpError):
        return error
    if isinstance(error, InputError):
        return HttpError(400, str(error))
    if is_out_of_memory(error):
        return HttpError(500, "the server has too little memory for this request; send less at once")
    return HttpError(500, "internal error; see the log of the server")


async def handle_error(request: Request, error: Exception) -> Response:
    """Answer HttpError and InputError, and log and answer every other exception."""
    answer = as_http_error(error)
    if not isinstance(error, HttpError | InputError):
        LOGGER.error("%s %s failed", request.method, shown(request.scope["path"]), exc_info=error)
    return error_response(answer)


async def handle_http_exception(request: Request, error: Exception) -> Response:
    """Answer the exceptions that Starlette raises: unknown paths, wrong methods and others."""
    assert isinstance(error, HTTPException)
    headers = dict(error.headers or {})
    if error.status_code == 404:
        message = f"no such path: {shown(request.scope['path'])}; GET /openapi.json lists the paths"
    elif error.status_code == 405:
        headers["Allow"] = allowed = ", ".join(_allowed_methods(request))
        message = f"method {shown(request.method)} is not allowed for {shown(request.scope['path'])}; use {allowed}"
    else:
        message = error.detail
    return error_response(HttpError(error.status_code, message, headers=headers))


def _allowed_methods(request: Request) -> list[str]:
    """Return the methods of a path. Each has a route of its own, and Starlette names those of the first route only."""
    routes = [route for route in request.app.routes if isinstance(route, Route)]
    found = [route.methods or set() for route in routes if route.path_regex.match(request.scope["path"])]
    methods = set[str]().union(*found)
    return sorted(methods | {"HEAD"} if "GET" in methods else methods)


async def handle_disconnect(request: Request, error: Exception) -> Response:
    """Finish a request whose client went away; nobody receives the response."""
    return Response(status_code=CLIENT_CLOSED)


EXCEPTION_HANDLERS: dict[int | type[Exception], Callable[[Request, Exception], Coroutine[object, object, Response]]] = {
    HttpError: handle_error,
    InputError: handle_error,
    HTTPException: handle_http_exception,
    ClientDisconnect: handle_disconnect,
    Exception: handle_error,
}
"""The argument ``exception_handlers`` of an application."""


Model = TypeVar("Model", bound=BaseModel)
# Bodies

BODY_SECONDS = 30.0
"""The time in which the whole body of a request must arrive."""
MAX_PROBLEMS = 200
"""The number of problems up to which pydantic's report is converted; an object of many wrong values has as many."""


class JsonResponse(Response):
    """A response of JSON, on one line."""

    media_type = "application/json"

    def render(self, content: object) -> bytes:
        """Return the body."""
        return json_line(content).encode()


class JsonRoute(APIRoute):
    """A route of FastAPI whose body is read, parsed and validated here.

    FastAPI alone would read a body of any size and for any time, take duplicate names and deep nesting, and report
    each of a million wrong items. The application sets ``state.service``, whose limits hold.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[object, object, Response]]:
        """Return the function that answers a request."""
        handle = super().get_route_handler()
        model = None if self.body_field is None else self.body_field.field_info.annotation
        if not (isinstance(model, type) and issubclass(model, BaseModel)):
            return handle

        async def read_and_handle(request: Request) -> Response:
            return await handle(_JsonRequest(request, model))

        return read_and_handle


def new_router() -> APIRouter:
    """Return a router of such routes; the names of its operations are like ``post_v1_completions``."""

    def name(route: APIRoute) -> str:
        return f"{''.join(route.methods or ()).lower()}_{'_'.join(re.findall(r'[A-Za-z0-9_]+', route.path_format))}"

    return APIRouter(route_class=JsonRoute, generate_unique_id_function=name, responses=described_errors(403, 500))


class _JsonRequest(Request):
    """A request that gives FastAPI its body as an instance of a model, which FastAPI then takes as it is."""

    def __init__(self, request: Request, model: type[BaseModel]) -> None:
        super().__init__(request.scope, request.receive)
        self._request, self._model = request, model

    async def body(self) -> bytes:
        """Read the body; what is returned only says that there is one."""
        try:
            self._json = await read_request(self._request, self._model, self.app.state.service.limits.max_body)
        except ClientDisconnect:  # FastAPI would answer it as a bad request
            raise HttpError(CLIENT_CLOSED, "the client went away") from None
        return b"{}"


async def read_request(request: Request, model: type[Model], limit: int) -> Model:
    """Return the JSON body of a request as an instance of ``model``.

    Values are validated strictly: ``"5"`` is no number, and ``true`` is no integer, but ``1`` is a number. Lists of
    ``model`` should fail fast or have a maximal length. Its ``extra`` should be "forbid".

    Raises:
        HttpError: 400 for a body that is not such an object, 408, 413 or 415 (see `read_body`), or 415 if the content
            type is not application/json. The last also stops forms of foreign web pages, which browsers send without
            asking the server first.
        ClientDisconnect: If the client went away.
    """
    check_content_type(request)
    return validate(await read_body(request, limit), model)


def validate(data: bytes, model: type[Model]) -> Model:
    """Return a JSON body as an instance of ``model``; raise HttpError with status 400 if it is none.

    Pydantic's parser, unlike Python's, also refuses halves of surrogate pairs, which no UTF-8 text can hold.
    """
    value = parse_json(data)
    try:
        # From JSON rather than from ``value``, because lists then are tuples or sets where the model says so.
        return model.model_validate_json(data, strict=True)
    except ValidationError as error:
        if error.error_count() > MAX_PROBLEMS:
            raise _refusal(f"has {error.error_count():,} wrong values or unknown fields; check its objects") from None
        raise refusal_of(problems_of(error, value)[0], model) from None


def check_content_type(request: Request, expected: str = "application/json") -> None:
    """Raise HttpError with status 415 if a request does not have the expected content type, in UTF-8."""
    kind, *parameters = request.headers.get("content-type", "").lower().split(";")
    if kind.strip() != expected:
        raise HttpError(415, f"the content type must be {expected}; send the header Content-Type: {expected}")
    for parameter in parameters:
        name, _, value = parameter.strip().partition("=")
        if name == "charset" and value.strip('"') not in ("utf-8", "utf8"):
            raise HttpError(415, "the character set must be UTF-8; leave the charset out of the content type")


async def read_body(request: Request, limit: int, seconds: float = BODY_SECONDS) -> bytes:
    """Return the body of a request.

    Args:
        request: A request whose body has not been read.
        limit: The largest number of bytes. A Content-Length above it is refused before anything is read.
        seconds: The time in which the whole body must arrive.

    Raises:
        HttpError: 413 for a body that is too large, 408 for one that is too slow, both of which close the connection,
            and 415 for one that is compressed.
        ClientDisconnect: If the client went away before it sent the whole body.
    """
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("identity", ""):
        raise HttpError(415, "compressed bodies are not supported; leave out the header Content-Encoding")

    # What says that it is too large is refused before it is read; other bodies are counted while they arrive.
    length = request.headers.get("content-length", "0")
    if not (length.isascii() and length.isdigit()):
        raise HttpError(400, "Content-Length must be a number of bytes", headers={"Connection": "close"})
    if len(length) > 18 or int(length) > limit:
        raise _too_large(limit)
    body = bytearray()
    try:
        async with asyncio.timeout(seconds):
            async with aclosing(request.stream()) as stream:
                async for chunk in stream:
                    body += chunk
                    if len(body) > limit:
                        raise _too_large(limit)
    except TimeoutError:
        message = f"the body did not arrive within {seconds:g} seconds; send it faster, or send less"
        raise HttpError(408, message, headers={"Connection": "close"}) from None
    return bytes(body)


def _too_large(limit: int) -> HttpError:
    return HttpError(413, f"the body must be at most {limit:,} bytes; send less", headers={"Connection": "close"})


# Strict JSON


def parse_json(data: bytes) -> dict[str, object]:
    """Return the JSON object that a request contains.

    Only texts with one meaning are accepted: UTF-8 without a byte order mark, no duplicate names in an object, and no
    NaN or infinity. The parser limits the depth of lists and objects, and the digits of integers.

    Raises:
        HttpError: With status 400, if the text is not such an object.
    """
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _refusal(f"is not UTF-8: byte {error.start:,} is invalid; encode the text as UTF-8") from None
    if not text.strip(" \t\r\n"):
        raise _refusal("is empty; send a JSON object")
    try:
        value: object = json.loads(text, object_pairs_hook=unique_fields, parse_constant=_constant)
    except json.JSONDecodeError as error:
        reason = f"{error.msg[:1].lower()}{error.msg[1:]}"
        raise _refusal(f"is not JSON: {reason}, at line {error.lineno:,}, column {error.colno:,}") from None
    except (ValueError, RecursionError) as error:  # a name twice, thousands of digits or of levels
        raise _refusal(f"cannot be read: {str(error).partition(';')[0]}") from None
    if not isinstance(value, dict):
        raise _refusal('must be a JSON object, like {"model": "name"}')
    return value


def _refusal(reason: str) -> HttpError:
    return HttpError(400, f"the body {reason}")


def _constant(name: str) -> float:
    raise _refusal(f"has {name}, which is not JSON; use a finite number or null")


# Problems of fields


def refusal_of(problem: Problem, model: type[BaseModel]) -> HttpError:
    """Return the problem of a field as an error with status 400; ``model`` has the fields that are known."""
    name, reason = problem.name, problem.reason
    if problem.kind == UNKNOWN:
        reason = f"unknown field; {nearest(str(problem.path[-1]), _siblings(model, problem.path))}"
    return HttpError(400, f"{name}: {reason}" if name else reason, param=name or None)


def _siblings(model: type[BaseModel], path: Path) -> list[str]:
    """Return the known fields of the object that holds an unknown one."""
    for key in path[:-1]:
        field = model.model_fields.get(str(key))
        kinds = [field.annotation, *getattr(field.annotation, "__args__", ())] if field is not None else []
        inner = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)]
        if not inner:
            break
        model = inner[0]
    return list(model.model_fields)

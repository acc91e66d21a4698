"""Errors of the HTTP interface, in the form of OpenAI's: one line that says what is wrong and what to do."""

import logging
import re
from collections.abc import Callable, Coroutine, Mapping

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from ..core.errors import InputError, RangeError, is_out_of_memory, shown
from ..storage.files import json_line
from .schemas import Error

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
        param: The field of the request that is wrong.
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
        self.param = param
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
        field, colon, _ = str(error).partition(": ")
        return HttpError(400, str(error), param=field if colon and FIELD.fullmatch(field) else None)
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

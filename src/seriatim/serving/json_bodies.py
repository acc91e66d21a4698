"""Bodies of requests: read within limits of size and time, parsed strictly, and validated."""

import asyncio
import json
import re
from collections.abc import Callable, Coroutine
from contextlib import aclosing
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

from fastapi.routing import APIRoute, APIRouter
from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from .http_errors import CLIENT_CLOSED, HttpError, described_errors
from .request_problems import explain_problems
from .strict_json import parse_json

Model = TypeVar("Model", bound=BaseModel)
MAX_PROBLEMS = 200
"""The number of problems up to which pydantic's report is converted; a list of a million wrong items has a million."""
SAMPLE = 20
"""The number of items of each list and object that are validated again to explain so many problems."""


@dataclass(frozen=True)
class BodyLimits:
    """Limits of the body of a request: ``size`` in bytes, and ``seconds`` until it must have arrived."""

    size: int = 1 << 20
    seconds: float = 30.0


class JsonRoute(APIRoute):
    """A route of FastAPI whose body is read, parsed and validated here.

    FastAPI alone would read a body of any size and for any time, take duplicate names and deep nesting, and report
    each of a million wrong items. The application sets ``state.body_limits``.
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
            self._json = await read_request(self._request, self._model, self.app.state.body_limits)
        except ClientDisconnect:  # FastAPI would answer it as a bad request
            raise HttpError(CLIENT_CLOSED, "the client went away") from None
        return b"{}"


async def read_request(request: Request, model: type[Model], limits: BodyLimits) -> Model:
    """Return the JSON body of a request as an instance of ``model``.

    Values are validated strictly: ``"5"`` is no number, and ``true`` is no integer, but ``1`` is a number. Lists of
    ``model`` should have a maximal length. Its ``extra`` should be "forbid".

    Raises:
        HttpError: 400 for a body that is not such an object, 408, 413 or 415 (see `read_body`), or 415 if the content
            type is not application/json. The last also stops forms of foreign web pages, which browsers send without
            asking the server first.
        ClientDisconnect: If the client went away.
    """
    check_content_type(request)
    data = await read_body(request, limits.size, limits.seconds)
    return validate(data, model)


def validate(data: bytes, model: type[Model]) -> Model:
    """Return a JSON body as an instance of ``model``; raise HttpError with status 400 if it is none."""
    value = parse_json(data)
    try:
        # From JSON rather than from ``value``, because lists then are tuples or sets where the model says so.
        return model.model_validate_json(data, strict=True)
    except ValidationError as error:
        if error.error_count() <= MAX_PROBLEMS:
            raise explain_problems(error, value, model) from None
    raise _explain_many(value, model)


def check_content_type(request: Request, expected: str = "application/json") -> None:
    """Raise HttpError with status 415 if a request does not have the expected content type, in UTF-8."""
    kind, *parameters = request.headers.get("content-type", "").lower().split(";")
    if kind.strip() != expected:
        raise HttpError(415, f"the content type must be {expected}; send the header Content-Type: {expected}")
    for parameter in parameters:
        name, _, value = parameter.strip().partition("=")
        if name == "charset" and value.strip('"') not in ("utf-8", "utf8"):
            raise HttpError(415, "the character set must be UTF-8; leave the charset out of the content type")


async def read_body(request: Request, limit: int, seconds: float) -> bytes:
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


def _explain_many(value: dict[str, object], model: type[Model]) -> HttpError:
    """Explain a body with very many problems by those of the first items of its lists and objects."""
    unknown = islice((name for name in value if name not in model.model_fields), SAMPLE)
    names = [*(name for name in model.model_fields if name in value), *unknown]
    sample = {name: _sample(value[name]) for name in names}
    try:
        model.model_validate_json(json.dumps(sample), strict=True)
    except ValidationError as error:
        return explain_problems(error, sample, model)
    return HttpError(400, f"the body has many values of a wrong type after the first {SAMPLE} of a list; check them")


def _sample(value: object) -> object:
    """Return the first items of every list and object; the recursion is bounded by the depth of parsed JSON."""
    if isinstance(value, list):
        return [_sample(item) for item in value[:SAMPLE]]
    if isinstance(value, dict):
        return {name: _sample(item) for name, item in islice(value.items(), SAMPLE)}
    return value

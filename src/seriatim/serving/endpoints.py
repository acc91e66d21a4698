"""Descriptions of endpoints, from which routes and the OpenAPI document are made."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ..core.errors import nearest, shown
from .http_errors import HttpError

Handler = Callable[[Request], Awaitable[Response]]
Content = type[BaseModel] | str
"""What a body is: an instance of a model as JSON, or a content type."""


@dataclass(frozen=True)
class Parameter:
    """A parameter of the path or of the query.

    Attributes:
        name: Its name; a parameter of the path also occurs in the path of the endpoint.
        where: Whether the path or the query has it.
        text: What it means.
        pattern: A regular expression for the whole value. The handler checks it.
        required: Whether the query must have it; those of a path are always required.
    """

    name: str
    where: Literal["path", "query"]
    text: str
    pattern: str | None = None
    required: bool = False


@dataclass(frozen=True)
class Endpoint:
    """A method of a path.

    Attributes:
        method: The HTTP method, in capitals.
        path: The path as Starlette's routes write it, like ``/v1/models/{id}``.
        summary: What it does, in one line.
        answers: The body of a response by its status, for all statuses that are not answered by an error.
        request: The body of a request; None for none.
        streams: Whether the answer with status 200 can also be a stream of events.
        errors: Statuses from 400 that only this endpoint has. Those of bodies, parameters, keys and hosts are added.
        parameters: The parameters of the path and of the query.
        secured: Whether it needs the key, where the server has one.
    """

    method: str
    path: str
    summary: str
    answers: Mapping[int, Content]
    request: Content | None = None
    streams: bool = False
    errors: Sequence[int] = ()
    parameters: Sequence[Parameter] = field(default=())
    secured: bool = True

    def statuses(self, key: bool) -> list[int]:
        """Return the statuses from 400 of all the errors that requests can have; ``key``: the server has a key."""
        statuses = {403, 500, *self.errors}
        if self.request is not None:
            statuses |= {400, 408, 413, 415}
        if any(parameter.where == "query" for parameter in self.parameters):
            statuses.add(400)
        if any(parameter.where == "path" for parameter in self.parameters):
            statuses.add(404)
        if key and self.secured:
            statuses.add(401)
        return sorted(statuses)


def make_routes(handlers: Sequence[tuple[Endpoint, Handler]]) -> list[Route]:
    """Return one route for each path, which calls the handler of the request's method.

    With one route for each method instead, Starlette's answer 405 would name the methods of the first route only.
    """
    paths: dict[str, dict[str, Handler]] = {}
    for endpoint, handler in handlers:
        methods = paths.setdefault(endpoint.path, {})
        if endpoint.method in methods:
            raise ValueError(f"{endpoint.method} {endpoint.path} is described twice")
        methods[endpoint.method] = handler
    return [Route(path, _dispatch(methods), methods=list(methods)) for path, methods in paths.items()]


def _dispatch(methods: Mapping[str, Handler]) -> Handler:
    async def serve(request: Request) -> Response:
        return await methods["GET" if request.method == "HEAD" else request.method](request)

    return serve


def read_query(request: Request, *known: str) -> dict[str, str]:
    """Return the parameters of the query.

    Raises:
        HttpError: With status 400, for a parameter that is not known, or that is there twice.
    """
    values: dict[str, str] = {}
    for name, value in request.query_params.multi_items():
        if name not in known:
            hint = nearest(name, list(known)) if known else "leave it out"
            raise HttpError(400, f"unknown query parameter {shown(name)}; {hint}", param=name[:60])
        if name in values:
            raise HttpError(400, f"{name}: the query has it twice; send it once", param=name)
        values[name] = value
    return values

"""A small server for the tests, which runs in a process of its own."""

import asyncio
import json

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from seriatim.serving.json_bodies import EXCEPTION_HANDLERS, HttpError, read_body
from seriatim.serving.server import ServerSettings, open_socket, serve_app, until_disconnect

SEEN = {"disconnected": 0, "streams": 0}


async def hello(request: Request) -> Response:
    return PlainTextResponse("hello")


async def echo(request: Request) -> Response:
    return Response(await read_body(request, 1000, 0.5))


async def sleep(request: Request) -> Response:
    await asyncio.sleep(float(request.query_params["seconds"]))
    return PlainTextResponse("slept")


async def fail(request: Request) -> Response:
    raise RuntimeError("a secret")


async def early(request: Request) -> Response:
    raise HttpError(409, "busy; try again")


async def stream(request: Request) -> Response:
    size, count = int(request.query_params["size"]), int(request.query_params["count"])

    async def pieces():
        SEEN["streams"] += 1
        try:
            for _ in range(count):
                yield b"x" * size
                await asyncio.sleep(0)
        finally:
            SEEN["streams"] -= 1

    return StreamingResponse(pieces())


async def wait(request: Request) -> Response:
    await read_body(request, 1000, 0.5)
    await until_disconnect(request.receive)
    SEEN["disconnected"] += 1
    return PlainTextResponse("")


async def seen(request: Request) -> Response:
    return Response(json.dumps(SEEN))


ROUTES = [
    Route(f"/{name.__name__}", name, methods=[method])
    for name, method in [
        (hello, "GET"), (echo, "POST"), (sleep, "GET"), (fail, "GET"), (early, "POST"), (stream, "GET"),
        (wait, "POST"), (seen, "GET"),
    ]
]  # fmt: skip


def main(**settings: float) -> None:
    app = Starlette(routes=ROUTES, exception_handlers=EXCEPTION_HANDLERS)
    listener = open_socket("127.0.0.1", 0)
    print(listener.getsockname()[1], flush=True)
    graceful = serve_app(app, [listener], ServerSettings(**settings))
    print("graceful" if graceful else "forced", flush=True)

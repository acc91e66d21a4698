"""Server-sent events: https://html.spec.whatwg.org/multipage/server-sent-events.html."""

import asyncio
from types import TracebackType
from typing import Self

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from .http_errors import LOGGER, HttpError, as_http_error, error_body
from .server import until_disconnect

PING_SECONDS = 15.0
"""After this time without an event a comment is sent, so that no proxy ends the connection."""
HEADERS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),  # nginx passes events on at once
)


class LateResponse(Response):
    """A response that is computed while it is sent, by an ASGI application that may raise errors before it begins."""

    def __init__(self, application: ASGIApp) -> None:
        super().__init__()
        self._application = application

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Compute and send the response."""
        await self._application(scope, receive, send)


class EventStream:
    """A response of events. The client may go away at any time.

    Until the first event is sent, an error is an ordinary response; after it, an error is an event.
    """

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive, self._send, self._has_begun = receive, send, False
        self._gone: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._gone = asyncio.create_task(until_disconnect(self._receive))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> bool:
        assert self._gone is not None
        self._gone.cancel()
        if isinstance(error, ClientDisconnect):
            return True
        if not self._has_begun or not isinstance(error, Exception | None):
            return False
        if error is not None:
            if not isinstance(error, HttpError):
                LOGGER.error("a stream failed", exc_info=error)
            await self._write(b"data: " + error_body(as_http_error(error)) + b"\n\n")
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})
        return True

    async def wait_for(self, event: asyncio.Event) -> None:
        """Wait for an event of asyncio; keep the connection alive in the meantime.

        Raises:
            ClientDisconnect: the client went away.
        """
        assert self._gone is not None
        if event.is_set() and not self._gone.done():
            return
        waiting = asyncio.ensure_future(event.wait())
        try:
            while not waiting.done():
                await asyncio.wait((waiting, self._gone), timeout=PING_SECONDS, return_when=asyncio.FIRST_COMPLETED)
                if self._gone.done():
                    raise ClientDisconnect
                if not waiting.done():
                    await self._write(b": waiting\n\n")
        finally:
            waiting.cancel()

    async def send(self, data: str) -> None:
        """Send an event with a line of data."""
        await self._write(b"data: " + data.encode() + b"\n\n")

    async def _write(self, data: bytes) -> None:
        if not self._has_begun:
            self._has_begun = True
            await self._send({"type": "http.response.start", "status": 200, "headers": list(HEADERS)})
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

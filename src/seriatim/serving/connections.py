"""Limits of connections: their number, the time for headers and for reading responses, and the size of headers."""

import asyncio
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from .http_errors import HttpError, error_body

REFUSED_SECONDS = 0.2
"""The time for which a refused connection stays open, so that its client can read why it was refused."""
MAX_LINGERING = 16
"""The number of refused connections that stay open for that time; others are closed at once."""
LINGER_SECONDS, LINGER_BYTES = 1.0, 64 << 20
"""How long, and how far, the rest of a request is read and dropped after a response that closes the connection."""


@dataclass
class ConnectionLimits:
    """What one connection may take; the server's connections share one object.

    Attributes:
        max_connections: The largest number of open connections.
        header_seconds: The time from the first byte of a request (of the first request: from the connection) to the
            end of its headers; also the time for the rest of a request that was answered before it was read.
        header_bytes: The largest size of the headers of a request.
        write_seconds: The time in which a client must read what waits for it.
        refused: The open connections that are being refused.
        stopping: Whether the server shuts down; new connections are then closed.
    """

    max_connections: int
    header_seconds: float
    header_bytes: int
    write_seconds: float
    refused: int = field(default=0, init=False)
    stopping: bool = field(default=False, init=False)


def response_bytes(error: HttpError) -> bytes:
    """Return a whole response to an error, for a connection without a request that was understood."""
    body = error_body(error)
    reason = {400: "Bad Request", 431: "Request Header Fields Too Large", 501: "Not Implemented"}.get(error.status, "")
    head = (
        f"HTTP/1.1 {error.status} {reason or 'Service Unavailable'}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\nconnection: close\r\n"
    )
    more = "".join(f"{name.lower()}: {value}\r\n" for name, value in (error.headers or {}).items())
    return f"{head}{more}\r\n".encode() + body


class LimitedTransport(asyncio.Transport):
    """A transport whose ``close`` never waits for ever, and does not lose the response that was just written.

    A socket that is closed while the client still sends is reset, and the client then may not see the response. If
    the request is not complete, ``close`` therefore ends only the writing, and what still arrives is dropped, for a
    short time. If the client does not read the rest of a response, the connection is aborted.
    """

    def __init__(self, transport: asyncio.Transport, protocol: "LimitedProtocol") -> None:
        super().__init__()
        self._transport = transport
        self._protocol = protocol
        self._closing = False
        self._timers: list[asyncio.TimerHandle] = []

    def close(self) -> None:
        """Close the connection after what has been written."""
        if self._closing or self._transport.is_closing():
            return
        self._closing = True
        after = self._protocol.loop.call_later
        if self._protocol.conn.their_state in (h11.SEND_BODY, h11.ERROR) and self._transport.can_write_eof():
            self._transport.resume_reading()
            self._transport.write_eof()
            self._timers.append(after(LINGER_SECONDS, self._transport.close))
        else:
            self._transport.close()
        longest = max(self._protocol.limits.write_seconds, LINGER_SECONDS)
        self._timers.append(after(longest, self._transport.abort))

    def forget(self) -> None:
        """Cancel what was to happen later, when the connection is lost."""
        for timer in self._timers:
            timer.cancel()

    def is_closing(self) -> bool:
        """Return whether the connection is closed, or will be."""
        return self._closing or self._transport.is_closing()

    def abort(self) -> None:
        """Close the connection at once."""
        self._closing = True
        self._transport.abort()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Write data, unless the connection is closing."""
        if not self.is_closing():
            self._transport.write(data)

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        """Write several pieces of data."""
        self.write(b"".join(list_of_data))

    def get_extra_info(self, name: str, default: object = None) -> object:
        """Return what is known of the socket."""
        return self._transport.get_extra_info(name, default)

    def pause_reading(self) -> None:
        """Stop reading."""
        if not self.is_closing():
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Read again."""
        self._transport.resume_reading()

    def get_write_buffer_size(self) -> int:
        """Return the number of bytes that wait for the client."""
        return self._transport.get_write_buffer_size()


class LimitedProtocol(H11Protocol):
    """Uvicorn's HTTP/1.1 protocol with limits; a subclass sets ``limits``."""

    limits: ConnectionLimits
    _header_timer: asyncio.TimerHandle | None = None
    _write_timer: asyncio.TimerHandle | None = None
    _limited: LimitedTransport | None = None
    _phase: Literal["headers", "rest"] | None = None
    _refused = False
    _dropped = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept a connection, or refuse it if there are too many."""
        if self.limits.stopping or len(self.connections) >= self.limits.max_connections:
            self._refuse(transport)
            return
        self._limited = LimitedTransport(transport, self)
        super().connection_made(self._limited)
        self._enter("headers")

    def _refuse(self, transport: asyncio.Transport) -> None:
        self._refused = True
        self.transport = transport
        self.limits.refused += 1
        reason = "the server is shutting down" if self.limits.stopping else "the server has too many connections"
        transport.write(response_bytes(HttpError(503, f"{reason}; try again later", headers={"Retry-After": "1"})))
        if self.limits.refused > MAX_LINGERING:
            transport.close()
        else:
            self.loop.call_later(REFUSED_SECONDS, transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget a connection."""
        if self._refused:
            self.limits.refused -= 1
            return
        self._enter(None)
        self.resume_writing()
        super().connection_lost(exc)
        self._unset_keepalive_if_required()
        if self._limited is not None:
            self._limited.forget()

    def data_received(self, data: bytes) -> None:
        """Take data of a request; what arrives after the last response is dropped."""
        if self._refused:
            self.transport.close()
        elif self.transport.is_closing():
            self._dropped += len(data)
            if self._dropped > LINGER_BYTES:
                self.transport.abort()
        else:
            # h11 limits headers that are incomplete only; in pieces, complete ones have at most twice the size.
            size = self.limits.header_bytes if self.conn.their_state is h11.IDLE else len(data)
            super().data_received(data[:size])
            self._watch()
            if len(data) > size:
                self.data_received(data[size:])

    def on_response_complete(self) -> None:
        """Wait for the next request, or for the rest of this one."""
        super().on_response_complete()
        self._watch()

    def _watch(self) -> None:
        """Limit the time of what the client has to send before the application can go on."""
        if self.transport.is_closing():
            self._enter(None)
        elif self.conn.their_state is h11.IDLE:
            self._enter("headers" if self.conn.trailing_data[0] else None)
        elif self.conn.their_state is h11.SEND_BODY and self.cycle.response_complete:
            self._enter("rest")
        else:
            self._enter(None)

    def _enter(self, phase: Literal["headers", "rest"] | None) -> None:
        if phase == self._phase:
            return  # more bytes of the same headers do not extend their time
        self._phase = phase
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None
        if phase is not None:
            self._header_timer = self.loop.call_later(self.limits.header_seconds, self.transport.close)

    def pause_writing(self) -> None:
        """Wait for the client to read, for a limited time; a client that reads too little of it is dropped."""
        super().pause_writing()
        if self._write_timer is None:
            self._write_timer = self.loop.call_later(self.limits.write_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        """Go on with a response that its client reads."""
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None
        super().resume_writing()

    def shutdown(self) -> None:
        """Close the connection when no request runs on it."""
        if not self.transport.is_closing():
            super().shutdown()

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP request, and close the connection.

        Uvicorn calls this within the handler of h11's exception, which knows the status that fits.
        """
        problem = sys.exc_info()[1]
        status = problem.error_status_hint if isinstance(problem, h11.RemoteProtocolError) else 400
        started = self.cycle is not None and self.cycle.response_started and not self.cycle.response_complete
        if not started:
            reason = {431: f"the headers must be at most {self.limits.header_bytes:,} bytes; send less"}
            message = reason.get(status, f"this is not a valid HTTP request: {problem}; send HTTP/1.1")
            self.transport.write(response_bytes(HttpError(status if status in (431, 501) else 400, message)))
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True  # the application must not write after this response
            self.cycle.message_event.set()
        self.transport.close()

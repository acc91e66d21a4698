"""The server: sockets, connections with limits, signals, and running an application until it is stopped.

Uvicorn serves. What is added are limits against clients that are slow, send too much, or never read, and a shutdown
that finishes what runs. Uvicorn has no options for these, and no user should need a proxy to be safe from a bad client.
"""

import asyncio
import errno
import logging
import socket
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from types import FrameType
from typing import Literal, TypeVar, cast

import h11
import uvicorn
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from ..core.errors import RangeError, UnavailableError, shown
from .json_bodies import LOGGER, HttpError, error_body

Result = TypeVar("Result")
ACCEPT_BATCH = 8
"""The number of connections that are accepted before others are served; few enough to stay within SPARE_FILES."""
BACKLOG = 1024
"""The number of connections that wait in the system until they are accepted."""
SPARE_FILES = 64
"""The number of open files of the process that are not connections."""
TICK = 0.05
END_SECONDS = 1.0
"""The time that handlers have after their clients were disconnected at the end of a shutdown."""
REFUSED_SECONDS = 0.2
"""The time for which a refused connection stays open, so that its client can read why it was refused."""
MAX_LINGERING = 16
"""The number of refused connections that stay open for that time; others are closed at once."""
LINGER_SECONDS, LINGER_BYTES = 1.0, 64 << 20
"""How long, and how far, the rest of a request is read and dropped after a response that closes the connection."""


@dataclass(frozen=True)
class ServerSettings:
    """Limits of a server; times are in seconds, and sizes in bytes.

    Attributes:
        max_connections: Open connections; at most the limit of the process on open files minus 64.
        header_seconds: The time for the headers of a request, from its first byte (of the first request: from the
            connection); also the time for the rest of a request that was answered before it was read.
        header_bytes: The size of the headers of a request.
        write_seconds: The time in which a client must read what waits for it.
        keep_alive_seconds: The time for which a connection without a request stays open.
        shutdown_seconds: The time that running requests have after SIGTERM or SIGINT.
    """

    max_connections: int = 1000
    header_seconds: float = 10.0
    header_bytes: int = 16 << 10
    write_seconds: float = 30.0
    keep_alive_seconds: int = 30
    shutdown_seconds: float = 30.0


def open_socket(host: str, port: int) -> socket.socket:
    """Return a listening socket.

    Args:
        host: A name or an address, IPv4 or IPv6.
        port: The port; 0 chooses a free one (``getsockname()[1]`` tells which).

    Raises:
        InputError: If the host is unknown, the port is in use, or the process may not use it.
    """
    if not 0 <= port <= 65535:
        raise RangeError(f"--port: {shown(port)} is out of range; give a number from 0 to 65535")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, UnicodeError):
        raise UnavailableError(f"--host: {shown(host)} is no known name or address; use 127.0.0.1 or 0.0.0.0") from None
    # Only with the protocol does asyncio set TCP_NODELAY, without which each piece of a stream takes 40 ms.
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:  # "::" would otherwise be IPv4, too, on some systems only
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise UnavailableError(_why_not(error, host, port)) from None
    return listener


def _why_not(error: OSError, host: str, port: int) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"--port: {port} of {host} is in use; choose another one, or 0 for any free one"
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"--port: {port} needs the rights of an administrator; choose one from 1024 to 65535"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"--host: {shown(host)} is not an address of this machine; use 127.0.0.1 or 0.0.0.0"
    return f"--host: cannot listen at {shown(host)}, port {port} ({error.strerror}); choose another one"


def connection_limit(wanted: int) -> int:
    """Return the number of connections for which the process may open enough files."""
    try:
        import resource
    except ImportError:  # Windows
        return wanted
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return wanted if limit == resource.RLIM_INFINITY else max(1, min(wanted, limit - SPARE_FILES))


def serve_app(
    app: ASGIApp,
    sockets: Sequence[socket.socket],
    settings: ServerSettings | None = None,
    when_ready: Callable[[], None] | None = None,
) -> bool:
    """Serve an ASGI application until SIGTERM or SIGINT, and close the sockets.

    The first signal stops accepting, closes idle connections, and lets running requests finish for
    ``shutdown_seconds``; their handlers then see that their clients are disconnected, and are cancelled one second
    later. A second signal ends them at once. Signals are handled in the main thread only. ``when_ready`` is called when
    connections are accepted and signals are handled.

    Returns:
        True if every request finished in time.
    """
    server = LimitedServer(app, settings or ServerSettings(), when_ready)
    asyncio.run(server.serve(list(sockets)))
    if server.failure is not None:
        raise server.failure
    return server.graceful


def response_bytes(error: HttpError) -> bytes:
    """Return a whole response to an error, for a connection without a request that was understood."""
    body = error_body(error)
    headers = {"content-type": "application/json", "content-length": len(body), "connection": "close"}
    more = {name.lower(): value for name, value in (error.headers or {}).items()}
    lines = [f"{name}: {value}\r\n" for name, value in {**headers, **more}.items()]
    head = f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}\r\n{''.join(lines)}\r\n"
    return head.encode() + body


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
        longest = max(self._protocol.owner.settings.write_seconds, LINGER_SECONDS)
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


class LimitedProtocol(H11Protocol):
    """Uvicorn's HTTP/1.1 protocol with the limits of its server; a subclass sets ``owner``."""

    owner: "LimitedServer"
    _header_timer: asyncio.TimerHandle | None = None
    _write_timer: asyncio.TimerHandle | None = None
    _limited: LimitedTransport | None = None
    _phase: Literal["headers", "rest"] | None = None
    _refused = False
    _dropped = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Accept a connection, or refuse it if there are too many."""
        transport = cast("asyncio.Transport", transport)  # that of a socket, which is read and written
        if self.owner.stopping or len(self.connections) >= self.owner.max_connections:
            self._refuse(transport)
            return
        self._limited = LimitedTransport(transport, self)
        super().connection_made(self._limited)
        self._enter("headers")

    def _refuse(self, transport: asyncio.Transport) -> None:
        self._refused = True
        self.transport = transport
        self.owner.refused += 1
        reason = "the server is shutting down" if self.owner.stopping else "the server has too many connections"
        transport.write(response_bytes(HttpError(503, f"{reason}; try again later", headers={"Retry-After": "1"})))
        if self.owner.refused > MAX_LINGERING:
            transport.close()
        else:
            self.loop.call_later(REFUSED_SECONDS, transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget a connection."""
        if self._refused:
            self.owner.refused -= 1
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
            size = self.owner.settings.header_bytes if self.conn.their_state is h11.IDLE else len(data)
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
            self._header_timer = self.loop.call_later(self.owner.settings.header_seconds, self.transport.close)

    def pause_writing(self) -> None:
        """Wait for the client to read, for a limited time; a client that reads too little of it is dropped."""
        super().pause_writing()
        if self._write_timer is None:
            self._write_timer = self.loop.call_later(self.owner.settings.write_seconds, self.transport.abort)

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
            reason = {431: f"the headers must be at most {self.owner.settings.header_bytes:,} bytes; send less"}
            message = reason.get(status, f"this is not a valid HTTP request: {problem}; send HTTP/1.1")
            self.transport.write(response_bytes(HttpError(status if status in (431, 501) else 400, message)))
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True  # the application must not write after this response
            self.cycle.message_event.set()
        self.transport.close()


class LimitedServer(uvicorn.Server):
    """Uvicorn's server with the limits of ``settings``; ``should_exit`` begins the shutdown from another thread."""

    def __init__(self, app: ASGIApp, settings: ServerSettings, when_ready: Callable[[], None] | None = None) -> None:
        self.app, self.settings, self.when_ready = app, settings, when_ready
        self.max_connections = connection_limit(settings.max_connections)
        self.graceful = True
        self.failure: Exception | None = None  # of ``when_ready``
        self.refused, self.stopping = 0, False  # connections that are being refused; whether all new ones are

        class Protocol(LimitedProtocol):
            owner = self

        # No second loop, web sockets, logs or processes: what uvicorn would choose itself depends on what is installed.
        super().__init__(
            uvicorn.Config(
                self._answer,
                http=Protocol,
                loop="asyncio",
                ws="none",
                interface="asgi3",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                workers=1,
                backlog=ACCEPT_BATCH,
                timeout_keep_alive=settings.keep_alive_seconds,
                h11_max_incomplete_event_size=settings.header_bytes,
            )
        )

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the application for one request, without raising what uvicorn would log without need."""
        is_answered = False

        async def send_and_see(message: Message) -> None:
            nonlocal is_answered
            await send(message)
            is_answered = message["type"] == "http.response.body" and not message.get("more_body", False)

        # A request with two lengths is answered, and its connection closed (RFC 9112, section 6.3), because a proxy may
        # have read another end of it. Uvicorn closes where the request has this header.
        if {b"content-length", b"transfer-encoding"} <= {name for name, _ in scope.get("headers", ())}:
            scope["headers"].append((b"connection", b"close"))

        # The application has answered and logged its own exceptions. Clients may go away, and handlers are cancelled
        # at the end of a shutdown.
        try:
            await self.app(scope, receive, send_and_see)
        except ClientDisconnect:
            pass
        except asyncio.CancelledError:
            if not self.stopping:
                raise
        except Exception:
            if not is_answered:
                raise

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to accept connections."""
        for name in ("uvicorn", "uvicorn.error"):  # its warnings are about bad requests, which are answered
            logging.getLogger(name).setLevel(logging.ERROR)
        asyncio.get_running_loop().set_exception_handler(_log_loop_error)
        await super().startup(sockets)
        for listener in sockets or []:
            listener.listen(BACKLOG)  # asyncio uses one number for its batches and for the system's queue
        if self.when_ready is not None:
            try:
                self.when_ready()
            except Exception as error:  # raised after the shutdown: here, the application would report it, too
                self.failure, self.should_exit = error, True

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin the shutdown, or end it at the second signal.

        Uvicorn's own method also records the signal, to raise it again after the shutdown; the process would then end
        by the signal instead of with status 0.
        """
        if self.should_exit:
            self.force_exit = True
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Finish the running requests, within the time that they have."""
        self.stopping = True
        ending = asyncio.create_task(self._end_late())
        try:
            await super().shutdown(sockets)
        finally:
            ending.cancel()
        if self.force_exit:
            await self._end(0)
            with suppress(TimeoutError):  # uvicorn leaves this out, and the application could not release what it has
                await asyncio.wait_for(self.lifespan.shutdown(), END_SECONDS)

    async def _end_late(self) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + self.settings.shutdown_seconds
        while loop.time() < end and not self.force_exit:
            await asyncio.sleep(TICK)
        await self._end(0 if self.force_exit else END_SECONDS)

    async def _end(self, seconds: float) -> None:
        """Disconnect all clients, and cancel the handlers that still run after some seconds."""
        self.graceful = False
        for connection in list(self.server_state.connections):
            connection.transport.abort()
        await asyncio.sleep(seconds)
        for task in list(self.server_state.tasks):
            task.cancel()


def _log_loop_error(loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
    """Log an error that asyncio reports; running out of files is one line, and the loop tries again by itself."""
    error = context.get("exception")
    if isinstance(error, OSError) and "accept" in str(context.get("message")):
        LOGGER.warning("cannot accept connections for now: %s", error.strerror)
        return
    loop.default_exception_handler(context)


async def until_disconnect(receive: Receive) -> None:
    """Return when the client has gone away, or has received its whole response.

    What arrives of a body is dropped; read the body first.
    """
    while (await receive())["type"] != "http.disconnect":
        pass


async def unless_disconnected(work: Awaitable[Result], receive: Receive) -> Result:
    """Return the result of some work, which is cancelled if the client goes away before.

    Raises:
        ClientDisconnect: the client went away.
    """
    working, gone = asyncio.ensure_future(work), asyncio.ensure_future(until_disconnect(receive))
    try:
        await asyncio.wait((working, gone), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return working.result()
    finally:
        gone.cancel()
        if not working.done():
            working.cancel()
            await asyncio.wait((working,))  # until it has given back what it holds

"""The server: sockets, signals, and running an application until it is stopped."""

import asyncio
import errno
import logging
import socket
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import FrameType
from typing import TypeVar

import uvicorn
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..core.errors import InputError, shown
from .connections import ConnectionLimits, LimitedProtocol

Result = TypeVar("Result")
LOGGER = logging.getLogger("seriatim.serving")
ACCEPT_BATCH = 8
"""The number of connections that are accepted before others are served; few enough to stay within SPARE_FILES."""
BACKLOG = 1024
"""The number of connections that wait in the system until they are accepted."""
SPARE_FILES = 64
"""The number of open files of the process that are not connections."""
TICK = 0.05
END_SECONDS = 1.0
"""The time that handlers have after their clients were disconnected at the end of a shutdown."""


@dataclass(frozen=True)
class ServerSettings:
    """Limits of a server; times are in seconds, and sizes in bytes.

    Attributes:
        max_connections: Open connections; at most the limit of the process on open files minus 64.
        header_seconds: The time for the headers of a request.
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
        raise InputError(f"port: must be between 0 and 65535, got {shown(port)}")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, UnicodeError):
        raise InputError(f"host: {shown(host)} is no known name or address; use 127.0.0.1 or 0.0.0.0") from None
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
        raise InputError(_why_not(error, host, port)) from None
    return listener


def _why_not(error: OSError, host: str, port: int) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port: {port} of {host} is in use; choose another one, or 0 for any free one"
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"port: {port} needs the rights of an administrator; choose one from 1024 to 65535"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"host: {shown(host)} is not an address of this machine; use 127.0.0.1 or 0.0.0.0"
    return f"host: cannot listen at {shown(host)}, port {port}: {error.strerror}"


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
    return asyncio.run(serve_async(app, sockets, settings, when_ready))


async def serve_async(
    app: ASGIApp,
    sockets: Sequence[socket.socket],
    settings: ServerSettings | None = None,
    when_ready: Callable[[], None] | None = None,
) -> bool:
    """Serve an ASGI application as `serve_app` does, in the running event loop."""
    server = LimitedServer(app, settings or ServerSettings(), when_ready)
    await server.serve(list(sockets))
    if server.failure is not None:
        raise server.failure
    return server.graceful


class LimitedServer(uvicorn.Server):
    """Uvicorn's server with the limits of ``settings``; ``should_exit`` begins the shutdown from another thread."""

    def __init__(self, app: ASGIApp, settings: ServerSettings, when_ready: Callable[[], None] | None = None) -> None:
        self.settings, self.when_ready = settings, when_ready
        self.graceful = True
        self.failure: Exception | None = None  # of ``when_ready``
        self.limits = ConnectionLimits(
            connection_limit(settings.max_connections),
            settings.header_seconds,
            settings.header_bytes,
            settings.write_seconds,
        )

        class Protocol(LimitedProtocol):
            limits = self.limits

        super().__init__(
            uvicorn.Config(
                _quiet(app, self.limits),
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
        self.limits.stopping = True
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


def _quiet(app: ASGIApp, limits: ConnectionLimits) -> ASGIApp:
    """Return an application that does not raise what uvicorn would log without need.

    That are exceptions that were answered and logged, clients that went away, and the end of a shutdown.
    """

    async def wrapped(scope: Scope, receive: Receive, send: Send) -> None:
        answered = False

        async def send_and_see(message: Message) -> None:
            nonlocal answered
            await send(message)
            answered = message["type"] == "http.response.body" and not message.get("more_body", False)

        try:
            await app(scope, receive, send_and_see)
        except ClientDisconnect:
            pass
        except asyncio.CancelledError:
            if not limits.stopping:
                raise
        except Exception:
            if not answered:
                raise

    return wrapped


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

"""A real server in a process of its own, and raw connections to it."""

import resource
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from . import demo_server
from .forked import Forked

FAST = {"header_seconds": 0.5, "write_seconds": 0.5, "keep_alive_seconds": 1, "shutdown_seconds": 1.0}


class Server:
    """A running server: its process, and connections to it."""

    def __init__(self, process: Forked, port: int) -> None:
        self.process = process
        self.port = port

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), 5)

    def ask(self, request: bytes) -> bytes:
        """Send a request, and return all that comes back until the server closes the connection."""
        with self.connect() as client:
            client.sendall(request)
            return rest(client)

    def get(self, path: str) -> bytes:
        return self.ask(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())

    def alive(self) -> bool:
        return self.get("/hello").endswith(b"hello")

    def stop(self, number: int = signal.SIGTERM, seconds: float = 20) -> int:
        self.process.send_signal(number)
        return self.process.wait(seconds)


def rest(client: socket.socket) -> bytes:
    data = bytearray()
    with suppress(ConnectionResetError, BrokenPipeError):
        while piece := client.recv(1 << 16):
            data += piece
    return bytes(data)


def read_until(client: socket.socket, end: bytes) -> bytes:
    data = b""
    while not data.endswith(end) and (piece := client.recv(4096)):
        data += piece
    return data


@contextmanager
def running(files: int | None = None, **settings: float) -> Iterator[Server]:
    def serve() -> None:
        if files is not None:
            resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
        demo_server.main(**{**FAST, **settings})

    with Forked(serve) as process:
        yield Server(process, int(process.stdout.readline()))


def closed_after(client: socket.socket, seconds: float) -> bool:
    client.settimeout(seconds)
    try:
        while client.recv(1 << 16):
            pass
    except TimeoutError:
        return False
    except ConnectionResetError:
        pass
    return True

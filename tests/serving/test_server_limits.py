"""A real server with many connections or few files, and signals that end it."""

import resource
import signal
import socket
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from seriatim.serving.server import connection_limit, open_socket

from ..refusals import refused
from .live_server import Server, closed_after, read_until, rest, running


def test_too_many_connections_are_refused_with_a_reason() -> None:
    with running(max_connections=3, header_seconds=5) as server, ExitStack() as stack:
        for _ in range(3):
            stack.enter_context(server.connect())
        answer = server.get("/hello")
        assert answer.startswith(b"HTTP/1.1 503")
        assert b"too many connections" in answer
        assert b"retry-after: 1" in answer
        stack.close()
        assert eventually_alive(server)


def eventually_alive(server: Server, seconds: float = 10) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with suppress(OSError):
            if server.alive():
                return True
        time.sleep(0.1)
    return False


def flood(server: Server, number: int) -> None:
    with ExitStack() as stack:
        for _ in range(number):
            client = stack.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(("127.0.0.1", server.port))
        time.sleep(0.3)
        assert server.process.poll() is None
    assert eventually_alive(server)


def processor_seconds(server: Server) -> float:
    fields = Path(f"/proc/{server.process.pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def test_a_flood_of_connections_with_few_files() -> None:
    with running(files=256) as server:
        flood(server, 1000)
        assert server.stop() == 0
        assert server.process.stderr is not None
        assert len(server.process.stderr.read().splitlines()) < 10


@pytest.mark.exhaustive
def test_running_out_of_files_neither_ends_nor_spins() -> None:
    """With fewer files than the server needs besides its connections, accepting itself fails."""
    with running(files=16, header_seconds=1.5) as server:
        with ExitStack() as stack:
            for _ in range(30):
                stack.enter_context(server.connect())
            time.sleep(0.2)
            before = processor_seconds(server)
            time.sleep(0.8)
            assert processor_seconds(server) - before < 0.5
        assert eventually_alive(server)
        assert server.stop() == 0
        assert server.process.stderr is not None
        lines = server.process.stderr.read().splitlines()
        assert 0 < len(lines) < 60
        assert all(line.startswith("cannot accept connections") for line in lines)


@pytest.mark.exhaustive
def test_a_flood_of_ten_thousand_connections() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 11_000:
        pytest.skip("the limit on open files is too low")
    resource.setrlimit(resource.RLIMIT_NOFILE, (11_000 if hard == resource.RLIM_INFINITY else hard, hard))
    try:
        for files in (None, 256):
            with running(files=files) as server:
                flood(server, 10_000)
                assert server.stop() == 0
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_finishes_what_runs(number: int) -> None:
    with (
        running(shutdown_seconds=20) as server,
        server.connect() as idle,
        server.connect() as busy,
        server.connect() as partial,
    ):
        idle.sendall(b"GET /hello HTTP/1.1\r\nHost: x\r\n\r\n")
        read_until(idle, b"hello")
        partial.sendall(b"GET /hel")
        busy.sendall(b"GET /sleep?seconds=1.5 HTTP/1.1\r\nHost: x\r\n\r\n")
        time.sleep(0.1)
        server.process.send_signal(number)
        assert closed_after(idle, 1.0)
        assert closed_after(partial, 0.2)
        with pytest.raises(ConnectionRefusedError):
            server.connect()
        assert rest(busy).endswith(b"slept")
        assert server.process.wait(20) == 0
        assert server.process.stdout is not None
        assert server.process.stderr is not None
        assert server.process.stdout.read() == "graceful\n"
        assert server.process.stderr.read() == ""


def test_what_does_not_finish_is_ended() -> None:
    with running(shutdown_seconds=0.3) as server, server.connect() as busy:
        busy.sendall(b"GET /sleep?seconds=60 HTTP/1.1\r\nHost: x\r\n\r\n")
        time.sleep(0.1)
        start = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - start < 15
        assert server.process.stdout is not None
        assert server.process.stdout.read() == "forced\n"
        assert server.process.stderr is not None
        assert server.process.stderr.read() == ""


def test_a_second_signal_ends_at_once() -> None:
    with running(shutdown_seconds=60) as server, server.connect() as busy:
        busy.sendall(b"GET /sleep?seconds=60 HTTP/1.1\r\nHost: x\r\n\r\n")
        time.sleep(0.1)
        server.process.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        assert server.process.poll() is None
        start = time.monotonic()
        assert server.stop(signal.SIGTERM) == 0
        assert time.monotonic() - start < 10
        assert server.process.stderr is not None
        assert server.process.stderr.read() == ""


def test_sockets() -> None:
    with open_socket("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        with refused("unavailable", "port", f"{port}"):
            open_socket("127.0.0.1", port)
    with open_socket("127.0.0.1", port):
        pass
    with refused("unavailable", "host"):
        open_socket("no such host", 0)
    with refused("unavailable", "host"):
        open_socket("192.0.2.1", 0)
    with refused("range", "port"):
        open_socket("127.0.0.1", 65536)


@pytest.mark.skipif(not Path("/proc/net/if_inet6").exists(), reason="no IPv6")
def test_ipv6() -> None:
    with open_socket("::1", 0) as listener, socket.create_connection(listener.getsockname()[:2], 1):
        pass


def test_the_limit_of_files_limits_the_connections() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (200, hard))
        assert connection_limit(1000) == 136
        assert connection_limit(10) == 10
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

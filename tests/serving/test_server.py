"""A real server and raw sockets: requests on one connection, slow clients, and clients that go away."""

import json
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from .live_server import Server, closed_after, read_until, rest, running


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running() as server:
        yield server


def test_requests_of_one_connection(server: Server) -> None:
    with server.connect() as client:
        for _ in range(3):
            client.sendall(b"GET /hello HTTP/1.1\r\nHost: x\r\n\r\n")
            answer = read_until(client, b"hello")
            assert answer.startswith(b"HTTP/1.1 200")
            assert answer.endswith(b"hello")
            assert b"server:" not in answer.lower()


def test_pieces_are_sent_without_delay(server: Server) -> None:
    with server.connect() as client:
        seconds = []
        for _ in range(20):
            start = time.monotonic()
            client.sendall(b"GET /hello HTTP/1.1\r\nHost: x\r\n\r\n")
            read_until(client, b"hello")
            seconds.append(time.monotonic() - start)
        assert min(seconds[5:]) < 0.035  # 40 ms if the system waited for more to send


def test_pipelined_requests_are_answered_in_order(server: Server) -> None:
    both = (
        b"GET /sleep?seconds=0.1 HTTP/1.1\r\nHost: x\r\n\r\nGET /hello HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    )
    answer = server.ask(both)
    assert answer.index(b"slept") < answer.index(b"hello")


def test_an_idle_connection_is_closed(server: Server) -> None:
    with server.connect() as client:
        assert closed_after(client, 10)  # no request at all: header_seconds
    with server.connect() as client:
        client.sendall(b"GET /hello HTTP/1.1\r\nHost: x\r\n\r\n")
        read_until(client, b"hello")
        assert closed_after(client, 10)  # keep_alive_seconds


@pytest.mark.parametrize("requests", [0, 1])
def test_headers_that_arrive_byte_by_byte_are_cut_off(server: Server, requests: int) -> None:
    with server.connect() as client:
        for _ in range(requests):
            client.sendall(b"GET /hello HTTP/1.1\r\nHost: x\r\n\r\n")
            read_until(client, b"hello")
        start = time.monotonic()
        with suppress(BrokenPipeError, ConnectionResetError):
            for byte in b"GET /hello HTTP/1.1\r\nHost: x\r\nX: " + b"x" * 100:
                client.sendall(bytes([byte]))
                time.sleep(0.05)
        assert time.monotonic() - start < 5  # 6.5 for all bytes
    assert server.alive()


@pytest.mark.parametrize("pieces", [1, 5])
def test_large_headers_are_refused(server: Server, pieces: int) -> None:
    with server.connect() as client:
        with suppress(BrokenPipeError, ConnectionResetError):
            client.sendall(b"GET /hello HTTP/1.1\r\nHost: x\r\nX: ")
            for _ in range(pieces):
                client.sendall(b"x" * (200_000 // pieces))
                time.sleep(0.02)
            client.sendall(b"\r\n\r\n")
        answer = rest(client)
    assert answer.startswith(b"HTTP/1.1 431")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["message"].startswith("the headers must be at most")


@pytest.mark.parametrize(
    "request_",
    [
        b"nonsense\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost : x\r\n\r\n",
        b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
        b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
)
def test_what_is_not_http_is_answered(server: Server, request_: bytes) -> None:
    answer = server.ask(request_)
    assert answer.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert set(json.loads(answer.partition(b"\r\n\r\n")[2])["error"]) == {"message", "type", "param", "code"}
    assert server.alive()


def test_a_large_body_is_refused_before_it_is_read(server: Server) -> None:
    with server.connect() as client:
        client.sendall(b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n")
        answer = rest(client)
    assert answer.startswith(b"HTTP/1.1 413")
    assert b"connection: close" in answer.lower()


def test_a_client_that_sends_a_large_body_reads_why_it_is_refused(server: Server) -> None:
    body = b"x" * 5_000_000  # larger than what the buffers of the system hold
    answer = server.ask(b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    assert answer.startswith(b"HTTP/1.1 413")


def test_chunked_bodies_are_counted(server: Server) -> None:
    head = b"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    chunk = b"64\r\n" + b"x" * 100 + b"\r\n"
    assert server.ask(head + 20 * chunk).startswith(b"HTTP/1.1 413")
    good = head.replace(b"Host", b"Connection: close\r\nHost") + 10 * chunk + b"0\r\n\r\n"
    assert server.ask(good).endswith(b"x" * 1000)


def test_a_request_with_two_lengths_is_the_last_of_its_connection(server: Server) -> None:
    """RFC 9112, section 6.3: Transfer-Encoding decides, and what a proxy may have taken for a request is not read."""
    head = b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n"
    answer = server.ask(head + b"5\r\nhello\r\n0\r\n\r\nGET /hello HTTP/1.1\r\nHost: x\r\n\r\n")
    assert answer.count(b"HTTP/1.1") == 1
    assert b"connection: close" in answer.lower()
    assert answer.endswith(b"\r\n\r\nhello")


def test_a_body_that_does_not_arrive_is_given_up(server: Server) -> None:
    with server.connect() as client:
        client.sendall(b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nabc")
        answer = rest(client)
    assert answer.startswith(b"HTTP/1.1 408")
    assert b"connection: close" in answer.lower()


def test_the_rest_of_an_answered_request_has_limited_time(server: Server) -> None:
    with server.connect() as client:
        client.sendall(b"POST /early HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\nabc")
        assert client.recv(4096).startswith(b"HTTP/1.1 409")
        start = time.monotonic()
        with suppress(BrokenPipeError, ConnectionResetError):
            while time.monotonic() - start < 20:
                client.sendall(b"x")
                time.sleep(0.05)
        assert time.monotonic() - start < 15


def test_errors_have_no_internals(server: Server) -> None:
    answer = server.get("/fail")
    assert answer.startswith(b"HTTP/1.1 500")
    assert b"secret" not in answer
    assert b"see the log" in answer
    assert server.get("/nothing").startswith(b"HTTP/1.1 404")
    answer = server.ask(b"POST /hello HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 405")
    assert b"\r\nallow: " in answer


def test_a_client_that_goes_away_is_noticed(server: Server) -> None:
    before = json.loads(server.get("/seen").partition(b"\r\n\r\n")[2])["disconnected"]
    with server.connect() as client:
        client.sendall(b"POST /wait HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc")
        time.sleep(0.1)
    for _ in range(500):
        if json.loads(server.get("/seen").partition(b"\r\n\r\n")[2])["disconnected"] == before + 1:
            return
        time.sleep(0.02)
    pytest.fail("the server did not notice")


@pytest.mark.parametrize("size", [pytest.param(1000, marks=pytest.mark.exhaustive), 100_000])
def test_a_client_that_does_not_read_is_dropped(server: Server, size: int) -> None:
    with server.connect() as client:
        client.sendall(f"GET /stream?size={size}&count={30_000_000 // size} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        time.sleep(0.5)
        end = time.monotonic() + 10
        while json.loads(server.get("/seen").partition(b"\r\n\r\n")[2])["streams"] and time.monotonic() < end:
            time.sleep(0.1)
        assert time.monotonic() < end
        received = len(rest(client))
    assert received < 30_000_000


@pytest.mark.exhaustive
def test_a_complete_response_that_is_not_read_is_dropped(server: Server) -> None:
    """Of some sizes, less than asyncio's buffer stays unsent, so that the application ends and does not wait."""

    def files() -> int:
        return len(list(Path(f"/proc/{server.process.pid}/fd").iterdir()))

    assert server.alive()
    before = files()
    with ExitStack() as stack:
        for size in range(30_000, 600_000, 30_000):
            client = stack.enter_context(socket.socket())
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect(("127.0.0.1", server.port))
            client.sendall(f"GET /stream?size={size}&count=1 HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        time.sleep(0.2)
        assert files() > before + 5
        time.sleep(2.5)  # keep_alive_seconds, and then LINGER_SECONDS
        assert files() <= before + 5
        time.sleep(1)
        assert files() <= before

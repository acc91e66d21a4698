"""A real server and raw sockets: limits, slow clients, signals, and floods of connections."""

import json
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from seriatim.core.errors import InputError
from seriatim.serving.server import connection_limit, open_socket

ROOT = Path(__file__).parents[2]
FAST = {"header_seconds": 0.5, "write_seconds": 0.5, "keep_alive_seconds": 1, "shutdown_seconds": 1.0}


class Server:
    """A running server: its process, and connections to it."""

    def __init__(self, process: subprocess.Popen[str], port: int) -> None:
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
    def limit_files() -> None:
        if files is not None:
            resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))

    command = [sys.executable, "-W", "error", "-m", "tests.serving.demo_server", json.dumps({**FAST, **settings})]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=limit_files
    ) as process:
        assert process.stdout is not None
        try:
            yield Server(process, int(process.stdout.readline()))
        finally:
            process.kill()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running() as server:
        yield server


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
        with pytest.raises(InputError, match=f"port: {port} of 127.0.0.1 is in use; choose another one"):
            open_socket("127.0.0.1", port)
    with open_socket("127.0.0.1", port):
        pass
    with pytest.raises(InputError, match="host: 'no such host' is no known name"):
        open_socket("no such host", 0)
    with pytest.raises(InputError, match=r"host: '192\.0\.2\.1' is not an address of this machine"):
        open_socket("192.0.2.1", 0)
    with pytest.raises(InputError, match="port: must be between"):
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

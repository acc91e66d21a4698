"""Servers as processes on the loopback address, for `serving.py`; not a benchmark of its own."""

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import record

START_SECONDS = 180.0
STOP_SECONDS = 20.0
HERE = Path(__file__).parent


class Server(NamedTuple):
    """A server that runs.

    Attributes:
        port: on the loopback address.
        process: that of the server.
        model: the name of its model in requests; None if requests need no name.
        begin: text to put before every prompt, if the server does not add it.
    """

    port: int
    process: "subprocess.Popen[bytes]"
    model: str | None = None
    begin: str = ""

    @contextmanager
    def awake(self) -> Iterator[None]:
        """Let the server run for a while; it is stopped before and afterwards, and takes no time of the others."""
        self.process.send_signal(signal.SIGCONT)
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGSTOP)


class Found(NamedTuple):
    """What a section of `serving.py` has measured: the arguments of `record.save`."""

    claims: list[record.Claim]
    figures: dict[str, Any]
    tables: list[list[list[str]]]
    notes: str


class Place(NamedTuple):
    """Where servers run: the number of threads, a folder for logs, and one with packages that peers need."""

    threads: int
    logs: Path
    packages: Path | None = None


@contextmanager
def running(
    name: str, command: Callable[[int], Sequence[str]], place: Place, *, model: str | None = None, begin: str = ""
) -> Iterator[Server]:
    """Run a server until the end of the context; ``command`` returns its arguments for a port.

    Raises:
        RuntimeError: it did not start.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(place.threads))
    paths = [os.environ.get("PYTHONPATH"), place.packages and str(place.packages)]
    offline = {"HF_HUB_OFFLINE": "1", "PYTHONPATH": os.pathsep.join(path for path in paths if path)}
    log = place.logs / f"{name.replace(' ', '-')}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, *command(port)], stdout=output, stderr=output, env={**os.environ, **threads, **offline}
        )
        try:
            _await_start(process, port, name, log)
            yield Server(port, process, model, begin)
        finally:
            process.send_signal(signal.SIGCONT)
            process.terminate()
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _await_start(process: "subprocess.Popen[bytes]", port: int, name: str, log: Path) -> None:
    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until and process.poll() is None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as answer:
                if answer.status == 200:
                    return
        except OSError:
            time.sleep(0.1)
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines() or ["it wrote nothing"]
    raise RuntimeError(f"{name} did not start: {lines[-1].strip()}")


def seriatim(*arguments: str | Path) -> Callable[[int], list[str]]:
    """Return the command of our server with runs and options."""
    return lambda port: ["-m", "seriatim", "serve", *map(str, arguments), "--port", str(port)]


def transformers_serve(checkpoint: Path, *options: str) -> Callable[[int], list[str]]:
    """Return the command of the server of `transformers`."""
    module = ("-m", "transformers.cli.transformers")
    fixed = ("--host", "127.0.0.1", "--device", "cpu", "--log-level", "error")
    return lambda port: [*module, "serve", str(checkpoint), *fixed, "--port", str(port), *options]


def plain(engine: str, checkpoint: Path) -> Callable[[int], list[str]]:
    """Return the command of `plain_server.py`."""
    return lambda port: [str(HERE / "plain_server.py"), engine, str(checkpoint), "--port", str(port)]

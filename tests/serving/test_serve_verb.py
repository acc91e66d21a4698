"""The command: it serves until a signal comes, finishes what runs, and refuses bad arguments in one line."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import pytest

from seriatim.cli.main import main

from ..conftest import FULL_DISK, needs_full_disk
from ..exhaustive import parameters
from ..golden.answers import GOLDEN
from .forked import Forked

RUN = [sys.executable, "-m", "seriatim", "serve"]


@contextmanager
def served_by_command(*arguments: str, **environment: str) -> Iterator[tuple[subprocess.Popen, str]]:
    """The process, and the address that it prints."""
    process = subprocess.Popen(
        [*RUN, *arguments, "--port", "0"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
    )  # fmt: skip
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("serving "), process.communicate(timeout=20)[1]
        yield process, line.split()[-1]
    finally:
        process.kill()
        process.communicate()


def stream(address: str, lines: list[str], began: threading.Event, **fields: object) -> None:
    body = {"prompt": "the ", "stream": True, "logit_bias": {"0": -100}, **fields}
    with httpx.stream("POST", f"{address}/v1/completions", json=body, timeout=60) as response:
        for line in response.iter_lines():
            lines.append(line)
            began.set()


@pytest.mark.exhaustive
@pytest.mark.parametrize("number", parameters([signal.SIGTERM, signal.SIGINT], everyday=[signal.SIGTERM]))
def test_a_signal_lets_running_texts_end(runs, number: signal.Signals) -> None:
    with served_by_command(str(runs["char-stream"].path)) as (process, address):
        lines, began = [], threading.Event()
        thread = threading.Thread(target=stream, args=(address, lines, began), kwargs={"max_tokens": 3000})
        thread.start()
        assert began.wait(20)
        process.send_signal(number)
        thread.join(60)
        assert lines[-2:] == ["data: [DONE]", ""]
        text = "".join(json.loads(line[6:])["choices"][0]["text"] for line in lines if line.startswith("data: {"))
        assert len(text) == 3000
        out, err = process.communicate(timeout=20)
        assert (process.returncode, out, err) == (0, "", "")


@pytest.mark.exhaustive
def test_a_second_signal_ends_the_server_at_once(runs) -> None:
    with served_by_command(str(runs["char-stream"].path)) as (process, address):
        began = threading.Event()
        fields = {"max_tokens": 4096, "n": 128}
        thread = threading.Thread(target=_suppressed, args=(stream, address, [], began), kwargs=fields)
        thread.start()
        assert began.wait(20)
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGINT)
        assert process.wait(10) is not None
        assert "Traceback" not in process.stderr.read()
        thread.join(20)


@pytest.mark.parametrize("sink", [pytest.param("a full disk", marks=needs_full_disk), "a closed pipe"])
def test_an_address_that_cannot_be_printed_ends_the_server(sink: str, monkeypatch, capfd) -> None:
    """As with any other verb: one line, or none where the reader is gone."""
    read, write = os.pipe()
    os.close(read)
    number = os.open(FULL_DISK, os.O_WRONLY) if sink == "a full disk" else os.dup(write)
    os.close(write)
    with os.fdopen(number, "w") as stream:
        monkeypatch.setattr("sys.stdout", stream)
        code = main(["serve", str(GOLDEN / "lm-ngram"), "--port", "0"])
    errors = capfd.readouterr().err
    assert (code, errors.count("\n")) == ((1, 1) if sink == "a full disk" else (0, 0))
    assert sink == "a closed pipe" or "standard output: No space left" in errors


def _suppressed(function, *arguments: object, **settings: object) -> None:
    with suppress(httpx.HTTPError):
        function(*arguments, **settings)


def test_several_runs_with_names_and_a_key(runs, inspected, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("secret\n")
    names = (f"a={runs['char-stream'].path}", str(inspected["classify"].path), str(runs["word-line"].path))
    with Forked(lambda: main(["serve", *names, "--key-file", str(tmp_path / "key"), "--port", "0"])) as process:
        address = process.stdout.readline().split()[-1]
        assert httpx.get(f"{address}/v1/models").status_code == 401
        client = httpx.Client(base_url=address, headers={"Authorization": "Bearer secret"})
        assert [model["id"] for model in client.get("/v1/models").json()["data"]] == ["a", "classify", "word-line"]
        client.close()


@pytest.mark.parametrize(
    ("arguments", "begin"),
    [
        (["none"], "none: no such run"),
        (["RUN", "RUN"], "RUN: another run is served as 'char-stream'; name this one: NAME="),
        (["RUN", "--max-running", "0"], "--max-running: 0 is too small; give 1 or more"),
        (["RUN", "--session-seconds", "nan"], "--session-seconds: nan is too small"),
        (["RUN", "--shutdown-seconds", "-1"], "--shutdown-seconds: -1.0 is too small"),
        (["RUN", "--shutdown-seconds", "inf"], "--shutdown-seconds: inf is not finite"),
        (["RUN", "--shutdown-seconds", "nan"], "--shutdown-seconds: nan is too small"),
        (["RUN", "--port", "70000"], "--port: 70000 is out of range"),
        (["RUN", "--host", "no.such.host.invalid"], "--host"),
        (["RUN", "--cors-origin", "example"], "--cors-origin: 'example' is not an origin"),
        (["RUN", "--key-file", "none"], "none: cannot be read"),
        (["RUN", "--weights", "int8", "--port", "x"], "--port: invalid int value"),
        ([], "the following arguments are required: RUN"),
    ],
)
def test_bad_arguments_are_refused_in_one_line(runs, capsys, arguments: list[str], begin: str) -> None:
    path = str(runs["char-stream"].path)
    assert main(["serve", *(argument.replace("RUN", path) for argument in arguments)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert error.startswith(f"seriatim: error: {begin.replace('RUN:', f'{path}:')}"), error


def test_a_port_in_use_is_refused(runs, capsys) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert main(["serve", str(runs["char-stream"].path), "--port", str(port)]) == 2
    assert f"{port}" in capsys.readouterr().err


def test_missing_packages_are_named(runs, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] in ("uvicorn", "starlette")]:
        monkeypatch.delitem(sys.modules, name)
    for name in [name for name in sys.modules if name.startswith("seriatim.serving")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "starlette", None)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert main(["serve", str(runs["char-stream"].path)]) == 2
    assert "pip install 'seriatim[serve]'" in capsys.readouterr().err

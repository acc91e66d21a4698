"""The commands and the program of the page on serving run as they are written, with other ports."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ..conftest import sentences

PAGE = Path(__file__).parents[2] / "docs" / "serving.md"
BLOCK = re.compile(r"^```(python)?\n(.*?)^```$", re.DOTALL | re.MULTILINE)
SHELL = f"""
set -e
seriatim() {{
    case "$1" in train) set -- "$@" --training.steps 5 ;; esac
    {sys.executable} -m seriatim "$@"
}}
curl() {{ command curl -sS --fail-with-body "$@"; }}
pip() {{ :; }}
"""


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


class Reader:
    """Runs the blocks of the page in order; a server runs until the end."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.ports, self.servers = folder, dict[str, int](), list[subprocess.Popen]()
        self.environment = {**os.environ, "HOME": str(folder), "OMP_NUM_THREADS": "1"}
        self.environment.pop("SERIATIM_API_KEY", None)

    def run(self, language: str, code: str) -> str:
        code = re.sub(r"\b(80\d\d)\b", lambda match: str(self.ports.setdefault(match[1], free_port())), code)
        code = code.replace("builtin:python-docs", "text.txt").replace("--training.minutes 2", "")
        if "seriatim serve" in code:
            self.serve(code)
            return ""
        command = [sys.executable, "-c", code] if language else ["bash", "-c", f"{SHELL}\n{code}"]
        done = subprocess.run(
            command, cwd=self.folder, env=self.environment, text=True, capture_output=True, timeout=120
        )
        assert done.returncode == 0, f"{code}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def serve(self, code: str) -> None:
        shell = f"{SHELL}\n{code.replace('seriatim serve', f'exec {sys.executable} -m seriatim serve')}"
        server = subprocess.Popen(
            ["bash", "-c", shell], cwd=self.folder, env=self.environment, text=True, stdout=subprocess.PIPE
        )
        self.servers.append(server)
        assert server.stdout is not None
        assert server.stdout.readline().startswith("serving ")

    def stop(self) -> list[int]:
        for server in self.servers:
            server.send_signal(signal.SIGTERM)
        for server in self.servers:
            server.communicate(timeout=20)
        return [server.returncode for server in self.servers]


@pytest.mark.exhaustive
@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_the_page_can_be_followed(tmp_path: Path, inspected) -> None:
    (tmp_path / "text.txt").write_text("\n".join(sentences(60)) + "\nReturn the number of items, value of.\n" * 3)
    for name, run in {"kinds": "classify", "pos": "tag", "en-de": "seq2seq"}.items():
        shutil.copytree(inspected[run].path, tmp_path / "runs" / name)
    reader, began = Reader(tmp_path), time.monotonic()
    try:
        outputs = [reader.run(*match.groups()) for match in BLOCK.finditer(PAGE.read_text(encoding="utf-8"))]
    finally:
        codes = reader.stop()
    assert codes == [0, 0, 0]
    assert sum('"object"' in output for output in outputs) >= 4
    assert time.monotonic() - began < 300

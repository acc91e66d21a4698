"""A process that is killed while it encodes a text leaves no processes behind, and the next one goes on."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from seriatim.config import Tokenizer as TokenizerConfig
from seriatim.data.corpus import encode_corpus
from seriatim.data.encoding import JOURNAL, write_encoded
from seriatim.data.source_content import content_of
from seriatim.data.sources import find_sources
from seriatim.data.vocabulary import fit_tokenizer

PROGRAM = """
import sys
from seriatim.data import encoding
from seriatim.data.corpus import encode_corpus
from seriatim.data.sources import find_sources
from seriatim.data.tokenizers import ByteTokenizer
encoding.PARALLEL_BYTES, encoding.worker_count, encoding.BLOCK_CHARACTERS = 1, lambda: 2, 1 << 20
encode_corpus(find_sources(sys.argv[1]), ByteTokenizer(), unit="line")
"""


def workers_of(process: int) -> list[int]:
    """The processes that another one started."""
    tasks = Path(f"/proc/{process}/task")
    return [int(child) for task in tasks.iterdir() for child in (task / "children").read_text().split()]


def is_running(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.exhaustive
@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="needs /proc")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_next_process_goes_on(tmp_path: Path, number: signal.Signals, monkeypatch) -> None:
    text, cache = tmp_path / "a.txt", tmp_path / "cache"
    text.write_text("".join(f"line {i}\n" for i in range(3_000_000)))
    errors = tmp_path / "errors"
    with errors.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(text)], env={**os.environ, "SERIATIM_CACHE": str(cache)}, stderr=file
        )
    deadline, lines, workers = time.monotonic() + 60, 0, set()
    while lines < 6 and process.poll() is None and time.monotonic() < deadline:
        lines = sum(path.read_bytes().count(b"\n") for path in cache.glob(f"corpus-*.partial/{JOURNAL}"))
        workers |= set(workers_of(process.pid))
    process.send_signal(number)
    process.wait()
    assert lines >= 6
    assert workers
    while any(map(is_running, workers)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not any(map(is_running, workers))
    assert errors.read_text() == "", "the processes end silently"
    monkeypatch.setenv("SERIATIM_CACHE", str(cache))
    monkeypatch.setattr("seriatim.data.encoding.BLOCK_CHARACTERS", 1 << 20)
    encoded, tokenizer, sources = [], fit_tokenizer(TokenizerConfig(kind="byte"), []), find_sources(str(text))
    encode = tokenizer.encode_lines
    monkeypatch.setattr(tokenizer, "encode_lines", lambda lines: (encoded.append(len(lines)), encode(lines))[1])
    corpus = encode_corpus(sources, tokenizer, unit="line")
    assert sum(encoded) <= text.stat().st_size - (5 << 20)
    (tmp_path / "whole").mkdir()
    write_encoded(tmp_path / "whole", sources, tokenizer, unit="line", content=content_of(sources))
    for name in ("ids.bin", "ends.bin"):
        assert Path(corpus.ids.filename).with_name(name).read_bytes() == (tmp_path / "whole" / name).read_bytes()

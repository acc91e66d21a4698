"""A client of completions over raw sockets, for `serving.py`; not a benchmark of its own.

It is as simple as possible, so that it takes little of the processors that the servers need.
"""

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, NamedTuple

HOST = "127.0.0.1"
SECONDS = 600.0
"""The longest time of one request."""
LINE_BYTES = 1 << 22
SERIES = re.compile(r"^([a-zA-Z_:]+)(?:\{[^}]*\})? (\S+)$", re.MULTILINE)


class Answer(NamedTuple):
    """The answer to a request."""

    status: int
    body: bytes

    @property
    def json(self) -> Any:
        """The body."""
        return json.loads(self.body)


class Streamed(NamedTuple):
    """A streamed text: the times of the events with text, in seconds since the request, the text and its tokens."""

    times: list[float]
    text: str
    num_tokens: int
    num_cached: int


Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def connected(
    port: int, method: str, path: str, body: object = None, headers: Mapping[str, str] | None = None
) -> AsyncIterator[Connection]:
    """Send a request, and close its connection at the end; a body that is no bytes is sent as JSON."""
    data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    fields = {"host": f"{HOST}:{port}", "connection": "close", "content-length": str(len(data))}
    fields |= {"content-type": "application/json"} if data else {}
    head = "".join(f"{name}: {value}\r\n" for name, value in (fields | dict(headers or {})).items())
    reader, writer = await asyncio.open_connection(HOST, port, limit=LINE_BYTES)
    try:
        writer.write(f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode() + data)
        await writer.drain()
        yield reader, writer
    finally:
        writer.transport.abort()
        with suppress(OSError):
            await writer.wait_closed()


async def read_head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    """Return the status and the headers of a response."""
    first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    headers = (line.partition(":")[::2] for line in lines if line)
    return int(first.split()[1]), {name.lower(): value.strip() for name, value in headers}


async def ask(
    port: int, method: str, path: str, body: object = None, headers: Mapping[str, str] | None = None
) -> Answer:
    """Send a request and return its answer, which must have a length."""
    async with asyncio.timeout(SECONDS), connected(port, method, path, body, headers) as (reader, _):
        status, found = await read_head(reader)
        return Answer(status, await reader.readexactly(int(found["content-length"])))


async def events(reader: asyncio.StreamReader) -> AsyncIterator[dict[str, Any]]:
    """Yield the events of a stream until its end."""
    status, headers = await read_head(reader)
    if status != 200:
        raise RuntimeError(f"status {status}: {await reader.read(int(headers.get('content-length', 1000)))!r}")
    while line := await reader.readline():  # the sizes of chunks are lines, too, and no event is divided
        if line.startswith(b"data: {"):
            event = json.loads(line[6:])
            if "error" in event:
                raise RuntimeError(f"a stream failed: {event['error']}")
            yield event


async def stream(port: int, body: Mapping[str, object]) -> Streamed:
    """Ask for a completion, and read its stream."""
    times, pieces, usage = list[float](), list[str](), dict[str, Any]()
    began = time.perf_counter()
    asked = {**body, "stream": True, "stream_options": {"include_usage": True}}
    async with asyncio.timeout(SECONDS), connected(port, "POST", "/v1/completions", asked) as (reader, _):
        async for event in events(reader):
            if text := "".join(choice.get("text") or "" for choice in event["choices"]):
                times.append(time.perf_counter() - began)
                pieces.append(text)
            usage = event.get("usage") or usage
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
    return Streamed(times, "".join(pieces), usage["completion_tokens"], cached)


async def metrics(port: int) -> dict[str, float]:
    """Return the metrics of a server; those of several models are added."""
    found: dict[str, float] = {}
    for name, value in SERIES.findall((await ask(port, "GET", "/metrics")).body.decode()):
        found[name] = found.get(name, 0.0) + float(value)
    return found

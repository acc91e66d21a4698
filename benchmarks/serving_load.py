"""Clients that vanish, and loads for a long time: three sections of `serving.py`; not a benchmark of its own."""

import argparse
import asyncio
import random
import string
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import record
import served_models
from http_client import ask, connected, events, metrics
from server_processes import Found, Place, running, seriatim

PLACES, ROUNDS = 512, 3
VANISH_TOKENS = 1000
POLL_SECONDS = 0.01
WAIT_SECONDS = 120.0
DAY = 86_400.0
WORKERS, PROMPTS = 8, 50
LAYERS = ("ngram", "lstm", "transformer")
LINES = 12
"""Printed of the measurements of a mixed load."""
Work = Callable[[float], Coroutine[Any, Any, None]]
"""Sends requests until a time."""
FLAT = 0.01
"""Memory is called flat if it grows by less than this share over the second half."""


class Gauges(NamedTuple):
    """What a server says about itself."""

    texts: int
    megabytes: float
    descriptors: int
    cache: float  # MB of prompts and sessions, which are bounded by settings

    @classmethod
    async def read(cls, port: int) -> "Gauges":
        """Ask a server."""
        found = await metrics(port)
        generated = ("seriatim_running_texts", "seriatim_waiting_texts")  # a classifier alone has none
        texts = sum(found.get(name, 0) for name in generated)
        kept = found.get("seriatim_prefix_cache_bytes", 0) + found.get("seriatim_session_bytes", 0)
        resident = found["process_resident_memory_bytes"] / 1e6
        return cls(int(texts), resident, int(found["process_open_fds"]), kept / 1e6)


async def until_at_most(port: int, texts: int) -> float:
    """Return the seconds until a server has at most so many texts."""
    began = time.perf_counter()
    while time.perf_counter() < began + WAIT_SECONDS:
        if (await Gauges.read(port)).texts <= texts:
            return time.perf_counter() - began
        await asyncio.sleep(POLL_SECONDS)
    raise TimeoutError(f"after {WAIT_SECONDS:.0f} seconds there are still more than {texts} texts")


def vanish(args: argparse.Namespace, folder: Path, place: Place) -> Found:
    """Let half of many clients vanish, several times, and compare the server before and after."""
    run = served_models.train("lstm", folder, size=args.size)
    rows = [["round", "texts", "resident MB", "descriptors", "whole texts", "s until the places were free"]]
    freed = []
    with running("vanish", seriatim(run, "--max-running", str(PLACES)), place) as server:
        for number in range(1, ROUNDS + 1):
            cells, seconds, is_whole = asyncio.run(vanish_once(server.port, args.vanish, number))
            rows.append(cells)
            freed.append(seconds if is_whole else float("inf"))
    claim = record.Claim(
        text="of 200 clients half go away: their places are free within a second, the others get their whole texts",
        reached=max(freed) < 1,
        ours=f"at most {max(freed):.2f} s",
    )
    notes = f"""
        An LSTM, streams of {VANISH_TOKENS} tokens; before, at the most, and after all others have received their texts.
    """
    return Found([claim], {"seconds": freed}, [rows], notes)


async def vanish_once(port: int, clients: int, number: int) -> tuple[list[str], float, bool]:
    before = await Gauges.read(port)
    leaving, begun, whole = asyncio.Event(), asyncio.Semaphore(0), 0

    async def client(index: int) -> None:
        nonlocal whole
        options = {"include_usage": True}
        asked = {"prompt": f"{index} clients", "max_tokens": VANISH_TOKENS, "seed": index, "stream": True}
        request = connected(port, "POST", "/v1/completions", {**asked, "stream_options": options})
        async with asyncio.timeout(WAIT_SECONDS), request as (reader, _):
            seen = 0
            async for event in events(reader):
                seen += 1
                if seen == 2:
                    begun.release()
                    if index % 2:
                        await leaving.wait()
                        return
                whole += (event.get("usage") or {}).get("completion_tokens") == VANISH_TOKENS

    tasks = [asyncio.create_task(client(index)) for index in range(clients)]
    async with asyncio.timeout(WAIT_SECONDS):
        for _ in tasks:
            await begun.acquire()
    most = await Gauges.read(port)
    leaving.set()
    free = await until_at_most(port, clients - clients // 2)
    await asyncio.gather(*tasks)
    await until_at_most(port, 0)
    await asyncio.sleep(0.5)
    after = await Gauges.read(port)
    each = [" / ".join(f"{getattr(one, name):,.0f}" for one in (before, most, after)) for name in Gauges._fields[:3]]
    staying = clients - clients // 2
    return [str(number), *each, f"{whole} of {staying}", f"{free:.2f}"], free, whole == staying


class Worker:
    """A client that sends random requests of all kinds; it counts what is answered as it should be."""

    def __init__(self, port: int, number: int, counts: Counter[tuple[str, str]], prompts: list[str]) -> None:
        self.port, self.prompts, self.counts = port, prompts, counts
        self.draw, self.session = random.Random(number), f"worker-{number}"
        kinds: dict[str, tuple[float, Callable[[], Awaitable[bool]]]] = {
            "completion": (3, self.complete),
            "stream": (3, self.stream),
            "cancelled": (2, self.cancel),
            "score": (2, self.score),
            "session": (2, self.continue_session),
            "bad request": (1, self.mistake),
        }
        self.kinds = {name: action for name, (_, action) in kinds.items()}
        self.weights = [weight for weight, _ in kinds.values()]

    async def work(self, until: float) -> None:
        """Send requests until a time."""
        while time.monotonic() < until:
            (kind,) = self.draw.choices(list(self.kinds), self.weights)
            try:
                result = "as expected" if await self.kinds[kind]() else "wrong"
            except (RuntimeError, OSError, TimeoutError, asyncio.IncompleteReadError, KeyError, ValueError) as error:
                result = f"{type(error).__name__}: {error}"[:200]
            self.counts[kind, result] += 1

    def asked(self) -> dict[str, Any]:
        """Return a random request."""
        return {
            "model": self.draw.choice(LAYERS),
            "prompt": self.draw.choice(self.prompts),
            "max_tokens": self.draw.randint(1, 100),
            "temperature": self.draw.choice((0, 0.7, 1)),
            "n": self.draw.choice((1, 1, 1, 3)),
            "logprobs": self.draw.choice((None, None, 3)),
            "top_p": self.draw.choice((0.9, 1)),
        }

    async def complete(self) -> bool:
        """Ask for texts."""
        asked = self.asked()
        answer = await ask(self.port, "POST", "/v1/completions", asked)
        return answer.status == 200 and len(answer.json["choices"]) == asked["n"]

    async def stream(self) -> bool:
        """Read the streams of texts."""
        asked, ended = self.asked(), 0
        request = connected(self.port, "POST", "/v1/completions", {**asked, "stream": True})
        async with asyncio.timeout(WAIT_SECONDS), request as (reader, _):
            async for event in events(reader):
                ended += sum(choice["finish_reason"] is not None for choice in event["choices"])
        return ended == asked["n"]

    async def cancel(self) -> bool:
        """Go away before or during an answer."""
        streams, wait = self.draw.random() < 0.5, self.draw.random() * 0.05
        asked = {**self.asked(), "max_tokens": 2000, "stream": streams}
        async with connected(self.port, "POST", "/v1/completions", asked):
            await asyncio.sleep(wait)
        return True

    async def score(self) -> bool:
        """Score texts."""
        texts = self.draw.choices(self.prompts, k=self.draw.randint(1, 4))
        asked = {"model": self.draw.choice(LAYERS), "input": texts, "top_logprobs": self.draw.choice((0, 2))}
        answer = await ask(self.port, "POST", "/v1/score", asked)
        return answer.status == 200 and len(answer.json["data"]) == len(texts)

    async def continue_session(self) -> bool:
        """Continue a text of the server, save and restore its state, and delete it."""
        model = self.draw.choice(LAYERS)
        address = f"/v1/sessions/{self.session}"
        asked = {"model": model, "session": self.session, "max_tokens": 20, "prompt": self.draw.choice(self.prompts)}
        statuses = [(await ask(self.port, "POST", "/v1/completions", asked)).status for _ in range(2)]
        state = await ask(self.port, "GET", f"{address}/state?model={model}")
        binary = {"content-type": "application/octet-stream"}
        restored = await ask(self.port, "PUT", f"{address}/state?model={model}", state.body, binary)
        deleted = await ask(self.port, "DELETE", f"{address}?model={model}")
        return [*statuses, state.status, restored.status, deleted.status] == [200] * 5

    async def mistake(self) -> bool:
        """Send a request that has a mistake."""
        wrong: list[tuple[int, str, str, object]] = [
            (400, "POST", "/v1/completions", b"{"),
            (400, "POST", "/v1/completions", {"model": "lstm", "unknown": 1}),
            (400, "POST", "/v1/completions", {"model": "lstm", "max_tokens": 10**9}),
            (400, "POST", "/v1/completions", {"prompt": "which model?"}),
            (404, "POST", "/v1/completions", {"model": "another"}),
            (404, "GET", "/v1/sessions/unknown?model=lstm", None),
            (404, "GET", "/nowhere", None),
            (405, "GET", "/v1/completions", None),
            (413, "POST", "/v1/score", b"[" * (5 << 20)),
        ]
        status, *request = self.draw.choice(wrong)
        return (await ask(self.port, *request)).status == status


def soak(args: argparse.Namespace, folder: Path, place: Place) -> Found:
    """Load a server with several models, and see whether its memory grows."""
    runs = [served_models.train(layer, folder, size=args.size) for layer in LAYERS]
    text, draw = served_models.text(), random.Random(0)
    starts = [draw.randrange(len(text) - 1000) for _ in range(PROMPTS)]
    prompts = [text[start : start + draw.randint(1, 1000)] for start in starts]
    notes = f"""
        {WORKERS} clients with completions, streams, scores, sessions, cancelled and bad requests on
        {", ".join(LAYERS)}; the {PROMPTS} prompts recur, so that the cache of prompts is soon complete.
    """
    return flat("a mixed load", args, place, runs, lambda *client: Worker(*client, prompts).work, notes)


def classifier(args: argparse.Namespace, folder: Path, place: Place) -> Found:
    """Load a server with a default classifier, and see whether its memory grows."""
    words = served_models.text().split()

    def client(port: int, number: int, counts: Counter[tuple[str, str]]) -> Work:
        draw = random.Random(number)

        def text() -> str:
            known = draw.choices(words, k=draw.randint(1, 200))
            return " ".join(["".join(draw.choices(string.ascii_lowercase, k=8)), *known])

        async def work(until: float) -> None:
            while time.monotonic() < until:
                texts = [text() for _ in range(draw.randint(1, 4))]
                answer = await ask(port, "POST", "/v1/classify", {"input": texts})
                is_right = answer.status == 200 and len(answer.json["data"]) == len(texts)
                counts["classify", "as expected" if is_right else f"status {answer.status}"] += 1

        return work

    notes = f"""
        {WORKERS} clients ask a default classifier for the labels of 1 to 4 texts of 2 to 201 words, one of which is
        new in every text.
    """
    return flat("a served classifier", args, place, [served_models.train_classifier(folder)], client, notes)


def flat(
    title: str,
    args: argparse.Namespace,
    place: Place,
    runs: Sequence[Path],
    client: Callable[[int, int, Counter[tuple[str, str]]], Work],
    notes: str,
) -> Found:
    """Load a server of some runs with clients, and return its memory over time."""
    seconds, counts = min(args.soak, DAY), Counter[tuple[str, str]]()
    with running("soak", seriatim(*runs), place) as server:
        works = [client(server.port, number, counts) for number in range(WORKERS)]
        seen, last = asyncio.run(soaked(server.port, works, seconds))
    rows = [[f"seconds of {title}", "texts", "resident MB", "descriptors", "cache and sessions, MB"]]
    chosen = sorted(set(np.linspace(0, len(seen) - 1, LINES).astype(int).tolist()))
    for when, one in [*(seen[index] for index in chosen), ("at rest", last)]:
        time_shown = when if isinstance(when, str) else f"{when:,.0f}"
        rows.append([time_shown, str(one.texts), f"{one.megabytes:,.1f}", str(one.descriptors), f"{one.cache:,.1f}"])
    results = [["request", "result", "number"]]
    results += [[kind, result, f"{count:,}"] for (kind, result), count in sorted(counts.items())]
    half = [(when, found.megabytes) for when, found in seen if when >= seconds / 2]
    times, sizes = np.array(half).T
    growth = float(np.polyfit(times, sizes, 1)[0] * (times[-1] - times[0])) if len(half) > 2 else float("nan")
    wrong = sum(count for (_, result), count in counts.items() if result != "as expected")
    claims = [
        record.Claim(
            text=f"{title}: every request has the expected result",
            reached=not wrong,
            ours=f"{wrong:,} of {sum(counts.values()):,} others",
        ),
        record.Claim(
            text=f"{title}: memory is flat over the second half of {seconds / 60:,.0f} minutes",
            reached=growth < FLAT * float(sizes[-1]),
            ours=f"{growth:+.1f} MB",
            limit=f"{100 * FLAT:g} %",
        ),
    ]
    figures = {"wrong": wrong, "growth": record.Figure(growth, min(growth, 0.0), FLAT * float(sizes[-1]))}
    return Found(claims, figures, [rows, results], notes)


async def soaked(port: int, works: Sequence[Work], seconds: float) -> tuple[list[tuple[float, Gauges]], Gauges]:
    """Return what the server said during the load, with the time of each measurement, and after it."""
    began = time.monotonic()
    tasks = [asyncio.create_task(work(began + seconds)) for work in works]
    seen: list[tuple[float, Gauges]] = []
    while (passed := time.monotonic() - began) < seconds:
        seen.append((passed, await Gauges.read(port)))
        await asyncio.sleep(max(0.25, seconds / 1000))
    await asyncio.gather(*tasks)
    await until_at_most(port, 0)
    await asyncio.sleep(0.5)
    return seen, await Gauges.read(port)

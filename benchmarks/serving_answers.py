"""Equal answers and long prompts, two sections of `serving.py`; not a benchmark of its own."""

import argparse
import asyncio
import itertools
import random
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import record
import served_models
from http_client import ask, connected, events, stream
from server_processes import Found, Place, running, seriatim

LAYERS = ("lstm", "mamba", "transformer", "ngram")
LONGEST = 200
"""Bytes of a prompt of which equality is measured."""
ANSWER_TOKENS = 48
LAST = 100
"""Tokens in which two long prompts differ, at their ends."""
STREAM_TOKENS = 4096


def equality(args: argparse.Namespace, folder: Path, place: Place) -> Found:
    """Compare answers in a batch with answers one after another, of a fresh server that has no prompt in its cache."""
    text, draw = served_models.text().encode("ascii", "ignore").decode(), random.Random(0)
    starts = [draw.randrange(len(text) - LONGEST) for _ in range(args.prompts)]
    prompts = [text[start : start + draw.randint(1, LONGEST)] for start in starts]
    runs = [served_models.train(layer, folder, size=args.size) for layer in LAYERS]
    found: dict[str, dict[str, list[Any]]] = {}
    with running("one by one", seriatim(*runs), place) as server:
        found["alone"] = {layer: asyncio.run(answers(server.port, layer, prompts, 1)) for layer in LAYERS}
    with running("together", seriatim(*runs), place) as server:
        found["batch"] = {layer: asyncio.run(answers(server.port, layer, prompts, len(prompts))) for layer in LAYERS}
        found["again"] = {layer: asyncio.run(answers(server.port, layer, prompts, len(prompts))) for layer in LAYERS}
    rows = [["layer", "way", "equal texts", "equal log probabilities, bit by bit", "largest difference"]]
    different = 0
    for layer in LAYERS:
        for way, title in (("batch", "at once"), ("again", "at once, again")):
            pairs = list(zip(found["alone"][layer], found[way][layer], strict=True))
            equal = sum(one["text"] == other["text"] for one, other in pairs)
            scores = [
                pair
                for one, other in pairs
                for pair in zip(one["logprobs"]["token_logprobs"], other["logprobs"]["token_logprobs"], strict=False)
            ]
            bits, largest = sum(a == b for a, b in scores), max(abs(a - b) for a, b in scores)
            cells = [layer, title, f"{equal} of {len(pairs)}", f"{bits:,} of {len(scores):,}", f"{largest:.1e}"]
            rows.append(cells)
            different += len(pairs) - equal + len(scores) - bits
    claim = record.Claim(
        text="answers in a batch are those of one request after another, bit for bit, also from the cache of prompts",
        reached=not different,
        ours=f"{different} differ",
    )
    notes = f"""
        {len(prompts)} prompts, {ANSWER_TOKENS} tokens each, greedy: sent at once, and again at once to the same server,
        which has their beginnings in its cache; compared with another server, one request after another.
    """
    return Found([claim], {"different": different}, [rows], notes)


async def answers(port: int, layer: str, prompts: Sequence[str], at_once: int) -> list[Any]:
    """Return the choices for prompts, of which so many requests run at once."""
    free = asyncio.Semaphore(at_once)

    async def one(prompt: str) -> Any:
        asked = {"model": layer, "prompt": prompt, "max_tokens": ANSWER_TOKENS, "temperature": 0, "logprobs": 0}
        async with free:
            answer = await ask(port, "POST", "/v1/completions", asked)
        if answer.status != 200:
            raise RuntimeError(f"status {answer.status}: {answer.body!r}")
        return answer.json["choices"][0]

    return await asyncio.gather(*map(one, prompts))


def prompts(args: argparse.Namespace, folder: Path, place: Place) -> Found:
    """Measure prompts that begin like earlier ones, and the stream of another client during a long prompt."""
    runs = [served_models.train(layer, folder, size=args.size, layers=2) for layer in ("lstm", "transformer")]
    text = served_models.text().encode("ascii", "ignore").decode()
    known, gaps = [], []
    for run in runs:
        with running(run.name, seriatim(run), place) as server:
            known.append([run.name, *asyncio.run(cached(server.port, text, args))])
        with running(run.name, seriatim(run), place) as server:
            gaps.append([run.name, *asyncio.run(beside(server.port, text, args))])
    faster = min(float(row[-1]) for row in known)
    claim = record.Claim(
        text="a prompt that differs from an earlier one in its end is read at least 5 times as fast as a new one",
        reached=faster >= 5,
        ours=f"at least {faster:.1f} times",
    )
    first = [["layer", "new, ms", "known beginning, ms", "known tokens", "ratio"], *known]
    second = [["layer", "reading, ms", "largest gap before, ms", "while reading, ms", "reading to the gap"], *gaps]
    notes = f"""
        The first token after {args.prompt_tokens:,} bytes: a new prompt, and one that differs from it in the last
        {LAST}. Below, the largest gap between two events of another client's stream while such a prompt is read; all
        are medians of {args.repeats}; 2 layers of {args.size}.
    """
    figures = {row[0]: record.Figure(float(row[-1]), 0.7 * float(row[-1]), 1.3 * float(row[-1])) for row in known}
    return Found([claim], figures, [first, second], notes)


async def cached(port: int, text: str, args: argparse.Namespace) -> list[str]:
    """Return the times to the first token of new prompts and of those with known beginnings."""
    times: dict[int, list[float]] = {0: [], 1: []}
    known = []
    await stream(port, {"prompt": text[-args.prompt_tokens :], "max_tokens": 2, "temperature": 0})
    for repeat in range(args.repeats):
        begin = text[repeat * args.prompt_tokens :][: args.prompt_tokens - LAST]
        for turn, end in enumerate(("x" * LAST, "y" * LAST)):
            found = await stream(port, {"prompt": begin + end, "max_tokens": 2, "temperature": 0})
            times[turn].append(1e3 * found.times[0])
        known.append(found.num_cached)
    first, second = (statistics.median(times[turn]) for turn in (0, 1))
    return [f"{first:,.1f}", f"{second:,.1f}", f"{statistics.median(known):,.0f}", f"{first / second:.1f}"]


async def beside(port: int, text: str, args: argparse.Namespace) -> list[str]:
    """Return the time of reading a prompt, and the largest gaps of a stream before and during it."""
    reading, before, during = [], [], []
    for repeat in range(args.repeats):
        prompt = text[repeat * args.prompt_tokens :][: args.prompt_tokens]
        asked = {"prompt": "A stream", "max_tokens": STREAM_TOKENS, "stream": True, "seed": repeat}
        async with asyncio.timeout(300), connected(port, "POST", "/v1/completions", asked) as (reader, _):
            seen, running_stream = list[float](), asyncio.Event()

            async def follow(
                seen: list[float] = seen, event: asyncio.Event = running_stream, reader: Any = reader
            ) -> None:
                async for _ in events(reader):
                    seen.append(time.perf_counter())
                    if len(seen) == 20:
                        event.set()

            following = asyncio.create_task(follow())
            await running_stream.wait()
            began = time.perf_counter()
            await stream(port, {"prompt": prompt, "max_tokens": 1, "temperature": 0})
            ended, count = time.perf_counter(), len(seen)
            while len(seen) == count and not following.done():  # the gap that has begun is seen at its end
                await asyncio.sleep(0.001)
            if following.done():
                raise RuntimeError("the stream ended before the prompt was read")
            following.cancel()
        steps = list(itertools.pairwise(seen))
        before.append(max(1e3 * (b - a) for a, b in steps[1:] if b < began))
        during.append(max([1e3 * (b - a) for a, b in steps if b > began and a < ended], default=1e3 * (ended - began)))
        reading.append(1e3 * (ended - began))
    gap = statistics.median(during)
    values = [statistics.median(reading), statistics.median(before), gap]
    return [*(f"{value:,.1f}" for value in values), f"{statistics.median(reading) / gap:.1f}"]

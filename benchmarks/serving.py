"""Measure the server: throughput beside other servers, vanished clients, memory, equal answers, and long prompts.

    python benchmarks/serving.py throughput|vanish|soak|classifier|equality|prompts [--packages FOLDER] [--quick]

throughput: GPT-2 of 124 M and of 4 × 256 with the same random weights in `seriatim serve`, in `transformers serve` with
and without its continuous batching, and in the server that people write around a model (`plain_server.py`) with
`generate` of transformers or with CTranslate2. Concurrent clients send streaming completions one after another: prompts
of 32 tokens that all differ, 64 new tokens, greedy. The servers take turns, and each sleeps during the turns of others.
`transformers serve` needs packages that Seriatim does not: `pip install --no-deps --target FOLDER fastapi annotated-doc
opentelemetry-api accelerate psutil`. Without them, it is left out.

vanish: of 200 clients, half close their connections in the middle of their streams. soak: a mixed load on an n-gram
model, an LSTM and a Transformer for any length of time. classifier: a load on a default classifier. equality: answers
in a batch beside answers one by one. prompts: long prompts that are known from an earlier request, and the stream of
another client during a long prompt.

Claims: with 4 clients or more, more tokens per second than every other server; a vanished client's place is free in
less than a second; memory, descriptors and places return to where they were; batches give the answers of their rows.
"""

import argparse
import asyncio
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import record
import served_models
import serving_answers
import serving_load
import torch
from http_client import Streamed, stream
from server_processes import Found, Place, Server, plain, running, seriatim, transformers_serve

from seriatim.interchange.formats import import_run

OURS = "seriatim serve"
RATIOS = ("ours to this", "first token of this to ours")
GPT2 = {
    "gpt2-124m": {"size": 768, "layers": 12, "words": 50_257, "heads": 12},
    "small": {"size": 256, "layers": 4, "words": 8_000, "heads": 4},
    "tiny": {"size": 64, "layers": 2, "words": 1_200, "heads": 1},
}
BATCHING = ("--continuous-batching", "--cb-block-size", "32", "--cb-num-blocks", "128", "--cb-max-batch-tokens", "512")
"""The default is to take most of the memory of the machine for 4,096 tokens and more."""
QUICK = {"models": "tiny", "clients": "1,3", "repeats": 1, "new_tokens": 8, "vanish": 12, "soak": 6.0, "prompts": 4}
QUICK |= {"prompt_tokens": 600, "size": 32}


class Load(NamedTuple):
    """What clients received, the seconds it took, and the share of one processor that the clients took."""

    texts: list[Streamed]
    seconds: float
    client_share: float


def make_prompts(draw: random.Random, clients: int, requests: int, num_tokens: int) -> list[list[str]]:
    """Return the prompts of every client; each word is one token."""
    return [
        ["".join(f" {a}{b}" for a, b in draw.choices(served_models.PAIRS, k=num_tokens)) for _ in range(requests)]
        for _ in range(clients)
    ]


async def load(server: Server, prompts: Sequence[Sequence[str]], new_tokens: int) -> Load:
    """Send the requests of all clients, those of a client one after another."""
    fields = {"max_tokens": new_tokens, "temperature": 0} | ({"model": server.model} if server.model else {})

    async def client(own: Sequence[str]) -> list[Streamed]:
        return [await stream(server.port, {**fields, "prompt": server.begin + prompt}) for prompt in own]

    began, used = time.perf_counter(), time.process_time()
    texts = [text for own in await asyncio.gather(*map(client, prompts)) for text in own]
    seconds = time.perf_counter() - began
    for text in texts:
        if text.num_tokens != new_tokens:
            raise RuntimeError(f"a text has {text.num_tokens} tokens instead of {new_tokens}")
    return Load(texts, seconds, (time.process_time() - used) / seconds)


def start(name: str, folder: Path, place: Place, stack: ExitStack) -> dict[str, Server]:
    """Start the servers of a model; those that cannot be started are named with the reason."""
    checkpoint, run, converted = folder / name, folder / "run" / name, folder / "converted" / name
    served_models.write_gpt2(checkpoint, **GPT2[name])
    import_run(str(checkpoint), str(run))
    transformers = {"model": str(checkpoint), "begin": served_models.END}
    begin = {"begin": served_models.END}
    starts: dict[str, Callable[[], tuple[Callable[[int], list[str]], Mapping[str, str]]]] = {
        OURS: lambda: (seriatim(run), {}),
        "transformers serve": lambda: (transformers_serve(checkpoint), transformers),
        "transformers serve, batching": lambda: (transformers_serve(checkpoint, *BATCHING), transformers),
        "plain, generate": lambda: (plain("transformers", checkpoint), begin),
        "plain, CTranslate2": lambda: (plain("ctranslate2", served_models.convert(checkpoint, converted)), begin),
    }
    servers: dict[str, Server] = {}
    for title, find in starts.items():
        attempt = ExitStack()
        try:
            command, fields = find()
            server = attempt.enter_context(running(f"{name} {title}", command, place, **fields))
            with server.awake():
                asyncio.run(load(server, make_prompts(random.Random(1), 1, 1, 32), 4))
        except (ImportError, RuntimeError, OSError, TimeoutError) as error:
            attempt.close()
            if title == OURS:
                raise
            print(f"{title} is not measured: {error}")
            continue
        stack.enter_context(attempt)
        servers[title] = server
    return servers


def throughput(args: argparse.Namespace, folder: Path, place: Place) -> Found:
    """Compare servers."""
    rows = [["model", "clients", "server", "tokens/s", "first token, median ms", "p95 ms", "equal texts", *RATIOS]]
    figures: dict[str, Any] = {}
    for name in args.models.split(","):
        with ExitStack() as stack:
            servers = start(name, folder, place, stack)
            for clients in map(int, args.clients.split(",")):
                figures[f"{name}, {clients} clients"] = point(name, clients, servers, args, rows)
    claims = []
    for peer in dict.fromkeys(title for one in figures.values() for title in one if title != OURS):
        both = {job: one for job, one in figures.items() if peer in one}
        ratios = {job: statistics.median(one[OURS]) / statistics.median(one[peer]) for job, one in both.items()}
        worst = min(ratios, key=lambda job: ratios[job])
        claims.append(
            record.Claim(
                text=f"more tokens a second than the other server (the least: {worst})",
                reached=ratios[worst] > 1,
                peer=peer,
                ours=f"{statistics.median(figures[worst][OURS]):,.0f} tokens/s",
                theirs=f"{statistics.median(figures[worst][peer]):,.0f} tokens/s",
                ratio=ratios[worst],
            )
        )
    notes = f"""
        GPT-2 of 124 M and of 4 × 256 with random weights; streams of {args.new_tokens} tokens after prompts of 32 that
        all differ, greedy; medians of {args.repeats} turns of all servers. Texts are equal if they are those of our
        server. "Plain" is an application that generates one text at a time.
    """
    return Found(claims, figures, [rows], notes)


def point(
    name: str, clients: int, servers: dict[str, Server], args: argparse.Namespace, rows: list[list[str]]
) -> dict[str, list[float]]:
    """Measure a number of clients, add a row for each server, and return the tokens a second of each turn."""
    draw, loads = random.Random(clients), {title: list[Load]() for title in servers}
    for turn in range(-1, args.repeats):  # the first turn, which is not counted, compiles and allocates
        prompts = make_prompts(draw, clients, max(2, 4 // clients) if turn >= 0 else 1, 32)
        for title, server in list(servers.items()):
            try:
                with server.awake():
                    result = asyncio.run(load(server, prompts, args.new_tokens))
            except (RuntimeError, OSError, EOFError, KeyError, TimeoutError) as error:
                if title == OURS:
                    raise
                print(f"{title} failed and is left out: {type(error).__name__}: {error}", flush=True)
                del servers[title], loads[title]
                continue
            if turn >= 0:
                loads[title].append(result)
    speeds = {
        title: [len(one.texts) * args.new_tokens / one.seconds for one in results] for title, results in loads.items()
    }
    firsts = {title: [1e3 * text.times[0] for one in results for text in one.texts] for title, results in loads.items()}
    expected = [text.text for one in loads[OURS] for text in one.texts]
    for title, results in loads.items():
        median, late = np.percentile(firsts[title], (50, 95))
        texts = [text.text for one in results for text in one.texts]
        equal = sum(a == b for a, b in zip(texts, expected, strict=True))
        speed = statistics.median(speeds[title])
        cells = [name, str(clients), title, f"{speed:,.0f}", f"{median:,.0f}", f"{late:,.0f}"]
        ratios = [statistics.median(speeds[OURS]) / speed, median / statistics.median(firsts[OURS])]
        rows.append([*cells, f"{equal} of {len(texts)}", *(f"{ratio:.2f}" for ratio in ratios)])
        print(*rows[-1], sep=" | ", flush=True)
    return speeds


SECTIONS: dict[str, Callable[[argparse.Namespace, Path, Place], Found]] = {
    "throughput": throughput,
    "vanish": serving_load.vanish,
    "soak": serving_load.soak,
    "classifier": serving_load.classifier,
    "equality": serving_answers.equality,
    "prompts": serving_answers.prompts,
}


def arguments() -> argparse.Namespace:
    """Return the arguments; ``--quick`` only changes the defaults."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("section", choices=SECTIONS)
    add("--quick", action="store_true", help="tiny models and loads, to try the script")
    add("--threads", type=int, default=2, help="of every server (default: 2)")
    add("--repeats", type=int, default=3, help="turns, or repetitions (default: 3)")
    add("--clients", default="1,4,16", help="throughput: numbers of clients (default: 1,4,16)")
    add("--models", default="gpt2-124m,small", help=f"throughput: of {', '.join(GPT2)} (default: gpt2-124m,small)")
    add("--new-tokens", type=int, default=64, help="throughput: tokens of each text (default: 64)")
    add("--packages", type=Path, help="throughput: a folder with packages that transformers serve needs")
    add("--vanish", type=int, default=200, help="vanish: the number of clients (default: 200)")
    add("--soak", type=float, default=60.0, help="soak, classifier: seconds (default: 60; at most a day)")
    add("--prompts", type=int, default=32, help="equality: the number of prompts (default: 32)")
    add("--prompt-tokens", type=int, default=4000, help="prompts: their length (default: 4000)")
    add("--size", type=int, default=256, help="the width of the models that are trained (default: 256)")
    if parser.parse_args().quick:
        parser.set_defaults(**QUICK)
    args = parser.parse_args()
    if unknown := set(args.models.split(",")) - GPT2.keys():
        parser.error(f"--models: unknown: {', '.join(unknown)}; choose from {', '.join(GPT2)}")
    return args


def main() -> None:
    args = arguments()
    torch.set_num_threads(args.threads)
    with tempfile.TemporaryDirectory(prefix="serving-") as folder:
        found = SECTIONS[args.section](args, Path(folder), Place(args.threads, Path(folder), args.packages))
    record.save(
        f"serving-{args.section}",
        claims=found.claims,
        settings=vars(args),
        figures=found.figures,
        tables=found.tables,
        peers=["transformers"] if args.section == "throughput" else [],
        notes=found.notes,
    )


if __name__ == "__main__":
    main()

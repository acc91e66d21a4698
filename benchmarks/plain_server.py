"""The server that people write around a model, a peer of `serving.py`; not a benchmark of its own.

    python benchmarks/plain_server.py transformers|ctranslate2 FOLDER --port N

A Starlette application generates one text at a time and sends its pieces as server-sent events: with the method
`generate` of `transformers` in a thread and its `TextIteratorStreamer`, or with `generate_tokens` of CTranslate2.
"""

import argparse
import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import NamedTuple

import torch
import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import iterate_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from transformers import AutoModelForCausalLM, AutoTokenizer, TextIteratorStreamer


class Piece(NamedTuple):
    """A piece of a text, and the number of tokens so far if it is known."""

    text: str
    num_tokens: int = 0


Generate = Callable[[str, int], Iterator[Piece]]
"""Yields a text for a prompt, with a number of tokens."""


def with_transformers(folder: str) -> Generate:
    """Return greedy generation as in the documentation of `TextIteratorStreamer`."""
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder).eval()

    def generate(prompt: str, num_tokens: int) -> Iterator[Piece]:
        inputs, results = tokenizer(prompt, return_tensors="pt"), list[torch.Tensor]()
        streamer = TextIteratorStreamer(tokenizer, skip_prompt=True)
        options = {"max_new_tokens": num_tokens, "do_sample": False, "pad_token_id": 0, "streamer": streamer}
        thread = threading.Thread(target=lambda: results.append(model.generate(**inputs, **options)))
        thread.start()
        for text in streamer:
            yield Piece(text)
        thread.join()
        yield Piece("", results[0].shape[1] - inputs["input_ids"].shape[1])

    return generate


def with_ctranslate2(folder: str) -> Generate:
    """Return greedy generation with CTranslate2."""
    import ctranslate2
    from tokenizers import Tokenizer
    from tokenizers.decoders import DecodeStream

    tokenizer = Tokenizer.from_file(f"{folder}/tokenizer.json")
    threads = torch.get_num_threads()
    generator = ctranslate2.Generator(folder, device="cpu", inter_threads=1, intra_threads=threads)

    def generate(prompt: str, num_tokens: int) -> Iterator[Piece]:
        tokens, decode = tokenizer.encode(prompt).tokens, DecodeStream(skip_special_tokens=False)
        steps = generator.generate_tokens(tokens, max_length=num_tokens, min_length=num_tokens, sampling_topk=1)
        for number, step in enumerate(steps, 1):
            yield Piece(decode.step(tokenizer, step.token_id) or "", number)

    return generate


def application(generate: Generate) -> Starlette:
    """Return an application that generates one text at a time."""
    free = asyncio.Lock()

    async def complete(request: Request) -> Response:
        fields = await request.json()

        async def events() -> AsyncIterator[str]:
            number = 0
            async with free:
                async for piece in iterate_in_threadpool(generate(fields["prompt"], fields["max_tokens"])):
                    number = piece.num_tokens
                    if piece.text:
                        yield f"data: {json.dumps({'choices': [{'index': 0, 'text': piece.text}]})}\n\n"
            yield f"data: {json.dumps({'choices': [], 'usage': {'completion_tokens': number}})}\n\ndata: [DONE]\n\n"

        return StreamingResponse(events(), media_type="text/event-stream")

    async def health(_: Request) -> Response:
        return JSONResponse({"status": "ok"})

    return Starlette(routes=[Route("/v1/completions", complete, methods=["POST"]), Route("/health", health)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine", choices=("transformers", "ctranslate2"))
    parser.add_argument("folder")
    parser.add_argument("--port", type=int, required=True)
    args = parser.parse_args()
    generate = {"transformers": with_transformers, "ctranslate2": with_ctranslate2}[args.engine](args.folder)
    uvicorn.run(application(generate), host="127.0.0.1", port=args.port, log_level="error")


if __name__ == "__main__":
    main()

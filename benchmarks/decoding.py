"""Decode token by token: one call of compiled code for a step, the layers one after another, and other libraries.

    python benchmarks/decoding.py [--only models|layers] [--tokens 32] [--turns 5]

Models with random weights decode greedily, in turn: Seriatim's compiled step, its step as the layers are written, and
a plain forward loop of `transformers` with its cache (GPT-2, and Mamba without its CUDA kernels) or of PyTorch's own
LSTM. For each row the script prints the median of tokens per second, the bytes of weights and state that a token needs
to read, and the share of the memory's bandwidth that this is.

Claims: GPT-2 at least 2 times `transformers` in float32 and 0.8 of the bandwidth; 4 layers of 256 at least 8 times
`transformers`; an LSTM of 2 × 650 and Mamba of 130 M at least 3 times and 0.7 of the bandwidth.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from machine import describe
from torch import nn

import seriatim
from seriatim.models.language_model import LanguageModel
from seriatim.recurrence.obstacles import uncompiled

Decoder = Callable[[int], None]
"""Decodes a number of tokens."""


def bandwidth() -> float:
    """Return the best rate at which a sum reads memory, in bytes per second."""
    values = torch.ones(100_000_000)
    times = []
    for _ in range(5):
        began = time.perf_counter()
        values.sum()
        times.append(time.perf_counter() - began)
    return values.numel() * values.element_size() / min(times)


def ours(model: LanguageModel, batch: int, *, compiled: bool = True) -> Decoder:
    """Return greedy decoding with Seriatim."""

    def decode(tokens: int) -> None:
        token, state = torch.zeros(batch, dtype=torch.long), model.initial_state(batch)
        for _ in range(tokens):
            logits, state = model.step(token, state)
            token = logits.argmax(1)

    def written(tokens: int) -> None:
        with uncompiled():
            decode(tokens)

    return decode if compiled else written


def transformers_loop(model: nn.Module, batch: int, cache: str) -> Decoder:
    """Return greedy decoding with a model of `transformers`; ``cache`` names its argument for the state."""

    def decode(tokens: int) -> None:
        token, state = torch.zeros(batch, 1, dtype=torch.long), None
        for _ in range(tokens):
            result = model(token, use_cache=True, **({} if state is None else {cache: state}))
            state, token = getattr(result, cache), result.logits[:, -1:].argmax(2)

    return decode


class PlainLSTM(nn.Module):
    """An LSTM language model of PyTorch's own modules."""

    def __init__(self, vocabulary_size: int, size: int, layers: int) -> None:
        super().__init__()
        self.embedding, self.layer = nn.Embedding(vocabulary_size, size), nn.LSTM(size, size, layers)
        self.output = nn.Linear(size, vocabulary_size)

    def decoder(self, batch: int) -> Decoder:
        def decode(tokens: int) -> None:
            token, state = torch.zeros(1, batch, dtype=torch.long), None
            for _ in range(tokens):
                hidden, state = self.layer(self.embedding(token), state)
                token = self.output(hidden).argmax(2)

        return decode


def language_model(name: str, size: int, layers: int, words: int, **options: object) -> LanguageModel:
    """Return a model with random weights."""
    torch.manual_seed(0)
    layer = seriatim.layer(name, size, size, num_layers=layers, **options)
    return LanguageModel(layer, words, tie_weights=True, output_bias=False).eval()


def gpt2(size: int, layers: int, words: int) -> tuple[LanguageModel, nn.Module]:
    """Return GPT-2's architecture in Seriatim and in `transformers`."""
    from transformers import GPT2Config, GPT2LMHeadModel

    heads = size // 64
    options = {"norm": "layer", "feed_forward": "gelu-tanh", "bias": True, "position": "learned", "num_heads": heads}
    config = GPT2Config(vocab_size=words, n_embd=size, n_layer=layers, n_head=heads)
    return language_model("transformer", size, layers, words, **options), GPT2LMHeadModel(config).eval()


def mamba(size: int, layers: int, words: int) -> tuple[LanguageModel, nn.Module]:
    """Return Mamba in Seriatim and in `transformers`."""
    from transformers import MambaConfig, MambaForCausalLM

    config = MambaConfig(vocab_size=words, hidden_size=size, num_hidden_layers=layers)
    return language_model("mamba", size, layers, words), MambaForCausalLM(config).eval()


MODELS = {
    "GPT-2, 124 M": lambda: gpt2(768, 12, 50_257),
    "GPT-2, 4 × 256": lambda: gpt2(256, 4, 10_000),
    "Mamba, 130 M": lambda: mamba(768, 24, 50_280),
}


def report(
    title: str, works: dict[str, Decoder], batch: int, weights: int, limit: float, args: argparse.Namespace
) -> None:
    """Time decoders in turn and print a row for each, relative to the first."""
    times: dict[str, list[float]] = {name: [] for name in works}
    for work in works.values():
        work(2)
    for _ in range(args.turns):
        for name, work in works.items():
            began = time.perf_counter()
            work(args.tokens)
            times[name].append((time.perf_counter() - began) / args.tokens)
    first = statistics.median(next(iter(times.values())))
    for name, found in times.items():
        seconds = statistics.median(found)
        share = weights / seconds / limit
        ratio = seconds / first
        print(f"| {title} | {batch} | {name} | {batch / seconds:,.0f} | {share:.2f} | {ratio:.2f} |", flush=True)


def weight_bytes(model: nn.Module) -> int:
    """Return the bytes of the weights."""
    return sum(weight.numel() * weight.element_size() for weight in model.parameters())


def models(args: argparse.Namespace, limit: float) -> None:
    """Compare with other libraries."""
    for title, make in MODELS.items():
        model, peer = make()
        works = {"compiled step": ours(model, 1), "layers": ours(model, 1, compiled=False)}
        works["transformers"] = transformers_loop(peer, 1, "cache_params" if "Mamba" in title else "past_key_values")
        report(title, works, 1, weight_bytes(model), limit, args)
    lstm, plain = language_model("lstm", 650, 2, 10_000), PlainLSTM(10_000, 650, 2).eval()
    works = {"compiled step": ours(lstm, 1), "layers": ours(lstm, 1, compiled=False), "nn.LSTM": plain.decoder(1)}
    report("LSTM, 2 × 650", works, 1, weight_bytes(lstm), limit, args)


def layers(args: argparse.Namespace, limit: float) -> None:
    """Compare the compiled step of every layer with its step as it is written."""
    for name in seriatim.layers.names():
        for size in (256, 1024):
            model = language_model(name, size, 1, 1000)
            for batch in (1, 8, 64):
                works = {"compiled step": ours(model, batch), "layers": ours(model, batch, compiled=False)}
                report(f"{name}, {size}", works, batch, weight_bytes(model), limit, args)


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=["models", "layers"])
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--turns", type=int, default=5)
    args = parser.parse_args()
    limit = bandwidth()
    print(f"{describe()}; memory is read at {limit / 1e9:.1f} GB/s")
    print("\n| model | rows | way | tokens/s | share of the bandwidth | times the first |\n|---|---|---|---|---|---|")
    if args.only != "layers":
        models(args, limit)
    if args.only != "models":
        layers(args, limit)


if __name__ == "__main__":
    main()

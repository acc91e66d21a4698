"""Decode token by token: one call of compiled code for a step, the layers one after another, and other libraries.

    python benchmarks/decoding.py [--only models|formats|prompts|decoders|layers] [--tokens 32] [--turns 5]

models: models with random weights decode greedily, in turn: Seriatim's compiled step, its step as the layers are
written, and a plain forward loop of `transformers` with its cache (GPT-2, and Mamba without its CUDA kernels) or of
PyTorch's own LSTM. formats: GPT-2 of 124 M with weights in float32, bfloat16, int8 and int4, one row and 16 rows,
beside CTranslate2 (whose int8 rounds the activations, too) and, with one row, llama.cpp (Q8_0 and Q4_0). prompts:
reading a prompt of 1,024 tokens beside one forward pass over all of it, as in training. decoders: recurrent decoders
with attention to 15 source tokens. layers: the compiled step of every layer beside its step as it is written.

For each way the script prints the median of tokens per second, the share of the memory's bandwidth that reading the
weights is, the share of the best matrix product, and the ratio of the speeds to the first way. The parts models,
formats and prompts have claims, and a record each.

Claims: GPT-2 at least 2 times `transformers` in float32 and 0.8 of the bandwidth in every format, 1.3 times CTranslate2
with one row and 1.5 times with 16, int4 at least 1.7 times int8 with one row; 4 layers of 256 at least 8 times
`transformers`; an LSTM of 2 × 650 and Mamba of 130 M at least 3 times and 0.7 of the bandwidth; prompts at the rate of
the forward pass.
"""

import argparse
import statistics
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import ctranslate
import llama
import machine
import record
import torch
from machine import describe, product_rate, read_rate
from torch import nn

import seriatim
from seriatim.core.state import State
from seriatim.decoding.sampling import read
from seriatim.models.attention_decoder import luong_decoder
from seriatim.models.copying import Copying
from seriatim.models.encoder_decoder import EncoderDecoder
from seriatim.models.language_model import LanguageModel
from seriatim.recurrence import uncompiled
from seriatim.recurrence.round_weights import round_weights

Decoder = Callable[[int], None]
"""Decodes a number of tokens."""


def ours(
    model: LanguageModel | EncoderDecoder,
    batch: int,
    *,
    compiled: bool = True,
    start: Callable[[], State] | None = None,
) -> Decoder:
    """Return greedy decoding with Seriatim; ``start`` returns the state to begin with."""

    def decode(tokens: int) -> None:
        token, state = torch.zeros(batch, dtype=torch.long), start() if start else model.initial_state(batch)
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


FORMATS = {"float32": 4, "bfloat16": 2, "int8": 1, "int4": 0.5625}
"""The bytes of a weight in each format, with the factors of int4."""
HEADINGS = ("model", "rows", "way", "tokens/s", "of the bandwidth", "of the best product", "relative to the first")


class Limits(NamedTuple):
    """What the machine allows: bytes per second of memory, and operations per second of a product in float32."""

    bandwidth: float
    product: float


Rates = dict[str, list[float]]
"""The tokens a second of each turn, by the name of the way."""


class Way(NamedTuple):
    """A way to decode, and the bytes and numbers of the weights that it reads for each step."""

    decode: Decoder
    bytes: int
    weights: int


def report(
    title: str, ways: dict[str, Way], rows: int, limits: Limits, args: argparse.Namespace, table: list[tuple[str, ...]]
) -> Rates:
    """Time ways in turn, print and add a row for each, with its speed relative to the first, and return the rates."""
    for way in ways.values():
        way.decode(2)
    times = machine.times_in_turn(
        {name: lambda way=way: way.decode(args.tokens) for name, way in ways.items()}, args.turns
    )
    rates = {name: [rows * args.tokens / one for one in taken] for name, taken in times.items()}
    first = statistics.median(next(iter(rates.values())))
    for name, way in ways.items():
        rate = statistics.median(rates[name])
        steps = rate / rows
        shares = way.bytes * steps / limits.bandwidth, 2 * way.weights * rate / limits.product
        cells = [title, str(rows), name, f"{rate:,.0f}", *(f"{share:.2f}" for share in shares)]
        table.append((*cells, f"{rate / first:.2f}"))
        print(f"| {' | '.join(table[-1])} |", flush=True)
    return rates


def at_the_limit(text: str, rates: Sequence[float], count: int, limits: Limits, least: float) -> record.Claim:
    """Return the claim that reading ``count`` bytes for each token takes at least a share of the bandwidth."""
    limit = limits.bandwidth / count
    share = statistics.median(rates) / limit
    return record.Claim(
        text=f"{text}: at least {least} of the rate of memory",
        reached=share >= least,
        ours=f"{statistics.median(rates):,.0f} tokens/s",
        ratio=share,
        limit=f"{limit:,.0f} tokens/s",
    )


def save(
    part: str,
    claims: Sequence[record.Claim],
    rates: dict[str, Rates],
    table: list[tuple[str, ...]],
    limits: Limits,
    args: argparse.Namespace,
) -> None:
    record.save(
        f"decoding-{part}",
        claims=claims,
        settings={"tokens": args.tokens, "turns": args.turns, "limits": limits._asdict()},
        figures=rates,
        tables=[[HEADINGS, *table]],
        peers=["transformers", "ctranslate2", "llama-cpp-python"],
        notes="Random weights, greedy, medians in turn. The bandwidth is the rate at which a sum reads memory; the "
        "share of it counts every weight once for each token, and exceeds 1 where a part stays in the cache.",
    )


def numbers_of(model: nn.Module) -> int:
    """Return how many weights a model has."""
    return sum(weight.numel() for weight in model.parameters())


def compared(
    model: LanguageModel | EncoderDecoder, rows: int, start: Callable[[], State] | None = None, **others: Decoder
) -> dict[str, Way]:
    """Return the compiled step of a model, its step as it is written, and other ways with as many weights."""
    count = numbers_of(model)
    ways = {name: ours(model, rows, compiled=name != "layers", start=start) for name in ("compiled step", "layers")}
    ways |= others
    return {name: Way(decode, 4 * count, count) for name, decode in ways.items()}


def models(args: argparse.Namespace, limits: Limits) -> None:
    """Compare with other libraries."""
    asked = {"GPT-2, 124 M": (2, 0.8), "GPT-2, 4 × 256": (8, None), "Mamba, 130 M": (3, 0.7), "LSTM, 2 × 650": (3, 0.7)}
    rates: dict[str, Rates] = {}
    claims, table = [], list[tuple[str, ...]]()
    for title, (least, share) in asked.items():
        if title in MODELS:
            model, other = MODELS[title]()
            cache = "cache_params" if "Mamba" in title else "past_key_values"
            peer, decode = "transformers", transformers_loop(other, 1, cache)
        else:
            model = language_model("lstm", 650, 2, 10_000)
            peer, decode = "nn.LSTM", PlainLSTM(10_000, 650, 2).eval().decoder(1)
        found = rates[title] = report(title, compared(model, 1, **{peer: decode}), 1, limits, args, table)
        mine, text = found["compiled step"], f"{title}, one text: at least {least} times as fast"
        limit = f"{limits.bandwidth / (4 * numbers_of(model)):,.0f} tokens/s from memory"
        claims.append(
            record.compared(
                text, mine, found[peer], peer=peer, unit="tokens/s", least=least, are_rates=True, limit=limit
            )
        )
        if share:
            claims.append(at_the_limit(title, mine, 4 * numbers_of(model), limits, share))
    save("models", claims, rates, table, limits, args)


def formats(args: argparse.Namespace, limits: Limits) -> None:
    """Compare GPT-2 with rounded weights with CTranslate2 and llama.cpp."""
    peer = gpt2(768, 12, 50_257)[1]
    models = {name: gpt2(768, 12, 50_257)[0] for name in FORMATS}
    for name, model in models.items():
        round_weights(model, name)
    count, table = numbers_of(models["float32"]), list[tuple[str, ...]]()
    rates: dict[str, Rates] = {}
    for rows in (1, 16):
        ways = {f"compiled step, {name}": Way(ours(model, rows), int(FORMATS[name] * count), count)
                for name, model in models.items()}  # fmt: skip
        ways["transformers, float32"] = Way(transformers_loop(peer, rows, "past_key_values"), 4 * count, count)
        for name, size in FORMATS.items():
            others = {"CTranslate2": ctranslate.decoder(peer, 50_257, rows, name)}
            if rows == 1:
                others["llama.cpp"] = llama.decoder(peer, 50_257, name)
            for other, decode in others.items():
                if decode is not None:
                    ways[f"{other}, {name}"] = Way(decode, int(size * count), count)
        rates[f"{rows} rows"] = report("GPT-2, 124 M", ways, rows, limits, args, table)
    save("formats", format_claims(rates, count, limits), rates, table, limits, args)


def format_claims(rates: dict[str, Rates], count: int, limits: Limits) -> list[record.Claim]:
    def faster(text: str, peer: str, weights: str, rows: int, least: float, beside: str = "") -> record.Claim:
        found = rates[f"{rows} rows"]
        return record.compared(
            f"{text}: at least {least} times as fast",
            found[f"compiled step, {weights}"],
            found.get(f"{peer}, {beside or weights}"),
            peer="our " + beside if beside else f"{peer}, {weights}",
            unit="tokens/s",
            least=least,
            are_rates=True,
            limit=f"{rows * limits.bandwidth / (FORMATS[weights] * count):,.0f} tokens/s" if rows == 1 else "",
            absent="not installed, or lacks the format",
        )

    claims = [faster("GPT-2 in int4, one text", "compiled step", "int4", 1, 1.7, "int8")]
    claims += [faster(f"GPT-2 in {name}, one text", "CTranslate2", name, 1, 1.3) for name in ("float32", "int8")]
    claims += [faster(f"GPT-2 in {name}, 16 texts", "CTranslate2", name, 16, 1.5) for name in ("float32", "int8")]
    claims += [faster(f"GPT-2 in {name}, one text", "llama.cpp", name, 1, 1) for name in llama.FORMATS]
    for name, size in FORMATS.items():
        own = rates["1 rows"][f"compiled step, {name}"]
        claims.append(at_the_limit(f"GPT-2 in {name}", own, int(size * count), limits, 0.8))
    return claims


def prompts(args: argparse.Namespace, limits: Limits) -> None:
    """Compare reading a prompt in windows with one forward pass over all of it."""
    length = 1024
    tokens = torch.randint(10_000, (1, length))
    choices = {
        "GPT-2, 124 M": lambda: gpt2(768, 12, 50_257)[0],
        "GPT-2, 4 × 256": lambda: gpt2(256, 4, 10_000)[0],
        "Mamba, 24 × 768": lambda: mamba(768, 24, 10_000)[0],
        "LSTM, 2 × 650": lambda: language_model("lstm", 650, 2, 10_000),
    }
    rates: dict[str, Rates] = {}
    claims, table = [], list[tuple[str, ...]]()
    for title, make in choices.items():
        model = make()
        ways = {
            "prompt": lambda _, model=model: read(model, tokens, model.initial_state(1)),
            "forward pass": lambda _, model=model: model.features(tokens, None, None),
            "forward pass with logits": lambda _, model=model: model(tokens),
        }
        count = numbers_of(model)
        per_call = argparse.Namespace(turns=args.turns, tokens=1)
        sides = {name: Way(way, 4 * count, count) for name, way in ways.items()}
        found = rates[title] = report(title, sides, length, limits, per_call, table)
        mine, whole = found["prompt"], found["forward pass"]
        text = f"{title}: a prompt of {length:,} tokens is read at the rate of a forward pass"
        claims.append(record.compared(text, mine, whole, peer="forward pass", unit="tokens/s", are_rates=True))
    save("prompts", claims, rates, table, limits, args)


def decoders(args: argparse.Namespace, limits: Limits) -> None:
    """Compare the compiled step of recurrent decoders with their step as it is written."""
    choices: list[tuple[str, int, int, dict[str, Any], bool]] = [
        ("LSTM 512, bilinear, input feeding", 512, 8000, {"input_feeding": True}, False),
        ("LSTM 256, dot, location", 256, 60, {"score": "dot", "location": True}, False),
        ("LSTM 256, location, copying", 256, 60, {"score": "dot", "location": True}, True),
    ]
    for title, size, words, options, copies in choices:
        torch.manual_seed(0)
        encoder = seriatim.layer("lstm", size // 2, size // 2, bidirectional=True)
        decoder = luong_decoder(
            lambda width, size=size: seriatim.layer("lstm", width, size), size // 2, size, **options
        )
        model = EncoderDecoder(encoder, decoder, words, words, size // 2).eval()
        if copies:
            model.copying = Copying(size, torch.arange(words), None)
        for rows in (1, 5, 40, 320):
            source = torch.randint(words, (rows, 15))
            ways = compared(model, rows, start=lambda model=model, s=source: model.encode(s))
            report(title, ways, rows, limits, args, [])


def layers(args: argparse.Namespace, limits: Limits) -> None:
    """Compare the compiled step of every layer with its step as it is written."""
    for name in args.names.split(",") if args.names else seriatim.layers.names():
        for size in (256, 1024):
            model = language_model(name, size, 1, 1000)
            for rows in (1, 8, 64):
                report(f"{name}, {size}", compared(model, rows), rows, limits, args, [])


PARTS = {"models": models, "formats": formats, "prompts": prompts, "decoders": decoders, "layers": layers}


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=PARTS)
    parser.add_argument("--names", help="with --only layers: names with commas between them (default: all)")
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--turns", type=int, default=5)
    args = parser.parse_args()
    limits = Limits(read_rate(), 1e9 * product_rate(torch.float32))
    print(f"{describe()}; memory is read at {limits.bandwidth / 1e9:.1f} GB/s")
    print("\n| model | rows | way | tokens/s | of the bandwidth | of the best product | ratio to the first |")
    print("|---|---|---|---|---|---|---|")
    for name, part in PARTS.items():
        if args.only in (None, name):
            part(args, limits)


if __name__ == "__main__":
    main()

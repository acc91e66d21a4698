"""Compare Seriatim on a GPU with cuDNN and `torch.compile`: values, speed, memory, and decoding.

    python benchmarks/gpu.py                # on a GPU of NVIDIA, needs no network and at most 8 minutes
    python benchmarks/gpu.py --interpret    # tests this script on a CPU with Triton's interpreter; measures nothing

- training: forward and backward of an LSTM, a GRU, a peephole LSTM as a user writes one, and Mamba, in float32 without
  TF32. The peer of a recurrence is PyTorch's layer (cuDNN), that of the own cell `torch.nn.LSTM`, which has no
  peepholes; the second peer is the step under `torch.compile`, called once for each input, and for Mamba the whole
  layer under `torch.compile`. Values and gradients are compared with those of the steps as they are written, in
  float64: `agrees` is the largest difference relative to the largest value.
- decoding: a language model chooses a token after another, in float32; the peer is a model of PyTorch's own modules.
- limits: the best matrix product in float32, and the rate at which memory is read.

Claims: the own cell and both recurrences take at most as long as cuDNN; Mamba and decoding at most as long as their
peers; all values agree to 1e-3. Where there is no GPU, nothing is measured, and the claims say so.
"""

import argparse
import contextlib
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from unittest import mock

import machine
import record
import torch
from torch import Tensor, nn
from unrolled import Peephole

import seriatim
from seriatim.models.language_model import LanguageModel
from seriatim.recurrence import compiled_modules, conditions, explain, fast_path
from seriatim.recurrence.recurrent import loop

SECONDS = 420
"""Time after which no further layer is begun, so that the script ends within 8 minutes."""
TOLERANCE = 1e-3
Run = Callable[[Tensor], Tensor]
"""Computes the outputs of inputs ``(batch, time, width)``."""


class Sizes(NamedTuple):
    """The sizes of what is measured: sequences, their length, widths, and for decoding texts and words."""

    batch: int
    time: int
    width: int
    texts: tuple[int, ...]
    words: int
    tokens: int
    repeats: int


FULL = Sizes(64, 256, 512, (1, 64), 50_000, 64, 9)
TINY = Sizes(2, 3, 8, (1,), 11, 2, 1)


class Peer(NamedTuple):
    """Another way to compute a layer: a module with parameters, how it runs, and whether its outputs are the same."""

    module: nn.Module
    run: Run
    is_equal: bool = True


class Contestant(NamedTuple):
    """A layer with its own forward, its peers by their names, and the steps as they are written, as a reference."""

    layer: nn.Module
    peers: dict[str, Peer]
    reference: Callable[[nn.Module, Tensor], Tensor]


def recurrence(layer: seriatim.Recurrent, twin: type[nn.RNNBase], width: int, device: str) -> Contestant:
    """Return a recurrent layer beside a layer of PyTorch, which has the same weights if it has the same parameters."""
    layer = layer.to(device)
    theirs = twin(width, width, batch_first=True).to(device)
    weights = {name.removeprefix("cell."): value for name, value in layer.state_dict().items()}
    if is_equal := weights.keys() == theirs.state_dict().keys():
        theirs.load_state_dict(weights)
    step = torch.compile(layer.cell, backend=backend(device))

    def steps(inputs: Tensor) -> Tensor:
        state, outputs = layer.initial_state(len(inputs)), []
        for x in inputs.unbind(1):
            output, state = step(x, state)
            outputs.append(output)
        return torch.stack(outputs, 1)

    def written(module: nn.Module, inputs: Tensor) -> Tensor:
        state = module.initial_state(len(inputs))
        return loop(module.cell, inputs, state, None, output_size=width)[0]

    peers = {f"nn.{twin.__name__}": Peer(theirs, lambda x: theirs(x)[0], is_equal), "torch.compile": Peer(layer, steps)}
    return Contestant(layer, peers, written)


def mamba(width: int, device: str) -> Contestant:
    layer = seriatim.layer("mamba", width, width).to(device)
    compiled = torch.compile(layer, backend=backend(device))

    def written(module: nn.Module, inputs: Tensor) -> Tensor:
        state, outputs = module.initial_state(len(inputs)), []
        for x in inputs.unbind(1):
            output, state = module.step(x, state)
            outputs.append(output)
        return torch.stack(outputs, 1)

    return Contestant(layer, {"torch.compile": Peer(layer, lambda x: compiled(x)[0])}, written)


def backend(device: str) -> str:
    return "inductor" if device == "cuda" else "eager"


CONTESTANTS: dict[str, Callable[[int, str], Contestant]] = {
    "LSTM": lambda width, device: recurrence(seriatim.layer("lstm", width, width), nn.LSTM, width, device),
    "GRU": lambda width, device: recurrence(seriatim.layer("gru", width, width), nn.GRU, width, device),
    "peephole LSTM": lambda width, device: recurrence(
        seriatim.Recurrent(Peephole(width, width)), nn.LSTM, width, device
    ),
    "Mamba": mamba,
}


def gradients(module: nn.Module, run: Run, inputs: Tensor, cotangent: Tensor) -> list[Tensor]:
    """Return outputs, and the gradients of inputs and parameters."""
    inputs = inputs.detach().requires_grad_()
    outputs = run(inputs)
    return [outputs.detach(), *torch.autograd.grad(outputs, [inputs, *module.parameters()], cotangent)]


def difference(contestant: Contestant, inputs: Tensor, cotangent: Tensor) -> float:
    """Return the largest difference of values and gradients from those in float64 and from the outputs of peers.

    It is relative to the largest value.
    """
    layer = contestant.layer
    with torch.no_grad():
        outputs = [peer.run(inputs) for peer in contestant.peers.values() if peer.is_equal]
    found = gradients(layer, lambda x: layer(x)[0], inputs, cotangent)
    layer.double()
    expected = gradients(layer, lambda x: contestant.reference(layer, x), inputs.double(), cotangent.double())
    layer.float()
    pairs = [*zip(found, expected, strict=True), *((output, expected[0]) for output in outputs)]
    return max(float((mine - theirs).abs().max() / theirs.abs().max().clamp(min=1e-12)) for mine, theirs in pairs)


def in_turn(works: dict[str, Callable[[], object]], device: str, repeats: int) -> dict[str, dict[str, Any]]:
    """Return the seconds of each turn and the peak of memory in MB of each work, after each has run twice."""
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    times: dict[str, list[float]] = {name: [] for name in works}
    peaks = dict.fromkeys(works, 0.0)
    for name, work in works.items():
        for _ in range(2):
            work()
        if device == "cuda":
            wait()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            work()
            wait()
            peaks[name] = (torch.cuda.max_memory_allocated() - before) / 1e6
    for _ in range(repeats):
        for name, work in works.items():
            wait()
            began = time.perf_counter()
            work()
            wait()
            times[name].append(time.perf_counter() - began)
    return {name: {"seconds": each, "MB": peaks[name]} for name, each in times.items()}


def train(name: str, sizes: Sizes, device: str) -> dict[str, Any]:
    """Measure forward and backward of one layer and its peers."""
    torch.manual_seed(0)
    contestant = CONTESTANTS[name](sizes.width, device)
    layer = contestant.layer
    if isinstance(layer, seriatim.Recurrent) and "runs as a loop" in (how := explain(layer.cell)):
        sys.exit(f"{name}: {how}")
    shape = sizes.batch, sizes.time, sizes.width
    inputs, cotangent = torch.randn(shape, device=device), torch.randn(shape, device=device)
    few = slice(0, min(8, sizes.batch)), slice(0, min(32, sizes.time))
    agrees = difference(contestant, inputs[few], cotangent[few])
    works: dict[str, Callable[[], object]] = {
        "seriatim": lambda: gradients(layer, lambda x: layer(x)[0], inputs, cotangent)
    }
    for name, peer in contestant.peers.items():
        works[name] = lambda peer=peer: gradients(peer.module, peer.run, inputs, cotangent)
    return {"agrees": agrees, "found": in_turn(works, device, sizes.repeats)}


class Plain(nn.Module):
    """A language model of PyTorch's own modules."""

    def __init__(self, words: int, width: int) -> None:
        super().__init__()
        self.embedding, self.layer = nn.Embedding(words, width), nn.LSTM(width, width)
        self.output = nn.Linear(width, words)

    def decode(self, tokens: int, texts: int) -> None:
        token, state = torch.zeros(1, texts, dtype=torch.long, device=self.output.weight.device), None
        for _ in range(tokens):
            hidden, state = self.layer(self.embedding(token), state)
            token = self.output(hidden).argmax(2)


def decode(texts: int, sizes: Sizes, device: str) -> dict[str, Any]:
    """Measure greedy decoding of some texts at once with an LSTM; `agrees` compares steps with the whole sequence."""
    torch.manual_seed(0)
    model = LanguageModel(seriatim.layer("lstm", sizes.width, sizes.width), sizes.words).eval().to(device)
    plain = Plain(sizes.words, sizes.width).eval().to(device)

    def ours() -> None:
        token, state = torch.zeros(texts, dtype=torch.long, device=device), model.initial_state(texts)
        for _ in range(sizes.tokens):
            logits, state = model.step(token, state)
            token = logits.argmax(1)

    with torch.inference_mode():
        ids = torch.randint(sizes.words, (texts, 4), device=device)
        whole, state = model(ids)[0], model.initial_state(texts)
        for i in range(ids.shape[1]):
            last, state = model.step(ids[:, i], state)
        agrees = float((last - whole[:, -1]).abs().max() / whole.abs().max())
        works = {"seriatim": ours, "nn.LSTM": lambda: plain.decode(sizes.tokens, texts)}
        return {"agrees": agrees, "found": in_turn(works, device, sizes.repeats)}


@contextlib.contextmanager
def interpreted() -> Iterator[None]:
    """Let tensors on the CPU take the way of a GPU, in Triton's interpreter."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.dict(os.environ, TRITON_INTERPRET="1"))
        for module in (conditions, fast_path, compiled_modules):
            stack.enter_context(mock.patch.object(module, "on_gpu", return_value=True))
        yield


def limits() -> dict[str, float]:
    """Return the best matrix product in GF/s, and the rate in GB/s at which memory is read."""
    a, values = torch.ones(8192, 8192, device="cuda"), torch.ones(2**28, device="cuda")
    found = in_turn({"product": lambda: a @ a, "read": values.sum}, "cuda", 5)
    return {
        "product": 2 * 8192**3 / min(found["product"]["seconds"]) / 1e9,
        "read": 4 * 2**28 / min(found["read"]["seconds"]) / 1e9,
    }


def works_of(sizes: Sizes, device: str) -> dict[str, tuple[str, Callable[[], dict[str, Any]]]]:
    """Return what is measured, each with its first peer."""
    peers = {"LSTM": "nn.LSTM", "GRU": "nn.GRU", "peephole LSTM": "nn.LSTM"}
    return {
        **{
            f"training: {name}": (peers.get(name, "torch.compile"), lambda name=name: train(name, sizes, device))
            for name in CONTESTANTS
        },
        **{
            f"decoding: {texts} texts": ("nn.LSTM", lambda texts=texts: decode(texts, sizes, device))
            for texts in sizes.texts
        },
    }


def measure(sizes: Sizes, device: str) -> dict[str, dict[str, Any]]:
    """Measure everything, or as much as there is time for."""
    began, results = time.perf_counter(), {}
    for name, (_, work) in works_of(sizes, device).items():
        if time.perf_counter() - began > SECONDS:
            print(f"{name}: not measured, the time is spent")
            continue
        results[name] = work()
        print(f"{name}: agrees to {results[name]['agrees']:.1e}", flush=True)
    return results


def claims_of(results: dict[str, dict[str, Any]], absent: str) -> list[record.Claim]:
    """Return the claims; what has no result is not measured, for the reason ``absent``."""
    claims = []
    for name, (peer, _) in works_of(FULL, "cuda").items():
        found = results[name]["found"] if name in results else {}
        turns = [[1e3 * one for one in found[way]["seconds"]] if found else [] for way in ("seriatim", peer)]
        claims.append(
            record.compared(f"{name}: at most the time of {peer}", *turns, peer=peer, unit="ms", absent=absent)
        )
    agrees = all(each["agrees"] <= TOLERANCE for each in results.values()) if results else None
    return [*claims, record.Claim(text=f"values and gradients agree to {TOLERANCE:g}", reached=agrees)]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--interpret", action="store_true", help="test this script on a CPU, at tiny sizes")
    if parser.parse_args(arguments).interpret:
        with interpreted():
            results = measure(TINY, "cpu")
        if any(each["agrees"] > TOLERANCE for each in results.values()):
            sys.exit("the values differ")
        print("the script works; no speed was measured, because Triton's interpreter ran the kernels")
        return
    if not torch.cuda.is_available():
        print("not measured: PyTorch finds no GPU here (--interpret tests this script on a CPU)")
        save({}, {}, "no GPU here")
        return

    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    gpu, limit = torch.cuda.get_device_name(), limits()
    print(f"{machine.describe()}; {gpu}: product {limit['product']:,.0f} GF/s, memory {limit['read']:,.0f} GB/s")
    save(measure(FULL, "cuda"), limit, f"not measured in {SECONDS} s", gpu)


def save(results: dict[str, dict[str, Any]], limit: dict[str, float], absent: str, gpu: str = "") -> None:
    """Write the record, with tables and figures of what was measured."""
    table: list[list[object]] = [["", "way", "ms", "MB", "ratio to Seriatim", "agrees to"]]
    figures: dict[str, Any] = {"limits": limit}
    for name, each in results.items():
        ours = each["found"]["seriatim"]["seconds"]
        figures[name] = {"agrees": each["agrees"]}
        for way, found in each["found"].items():
            ratio = record.ratios(ours, found["seconds"])
            figures[name][way] = {**found, "ratio": ratio}
            row = [name, way, f"{1e3 * statistics.median(found['seconds']):.2f}", f"{found['MB']:.0f}"]
            agrees = f"{each['agrees']:.1e}" if way == "seriatim" else ""
            table.append([*row, f"{statistics.median(ratio):.2f}", agrees])
    measured = (
        f"Measured on {gpu}: product {limit['product']:,.0f} GF/s, memory {limit['read']:,.0f} GB/s." if gpu else ""
    )
    record.save(
        "gpu",
        claims=claims_of(results, absent),
        settings={"gpu": gpu, "sizes": FULL._asdict()},
        figures=figures,
        tables=[table] if results else [],
        peers=["triton"],
        notes=f"In float32 without TF32; medians in turn. {measured}",
    )


if __name__ == "__main__":
    main()

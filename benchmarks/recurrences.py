"""Compare the recurrences of 2023 to 2026 on a CPU with the implementations that others have of them.

    pip install transformers
    pip install --no-deps xlstm mlstm_kernels dacite omegaconf einops antlr4-python3-runtime
    python benchmarks/recurrences.py [--layers mamba2,kda] [--repeats 5]

Claims: at least 10 times as fast where the other implementation is a loop in Python, and at least as fast elsewhere.

There are three jobs: a training step of 4 layers of width 256 for 8 sequences of 256 inputs (forward, loss,
backward), a prompt of one sequence of 1,024 inputs, and one step of one sequence. Layers are mixers alone, with
residual connections and without norms. The peers are those of `transformers` without the kernels of fla, and of
`xlstm` without CUDA. RetNet stands beside MiniMax's lightning attention, which is the same recurrence with other
gates; the others are the same architecture with as many parameters. The limit is the time of the matrix products of
the linear maps alone, at the best rate of the machine.
"""

import argparse
import functools
import statistics
from collections.abc import Callable
from typing import Any, NamedTuple

import machine
import record
import torch
from torch import Tensor, nn

import seriatim

DEPTH, WIDTH, HEADS = 4, 256, 4
TRAINED, PROMPT = (8, 256), (1, 1024)
JOBS = ("training", "prompt", "step")
LOOPS = ("rg-lru", "slstm")
"""Those whose other implementation is a loop over time in Python."""
OPTIONS: dict[str, dict[str, Any]] = {
    "mamba2": {"num_heads": 2 * HEADS},
    "retnet": {"num_heads": HEADS, "expansion": 1},
    "short-convolution": {},
}
"""Those of layers that do not have the usual heads alone."""


class Peer(NamedTuple):
    """Another implementation: a layer, and what one call of it and one step with a cache return."""

    name: str
    make: Callable[[int], nn.Module]
    call: Callable[[nn.Module, Tensor], Tensor]
    step: Callable[[nn.Module, Tensor, Any], tuple[Tensor, Any]]
    cache: Callable[[], Any] = dict


def transformers_peers() -> dict[str, Peer]:
    """Return the peers of `transformers`."""
    import transformers as hf
    from transformers.models.kimi_linear.modeling_kimi_linear import KimiLinearDeltaAttention
    from transformers.models.lfm2.modeling_lfm2 import Lfm2ShortConv
    from transformers.models.mamba2.modeling_mamba2 import Mamba2Mixer
    from transformers.models.minimax.modeling_minimax import MiniMaxCache, MiniMaxLightningAttention
    from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextGatedDeltaNet
    from transformers.models.recurrent_gemma.modeling_recurrent_gemma import RecurrentGemmaRecurrentBlock

    hf.logging.set_verbosity_error()
    size, linear = WIDTH // HEADS, {"layer_types": ["linear_attention"] * DEPTH}
    common = {"hidden_size": WIDTH, "num_hidden_layers": DEPTH}
    mamba2 = hf.Mamba2Config(**common, num_heads=2 * HEADS, head_dim=size, n_groups=1, state_size=128)
    names = ("num_key_heads", "num_value_heads", "key_head_dim", "value_head_dim")
    sizes = dict(zip((f"linear_{name}" for name in names), (HEADS, HEADS, size, size), strict=True))
    qwen = hf.Qwen3NextConfig(**common, **linear, **sizes)
    kimi = hf.KimiLinearConfig(
        **common, **linear, mlp_layer_types=["dense"] * DEPTH, linear_head_dim=size, linear_num_heads=HEADS
    )
    gemma = hf.RecurrentGemmaConfig(**common, num_attention_heads=HEADS, lru_width=WIDTH, w_init_variance_scale=0.01)
    minimax = hf.MiniMaxConfig(**common, **linear, num_attention_heads=HEADS, head_dim=size)
    lfm2 = hf.Lfm2Config(**common, layer_types=["conv"] * DEPTH)

    def with_cache(layer: nn.Module, x: Tensor, cache: Any) -> tuple[Tensor, Any]:
        return layer(x, cache), cache

    def gemma_call(layer: nn.Module, x: Tensor, *, use_cache: bool = False) -> Tensor:
        return layer(x, torch.arange(x.shape[1]).unsqueeze(0), None, use_cache=use_cache)[0]

    def gemma_step(layer: nn.Module, x: Tensor, cache: Any) -> tuple[Tensor, Any]:
        return gemma_call(layer, x, use_cache=True), cache

    def minimax_step(layer: nn.Module, x: Tensor, cache: Any) -> tuple[Tensor, Any]:
        return layer(x, None, None, cache)[0], cache

    def lfm2_step(layer: nn.Module, x: Tensor, cache: Any) -> tuple[Tensor, Any]:
        return layer(x, past_key_values=cache), cache

    def plain(layer: nn.Module, x: Tensor) -> Tensor:
        return layer(x)

    def cached(config: Any) -> Callable[[], Any]:
        return lambda: hf.DynamicCache(config=config)

    def minimax_call(layer: nn.Module, x: Tensor) -> Tensor:
        return layer(x, None, None)[0]

    makers = {
        "mamba2": (Mamba2Mixer, mamba2, plain, with_cache, cached(mamba2)),
        "gated-deltanet": (Qwen3NextGatedDeltaNet, qwen, plain, with_cache, cached(qwen)),
        "kda": (KimiLinearDeltaAttention, kimi, plain, with_cache, cached(kimi)),
        "rg-lru": (RecurrentGemmaRecurrentBlock, gemma, gemma_call, gemma_step, dict),
        "retnet": (MiniMaxLightningAttention, minimax, minimax_call, minimax_step, MiniMaxCache),
        "short-convolution": (Lfm2ShortConv, lfm2, plain, lfm2_step, cached(lfm2)),
    }
    return {
        name: Peer(kind.__name__, functools.partial(kind, config), *calls)
        for name, (kind, config, *calls) in makers.items()
    }


def xlstm_peers() -> dict[str, Peer]:
    """Return the peers of `xlstm`."""
    from xlstm.blocks.mlstm.layer import mLSTMLayer, mLSTMLayerConfig
    from xlstm.blocks.slstm.layer import sLSTMLayer, sLSTMLayerConfig

    def make_mlstm(_: int) -> nn.Module:
        return mLSTMLayer(
            mLSTMLayerConfig(embedding_dim=WIDTH, num_heads=HEADS, context_length=max(PROMPT[1], TRAINED[1]))
        )

    def make_slstm(_: int) -> nn.Module:
        return sLSTMLayer(sLSTMLayerConfig(embedding_dim=WIDTH, num_heads=HEADS, backend="vanilla", dtype="float32"))

    def step(layer: nn.Module, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        return layer.step(x, **state)

    def plain(layer: nn.Module, x: Tensor) -> Tensor:
        return layer(x)

    return {"mlstm": Peer("mLSTMLayer", make_mlstm, plain, step), "slstm": Peer("sLSTMLayer", make_slstm, plain, step)}


def ours(name: str) -> seriatim.SequenceLayer:
    """Return our mixers."""
    options = OPTIONS.get(name, {"num_heads": HEADS})
    layer = seriatim.layer(name, WIDTH, WIDTH, num_layers=DEPTH, block=False, residual=True, **options)
    assert isinstance(layer, seriatim.SequenceLayer)
    return layer


def theirs(peer: Peer) -> nn.ModuleList:
    """Return their mixers."""
    return nn.ModuleList([peer.make(i) for i in range(DEPTH)])


def works(name: str, peer: Peer) -> dict[str, dict[str, Callable[[], object]]]:
    """Return both sides of each job."""
    torch.manual_seed(0)
    mine, other = ours(name), theirs(peer)
    trained, prompt, one = torch.randn(*TRAINED, WIDTH), torch.randn(*PROMPT, WIDTH), torch.randn(1, 1, WIDTH)

    def run(x: Tensor) -> Tensor:
        for layer in other:
            x = x + peer.call(layer, x)
        return x

    def train(call: Callable[[Tensor], Tensor]) -> None:
        call(trained).square().mean().backward()

    @torch.no_grad()
    def read(call: Callable[[Tensor], Tensor], model: nn.Module) -> None:
        model.eval()
        call(prompt)
        model.train()

    # a state that is written in place stays in use, as in generation
    caches = [peer.cache() for _ in other]
    shared = caches[0]
    state = mine.initial_state(1)

    @torch.no_grad()
    def step_theirs() -> None:
        other.eval()
        x = one
        for i, layer in enumerate(other):
            is_shared = not isinstance(shared, dict)
            y, cache = peer.step(layer, x, shared if is_shared else caches[i])
            caches[i], x = cache, x + y
        other.train()

    @torch.no_grad()
    def step_ours() -> None:
        nonlocal state
        mine.eval()
        _, state = mine.step(one[:, 0], state)

    def many(step: Callable[[], None], count: int = 50) -> None:
        for _ in range(count):
            step()

    def call_ours(x: Tensor) -> Tensor:
        mine.train(torch.is_grad_enabled())
        return mine(x)[0]

    return {
        "training": {"ours": lambda: train(call_ours), "theirs": lambda: train(run)},
        "prompt": {"ours": lambda: read(call_ours, mine), "theirs": lambda: read(run, other)},
        "step": {"ours": lambda: many(step_ours), "theirs": lambda: many(step_theirs)},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", help="separated by commas (default: all)")
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    peers = {**transformers_peers(), **xlstm_peers()}
    names = arguments.layers.split(",") if arguments.layers else list(peers)
    if unknown := set(names) - peers.keys():
        parser.error(f"no peer for {', '.join(sorted(unknown))}; choose from {', '.join(peers)}")
    rate = 1e9 * machine.product_rate(torch.float32)
    rows = [["layer", "job", "ours, ms", "theirs, ms", "ratio", "products alone, ms", "tokens/s"]]
    claims, figures = [], {}
    for name in names:
        maps = sum(each.weight.numel() for each in ours(name).modules() if isinstance(each, nn.Linear))
        for job, both in works(name, peers[name]).items():
            for work in both.values():
                work()
            found = machine.times_in_turn(both, arguments.repeats)
            tokens = {"training": TRAINED[0] * TRAINED[1], "prompt": PROMPT[1], "step": 50}[job]
            limit = 2 * tokens * maps * (3 if job == "training" else 1) / rate
            ratios = [b / a for a, b in zip(found["ours"], found["theirs"], strict=True)]
            ratio, mine, other = (statistics.median(each) for each in (ratios, found["ours"], found["theirs"]))
            figures[f"{name} {job}"] = {**found, "ratio": ratios, "limit": limit}
            shown = [f"{1000 * mine:.1f}", f"{1000 * other:.1f}", f"**{ratio:.2f}**", f"{1000 * limit:.1f}"]
            rows.append([f"`{name}`", job, *shown, f"{tokens / mine:,.0f}"])
            print(*rows[-1], sep=" | ", flush=True)
            asked = 10 if name in LOOPS and job == "training" else 1
            claims.append(
                record.Claim(
                    text=f"{name}, {job}: at least {asked} times as fast",
                    reached=ratio >= asked,
                    peer=peers[name].name,
                    ours=f"{1000 * mine:.1f} ms",
                    theirs=f"{1000 * other:.1f} ms",
                    ratio=ratio,
                    limit=f"{1000 * limit:.1f} ms of products",
                )
            )
    record.save(
        "recurrences",
        claims=claims,
        settings=vars(arguments),
        figures=figures,
        tables=[rows],
        peers=["transformers", "xlstm"],
        notes=f"{DEPTH} mixers of width {WIDTH}; a step is 50 steps of one sequence. The limit is the time of the "
        "products of the linear maps at the best rate of the machine, without the recurrence.",
    )


if __name__ == "__main__":
    main()

"""Compare our attention layers with those of transformers: training, and decoding with a cache.

Claim: training our attention layers is no slower than training those of transformers on the CPU.

    python benchmarks/attention.py

Both sides have the same architecture and sizes, which the number of parameters confirms: GPT-2, Llama with grouped
queries, the encoder of BERT, and Mixtral. Inputs and outputs are vectors in float32, there is no dropout, and the loss
is the mean square of the outputs. The models of transformers use `sdpa` attention; GPT-2 uses the fused form of its
GELU, and Mixtral is measured with the default experts of transformers and with the eager ones. Decoding reads one
vector at a time and keeps keys and values. A ratio is their time over ours, so that a ratio above 1 means that we are
faster. The share is the rate of our matrix products relative to the best matrix product of the machine; half of a
causal attention is counted.
"""

import argparse
import os
import statistics
from collections.abc import Callable
from typing import Any, NamedTuple

import machine
import record
import torch
from torch import Tensor, nn

import seriatim
from seriatim.core.contract import SequenceLayer
from seriatim.layers.experts import Experts

os.environ["TRANSFORMERS_VERBOSITY"] = "error"  # read when it is imported, which is therefore later

Run = Callable[[Tensor], Tensor]


class Shape(NamedTuple):
    """One architecture in both libraries, and how to call the other library's model."""

    ours: SequenceLayer
    theirs: nn.Module
    call: Run


def config(kind: str, sizes: argparse.Namespace, **more: Any) -> Any:
    """Return a configuration of transformers, under the names that most of its models share."""
    import transformers

    common = {
        "vocab_size": 8,  # vectors are given, so that no embedding is used
        "hidden_size": sizes.width,
        "num_hidden_layers": sizes.layers,
        "num_attention_heads": sizes.heads,
        "max_position_embeddings": max(sizes.time, sizes.tokens),
        "attn_implementation": "sdpa",
    }
    return getattr(transformers, kind)(**common, **more)


def ours(sizes: argparse.Namespace, **options: Any) -> SequenceLayer:
    return seriatim.layer(
        "transformer", sizes.width, sizes.width, num_layers=sizes.layers, num_heads=sizes.heads, **options
    )


def gpt2(sizes: argparse.Namespace) -> Shape:
    from transformers import GPT2Model

    off = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    made = config("GPT2Config", sizes, activation_function="gelu_pytorch_tanh", **off)
    theirs = GPT2Model(made)
    layer = ours(
        sizes,
        position="learned",
        max_length=made.max_position_embeddings,
        norm="layer",
        feed_forward="gelu-tanh",
        bias=True,
    )
    return Shape(layer, theirs, lambda x: theirs(inputs_embeds=x, use_cache=False).last_hidden_state)


def llama(sizes: argparse.Namespace) -> Shape:
    from transformers import LlamaModel

    theirs = LlamaModel(config("LlamaConfig", sizes, num_key_value_heads=sizes.kv_heads, intermediate_size=sizes.inner))
    layer = ours(sizes, num_kv_heads=sizes.kv_heads, feed_forward_size=sizes.inner)
    return Shape(layer, theirs, lambda x: theirs(inputs_embeds=x, use_cache=False).last_hidden_state)


def bert(sizes: argparse.Namespace) -> Shape:
    from transformers import BertModel

    off = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    made = config("BertConfig", sizes, intermediate_size=4 * sizes.width, **off)
    theirs = BertModel(made, add_pooling_layer=False).encoder
    layer = ours(sizes, causal=False, position="none", norm="layer", norm_first=False, feed_forward="gelu", bias=True)
    return Shape(layer, theirs, lambda x: theirs(x).last_hidden_state)


def mixtral(sizes: argparse.Namespace, experts: str | None = None) -> Shape:
    from transformers import MixtralModel

    more = {"num_key_value_heads": sizes.kv_heads, "num_local_experts": 8, "num_experts_per_tok": 2}
    made = config("MixtralConfig", sizes, intermediate_size=sizes.inner, experts_implementation=experts, **more)
    theirs = MixtralModel(made)
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            if name.endswith("gate.weight"):  # of the size ours has, so that the load is as even
                parameter.uniform_(-(sizes.width**-0.5), sizes.width**-0.5)
    layer = ours(
        sizes,
        num_kv_heads=sizes.kv_heads,
        feed_forward_size=sizes.inner,
        num_experts=8,
        experts_per_token=2,
        balance=0.0,  # theirs leaves the balance out unless asked
    )
    return Shape(layer, theirs, lambda x: theirs(inputs_embeds=x, use_cache=False).last_hidden_state)


SHAPES: dict[str, Callable[[argparse.Namespace], Shape]] = {
    "gpt-2": gpt2,
    "llama": llama,
    "bert": bert,
    "mixtral": mixtral,
    "mixtral, eager experts": lambda sizes: mixtral(sizes, "eager"),
}


def trainable(model: nn.Module) -> int:
    """Return the number of parameters in use, without the token embedding."""
    passed_by = ("wte.weight", "embed_tokens.weight")
    return sum(p.numel() for name, p in model.named_parameters() if name not in passed_by)


def linear_flops(layer: nn.Module) -> float:
    """Return the operations of one input through every matrix once."""
    flops = sum(2.0 * module.weight.numel() for module in layer.modules() if isinstance(module, nn.Linear))
    for module in layer.modules():
        if isinstance(module, Experts):
            idle = 1 - module.router.per_token / len(module.experts)
            flops -= idle * linear_flops(module.experts)
    return flops


def attention_flops(sizes: argparse.Namespace, pairs: float) -> float:
    """Return the operations of scores and sums in every layer, for a number of pairs of query and key."""
    return 4.0 * pairs * sizes.width * sizes.layers


def training_flops(layer: SequenceLayer, sizes: argparse.Namespace) -> float:
    """Return three times the operations of the forward pass, because the backward pass needs twice as many."""
    pairs = sizes.time * (sizes.time + 1) / 2 if layer.causal else sizes.time**2
    return 3 * sizes.batch * (sizes.time * linear_flops(layer) + attention_flops(sizes, pairs))


def decoding_flops(layer: SequenceLayer, sizes: argparse.Namespace) -> float:
    return sizes.tokens * linear_flops(layer) + attention_flops(sizes, sizes.tokens * (sizes.tokens + 1) / 2)


def training(model: nn.Module, run: Run, inputs: Tensor) -> Callable[[], None]:
    def work() -> None:
        for parameter in model.parameters():
            parameter.grad = None
        run(inputs).square().mean().backward()

    return work


def step_ours(layer: SequenceLayer, inputs: Tensor) -> Callable[[], None]:
    @torch.inference_mode()
    def work() -> None:
        state = layer.initial_state(1)
        for t in range(inputs.shape[1]):
            _, state = layer.step(inputs[:, t], state)

    return work


def step_theirs(model: nn.Module, inputs: Tensor) -> Callable[[], None]:
    from transformers import DynamicCache

    @torch.inference_mode()
    def work() -> None:
        cache = DynamicCache(config=model.config)
        for t in range(inputs.shape[1]):
            model(inputs_embeds=inputs[:, t : t + 1], past_key_values=cache, use_cache=True)

    return work


def compare(works: dict[str, Callable[[], None]], flops: float, repeats: int, best: float) -> dict[str, list[float]]:
    """Run both models in turn, and return their seconds, the ratios, and our share of the best product."""
    for work in works.values():
        work()
    found = machine.times_in_turn(works, repeats)
    ratios = [theirs / ours for ours, theirs in zip(found["ours"], found["theirs"], strict=True)]
    return {**found, "ratio": ratios, "share": [flops / taken / 1e9 / best for taken in found["ours"]]}


def train(name: str, sizes: argparse.Namespace, best: float) -> dict[str, list[float]]:
    torch.manual_seed(0)
    shape = SHAPES[name](sizes)
    shape.ours.train(), shape.theirs.train()
    inputs = torch.randn(sizes.batch, sizes.time, sizes.width)
    works = {
        "ours": training(shape.ours, lambda x: shape.ours(x)[0], inputs),
        "theirs": training(shape.theirs, shape.call, inputs),
    }
    assert trainable(shape.ours) == trainable(shape.theirs), "not the same architecture"
    return compare(works, training_flops(shape.ours, sizes), sizes.repeats, best)


def decode(sizes: argparse.Namespace, best: float) -> dict[str, list[float]]:
    torch.manual_seed(0)
    shape = llama(sizes)
    shape.ours.eval(), shape.theirs.eval()
    inputs = torch.randn(1, sizes.tokens, sizes.width)
    works = {"ours": step_ours(shape.ours, inputs), "theirs": step_theirs(shape.theirs, inputs)}
    return compare(works, decoding_flops(shape.ours, sizes), max(3, sizes.repeats // 3), best)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--kv-heads", type=int, default=2)
    parser.add_argument("--inner", type=int, default=688, help="width of the gated feed-forward networks")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--time", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=300, help="number of tokens that are decoded one at a time")
    parser.add_argument("--repeats", type=int, default=15)
    sizes = parser.parse_args()
    best = machine.product_rate(torch.float32)
    found = {name: train(name, sizes, best) for name in SHAPES}
    found["llama, decoding"] = decode(sizes, best)
    medians = {name: {key: statistics.median(each) for key, each in one.items()} for name, one in found.items()}
    rows = [["", "ours, s", "theirs, s", "ratio", "of the best product"]]
    for name, one in medians.items():
        rows.append([name, f"{one['ours']:.3f}", f"{one['theirs']:.3f}", f"{one['ratio']:.2f}", f"{one['share']:.0%}"])
    lowest = min(SHAPES, key=lambda name: medians[name]["ratio"])
    one = medians[lowest]
    claim = record.Claim(
        text=f"a training step of no architecture is slower (the slowest: {lowest})",
        reached=one["ratio"] >= 1,
        peer="transformers",
        ours=f"{one['ours']:.3f} s",
        theirs=f"{one['theirs']:.3f} s",
        ratio=one["ratio"],
        limit=f"{one['share'] * one['ours']:.3f} s",
    )
    record.save(
        "attention",
        claims=[claim],
        settings=vars(sizes),
        figures=found,
        tables=[rows],
        peers=["transformers"],
        notes="""
            The same architectures with the same number of parameters: 4 layers of width 256, 8 heads, batch 8 × 256,
            float32; seconds are medians in turn. The limit is the time of the matrix products at the best rate of the
            machine. Decoding reads 300 vectors one at a time, layer after layer, which is not how a model writes.
        """,
    )


if __name__ == "__main__":
    main()

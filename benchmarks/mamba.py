"""Compare Mamba on a CPU with the package `transformers` without its CUDA kernels.

Claim: training is at least 100 times as fast (4 layers, width 256, 8 sequences of 256 inputs; forward, loss, backward),
and reading a prompt at least 3 times (24 layers, width 768, which is the model with 130 million parameters; 512
inputs).

    pip install transformers
    python benchmarks/mamba.py --repeats 3

The limit beside each figure is the time of the matrix products of the linear maps alone, at the best rate of the
machine.
"""

import argparse
import statistics
from collections.abc import Callable

import machine
import record
import torch
from torch import Tensor, nn

import seriatim

PARTS = {"training": ((4, 256, 8, 256), 100), "prompt": ((24, 768, 1, 512), 3)}
"""Layers, width, batch and length, and the ratio that is claimed."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--part", choices=PARTS, action="append", help="run this part only")
    arguments = parser.parse_args()
    rate = 1e9 * machine.product_rate(torch.float32)
    rows, claims, figures = [["", "ours, s", "theirs, s", "ratio", "matrix products alone, s"]], [], {}
    for part in arguments.part or PARTS:
        (layers, width, batch, time), asked = PARTS[part]
        is_training = part == "training"
        ours, theirs = models(layers, width, is_training=is_training)
        found = compare(ours, theirs, torch.randn(batch, time, width), arguments.repeats, is_training=is_training)
        products = 2 * batch * time * sum(m.weight.numel() for m in ours.modules() if isinstance(m, nn.Linear))
        limit = products * (3 if is_training else 1) / rate
        ratios = [one / other for other, one in zip(found["ours"], found["theirs"], strict=True)]
        figures[part] = {**found, "ratio": ratios, "limit": limit}
        medians = {name: statistics.median(each) for name, each in found.items()}
        ratio = statistics.median(ratios)
        label = f"{part}, {layers} × {width}, batch {batch} × {time}"
        rows.append([label, f"{medians['ours']:.3f}", f"{medians['theirs']:.2f}", f"{ratio:.1f}", f"{limit:.3f}"])
        job = "a training step" if is_training else "reading a prompt"
        claims.append(
            record.Claim(
                text=f"Mamba, {job}: at least {asked} times as fast",
                reached=ratio >= asked,
                peer="transformers without CUDA kernels",
                ours=f"{medians['ours']:.3f} s",
                theirs=f"{medians['theirs']:.2f} s",
                ratio=ratio,
                limit=f"{limit:.3f} s",
            )
        )
    record.save(
        "mamba",
        claims=claims,
        settings=vars(arguments),
        figures=figures,
        tables=[rows],
        peers=["transformers"],
        notes="The same architecture and parameters, in turn. The limit is the time of the matrix products of the "
        "linear maps at the best rate of the machine.",
    )


def models(layers: int, width: int, *, is_training: bool) -> tuple[nn.Module, nn.Module]:
    """Return our model and theirs, which have the same number of parameters beside the embedding."""
    from transformers import MambaConfig, MambaModel, logging

    logging.set_verbosity_error()
    torch.manual_seed(0)
    ours = seriatim.layer("mamba", width, width, num_layers=layers)
    config = MambaConfig(hidden_size=width, num_hidden_layers=layers, vocab_size=8, use_cache=False)
    theirs = MambaModel(config).train(is_training)
    assert count(ours) == count(theirs) - 8 * width, "not the same architecture"
    return ours, theirs


def compare(
    ours: nn.Module, theirs: nn.Module, inputs: Tensor, repeats: int, *, is_training: bool
) -> dict[str, list[float]]:
    def work(call: Callable[[Tensor], Tensor], x: Tensor) -> None:
        with torch.set_grad_enabled(is_training):
            outputs = call(x)
            if is_training:
                outputs.square().mean().backward()

    calls = {"ours": lambda x: ours(x)[0], "theirs": lambda x: theirs(inputs_embeds=x).last_hidden_state}
    for call in calls.values():
        work(call, inputs[:, :8])
    return machine.times_in_turn({name: lambda c=call: work(c, inputs) for name, call in calls.items()}, repeats)


def count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


if __name__ == "__main__":
    main()

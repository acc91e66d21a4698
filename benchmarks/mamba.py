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
from collections.abc import Callable

import machine
import torch
from torch import Tensor, nn

import seriatim


def main() -> None:
    from transformers import MambaConfig, MambaModel, logging

    logging.set_verbosity_error()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--part", choices=("training", "prompt"), help="run this part only")
    arguments = parser.parse_args()
    print(machine.describe())
    rate = 1e9 * machine.product_rate(torch.float32)
    for part, (layers, width, batch, time), wanted in (
        ("training", (4, 256, 8, 256), 100),
        ("prompt", (24, 768, 1, 512), 3),
    ):
        if arguments.part in (None, part):
            torch.manual_seed(0)
            ours = seriatim.layer("mamba", width, width, num_layers=layers)
            config = MambaConfig(hidden_size=width, num_hidden_layers=layers, vocab_size=8, use_cache=False)
            theirs = MambaModel(config).train(part == "training")
            works = {
                "transformers": lambda x, model=theirs: model(inputs_embeds=x).last_hidden_state,
                "seriatim": lambda x, model=ours: model(x)[0],
            }
            ratio = compare(part, works, torch.randn(batch, time, width), arguments.repeats)
            products = 2 * batch * time * sum(m.weight.numel() for m in ours.modules() if isinstance(m, nn.Linear))
            print(f"limit        {products * (3 if part == 'training' else 1) / rate:9.3f} s (matrix products alone)")
            print(f"parameters   {count(ours):,} and, embeddings aside, {count(theirs) - 8 * width:,}")
            print(f"{part}: ratio {ratio:.1f}; the claim is {wanted}\n")


def compare(part: str, models: dict[str, Callable[[Tensor], Tensor]], inputs: Tensor, repeats: int) -> float:
    def work(model: Callable[[Tensor], Tensor], x: Tensor) -> None:
        with torch.set_grad_enabled(part == "training"):
            outputs = model(x)
            if part == "training":
                outputs.square().mean().backward()

    for model in models.values():
        work(model, inputs[:, :8])
    found = machine.in_turn({name: lambda m=model: work(m, inputs) for name, model in models.items()}, repeats)
    for name, taken in found.items():
        print(f"{name:12} {taken:9.3f} s, {inputs.shape[0] * inputs.shape[1] / taken:9.0f} inputs a second")
    return found["transformers"] / found["seriatim"]


def count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


if __name__ == "__main__":
    main()

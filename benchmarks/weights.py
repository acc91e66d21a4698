"""Measure what rounded weights cost in bits per byte and gain in speed: bfloat16, int8, and int4 for comparison.

    python benchmarks/weights.py --data test.txt RUN [RUN ...]

For each run of a language model the script prints bits per byte with the weights as they are and rounded, the
difference with its 95 % interval (paired bootstrap), and the tokens per second of decoding one text, measured in turn.
int4 is not a format of the library: here the weights are rounded to 15 levels with one factor for each 32 numbers of a
column, and nothing is packed, so that it has no speed.

Claim: int8 costs less than 0.01 bits per byte.
"""

import argparse

import torch
from machine import describe
from torch import Tensor

import seriatim
from seriatim.recurrence.round_weights import matrices_of_step
from seriatim.runs.ensembles import compare, cost_of_rounding
from seriatim.runs.weight_rounding import RoundingCost

GROUP, LEVELS = 32, 7


def round_to_four_bits(matrix: Tensor) -> Tensor:
    """Return a matrix ``(depth, width)`` rounded to int4 in groups along the depth."""
    parts = []
    for part in matrix.split(GROUP):
        factors = part.abs().amax(0).clamp_min(1e-30) / LEVELS
        parts.append((part / factors).round() * factors)
    return torch.cat(parts)


def cost_of_four_bits(path: str, data: str) -> tuple[float, tuple[float, ...]]:
    """Return bits per byte with int4, and the difference from the weights as they are with its interval."""
    run, full = seriatim.load(path), seriatim.load(path)
    with torch.no_grad():
        for matrix in matrices_of_step(run.model)[1]:
            matrix.copy_(round_to_four_bits(matrix))
    metrics = run.evaluate(data)
    bits = metrics["bits_per_byte"] / metrics["loss"]
    difference = compare(run, full, data)["loss"]
    return metrics["bits_per_byte"], tuple(bits * (value or 0.0) for value in difference[:3])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", metavar="RUN")
    parser.add_argument("--data", required=True)
    args = parser.parse_args()
    print(describe())
    print("\n| run | weights | bits per byte | difference | 95 % interval | tokens/s | of float32 |")
    print("|---|---|---|---|---|---|---|")
    for path in args.runs:
        costs: list[RoundingCost] = []
        for weights in ("bfloat16", "int8"):
            run = seriatim.load(path, weights=weights)
            cost = cost_of_rounding(run, run.evaluate(args.data), args.data)
            if not costs:
                value, speed = cost.metrics["bits_per_byte"], cost.speeds.second
                print(f"| {path} | float32 | {value:.4f} | | | {speed:,.0f} | 1 |")
            costs.append(cost)
            bits = cost.differences["bits_per_byte"]
            value = cost.metrics["bits_per_byte"] + bits.difference
            print(
                f"| {path} | {weights} | {value:.4f} | {bits.difference:+.5f} | {bits.low:+.5f} to {bits.high:+.5f} | "
                f"{cost.speeds.first:,.0f} | {cost.speeds.ratio:.2f} |",
                flush=True,
            )
        value, (difference, low, high) = cost_of_four_bits(path, args.data)
        print(f"| {path} | int4 | {value:.4f} | {difference:+.5f} | {low:+.5f} to {high:+.5f} | | |", flush=True)


if __name__ == "__main__":
    main()

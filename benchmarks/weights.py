"""Measure what rounded weights cost in perplexity and bits per byte, and gain in speed: bfloat16, int8 and int4.

    python benchmarks/weights.py --data builtin:python-docs RUN [RUN ...]

For each run of a language model the script prints the perplexity and bits per byte with the weights as they are and
rounded, the difference in bits with its 95 % interval (paired bootstrap), and the tokens per second of decoding one
text, measured in turn. These runs fit into the processor's cache; `decoding.py --only formats` measures a large model.

Claims: int8 costs less than 0.001 bits per byte, and int4 less than 0.01.
"""

import argparse
import math
from typing import Any

import record
from machine import describe

import seriatim
from seriatim.runs.ensembles import cost_of_rounding

FORMATS = ("bfloat16", "int8", "int4")
LIMITS = {"int8": 0.001, "int4": 0.01}
"""Bits per byte that a format may cost."""
HEADINGS = ("run", "weights", "perplexity", "bits per byte", "difference, 95 % interval", "tokens/s", "of float32")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", metavar="RUN")
    parser.add_argument("--data", required=True)
    args = parser.parse_args()
    print(describe())
    print(f"\n| {' | '.join(HEADINGS)} |\n{'|---' * len(HEADINGS)}|")
    rows: list[tuple[str, ...]] = []
    figures: dict[str, dict[str, Any]] = {}
    for path in args.runs:
        layer = seriatim.load(path).config.model.layer
        for weights in FORMATS:
            run = seriatim.load(path, weights=weights)
            cost = cost_of_rounding(run, run.evaluate(args.data), args.data)
            bits, loss = cost.metrics["bits_per_byte"], cost.metrics["loss"]
            if weights == FORMATS[0]:
                speed = f"{cost.speeds.second:,.0f}"
                rows.append((layer, "float32", f"{math.exp(loss):.3f}", f"{bits:.4f}", "", speed, "1"))
                print(f"| {' | '.join(rows[-1])} |")
            more = cost.differences["bits_per_byte"]
            rounded = math.exp(loss * (1 + more.difference / bits))
            interval = f"{more.difference:+.5f} ({more.low:+.5f} to {more.high:+.5f})"
            shown = (f"{rounded:.3f}", f"{bits + more.difference:.4f}", interval)
            rows.append((layer, weights, *shown, f"{cost.speeds.first:,.0f}", f"{cost.speeds.ratio:.2f}"))
            print(f"| {' | '.join(rows[-1])} |", flush=True)
            figures[f"{layer}, {weights}"] = {
                "perplexity": rounded,
                "perplexity_float32": math.exp(loss),
                "bits_per_byte": bits + more.difference,
                "difference": more.difference,
                "low": more.low,
                "high": more.high,
                "speed": cost.speeds.first,
                "ratio": cost.speeds.ratio,
            }
    claims = {
        f"{weights} costs less than {limit} bits per byte": all(
            one["difference"] < limit for name, one in figures.items() if name.endswith(weights)
        )
        for weights, limit in LIMITS.items()
    }
    settings = {"data": args.data, "runs": list(dict.fromkeys(row[0] for row in rows))}
    record.save("weights", claims=claims, settings=settings, figures=figures, tables=[[HEADINGS, *rows]])


if __name__ == "__main__":
    main()

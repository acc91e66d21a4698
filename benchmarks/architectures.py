"""Compare every architecture on real text: perplexity, size, speed and state.

Claim: every name that `seriatim layers` lists trains with its defaults and is far better than a unigram model.

    python benchmarks/architectures.py --names names.txt

Each architecture is trained with the same number of steps and the same batches, with the default configuration of
`seriatim train`, and measured on held-out text. There are two corpora: first names (characters, one name per line, the
split of names.py) and the documentation that ships with Python (characters, one running text). Speed is that of
training. The state is that of one row after 1,000 tokens.
"""

import argparse
import tempfile
from pathlib import Path

import machine
import torch
from names import split

import seriatim
from seriatim.core.state import state_bytes

MIXED = ("mamba,mamba,transformer",)


def train(layer: str, data: dict[str, str], steps: int, folder: str) -> seriatim.Run:
    return seriatim.train(
        {
            "data": data,
            "model": {"layer": layer},
            "training": {"steps": steps},
            "out": f"{folder}/{layer}-{data['unit']}",
        }
    )


def kept(run: seriatim.Run, tokens: int = 1000) -> int:
    """Return the size of the state in bytes after a number of tokens."""
    with torch.inference_mode():
        _, state = run.model(torch.zeros(1, tokens, dtype=torch.long))
    return state_bytes(state)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--names", required=True, type=Path)
    parser.add_argument(
        "--steps", type=int, nargs=2, default=(2000, 500), help="steps on the names and on the documentation"
    )
    parser.add_argument("--layers", nargs="*", default=[*seriatim.layers.names(), *MIXED])
    arguments = parser.parse_args()
    print(machine.describe(), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        parts = split(arguments.names, Path(folder))
        corpora = {
            "names": {"train": parts["train"], "valid": parts["valid"], "unit": "line"},
            "python-docs": {"train": "builtin:python-docs", "unit": "stream"},
        }
        for (corpus, data), steps in zip(corpora.items(), arguments.steps, strict=True):
            print(f"\n{corpus}, {steps} steps each")
            print("| layer | perplexity | unigram | bits per byte | parameters | tokens/s | state bytes |")
            print("|---|---|---|---|---|---|---|")
            worst = 0.0
            for layer in arguments.layers:
                run = train(layer, data, steps, folder)
                valid, unigram = run.summary["valid"], run.summary["unigram"]["perplexity"]
                worst = max(worst, valid["perplexity"] / unigram)
                print(
                    f"| {layer} | {valid['perplexity']:.3f} | {unigram:.2f} | {valid['bits_per_byte']:.3f} "
                    f"| {run.summary['parameters']:,} | {run.summary['tokens_per_second']:,.0f} | {kept(run):,} |",
                    flush=True,
                )
            print(f"worst: {worst:.3f} of the unigram's perplexity")


if __name__ == "__main__":
    main()

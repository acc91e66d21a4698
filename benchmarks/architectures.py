"""Compare every architecture on real text: perplexity, size, speed and state.

Claim: every name that `seriatim layers` lists trains with its defaults and is far better than a unigram model.

    python benchmarks/architectures.py --names names.txt

Each architecture is trained with its default options, the same sizes, the same number of steps and the same batches,
without dropout, at the rate that it declares, and measured on held-out text. There are two corpora: first names
(characters, one name per line, the split of names.py) and the documentation that ships with Python (characters, one
running text). The state is that of one row after 1,000 tokens.
"""

import argparse
import functools
import tempfile
from pathlib import Path
from typing import Any

import machine
import record
import torch
from names import split

import seriatim
from seriatim.core.state import state_bytes

MIXED = ("mamba,mamba,transformer",)


def config(layer: str, data: dict[str, str], steps: int, out: Path) -> dict[str, Any]:
    return {
        "task": "lm",
        "data": data,
        "tokenizer": {"kind": "char"},
        "model": {
            "layer": layer,
            "embedding_size": 128,
            "hidden_size": 256,
            "num_layers": 1,
            "dropout": 0.0,
            "bidirectional": False,
            "options": {"word_dropout": 0.0},
        },
        "training": {
            **record.TRAINING,
            "steps": steps,
            "batch_size": 32,
            "sequence_length": 64,
            "warmup_steps": steps // 20,
        },
        "out": str(out),
    }


def measure(stated: dict[str, Any]) -> dict[str, Any]:
    run = seriatim.train(stated, overwrite=True)
    window = [f"model.options.{name}" for name in run.config.model.options]  # of attention in a running text
    return {
        "perplexity": run.summary["valid"]["perplexity"],
        "unigram": run.summary["baseline"]["perplexity"],
        "bits_per_byte": run.summary["valid"]["bits_per_byte"],
        "parameters": run.summary["parameters"],
        "state_bytes": state_after(run),
        "settings": record.settled(run, stated, but=["training.learning_rate", *window]),
    }


def state_after(run: seriatim.Run, tokens: int = 1000) -> int:
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
    parser.add_argument("--keep", type=Path, help="a file of finished trainings, with which the script goes on")
    arguments = parser.parse_args()
    print(machine.describe(), flush=True)
    found: dict[str, dict[str, dict[str, Any]]] = {layer: {} for layer in arguments.layers}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        keep = arguments.keep or folder / "kept.json"
        parts = split(arguments.names, folder)
        corpora = {
            "names": {"train": parts["train"], "valid": parts["valid"], "unit": "line"},
            "documentation": {"train": "builtin:python-docs", "valid": "builtin:python-docs:valid", "unit": "stream"},
        }
        for (corpus, data), steps in zip(corpora.items(), arguments.steps, strict=True):
            print(f"\n{corpus}, {steps} steps each", flush=True)
            for layer in arguments.layers:
                stated = config(layer, data, steps, folder / "run")
                one = record.remembered(keep, f"{corpus} {layer}, {steps} steps", functools.partial(measure, stated))
                found[layer][corpus] = one
                print(
                    f"{layer:24} perplexity {one['perplexity']:7.3f} ({one['perplexity'] / one['unigram']:.3f} of the "
                    f"unigram's)   {one['parameters']:,} parameters   {one['state_bytes']:,} bytes of state",
                    flush=True,
                )
    save(found)


def save(found: dict[str, dict[str, dict[str, Any]]]) -> None:
    head = ["layer", "names", "documentation", "parameters", "state bytes"]
    rows = []
    for layer, corpora in found.items():
        names, docs = corpora["names"], corpora["documentation"]
        last = [f"{docs['parameters']:,}", f"{names['state_bytes']:,}"]
        rows.append([layer, f"{names['perplexity']:.2f}", f"{docs['perplexity']:.2f}", *last])
    unigram = [f"{corpora[corpus]['unigram']:.2f}" for corpus in ("names", "documentation")]
    shares = {
        layer: max(one["perplexity"] / one["unigram"] for one in corpora.values()) for layer, corpora in found.items()
    }
    few = ("prior", "self-attention")  # which have no weights, or few, between the embedding and the softmax
    worst = max(share for layer, share in shares.items() if layer not in few)
    claims = {f"every layer but {' and '.join(few)} has at most 0.6 of the unigram's perplexity": worst <= 0.6}
    settings = {
        f"{corpus} {layer}": one.pop("settings") for layer, each in found.items() for corpus, one in each.items()
    }
    rows.append(["a unigram model", *unigram, "", ""])
    record.save(
        "architectures",
        claims=claims,
        settings=settings,
        figures=found,
        tables=[[head, *rows]],
        notes="""
            Held-out perplexities per character of layers of width 256 with their default options: 2,000 steps of 32
            names, and 500 steps of 32 × 64 characters of `builtin:python-docs`, without dropout. The widths are equal,
            the numbers of parameters are not; `seriatim compare` compares fairly. `self-attention` has no parameters
            between embedding and softmax. The state is that of the model of names after 1,000 tokens.
        """,
    )


if __name__ == "__main__":
    main()

"""Compare recurrences with an LSTM, Mamba and a Transformer on real text, at equal parameters and equal tokens.

    python benchmarks/equal_parameters.py --data FOLDER [--layers lstm,mlstm] [--tokens 1000000] [--keep FOLDER]

It is `seriatim compare lm`, with the defaults of each layer, on subwords of the Manually Annotated Sub-Corpus and on
characters of Shakespeare's plays. Every layer has 1,000,000 parameters, reads the same tokens with the same batches,
and is measured on the same held-out text; the figures are means and standard deviations over the seeds.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import record

KNOWN = ("lstm", "mamba", "transformer")
RECURRENCES = (
    *("linear-attention", "retnet", "mamba2", "gated-deltanet", "kda"),
    *("mlstm", "slstm", "rg-lru", "rwkv7"),
)
TEXTS = {
    "masc-lm": (
        ["--data", "masc-lm/train.txt", "--valid", "masc-lm/valid.txt"],
        ["--tokenizer.vocabulary_size", "2000"],
    ),
    "tinyshakespeare": (["--data", "tinyshakespeare/input.txt"], []),
}
KINDS = {"masc-lm": "bpe", "tinyshakespeare": "char"}


def compared(data: Path, text: str, arguments: argparse.Namespace, out: Path) -> dict[str, Any]:
    """Return the results of a comparison, which goes on where it was interrupted."""
    files, more = TEXTS[text]
    files = [word if word.startswith("--") else str(data / word) for word in files]
    budget = ["--tokens", str(arguments.tokens), "--parameters", "1m", "--seeds", str(arguments.seeds)]
    kind = ["--tokenizer.kind", KINDS[text], "--unit", "stream", *more]
    begin = [*files, *budget, *kind, "--layers", arguments.layers]
    start = ["lm", *begin, "--out", str(out)] if not out.exists() else ["--resume", str(out)]
    done = subprocess.run([sys.executable, "-m", "seriatim", "compare", *start, "--no-report", "--quiet"], check=False)
    if done.returncode:
        sys.exit(done.returncode)  # it has said why
    results: dict[str, Any] = json.loads((out / "results.json").read_text(encoding="utf-8"))
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="a folder with one folder for each corpus")
    parser.add_argument("--layers", default=",".join([*KNOWN, *RECURRENCES]), help="separated by commas")
    parser.add_argument("--tokens", type=int, default=1_000_000, help="of each training")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--keep", type=Path, help="a folder for the comparisons, which can be interrupted")
    arguments = parser.parse_args()
    figures: dict[str, dict[str, list[float]]] = {}
    parameters: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as temporary:
        for text in TEXTS:
            results = compared(arguments.data, text, arguments, (arguments.keep or Path(temporary)) / text)
            for row in results["rows"]:
                losses = [one["metrics"]["loss"] for one in row.get("runs") or [row]]
                figures.setdefault(row["layer"], {})[text] = losses
                parameters[row["layer"]] = row["parameters"]
    means = {layer: {text: statistics.fmean(each) for text, each in found.items()} for layer, found in figures.items()}
    rows = [["layer", *(f"{text}, nats per token" for text in TEXTS), "parameters"]]
    for layer, found in sorted(figures.items(), key=lambda one: sum(means[one[0]].values())):
        shown = [spread(found[text]) for text in TEXTS if text in found]
        rows.append([f"`{layer}`", *shown, f"{parameters[layer]:,}"])
    new = [layer for layer in means if layer in RECURRENCES]
    claims = []
    for text in TEXTS:
        best, other = (min(layers, key=lambda one: means[one][text]) for layers in (new, KNOWN))
        claims.append(
            record.Claim(
                text=f"{text}: the best of {len(new)} recurrences ({best}) is as good as the best of the others",
                reached=means[best][text] <= means[other][text],
                peer=f"{other}, our own",
                ours=f"{means[best][text]:.3f} nats",
                theirs=f"{means[other][text]:.3f} nats",
                ratio=means[other][text] / means[best][text],
            )
        )
    record.save(
        "equal_parameters",
        claims=claims,
        settings={key: value for key, value in vars(arguments).items() if key not in ("data", "keep")},
        figures=figures,
        tables=[rows],
        notes="Held-out loss after as many tokens for each layer, with about a million parameters: mean and standard "
        "deviation over the seeds. Options and learning rates are the defaults of each layer. `ngram` is counted.",
    )


def spread(losses: list[float]) -> str:
    """Return the mean of losses with their standard deviation."""
    deviation = f" ± {statistics.stdev(losses):.3f}" if len(losses) > 1 else ""
    return f"{statistics.fmean(losses):.3f}{deviation}"


if __name__ == "__main__":
    main()

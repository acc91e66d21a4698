"""Compare plain language models of words and subwords with their n-gram baseline, and with the settings of before.

Claims: in 20 minutes on one thread, the plain command is at or below the n-gram model that it trains beside the
network; and its perplexity on words is a tenth below that of untied weights, 2,048 tokens a step and the whole softmax.

    python benchmarks/plain_text.py --data FOLDER [--minutes 20] [--only masc-words,novel-words] [--keep FOLDER]

The texts are masc-lm, with its held-out part, and the sentences of war-and-peace, of which a tenth is held out. Each is
learned as words, as one running text, and as subwords (`bpe`), each line for itself. Figures are held-out losses in
nats per token. Trainings take one process and one thread.
"""

import argparse
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import record
import torch

import seriatim

BEFORE: dict[str, Any] = {
    "model": {"embedding_size": 128, "tie_weights": False, "options": {"sampled_softmax": 0}},
    "training": {"batch_size": 32, "sequence_length": 64, "learning_rate": 0.01, "average": 0.998},
}
"""The defaults for all vocabularies, before large ones had their own."""
GAIN = 0.9  # of the perplexity


class Text(NamedTuple):
    """Training and held-out text; None holds out a part."""

    train: Path
    valid: Path | None


def texts(data: Path, folder: Path) -> dict[str, Text]:
    """Return the texts by name; the sentences of the novel are written to a file."""
    book = (data / "war-and-peace" / "warandpeace.txt").read_text(encoding="utf-8")
    paragraphs = (" ".join(paragraph.split()) for paragraph in re.split(r"\n\s*\n", book))
    sentences = (one for paragraph in paragraphs for one in re.split(r"(?<=[.!?])[”\"]?\s+", paragraph) if one)
    novel = folder / "novel.txt"
    novel.write_text("".join(f"{sentence}\n" for sentence in sentences), encoding="utf-8")
    return {
        "masc": Text(*(data / "masc-lm" / f"{part}.txt" for part in ("train", "valid"))),
        "novel": Text(novel, None),
    }


def configs(text: Text, minutes: float) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the trainings of a text by name."""
    for name, kind, unit in (("words", "word", "stream"), ("subwords", "bpe", "line")):
        data = {"train": str(text.train), "unit": unit} | ({"valid": str(text.valid)} if text.valid else {})
        plain = {"task": "lm", "data": data, "tokenizer": {"kind": kind}, "training": {"minutes": minutes}}
        yield name, plain
        if kind == "word":
            training = {**BEFORE["training"], "minutes": minutes, "baseline": "none"}
            yield f"{name}, before", {**plain, "model": BEFORE["model"], "training": training}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--only", default="masc-words,masc-subwords,novel-words,novel-subwords")
    parser.add_argument("--keep", type=Path, default=Path("runs/plain_text"), help="a folder for the runs")
    arguments = parser.parse_args()
    known = [f"{text}-{name}" for text in ("masc", "novel") for name in ("words", "subwords")]
    if unknown := set(arguments.only.split(",")) - {*known}:
        parser.error(f"--only: no training is called {', '.join(sorted(unknown))}; choose from {', '.join(known)}")
    torch.set_num_threads(1)
    runs: dict[str, seriatim.Run] = {}
    keep = arguments.keep
    keep.mkdir(parents=True, exist_ok=True)
    for text_name, text in texts(arguments.data, keep).items():
        for name, config in configs(text, arguments.minutes):
            full = f"{text_name}-{name}"
            if full.partition(",")[0] not in arguments.only.split(","):
                continue
            out = keep / full.replace(", ", "-")
            runs[full] = (
                seriatim.load(out) if (out / "summary.json").exists() else seriatim.train({**config, "out": str(out)})
            )
            print(full, f"{runs[full].summary['valid']['loss']:.3f}", flush=True)
    save(runs)


def save(runs: dict[str, seriatim.Run]) -> None:
    """Write the record."""
    figures, rows, claims = {}, [["text", "tokens", "network", "its n-gram baseline", "settings of before"]], []
    for name, run in runs.items():
        if "before" in name:
            continue
        summary, former = run.summary, runs.get(f"{name}, before")
        loss, counted = summary["valid"]["loss"], summary["baseline"]["simple"]["loss"]
        before = former.summary["valid"]["loss"] if former else None
        figures[name] = {"loss": loss, "ngram": counted} | ({} if before is None else {"before": before})
        text, _, kind = name.partition("-")
        rows.append([text, kind, f"{loss:.3f}", f"{counted:.3f}", "" if before is None else f"{before:.3f}"])
        claims.append(beside(f"plain, {name}: at or below its n-gram baseline", "n-grams", loss, counted, 1.0))
        if before is not None:
            claims.append(beside(f"plain, {name}: a tenth below before", "settings of before", loss, before, GAIN))
    record.save(
        "plain_text",
        claims=claims,
        settings={name: record.plain(run) for name, run in runs.items()},
        figures=figures,
        tables=[rows],
        notes="Held-out losses in nats per token. The novel is War and Peace, in sentences.",
    )


def beside(text: str, peer: str, loss: float, other: float, most: float) -> record.Claim:
    """Return the claim that a perplexity is at most ``most`` times that of the peer; both losses in nats."""
    ours, theirs = math.exp(loss), math.exp(other)
    return record.Claim(
        text=text,
        reached=ours <= most * theirs,
        peer=peer,
        ours=f"perplexity {ours:.1f}",
        theirs=f"{theirs:.1f}",
        ratio=theirs / ours,
    )


if __name__ == "__main__":
    main()

"""Tagged names in two formats, and the configuration of a small tagger, for the tests of tagging."""

from pathlib import Path

from ..models.test_tagger import people


def columns(count: int, seed: int) -> str:
    """Names tagged BIO, between tabs."""
    return "".join(
        "".join(f"{word}\tx\t{tag}\n" for word, tag in zip(one.words, one.tags, strict=True)) + "\n"
        for one in people(count, seed)
    )


def conllu(count: int, seed: int) -> str:
    """The same with other tags, and with all that is no word: comments, ranges, empty nodes."""
    found = []
    for number, one in enumerate(people(count, seed)):
        found.append(f"# sent_id = {number}")
        for i, (word, tag) in enumerate(zip(one.words, one.tags, strict=True), 1):
            if i == 1:
                found.append(f"1-2\t{word}\t" + "\t".join("_" * 8))
            fields = [str(i), word, "_", "NAME" if tag != "O" else "WORD", "_", "A=b|C=d", "0", "x", "_", "_"]
            found.append("\t".join(fields))
        found += [f"{i}.1\telided\t" + "\t".join("_" * 8), *[""] * (1 + number % 2)]
    return "\n".join(found) + "\n"


def config(folder: Path, out: str, suffix: str = "conll", **options) -> dict:
    return {
        "task": "tag",
        "data": {"train": f"{folder}/train.{suffix}", "valid": f"{folder}/valid.{suffix}"},
        "model": {
            "layer": "gru",
            "embedding_size": 12,
            "hidden_size": 12,
            "dropout": 0.1,
            "options": {"character_size": 8, "filters": 16, **options},
        },
        "training": {"epochs": 5, "batch_size": 8, "learning_rate": 0.02, "schedule": "constant", "baseline": "none"},
        "out": str(folder / out),
    }

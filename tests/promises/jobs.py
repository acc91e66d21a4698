"""A small training of every family and task: dropout, both units, accumulation, bfloat16."""

import random
from pathlib import Path
from typing import Any

from ..conftest import sentences

OPTIONS: dict[str, dict[str, Any]] = {
    "ngram": {
        "data": {"unit": "line"},
        "tokenizer": {"kind": "word"},
        "model": {"layer": "ngram", "options": {"order": 3, "smoothing": "witten-bell"}},
    },
    "feed-forward": {"data": {"unit": "stream"}, "model": {"layer": "window", "dropout": 0.2}},
    "convolution": {
        "data": {"unit": "line"},
        "model": {"layer": "convolution", "dropout": 0.1},
        "training": {"precision": "bfloat16"},
    },
    "lstm": {"data": {"unit": "stream"}, "model": {"layer": "lstm", "num_layers": 2, "dropout": 0.2}},
    "cell": {"data": {"unit": "line"}, "model": {"layer": "lstm-peephole"}, "training": {"accumulate": 3}},
    "state-space": {"data": {"unit": "stream"}, "model": {"layer": "mamba", "dropout": 0.1}},
    "attention": {
        "data": {"unit": "stream"},
        "tokenizer": {"kind": "bpe", "vocabulary_size": 300},
        "model": {"layer": "transformer", "dropout": 0.1, "options": {"window": 24}},
        "training": {"accumulate": 2, "precision": "bfloat16"},
    },
    "masked": {"task": "mlm", "data": {"unit": "line"}, "model": {"layer": "transformer", "dropout": 0.1}},
    "classifier": {"task": "classify", "data": {"train": "labelled.tsv"}, "model": {"layer": "gru", "dropout": 0.2}},
    "tagger": {
        "task": "tag",
        "data": {"train": "tagged.conll"},
        "model": {"layer": "lstm", "dropout": 0.2, "options": {"filters": 8, "output": "crf"}},
        "training": {"accumulate": 2},
    },
    "translator": {"task": "seq2seq", "data": {"train": "pairs.tsv"}, "model": {"layer": "gru", "dropout": 0.2}},
    "transformer translator": {
        "task": "seq2seq",
        "data": {"train": "pairs.tsv"},
        "model": {"layer": "transformer", "dropout": 0.1},
        "training": {"precision": "bfloat16"},
    },
}


def configurations(folder: Path, **training: Any) -> dict[str, dict[str, Any]]:
    """Each job's configuration without ``out``; its data is written into ``folder``, and what is given comes last."""
    _write_data(folder)
    return {name: _whole(folder, options, training) for name, options in OPTIONS.items()}


def _whole(folder: Path, options: dict[str, Any], training: dict[str, Any]) -> dict[str, Any]:
    task = options.get("task", "lm")
    data = {"train": "text.txt", **options["data"]}
    return {
        "task": task,
        "data": {**data, "train": str(folder / data["train"]), "valid": str(folder / f"valid-{data['train']}")},
        "tokenizer": {"kind": "word" if task == "tag" else "char", **options.get("tokenizer", {})},
        "model": {"embedding_size": 8, "hidden_size": 12, **options["model"]},
        "training": {
            "batch_size": 8,
            "sequence_length": 16,
            "precision": "float32",
            "learning_rate": 0.01,
            "baseline": "none",
            **options.get("training", {}),
            **training,
        },
    }


def _write_data(folder: Path) -> None:
    for prefix, count in (("", 60), ("valid-", 8)):
        lines = sentences(count, seed=count)
        draw = random.Random(count)
        tagged = [
            "\n".join(f"{word}\t{'NAME' if word in 'sea moon' else 'WORD'}" for word in line.split()) for line in lines
        ]
        pairs = ["".join(draw.choices("abc", k=draw.randint(1, 6))) for _ in range(10 * count)]
        pairs = list(dict.fromkeys(pairs))[:count]  # each source once: rows of one source count together
        contents = {
            "text.txt": "".join(f"{line}\n" for line in lines),
            "labelled.tsv": "label\ttext\n" + "".join(f"{'sea' in line}\t{line}\n" for line in lines),
            "tagged.conll": "".join(f"{sentence}\n\n" for sentence in tagged),
            "pairs.tsv": "".join(f"{word}\t{word[::-1]}\n" for word in pairs),
        }
        for name, content in contents.items():
            (folder / f"{prefix}{name}").write_text(content)

"""Small runs of every task for the tests of inspection, trained for a few steps."""

import math
import random
from pathlib import Path

import seriatim
from seriatim.data.synthetic import noisy_reversal
from seriatim.evaluation.token_scores import TokenSurprisals
from seriatim.recurrence import uncompiled

from ..conftest import OBJECTS, SUBJECTS, VERBS, sentences

TAGS = {"the": "DET", "a": "DET", ".": "PUNCT", **dict.fromkeys(VERBS, "VERB")}


def total_bits(found: TokenSurprisals) -> float:
    return math.fsum(score.bits for score in found.scores)


def write_data(folder: Path) -> dict[str, str]:
    """Write training and held-out data for every task, and return the suffixes of the files by task."""
    lines, rest = sentences(200), sentences(40, seed=1)
    rows = {"train": lines, "test": rest}
    for part, some in rows.items():
        (folder / f"lm.{part}.txt").write_text("\n".join(some) + "\n")
        labels = [next(word for word in line.split() if word in VERBS) for line in some]
        table = "".join(f"{label}\t{line}\n" for label, line in zip(labels, some, strict=True))
        (folder / f"classify.{part}.tsv").write_text(f"label\ttext\n{table}")
        tagged = "\n".join("".join(f"{word} {TAGS.get(word, 'X')}\n" for word in line.split()) for line in some)
        (folder / f"tag.{part}.conll").write_text(tagged)
        choose = random.Random(part).choice
        words = ["".join(choose("abcdef") for _ in range(4)) for _ in range(len(some))]
        pairs = noisy_reversal(words, len(some))
        (folder / f"seq2seq.{part}.tsv").write_text("".join(f"{noisy}\t{word}\n" for noisy, word in pairs))
    return {"lm": "txt", "mlm": "txt", "classify": "tsv", "tag": "conll", "seq2seq": "tsv"}


MODELS = {
    "lm": ("lm", "gru", {}),
    "lm-lines": ("lm", "lstm", {}),
    "lm-words": ("lm", "transformer", {}),
    "ngram": ("lm", "ngram", {"order": 3, "smoothing": "witten-bell"}),
    "mlm": ("mlm", "transformer", {}),
    "classify": ("classify", "lstm", {}),
    "classify-forwards": ("classify", "gru", {}),
    "tag": ("tag", "gru", {"characters": "none"}),
    "seq2seq": ("seq2seq", "gru", {}),
    "seq2seq-heads": ("seq2seq", "transformer", {"num_heads": 2}),
    "ctc": ("seq2seq", "gru", {"factorisation": "ctc"}),
}
KINDS = {"lm": "char", "lm-lines": "char", "seq2seq": "char", "seq2seq-heads": "char", "ctc": "char"}


def make_runs(folder: Path) -> dict[str, seriatim.Run]:
    """Train the runs in `MODELS`, and return them by name."""
    endings, found = write_data(folder), {}
    with uncompiled():
        for name, (task, layer, options) in MODELS.items():
            data = "lm" if task == "mlm" else task
            train, test = (str(folder / f"{data}.{part}.{endings[task]}") for part in ("train", "test"))
            model = {"layer": layer, "options": options}
            if layer != "ngram":
                model |= {"embedding_size": 8, "hidden_size": 8}
            if name == "classify-forwards":
                model["bidirectional"] = False
            config = {
                "task": task,
                "data": {"train": train, "test": test, **({"unit": "line"} if name == "lm-lines" else {})},
                "tokenizer": {"kind": KINDS.get(name, "word")},
                "model": model,
                "training": {"steps": 5, "batch_size": 8, "sequence_length": 16, "baseline": "none"},
                "out": str(folder / name),
            }
            found[name] = seriatim.train(config)
    return found


SENTENCE = f"{SUBJECTS[0]} {VERBS[0]} {OBJECTS[0]} ."
TEXTS = {"seq2seq": "axbxcx", "seq2seq-heads": "axbxcx", "ctc": "axbxcx"}
"""Texts for runs that cannot read `SENTENCE`."""

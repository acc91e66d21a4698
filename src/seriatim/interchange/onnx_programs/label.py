"""Label the lines of standard input, or tag their words, with onnxruntime and tokenizers.

python run.py < texts.txt
"""

import io
import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime
from tokenizers import Tokenizer

folder = Path(__file__).parent
model = json.loads((folder / "model.json").read_text(encoding="utf-8"))
tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
sequence = onnxruntime.InferenceSession(str(folder / "sequence.onnx"))
tags_words = any(output.name == "tags" for output in sequence.get_outputs())
width = model.get("word_characters", 0)  # of each word; of a longer one, the first and the last half of so many
half = width // 2
letters = Tokenizer.from_file(str(folder / "characters.json")) if width else None
for line in io.TextIOWrapper(sys.stdin.buffer, encoding="utf-8"):
    text = line.rstrip("\n")
    words = text.split() if tags_words or letters is not None else text
    ids = tokenizer.encode(words, is_pretokenized=isinstance(words, list), add_special_tokens=False).ids
    ids = ids[: model["positions"]]
    inputs = {"tokens": np.array([ids or [0]]), "lengths": np.array([len(ids)])}
    if letters is not None:
        lower = tokenizer.normalizer.normalize_str if tokenizer.normalizer else str
        spelled = [word if len(word) <= width else word[:half] + word[-half:] for word in map(lower, words)]
        characters = [letters.encode(word, add_special_tokens=False).ids for word in spelled][: len(ids)] or [[0]]
        inputs["characters"] = np.array([[row + [0] * (width - len(row)) for row in characters]])
        inputs["character_lengths"] = np.array([[len(row) for row in characters]])
    if tags_words:
        tags = sequence.run(["tags"], inputs)[0][0, : len(ids)]
        print(" ".join(f"{word}/{model['labels'][tag]}" for word, tag in zip(words, tags, strict=False)))
    else:
        (logits,) = sequence.run(None, inputs)
        print(model["labels"][int(logits[0].argmax())])

"""Fill in the masks of the lines of standard input with onnxruntime and tokenizers.

python run.py < lines.txt
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
mask, framed = model["mask"], bool(model["before"])
for line in io.TextIOWrapper(sys.stdin.buffer, encoding="utf-8"):
    pieces = line.rstrip("\n").split("[MASK]")
    spaced = [bool(model["with_space"]) and piece.endswith(" ") for piece in pieces[:-1]]  # the token has the space
    pieces[:-1] = [piece[:-1] if cut else piece for piece, cut in zip(pieces[:-1], spaced, strict=True)]
    encoded = [tokenizer.encode(piece, add_special_tokens=False).ids for piece in pieces]
    ids = [*model["before"], *encoded[0]]
    for part in encoded[1:]:
        ids += [mask, *part]
    ids += model["after"]
    (logits,) = sequence.run(None, {"tokens": np.array([ids]), "lengths": np.array([len(ids)])})
    text, gaps = pieces[0], np.flatnonzero(np.array(ids) == mask)
    for piece, cut, scores in zip(pieces[1:], spaced, logits[0, gaps], strict=True):
        allowed = np.array(model["with_space" if cut or (framed and not text) else "allowed"])
        token = tokenizer.decode([int(allowed[scores[allowed].argmax()])])
        text += (" " if cut and not token.startswith(" ") else "") + token + piece
    print(text)

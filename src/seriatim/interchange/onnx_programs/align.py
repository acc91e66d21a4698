"""Answer the lines of standard input with onnxruntime and tokenizers, all at once.

python run.py < sources.txt
"""

import io
import itertools
import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime
from tokenizers import Tokenizer

folder = Path(__file__).parent
model = json.loads((folder / "model.json").read_text(encoding="utf-8"))
source, target = (Tokenizer.from_file(str(folder / f"{model[side]}.json")) for side in ("source", "target"))
sequence = onnxruntime.InferenceSession(str(folder / "sequence.onnx"))
for line in io.TextIOWrapper(sys.stdin.buffer, encoding="utf-8"):
    ids = source.encode(line.rstrip("\n"), add_special_tokens=False).ids[: model["positions"]]
    (logits,) = sequence.run(None, {"source": np.array([ids or [0]]), "lengths": np.array([len(ids)])})
    logits[:, :, model["excluded"]] = -np.inf
    best = logits[0, : len(ids) * model["upsample"]].argmax(1).tolist()
    merged = [token for token, _ in itertools.groupby(best)]  # repeated tokens are one, and the end is no token
    print(target.decode([token for token in merged if token != model["end"]]))

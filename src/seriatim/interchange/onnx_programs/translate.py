"""Answer the lines of standard input with onnxruntime and tokenizers, greedily.

python run.py < sources.txt
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
source, target = (Tokenizer.from_file(str(folder / f"{model[side]}.json")) for side in ("source", "target"))
encoder, decoder = (onnxruntime.InferenceSession(str(folder / f"{name}.onnx")) for name in ("encoder", "decoder"))
names = [output.name for output in encoder.get_outputs()]
for line in io.TextIOWrapper(sys.stdin.buffer, encoding="utf-8"):
    ids = source.encode(line.rstrip("\n"), add_special_tokens=False).ids[: model["positions"]]
    state = encoder.run(None, {"source": np.array([ids or [0]]), "lengths": np.array([len(ids)])})
    token, answer = model["end"], list[int]()
    while len(answer) < min(model["longest"], 2 * len(ids) + 32):
        logits, *state = decoder.run(None, {"tokens": np.array([token]), **dict(zip(names, state, strict=True))})
        logits[:, model["excluded"]] = -np.inf
        token = int(logits[0].argmax())
        if token == model["end"]:
            break
        answer.append(token)
    print(target.decode(answer))

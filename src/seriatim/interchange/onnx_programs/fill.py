"""Fill in the masks of the lines of standard input with onnxruntime and tokenizers.

python run.py < lines.txt
"""

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
for line in sys.stdin:
    parts = [tokenizer.encode(part, add_special_tokens=False).ids for part in line.rstrip("\n").split("[MASK]")]
    ids = [token for part in parts for token in (*part, model["mask"])][:-1]
    whole = np.array([[model["begin"], *ids, model["end"]]])
    (logits,) = sequence.run(None, {"tokens": whole, "lengths": np.array([whole.shape[1]])})
    filled = np.where(whole == model["mask"], logits.argmax(2), whole)[0, 1:-1]
    print(tokenizer.decode(filled.tolist()))

"""Continue a text with onnxruntime and tokenizers.

python run.py "Once upon" [TOKENS] [TEMPERATURE] [SEED]
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
step = onnxruntime.InferenceSession(str(folder / "step.onnx"))
prompt, count, temperature, seed = [*sys.argv[1:], *("", "100", "1", "0")[len(sys.argv) - 1 :]][:4]
random = np.random.default_rng(int(seed))
state = {leaf["input"]: np.full(leaf["shape"], leaf["value"], leaf["type"]) for leaf in model["state"]}
text = tokenizer.encode(prompt, add_special_tokens=False).ids
read = [model["begin"], *text]
for _ in range(min(int(count), (model["positions"] or sys.maxsize) - len(text))):
    for token in read:
        logits, *after = step.run(None, {"tokens": np.array([token]), **state})
        state = dict(zip(state, after, strict=True))
    noise = random.gumbel(size=logits.shape[1]) * float(temperature)  # the largest sum is a sample of the softmax
    read = [int((logits[0] + noise).argmax())]
    if read[0] == model["end"]:
        break
    text += read
print(tokenizer.decode(text, skip_special_tokens=False))

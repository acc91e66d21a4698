"""How each golden run was trained: its task, its data, its tokenizer and its model."""

from typing import Any

import seriatim

DATA = {"lm": "text.txt", "mlm": "text.txt", "classify": "labels.tsv", "tag": "tags.conll", "seq2seq": "pairs.tsv"}
CHECKPOINTED = "lm-mingru"
"""The run that keeps a checkpoint, to go on from."""
IMPORTED = {"lm-imported": "gpt2-small", "mlm-imported": "bert-cased"}
"""The runs that were not trained here: checkpoints of the transformers library, with their tokenizers."""
TOKENIZERS = {
    "lm-lstm": "bpe",
    "lm-rnn": "byte",
    "lm-transformer": "unigram",
    "lm-gru": "word",
    "lm-mamba": "word",
    "lm-prior": "word",
    "lm-self-attention": "word",
    "lm-ngram": "word",
}
"""Those that are not of characters."""
WITH_VALID = ("lm-gru", "mlm-gru", "classify-final", "tag-crf", "seq2seq-dot")
"""Runs whose weights were chosen by held-out text, and whose files say more for it."""
STEPS = 300
SAME = {"precision": "float32", "device": "cpu"}
"""Or they would be what the machine has."""
SUBWORDS = {"bpe": 262, "unigram": 262}

ON_LINES = (
    "lm-convolution",
    "lm-gru-original",
    "lm-learned",
    "lm-lstm-layernorm",
    "lm-lstm",
    "lm-mamba",
    "lm-mingru",
    "lm-ngram",
    "lm-prior",
    "lm-rnn",
    "lm-self-attention",
    "mlm-transformer",
)
"""Language models in which every line is a sequence; of the others a text is one."""

POOLINGS = {"final": "gru", "mean": "convolution", "max": "window", "attention": "transformer"}
TRANSLATORS: dict[str, dict[str, Any]] = {
    "dot": {"layer": "gru"},
    "bahdanau": {"layer": "gru", "options": {"form": "bahdanau", "attention": "additive"}},
    "feeding": {
        "layer": "lstm",
        "options": {"input_feeding": True, "attention": "bilinear", "readout": "direct"},
    },
    "none": {"layer": "lstm", "options": {"attention": "none", "context": "initial+updates+outputs"}},
    "copied": {"layer": "gru", "bidirectional": False, "options": {"bridge": "copy", "attention": "scaled-dot"}},
    "transformer": {"layer": "transformer", "options": {"shared_vocabulary": True, "position": "sinusoidal"}},
    "ctc": {"layer": "gru", "options": {"factorisation": "ctc", "upsample": 2}},
}
MODELS: dict[str, dict[str, Any]] = {
    **{f"lm-{name}": {"layer": name} for name in seriatim.layers.names()},
    "lm-ngram": {"layer": "ngram", "options": {"order": 3, "cache": 0.2, "cache_size": 9}},
    "lm-mixed": {"layer": "gru,transformer", "num_layers": 2, "options": {"window": 5, "num_experts": 2}},
    "lm-learned": {"layer": "transformer", "tie_weights": True, "options": {"position": "learned", "max_length": 60}},
    "mlm-gru": {"layer": "gru", "tie_weights": True},
    "mlm-transformer": {"layer": "transformer", "options": {"norm": "layer", "norm_first": False}},
    **{f"classify-{pooling}": {"layer": name, "options": {"pooling": pooling}} for pooling, name in POOLINGS.items()},
    "tag-crf": {"layer": "lstm", "options": {"output": "crf", "character_size": 4, "filters": 5}},
    "tag-recurrent": {
        "layer": "gru",
        "options": {"output": "softmax", "characters": "recurrent", "character_size": 4, "filters": 5},
    },
    "tag-words": {"layer": "transformer", "options": {"characters": "none"}},
    **{f"seq2seq-{name}": model for name, model in TRANSLATORS.items()},
}


def recipe(name: str) -> dict[str, Any]:
    """The configuration of a golden run; its data lie beside the runs."""
    task = name.split("-")[0]
    kind = TOKENIZERS.get(name, "char" if task == "lm" else "word")
    counted = MODELS[name]["layer"] == "ngram"
    sizes = {} if counted else {"embedding_size": 4, "hidden_size": 4, "dropout": 0.1}
    data = {"train": f"data/{DATA[task]}", "unit": "line" if name in ON_LINES else "stream"}
    if name in WITH_VALID:
        data["valid"] = f"data/valid-{DATA[task]}"
    return {
        "task": task,
        "data": data,
        "tokenizer": {"kind": kind, "vocabulary_size": SUBWORDS.get(kind)},
        "model": {**sizes, **MODELS[name]},
        "training": {"steps": STEPS, "batch_size": 8, "sequence_length": 16, "learning_rate": 0.03, **SAME},
    }

"""Models for `serving.py`: GPT-2 with random weights for several programs, and runs that are trained in seconds."""

import pydoc_data.topics
import shutil
import string
import warnings
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

import seriatim

END = "<|endoftext|>"
PAIRS = [(a, b) for a in string.ascii_lowercase for b in string.ascii_lowercase]
TEXT_BYTES = 120_000


def tokenizer(size: int) -> Tokenizer:
    """Return a tokenizer as that of GPT-2, with bytes, two letters, a space and two letters, and four letters."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [*PAIRS, *(("Ġ", a + b) for a, b in PAIRS), *((a + b, c + d) for a, b in PAIRS for c, d in PAIRS)]
    merges = merges[: size - len(alphabet) - 1]
    tokens = [*alphabet, *(first + second for first, second in merges), END]
    made = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    return made


def write_gpt2(folder: Path, *, size: int, layers: int, words: int, heads: int) -> None:
    """Write a checkpoint of GPT-2 with random weights, whose texts never end by themselves."""
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast
    from transformers.utils import logging

    logging.disable_progress_bar()
    torch.manual_seed(0)
    ends = {"bos_token_id": words - 1, "eos_token_id": words - 1}
    config = GPT2Config(vocab_size=words, n_embd=size, n_layer=layers, n_head=heads, **ends)
    model = GPT2LMHeadModel(config).eval()
    model.generation_config.eos_token_id = None
    model.save_pretrained(folder)
    names = dict.fromkeys(("bos_token", "eos_token", "unk_token"), END)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer(words), **names).save_pretrained(folder)


def convert(checkpoint: Path, folder: Path) -> Path:
    """Convert a checkpoint for CTranslate2, and return its folder.

    Raises:
        ImportError: CTranslate2 is not installed.
    """
    from ctranslate2.converters import TransformersConverter

    TransformersConverter(str(checkpoint)).convert(str(folder))
    shutil.copy(checkpoint / "tokenizer.json", folder)
    return folder


def text() -> str:
    """Return a text that is installed with Python."""
    return "\n".join(pydoc_data.topics.topics.values())


def train(layer: str, folder: Path, *, size: int, layers: int = 1) -> Path:
    """Train a model of bytes for a few steps, and return the folder of the run."""
    data = folder / "text.txt"
    data.write_text(text()[:TEXT_BYTES], encoding="utf-8")
    config: dict[str, Any] = {
        "task": "lm",
        "data": {"train": str(data)},
        "tokenizer": {"kind": "byte"},
        "model": {"layer": layer},
        "out": str(folder / layer),
    }
    if layer != "ngram":
        config["model"] |= {"embedding_size": size, "hidden_size": size, "num_layers": layers}
        config["training"] = {"steps": 20, "baseline": "none"}
    if layer == "transformer":
        config["model"]["options"] = {"window": None}  # all of the text, instead of its last 512 tokens
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the text is long, but the training is short
        seriatim.train(config)
    return folder / layer


def train_classifier(folder: Path) -> Path:
    """Train a default classifier of paragraphs by their topic for a few steps, and return the folder of the run."""
    data, out = folder / "topics.tsv", folder / "classifier"
    topics = list(pydoc_data.topics.topics.items())[:20]
    rows = [(name, " ".join(part.split())) for name, text in topics for part in text.split("\n\n") if part.strip()]
    data.write_text("label\ttext\n" + "".join(f"{name}\t{part}\n" for name, part in rows), encoding="utf-8")
    seriatim.train({"task": "classify", "data": {"train": str(data)}, "training": {"steps": 50}, "out": str(out)})
    return out

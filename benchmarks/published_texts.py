"""Rows of the table of published figures: language models and translation."""

from pathlib import Path

from published_row import Part, Row


def shakespeare(data: Path, work: Path) -> list[Part]:
    """Split the text as nanoGPT does: its first nine tenths by characters are for training."""
    text = (data / "tinyshakespeare" / "input.txt").read_text(encoding="utf-8")
    cut = int(0.9 * len(text))
    for name, part in (("train", text[:cut]), ("valid", text[cut:])):
        (work / f"{name}.txt").write_text(part, encoding="utf-8")
    return [Part("tinyshakespeare", work / "train.txt", work / "valid.txt", work / "valid.txt")]


def shakespeare_row(model: str, asked: float, *options: str) -> Row:
    """Return a row for a model that reads as much text as nanoGPT, with options chosen on held-out training text."""
    return Row(
        f"{model}, 2,000 steps of 12 × 64 tokens",
        "nats per character of tinyshakespeare",
        "lm",
        "loss",
        shakespeare,
        {"nanoGPT, Transformer of 0.8 M (estimated from 20 batches)": 1.88},
        asked=asked,
        is_error=True,
        scale=1.0,
        options=(*options, "--steps", "2000", "--batch_size", "12", "--sequence_length", "64"),
        differences="nanoGPT estimates its loss from 20 batches; ours is that of all of the validation text, and our "
        "models carry their state from one sequence to the next. Both keep the weights of the best validation on this "
        "text.",
    )


def captions(data: Path, work: Path) -> list[Part]:
    """Write the lower-case tokenized pairs of Multi30k, English and German, as rows of source and target."""
    parts = {}
    for part, name in (("train", "train"), ("valid", "val"), ("test", "test_2016_flickr")):
        sides = [data / "multi30k-en-de" / "tok" / f"{name}.lc.norm.tok.{language}" for language in ("en", "de")]
        lines = [side.read_text(encoding="utf-8").splitlines() for side in sides]
        parts[part] = work / f"{part}.tsv"
        parts[part].write_text("".join(f"{a}\t{b}\n" for a, b in zip(*lines, strict=True)), encoding="utf-8")
    return [Part("multi30k", parts["train"], parts["valid"], parts["test"])]


ROWS = {
    "tinyshakespeare": shakespeare_row(
        "LSTM of 0.7 M parameters", 1.80, "--layer", "lstm", "--hidden_size", "384", "--embedding_size", "64"
    ),
    "tinyshakespeare-transformer": shakespeare_row(
        "Transformer of 0.8 M parameters",
        1.88,
        *("--layer", "transformer", "--num_layers", "4", "--hidden_size", "128", "--embedding_size", "128"),
    ),
    "multi30k-en-de": Row(
        "plain",
        "BLEU, Multi30k English to German, lower case, tokenized",
        "seq2seq",
        "bleu",
        captions,
        {"Transformer-tiny (Wu et al. 2021)": 41.02},
        asked=40.0,
        scale=1.0,
        differences="BLEU with sacreBLEU's tokenizer, on text that is tokenized already; papers use multi-bleu.",
    ),
}

"""From a configuration to everything a training needs, checked before anything is written."""

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..config import Config
from ..data.batching import Batches
from ..data.corpus import BLOCK, Corpus, encode_corpus, fit_corpus_tokenizer
from ..data.readers import Source, find_sources
from ..data.tokenizers import END, Tokenizer
from ..errors import InputError
from ..layers import check_options, options_of, split_names
from ..layers.positions import MAX_LENGTH
from ..models import LanguageModel

RUN_FILES = ("config.yaml", "tokenizer.json", "model.safetensors", "metrics.jsonl", "summary.json", "README.md")
STREAM_WINDOW = 512
"""Inputs that attention sees of a running text, unless told otherwise."""
RUN_FOLDERS = ("checkpoints", "tensorboard")


@dataclass
class Job:
    """A training, ready to begin."""

    config: Config
    folder: Path
    tokenizer: Tokenizer
    model: LanguageModel
    batches: Batches
    train: Corpus
    valid: Corpus | None


def check_out(out: str | None, *, overwrite: bool) -> Path:
    """The folder to write a run into.

    Raises:
        InputError: none is named, it is not empty, or it cannot be written.
    """
    if not out:
        raise InputError("out: no folder for the run; give one, for instance --out runs/first")
    folder = Path(out)
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder}: a file stands where the run's folder should; choose another --out")
    if folder.is_dir() and any(folder.iterdir()) and not overwrite:
        raise InputError(f"{folder}: not empty; choose another --out, or replace the run there with --overwrite")
    others = [name for name in (*RUN_FILES, *RUN_FOLDERS) if (folder / name).exists()]
    if others and not all((folder / name).is_file() for name in ("config.yaml", "tokenizer.json")):
        raise InputError(f"{folder}: not a run, and its {others[0]} would be lost; choose another --out")
    try:
        existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    except OSError as error:
        raise InputError(f"{out[:80]}: cannot be a folder ({error.strerror}); choose another --out") from None
    if not os.access(existing, os.W_OK | os.X_OK) or not existing.is_dir():
        raise InputError(f"{folder}: cannot be written (no permission in {existing}); choose another --out")
    return folder


def clear_run(folder: Path) -> None:
    """Makes room for a new run: removes the files of a run, and nothing else."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in RUN_FILES:
        (folder / name).unlink(missing_ok=True)
    for name in RUN_FOLDERS:
        shutil.rmtree(folder / name, ignore_errors=True)


def prepare(config: Config, folder: Path, tokenizer: Tokenizer | None = None) -> Job:
    """Reads the data, learns the tokenizer unless one is given, and builds the model.

    Raises:
        InputError: whatever is wrong with data or configuration, before anything is written.
    """
    sources = training_sources(config)
    if tokenizer is None:
        tokenizer = fit_corpus_tokenizer(sources, config.tokenizer, unit=config.data.unit)
    model = LanguageModel.from_config(config.model, tokenizer.vocabulary_size)
    train = encode_corpus(sources, tokenizer, unit=config.data.unit)
    refuse_unknown(train, tokenizer, sources)
    check_sizes(config, train)
    valid = None
    if held_out := validation_spec(config):
        sources = find_sources(held_out, file_format=config.data.format, split="valid")
        valid = encode_corpus(sources, tokenizer, unit=config.data.unit)
        refuse_unknown(valid, tokenizer, sources)
    check_positions(config, {"data.train": train, "data.valid": valid})
    batches = Batches(train, config.training.batch_size, config.training.sequence_length)
    return Job(config, folder, tokenizer, model, batches, train, valid)


def with_window(config: Config) -> Config:
    """Bounds what attention keeps of a running text, which has no end, unless a window is given.

    Raises:
        InputError: an option that does not exist, or positions that end before the text does.
    """
    name, options = config.model.layer, config.model.options
    check_options(name, options)
    known = [options_of(one, options).get("window") for one in split_names(name)]
    if config.data.unit == "stream" and options.get("position") == "learned":
        raise InputError(
            "model.options.position: a running text goes beyond any learned positions; take rotary, alibi or none, or "
            "data.unit line"
        )
    if config.data.unit != "stream" or "window" in options or not any(known):
        return config
    bounded = config.model.model_copy(update={"options": {**options, "window": STREAM_WINDOW}})
    return config.model_copy(update={"model": bounded})


def training_sources(config: Config) -> list[Source]:
    """The files of ``data.train``.

    Raises:
        InputError: none named, or none there.
    """
    if config.data.train is None:
        raise InputError("data.train: no text to learn from; give --data FILE, or --data builtin:python-docs")
    if config.data.train == config.data.valid == "-":
        raise InputError("data.valid: standard input is the training text already; give a file")
    return find_sources(config.data.train, file_format=config.data.format, split="train")


def validation_spec(config: Config) -> str | None:
    """``data.valid``; a built-in corpus brings its own."""
    train = config.data.train or ""
    if config.data.valid is None and train.startswith("builtin:") and train.count(":") == 1:
        return train
    return config.data.valid


def refuse_unknown(corpus: Corpus, tokenizer: Tokenizer, sources: Sequence[Source]) -> None:
    """Raises InputError for a text in which nothing is known."""
    if not corpus.statistics.unknown_tokens:
        return
    blocks = (corpus.ids[start : start + BLOCK] for start in range(0, len(corpus.ids), BLOCK))
    if not any(np.any((block != END) & (block != tokenizer.unknown_id)) for block in blocks):
        raise InputError(
            f"{sources[0].name}: only unknown {tokenizer.kind}s; is it the right file, "
            "and tokenizer.min_count and vocabulary_size fit for it?"
        )


def check_positions(config: Config, corpora: Mapping[str, Corpus | None]) -> None:
    """Raises InputError where learned positions are fewer than the tokens of a line, its end included."""
    options = config.model.options
    if options.get("position") != "learned":
        return
    most = options.get("max_length", MAX_LENGTH)
    for name, corpus in corpora.items():
        starts, ends = corpus.spans(1) if corpus is not None else (np.zeros(1), np.zeros(1))
        longest = int((ends - starts).argmax())
        needed = int(ends[longest] - starts[longest])
        if needed > most:
            raise InputError(
                f"{name}: line {longest + 1} has {needed} tokens, its end included, and there are {most} learned "
                f"positions; set model.options.max_length to {needed}, or take position rotary, alibi or sinusoidal"
            )


def check_sizes(config: Config, train: Corpus) -> None:
    """Raises InputError where a stream is too short for its batches, or a schedule lacks held-out text."""
    tokens, settings = len(train.ids), config.training
    stopping = settings.tolerance is not None or settings.patience is not None
    if validation_spec(config) is None and (settings.schedule == "plateau" or stopping):
        key = "tolerance and patience need" if stopping else "schedule: plateau needs"
        raise InputError(f"training.{key} held-out text; give --valid FILE")
    if config.data.unit == "line":
        return
    if settings.sequence_length > tokens:
        raise InputError(
            f"training.sequence_length: {settings.sequence_length} is longer than the corpus ({tokens} tokens); "
            f"at most {tokens}"
        )
    if settings.batch_size > tokens:
        raise InputError(f"training.batch_size: {settings.batch_size} rows for {tokens} tokens; at most {tokens}")

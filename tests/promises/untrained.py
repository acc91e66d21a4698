"""Runs with models of random parameters in float64, for what does not depend on training."""

from pathlib import Path
from typing import Any

import torch
from torch import nn

from seriatim.config import resolve
from seriatim.counting.ngram import NGram
from seriatim.counting.ngrams.counts import count_ngrams
from seriatim.counting.ngrams.smoothing import smoothed
from seriatim.counting.ngrams.table import orders_of
from seriatim.runs.run import Run
from seriatim.tasks import new_task
from seriatim.tasks.ngram import NgramBuilder
from seriatim.tasks.task import Task

from ..golden.answers import GOLDEN
from ..golden.recipes import DATA

SUBWORDS = {"bpe": 280, "unigram": 280}


def untrained(
    task: str, layer: str, options: dict[str, Any] | None = None, *, kind: str | None = None, unit: str = "line", **more
) -> Run:
    """A run as it is before its first step, but for outputs that differ more; n-grams are counted.

    Args:
        task: its name; the data are those of the golden runs.
        layer: of the model.
        options: of the model.
        kind: of the tokenizer; None for what is usual.
        unit: of the text.
        more: ``seed`` of the parameters, and fields of the model.
    """
    torch.manual_seed(more.pop("seed", 0))
    sizes = {} if layer == "ngram" else {"embedding_size": 6, "hidden_size": 6}
    config = {
        "task": task,
        "data": {"train": str(GOLDEN / "data" / DATA[task]), "unit": unit},
        "tokenizer": {"kind": kind, "vocabulary_size": SUBWORDS.get(str(kind))},
        "model": {"layer": layer, "options": options or {}, **sizes, **more},
        "training": {"sequence_length": 16},
    }
    found = new_task(resolve(config))
    vocabulary = found.reader.learn_vocabulary()
    model = counted(found, vocabulary) if layer == "ngram" else spread(found.builder.build(vocabulary))
    return Run(Path("untrained"), found, vocabulary, model)


def counted(task: Task, vocabulary: Any) -> nn.Module:
    size = vocabulary.tokenizer.vocabulary_size
    builder = task.builder
    assert isinstance(builder, NgramBuilder)
    levels = count_ngrams(
        task.reader.read(task.files.training_source(), "train", vocabulary).ids, builder.options.order, size
    )
    return builder.with_cache(NGram(orders_of(smoothed(levels, size, builder.options.smoothing_settings()))))


def spread(model: nn.Module) -> nn.Module:
    """In float64, with likelier and less likely outputs."""
    with torch.no_grad():
        for name, parameter in model.double().named_parameters():
            if name.startswith(("output", "crf", "bias")):
                parameter.normal_()
    return model

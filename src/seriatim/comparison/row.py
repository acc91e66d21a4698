"""A row of a comparison: everything that is measured of one trained run, and samples of what it writes or answers."""

from collections.abc import Sequence
from dataclasses import asdict
from itertools import islice

import numpy as np
from torch import nn

from ..core.allocator import freed_memory_kept
from ..core.json_object import JsonObject
from ..data.corpus import Corpus
from ..data.tokenizers import END
from ..runs.run import Run
from ..tasks.task import TaskData
from ..training.metrics_log import read_metrics
from ..version import __version__
from .cost import costs, evenly
from .distances import distances
from .item_answers import MAX_ITEMS, Item, answer_items, listed, stored
from .metric import statistics_of
from .plan import Plan, is_counted
from .text_losses import measure_tokens

FROM_SUMMARY = ("parameters", "steps", "tokens", "tokens_per_second", "vocabulary_size", "precision")
POINTS = 200  # points of a learning curve, at most
ANSWERS, INPUTS = 5, 200
"""Inputs that are answered in the report, and that costs are measured on, at most."""
PROMPT_WORDS, CHARACTERS, TEMPERATURE, SEED = 4, 200, 0.8, 1
"""Words of a prompt, approximate characters of the text that follows, and how the text is drawn."""
PROMPT_TOKENS = 400  # at the beginning of a text, from which the words of the prompt are taken


def measure(run: Run, plan: Plan, *, full: bool) -> tuple[JsonObject, dict[str, np.ndarray]]:
    """Measure a run that was trained to its end.

    With ``full``, costs, samples and distances are measured, too, for which one run of a layer is enough.

    Returns:
        The row as `rows/LAYER-SEED.json` holds it, and the arrays beside it: the statistics of every item for paired
        tests, and with ``full`` those of `item_answers` and `text_losses`.
    """
    measured = plan.measured(run.task)
    data = run.task.reader.read(*measured, run.vocabulary)
    train = run.task.reader.read(run.task.files.training_source(), "train", run.vocabulary)
    with freed_memory_kept():
        metrics, measures = run.task.evaluator.evaluate_with_statistics(run.model, data)
    statistics = statistics_of(measures)
    summary, model = run.summary, run.config.model
    counted = is_counted(model.layer)
    row = {
        **{name: summary[name] for name in FROM_SUMMARY},
        **{name: None if counted else getattr(model, name) for name in ("hidden_size", "embedding_size", "num_layers")},
        "bidirectional": bool(model.bidirectional),
        "options": model.options,
        "learning_rate": None if counted else run.config.training.learning_rate,
        "metrics": {name: value for name, value in metrics.items() if isinstance(value, int | float | None)},
        "ngrams": metrics.get("ngrams"),
        "training_seconds": summary["tokens"] / summary["tokens_per_second"],
        "epochs": None if counted else epochs(run, train),
        "disk_bytes": (run.path / "model.safetensors").stat().st_size,
        **_curves(run, (plan.metric, run.task.evaluator.selection(run.vocabulary).key)),
        "tokenizer": run.vocabulary.fingerprint(),
        "tokenizer_kind": run.tokenizer.kind,
        "described": run.task.reader.describe(data),
        "data": data.key,
        "trained_on": train.key,
        "version": __version__,
    }
    if full:
        items = list(islice(run.task.reader.measured_items(run.vocabulary, *measured), MAX_ITEMS))
        row |= costs(run, [text for text, _ in evenly(items, INPUTS)])
        distance = distances(run, data, measured, plan.metric, statistics)
        row["distance"] = None if distance is None else asdict(distance)
        row["samples"] = samples(run, data, items)
        for fields, arrays in (answer_items(run, items), measure_tokens(run, data, train)):
            row |= fields
            statistics |= stored(arrays)
        row["simplest"] = {
            "name": run.task.evaluator.baseline_name,
            **run.task.evaluator.trivial_baseline(train, data, run.vocabulary),
        }
    return row, statistics


def epochs(run: Run, train: TaskData) -> float:
    """Return how often a training has read its data, by the number of its steps."""
    if run.task.objective is None:
        return 1.0
    batches, training = run.task.objective.batches(train), run.config.training
    windows = batches.windows(batches.shuffled(training.seed, 0))
    return float(run.summary["steps"] * training.accumulate / max(1, windows))


def samples(run: Run, data: TaskData, items: Sequence[Item]) -> list[JsonObject]:
    """Return one text of a language model as ``prompt`` and ``text``, or five answers of another model.

    Answers are ``input``, ``truth``, ``text`` and ``right``; ``items`` are the inputs and right answers in the data.
    """
    if run.task.kind.generates_text and isinstance(data, Corpus):
        characters_per_token = max(1, data.statistics.bytes) / max(1, data.statistics.tokens)
        prompt, max_tokens = prompt_of(run, data), max(1, round(CHARACTERS / characters_per_token))
        text = "".join(run.generate(prompt, max_tokens=max_tokens, temperature=TEMPERATURE, seed=SEED))
        return [{"prompt": prompt, "text": text}]
    items = evenly(items, ANSWERS)
    answers = run.predictor.answer(run.model, run.vocabulary, [text for text, _ in items]) if items else []
    return [
        {"input": text, "truth": listed(truths), "text": answer["text"], "right": answer["text"] in truths}
        for (text, truths), answer in zip(items, answers, strict=True)
    ]


def prompt_of(run: Run, data: Corpus) -> str:
    """Return the first words of a text that the vocabulary knows, without rules of dashes and the like."""
    ids = np.asarray(data.ids[:PROMPT_TOKENS])
    skipped = [END] if run.tokenizer.ends_lines else [END, run.tokenizer.unknown_id]
    words = run.tokenizer.decode([int(token) for token in ids if int(token) not in skipped]).split()
    with_letters = [word for word in words if any(map(str.isalpha, word))]
    return " ".join((with_letters or words)[:PROMPT_WORDS])


def multiplied_parameters(model: nn.Module) -> int:
    """Return the number of parameters that multiply an input: matrices, but not embeddings that are only looked up."""
    looked_up = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    looked_up -= {id(module.weight) for module in model.modules() if isinstance(module, nn.Linear)}
    return sum(weight.numel() for weight in model.parameters() if weight.dim() > 1 and id(weight) not in looked_up)


def _curves(run: Run, keys: Sequence[str]) -> JsonObject:
    """Return ``curve``, the losses of training steps, and ``held_out``, the first of ``keys`` at each validation.

    Where there are more than `POINTS` losses, neighbours are averaged. Tokens and seconds of training before a
    validation are interpolated.
    """
    records, multiplied = read_metrics(run.path), multiplied_parameters(run.model)
    trained = [record for record in records if record.get("kind") == "train"]
    steps, tokens, seconds = zip((0, 0, 0.0), *map(_time, trained), strict=True)
    losses = [record for record in trained if record["loss"] is not None]
    size = -(-len(losses) // POINTS) or 1
    curve, held_out = [], []
    for group in (losses[start : start + size] for start in range(0, len(losses), size)):
        loss = sum(record["loss"] for record in group) / len(group)
        curve.append({**_place(*_time(group[-1]), multiplied), "loss": loss})
    for record in records:
        key = next((key for key in keys if record.get(key) is not None), None)
        if record.get("kind") == "valid" and key is not None:
            step = record["step"]
            read, spent = round(np.interp(step, steps, tokens)), float(np.interp(step, steps, seconds))
            bounds = {end: record.get(f"{key}_{end}") for end in ("low", "high")}
            held_out.append({**_place(step, read, spent, multiplied), "value": record[key], **bounds, "key": key})
    return {"curve": curve, "held_out": held_out}


def _time(record: JsonObject) -> tuple[int, int, float]:
    """Return the steps, the tokens and the seconds of training, without validations, up to a record."""
    return record["step"], record["tokens"], record["tokens"] / record["tokens_per_second"]


def _place(step: int, tokens: int, seconds: float, multiplied: int) -> JsonObject:
    """Return the coordinates of a point; ``compute`` counts two operations a product, forward and twice backward."""
    return {"step": step, "tokens": tokens, "seconds": seconds, "compute": 6 * multiplied * tokens}

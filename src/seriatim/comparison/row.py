"""A row of a comparison: everything that is measured of one trained run, and samples of what it writes or answers."""

import functools
import itertools
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import islice

import numpy as np
import torch
from torch import Tensor, nn

from ..core.contract import MemoryLayer, SequenceLayer
from ..core.errors import InputError
from ..core.json_object import JsonObject
from ..core.state import State, state_bytes
from ..data.batches import Windows
from ..data.corpus import Corpus
from ..data.synthetic import SYNTHETIC_TASKS, generate
from ..data.tokenizers import END
from ..decoding.sampling import read, sample
from ..decoding.token_draws import Sampling
from ..evaluation.context_use import excess_losses
from ..evaluation.error_analysis import evenly
from ..evaluation.intervals import METHOD, wilson
from ..evaluation.perplexity import block_size, safe_exp
from ..models.base_models import TextModel, input_layer
from ..models.encoder_decoder import EncoderDecoder
from ..runs.run import Run
from ..tasks.task import TaskData, evaluating
from ..training.checkpoints import read_metrics
from ..training.hardware import freed_memory_kept
from ..version import __version__
from .item_answers import MAX_ITEMS, Item, answer_items, listed, measure_tokens, stored
from .plan import Plan, is_non_neural, statistics_of
from .results import Distance, TrainingRow

# A model is run over tokens whose values do not matter, to measure the size of its state and its speed.

CHUNK = 256  # tokens read at once on the way to a state
SOURCE = 20  # tokens of the source that a decoder writes from, and of the prompt of a language model


Stepwise = TextModel | EncoderDecoder | SequenceLayer
"""What reads one sequence token by token."""


def stepwise(model: nn.Module) -> Stepwise | None:
    """Return a language model, a translator, or the layer that reads the input of another model.

    None is returned where that layer needs later inputs or a memory, and where a target is predicted at once.
    """
    if isinstance(model, TextModel | EncoderDecoder):
        return model
    layer = getattr(model, "layer", None)
    if not isinstance(layer, SequenceLayer) or isinstance(layer, MemoryLayer):
        return None
    return layer if layer.causal else None


def state_after(model: Stepwise, count: int, state: State) -> State:
    """Return the state after ``count`` tokens more."""
    for start in range(0, count, CHUNK):
        _, state = model(any_inputs(model, min(CHUNK, count - start)), state)
    return state


def first_state(model: Stepwise, source: int = SOURCE) -> State:
    """Return the state before the first token; that of a decoder is computed from a ``source`` of so many tokens."""
    return model.encode(any_ids(model, source)) if isinstance(model, EncoderDecoder) else model.initial_state(1)


def any_inputs(module: nn.Module, count: int) -> Tensor:
    """Return inputs of a module: embeddings ``(1, count, input_size)`` for a layer, else ids ``(1, count)``."""
    if not isinstance(module, SequenceLayer):
        return any_ids(module, count)
    return torch.sin(torch.arange(count * module.input_size, device=_device(module))).view(1, count, -1)


def any_ids(module: nn.Module, count: int) -> Tensor:
    """Return ids of tokens ``(1, count)`` other than the boundary."""
    return (torch.arange(count, device=_device(module)) % 2 + 1).unsqueeze(0)


def _device(module: nn.Module) -> torch.device | None:
    return next((parameter.device for parameter in module.parameters()), None)  # a layer may have no parameters


# The costs of using a trained model: the size of its state, and the time of a step, a token and a whole text.


STATE_AFTER = (1, 10, 100, 1000, 10_000)
STEP_AFTER = (1, 10, 100, 1000)
TEXT_LENGTHS = (16, 64, 256, 1024)
"""Numbers of tokens after which states and steps are measured, and of texts that are read at once."""
STATE_SECONDS, READING_SECONDS, GENERATING_SECONDS = 1.5, 1.0, 1.0
"""Limits of the measurements in seconds; what would come later is left out."""
MAX_STEPS, MAX_READINGS, GENERATED, ANSWERED = 15, 15, 200, 8
"""Repetitions of a step and of reading a text; tokens that are generated, and texts that are answered."""
FEWEST = 5  # repetitions without which a time has no range
STRETCH = 10
"""Tokens of a stretch that is timed while a language model generates."""
SOURCES = (10, 100, 1000)  # tokens of sources, after which the state of a decoder is measured
MAX_LENGTH, RUNNING = 10_000, 1_000
"""Tokens of the longest input that are read at most, and of a running text."""


def costs(run: Run, texts: Sequence[str]) -> JsonObject:
    """Measure the costs of a model for one sequence, on the device where the model is.

    Args:
        run: the model.
        texts: inputs of its task, of which the longest and some others are read; none for running text.

    Returns:
        ``state_bytes`` and ``step_milliseconds`` by the number of tokens read, empty where a layer needs later inputs;
        ``state_by_source``, the bytes of a decoder's first state by the tokens of its source, None of other models;
        ``state_at_length``, the ``bytes`` of the state after the ``tokens`` of the longest input, or None;
        ``milliseconds_per_token`` to write or to answer; ``reading_milliseconds`` by the length of a text.

        Times are medians of repetitions; ``step_spread``, ``milliseconds_spread`` and ``reading_spread`` are their
        first and third quartiles, None or missing for fewer than `FEWEST`.
    """
    with evaluating(run.model), torch.inference_mode():
        times = _generating(run.model) if run.task.kind.generates_text else _answering(run, texts)
        return {
            **_state_and_steps(run, texts),
            "milliseconds_per_token": statistics.median(times) if times else None,
            "milliseconds_spread": quartiles(times),
            **_named("reading", _reading(run)),
        }


def _state_and_steps(run: Run, texts: Sequence[str]) -> JsonObject:
    model = stepwise(run.model)
    if model is None:
        return {"state_bytes": {}, "state_by_source": None, "state_at_length": None, "step_milliseconds": {}}

    def step(state: State) -> None:
        model.step(any_inputs(model, 1)[:, 0], state)

    state = first_state(model)
    step(state_after(model, 1, state))  # compiles the step

    # One text is read on from length to length; a slow layer stops early instead of delaying the comparison.
    sizes, steps, tokens, started = {}, dict[str, Callable[[], object]](), 0, time.perf_counter()
    for count in STATE_AFTER:
        if time.perf_counter() - started > STATE_SECONDS / (1 if count < 10_000 else 2):
            break
        state = state_after(model, count - tokens, state)
        tokens = count
        sizes[str(count)] = state_bytes(state)
        if count in STEP_AFTER:
            steps[str(count)] = functools.partial(step, state)
    return {
        "state_bytes": sizes,
        "state_by_source": state_by_source(model) if isinstance(model, EncoderDecoder) else None,
        "state_at_length": _state_at_length(run, model, texts),
        **_named("step", repeated(steps, times=MAX_STEPS, seconds=STATE_SECONDS)),
    }


def _named(what: str, milliseconds: Mapping[str, list[float]]) -> JsonObject:
    """Return the medians and the quartiles of times by what they are of, which have them by length."""
    spreads = {length: spread for length, times in milliseconds.items() if (spread := quartiles(times))}
    medians = {length: statistics.median(times) for length, times in milliseconds.items()}
    return {f"{what}_milliseconds": medians, f"{what}_spread": spreads}


def state_by_source(model: EncoderDecoder) -> dict[str, int]:
    """Return the bytes of the state before the first token of an answer, by the number of tokens of the source."""
    sizes, started = dict[str, int](), time.perf_counter()
    for count in SOURCES:
        with suppress(InputError):  # more tokens than learned positions
            sizes[str(count)] = state_bytes(first_state(model, count))
        if time.perf_counter() - started > STATE_SECONDS / 5:
            break
    return sizes


def _state_at_length(run: Run, model: Stepwise, texts: Sequence[str]) -> dict[str, int]:
    """Return the bytes of the state after the longest input, or after `RUNNING` tokens of a running text.

    For a decoder, the state is the one before its first token, after the longest source.
    """
    tokens = min(MAX_LENGTH, max((len(run.tokenizer.encode(text)) for text in texts), default=RUNNING))
    state = first_state(model, max(1, tokens))
    if not isinstance(model, EncoderDecoder):
        state = state_after(model, max(1, tokens), state)
    return {"tokens": tokens, "bytes": state_bytes(state)}


def _reading(run: Run) -> dict[str, list[float]]:
    """Return the milliseconds to read a text at once, by its length in tokens."""
    module = run.model if isinstance(run.model, TextModel) else input_layer(run.model)
    if module is None:
        return {}
    texts = dict[str, Callable[[], object]]()
    for count in TEXT_LENGTHS:
        read_text = functools.partial(module, any_inputs(module, count))
        read_text()  # compiles
        before = time.perf_counter()
        read_text()
        if texts and FEWEST * (time.perf_counter() - before) > READING_SECONDS:
            break
        texts[str(count)] = read_text
    return repeated(texts, times=MAX_READINGS, seconds=READING_SECONDS)


def _answering(run: Run, texts: Sequence[str]) -> list[float]:
    """Return the milliseconds per token of each text that is answered, one at a time, after one that is not counted."""
    times, started, texts = list[float](), time.perf_counter(), evenly(texts, ANSWERED)
    for text in [*texts[:1], *texts]:
        before = time.perf_counter()
        (answer,) = run.predictor.answer(run.model, run.vocabulary, [text])
        spent = time.perf_counter() - before
        if tokens := run.predictor.timed_tokens(run.vocabulary, text, answer):
            times.append(1000 * spent / tokens)
        if time.perf_counter() - started > GENERATING_SECONDS:
            break
    return times[1:] or times


def _generating(model: nn.Module) -> list[float]:
    """Return the mean milliseconds of a token in each of several stretches that a language model generates."""
    assert isinstance(model, TextModel)
    logits, state = read(model, any_ids(model, SOURCE), model.initial_state(1))
    tokens = sample(model, logits, state, Sampling(), max_tokens=GENERATED, seeds=[0], stop=None)
    next(tokens)  # compiles the step
    times, started = list[float](), time.perf_counter()
    while time.perf_counter() - started < GENERATING_SECONDS:
        before = time.perf_counter()
        count = sum(1 for _ in itertools.islice(tokens, STRETCH))
        if not count:
            break
        times.append(1000 * (time.perf_counter() - before) / count)
    return times


def repeated(calls: Mapping[str, Callable[[], object]], *, times: int, seconds: float) -> dict[str, list[float]]:
    """Return the milliseconds of several calls, each repeated after one that is not counted.

    The calls take turns, so that a moment in which the machine is busy disturbs all of them alike. After some seconds,
    there are no more than `FEWEST` repetitions.
    """
    for call in calls.values():
        call()
    durations: dict[str, list[float]] = {name: [] for name in calls}
    started = time.perf_counter()
    for done in range(times):
        if done >= FEWEST and time.perf_counter() - started > seconds:
            break
        for name, call in calls.items():
            before = time.perf_counter()
            call()
            durations[name].append(1000 * (time.perf_counter() - before))
    return durations


def quartiles(times: Sequence[float]) -> list[float] | None:
    """Return the first and the third quartile, None of fewer than `FEWEST` repetitions."""
    return statistics.quantiles(times, n=4, method="inclusive")[::2] if len(times) >= FEWEST else None


# How a model does at a distance: with little context, or over known distances.


ROWS = 200  # items of each distance of a synthetic task
UNITS = {
    "reversal": "letters of the word",
    "agreement": "words between",
    "copy": "letters between",
    "adding": "digits",
    "recall": "pairs",
}
"""The unit of the distance of each synthetic task."""


def distances(run: Run, data: TaskData, source: str, metrics: JsonObject) -> Distance | None:
    """Measure a figure at several distances, or return None where no distance can be measured.

    ``metrics`` are those of all of the data, which have the name ``source``.
    """
    name = source.split(":")[1] if source.startswith("builtin:") else ""
    if name in SYNTHETIC_TASKS:
        return _at_known_distances(run, name)
    return _with_short_contexts(run, data, metrics.get("loss")) if isinstance(data, Corpus) else None


def known_distances(name: str) -> list[int]:
    """Return the distances of a synthetic task: doubling from its shortest to twice the longest of training."""
    task = SYNTHETIC_TASKS[name]
    known, distance = {task.shortest}, 2 * task.longest
    while distance > task.shortest:
        known.add(distance)
        distance //= 2
    return sorted(known)


def _at_known_distances(run: Run, name: str) -> Distance:
    """Measure the fraction of right answers at each distance."""
    values, bounds = dict[str, float](), dict[str, tuple[float, float]]()
    for distance in known_distances(name):
        rows = list(generate(name, "test", ROWS, distance=distance))
        truths, texts = zip(*(row[::-1] if name == "reversal" else row for row in rows), strict=True)
        answers = run.predictor.answer(run.model, run.vocabulary, list(texts))
        hits = [answer["text"] == truth for answer, truth in zip(answers, truths, strict=True)]
        values[str(distance)], bounds[str(distance)] = float(np.mean(hits)), wilson(sum(hits), len(hits))
    figure = "exact match" if any(figure.key == "exact_match" for figure in run.task.evaluator.metrics) else "accuracy"
    return Distance("distance", figure, f"{figure} at distance N", UNITS[name], values, ROWS, "inputs", bounds=bounds)


def _with_short_contexts(run: Run, data: Corpus, loss: float | None) -> Distance | None:
    """Measure what the context beyond the last k tokens gains, and so the perplexity where only these are seen.

    The gains are measured on a sample of the text; added to the ``loss`` of all of it, in nats, they give perplexities
    that can be compared with the one of the table.
    """
    assert isinstance(run.model, TextModel)
    found = excess_losses(run.model, data)
    if loss is None or not found.by_size:
        return None

    def perplexity(bits: float) -> float:
        return safe_exp(loss + bits * math.log(2))

    return Distance(
        "context",
        "perplexity",
        "perplexity when only the last k tokens are seen",
        values={str(size): perplexity(excess.bits) for size, excess in found.by_size.items()},
        count=found.tokens,
        items="tokens",
        whole=safe_exp(loss),
        bounds={str(size): (perplexity(each.low), perplexity(each.high)) for size, each in found.by_size.items()},
        gains=[{"beyond": size, **excess._asdict()} for size, excess in found.by_size.items()],
        measured=found.measured,
    )


FROM_SUMMARY = ("parameters", "steps", "tokens", "tokens_per_second", "vocabulary_size", "precision")
ANSWERS, INPUTS = 5, 200
"""Inputs that are answered in the report, and that costs are measured on, at most."""
PROMPT_WORDS, CHARACTERS, TEMPERATURE, SEED = 4, 200, 0.8, 1
"""Words of a prompt, approximate characters of the text that follows, and how the text is drawn."""
PROMPT_TOKENS = 400  # at the beginning of a text, from which the words of the prompt are taken


def measure(
    run: Run, plan: Plan, layer: str, *, full: bool, conditions: JsonObject
) -> tuple[TrainingRow, dict[str, np.ndarray]]:
    """Measure a run that was trained to its end, as a row of ``layer``; ``conditions`` are fields of the row.

    With ``full``, costs, samples and distances are measured, too, for which one run of a layer is enough.

    Returns:
        The row, and the arrays beside it: the statistics of every item for paired
        tests, and with ``full`` those of `item_answers` and `measure_tokens`.
    """
    measured = plan.measured(run.task)
    data = run.task.reader.read(*measured, run.vocabulary)
    train = run.task.reader.read(run.task.files.training_source(), "train", run.vocabulary)
    with freed_memory_kept():
        metrics, measures = run.task.evaluator.measure(run.model, data)

    # Every run has what means and paired tests over seeds need.
    statistics = statistics_of(measures)
    summary, model = run.summary, run.config.model
    counted = is_non_neural(model.layer)
    row: JsonObject = {
        **conditions,
        "layer": layer,
        "seed": run.config.training.seed,
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
        **validations(run, (plan.metric, run.task.evaluator.selection(run.vocabulary).key)),
        "tokenizer": run.vocabulary.fingerprint(),
        "tokenizer_kind": run.tokenizer.kind,
        "described": run.task.reader.describe(data),
        "interval": {
            "method": METHOD,
            "over": observations(run, data),
            "count": max((len(each) for each in statistics.values()), default=0),
        },
        "data": data.key,
        "trained_on": train.key,
        "version": __version__,
    }

    # Costs, samples and single items are those of the first seed: they take longer than the metrics, and a page shows
    # one of each layer.
    if full:
        items = list(islice(run.task.reader.measured_items(run.vocabulary, *measured), MAX_ITEMS))
        row |= costs(run, [text for text, _ in evenly(items, INPUTS)])
        row["distance"] = distances(run, data, measured.source, metrics)
        row["samples"] = samples(run, data, items)
        for fields, arrays in (answer_items(run, items), measure_tokens(run, data, train)):
            row |= fields
            statistics |= stored(arrays)
        row["simplest"] = {
            "name": run.task.evaluator.baseline_name,
            **run.task.evaluator.trivial_baseline(train, data, run.vocabulary),
        }
    return TrainingRow.read(row), statistics


def observations(run: Run, data: TaskData) -> str:
    """Return the items that intervals resample, in words; neighbouring tokens of a running text are not independent."""
    corpus = data.corpus if isinstance(data, Windows) else data
    if not isinstance(corpus, Corpus):
        return run.task.kind.items_name
    return "lines" if corpus.ends is not None else f"blocks of {block_size(corpus):,} tokens"


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
    chosen = ([word for word in words if any(map(str.isalpha, word))] or words)[:PROMPT_WORDS]
    # the vocabulary of a list of words, one a line, may have no space
    return next(text for text in (" ".join(chosen), *chosen[:1]) if not run.tokenizer.find_unknown(text))


def validations(run: Run, keys: Sequence[str]) -> JsonObject:
    """Return ``held_out``: the first of ``keys`` at each validation, with its interval and what had been spent by then.

    The ``loss`` is beside it, since rows may have been validated by different figures.
    ``validated_tokens`` is the number of tokens of the sample that was validated, None if it was all of the data.
    Tokens and seconds of training before a validation are interpolated, since it lies between two steps.
    """
    records, held_out = read_metrics(run.path), []
    trained = [record for record in records if record.get("kind") == "train"]
    times = [(each["step"], each["tokens"], each["tokens"] / each["tokens_per_second"]) for each in trained]
    steps, tokens, seconds = zip((0, 0, 0.0), *times, strict=True)
    validated = [record for record in records if record.get("kind") == "valid"]
    for record in validated:
        if (key := next((key for key in keys if record.get(key) is not None), None)) is not None:
            step = record["step"]
            spent = {"tokens": round(np.interp(step, steps, tokens)), "seconds": float(np.interp(step, steps, seconds))}
            bounds = {end: record.get(f"{key}_{end}") for end in ("low", "high")}
            held_out.append(
                {"step": step, **spent, "value": record[key], **bounds, "key": key, "loss": record.get("loss")}
            )
    is_sample = bool(validated) and run.config.training.validate_tokens is not None
    return {"held_out": held_out, "validated_tokens": validated[-1].get("tokens") if is_sample else None}

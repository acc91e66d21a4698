"""The costs of using a trained model: the size of its state, and the time of a step, a token and a whole text."""

import functools
import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch

from ..core.json_object import JsonObject
from ..core.state import state_bytes
from ..decoding.sampling import read, sample
from ..decoding.sampling_settings import Sampling
from ..models.base_models import TextModel
from ..models.stepping import Stepper, any_ids, read_at_once, reading_module, stepper_of
from ..runs.run import Run
from ..tasks.task import evaluating

Item = TypeVar("Item")
STATE_AFTER = (1, 10, 100, 1000, 10_000)
STEP_AFTER = (1, 10, 100, 1000)
TEXT_LENGTHS = (16, 64, 256, 1024)
"""Numbers of tokens after which states and steps are measured, and of texts that are read at once."""
STATE_SECONDS, READING_SECONDS, GENERATING_SECONDS = 1.5, 1.0, 1.0
"""Limits of the measurements in seconds; what would come later is left out."""
MAX_STEPS, MAX_READINGS, GENERATED, ANSWERED = 15, 3, 200, 8
"""Repetitions of a step and of reading a text; tokens that are generated, and texts that are answered."""
STRETCH = 10
"""Tokens of a stretch that is timed while a language model generates."""
SOURCE = 20  # tokens of the source that a decoder writes from, and of the prompt of a language model
MAX_LENGTH, RUNNING = 10_000, 1_000
"""Tokens of the longest input that are read at most, and of a running text."""


def costs(run: Run, texts: Sequence[str]) -> JsonObject:
    """Measure the costs of a model for one sequence, on the device where the model is.

    Args:
        run: the model.
        texts: inputs of its task, of which the longest and some others are read; none for running text.

    Returns:
        ``state_bytes`` and ``step_milliseconds`` by the number of tokens read, empty where a layer needs later inputs;
        ``state_at_length``, the ``bytes`` of the state after the ``tokens`` of the longest input, or None;
        ``milliseconds_per_token`` to write or to answer, the median of the repetitions or None, and their quartiles
        ``milliseconds_spread``, None for fewer than 4; ``reading_milliseconds`` by the length of a text.
    """
    with evaluating(run.model), torch.inference_mode():
        times = _generating(run.model) if run.task.kind.generates_text else _answering(run, texts)
        return {
            **_state_and_steps(run, texts),
            "milliseconds_per_token": statistics.median(times) if times else None,
            "milliseconds_spread": statistics.quantiles(times, n=4)[::2] if len(times) > 3 else None,
            "reading_milliseconds": _reading(run),
        }


def _state_and_steps(run: Run, texts: Sequence[str]) -> JsonObject:
    stepper = stepper_of(run.model)
    if stepper is None:
        return {"state_bytes": {}, "state_at_length": None, "step_milliseconds": {}}
    stepper.step(stepper.read(1, stepper.begin(SOURCE)))  # compiles the step
    sizes, steps, tokens, started = {}, {}, 0, time.perf_counter()
    state = stepper.begin(SOURCE)
    for count in STATE_AFTER:
        if time.perf_counter() - started > STATE_SECONDS / (1 if count < 10_000 else 2):
            break
        state = stepper.read(count - tokens, state)
        tokens = count
        sizes[str(count)] = state_bytes(state)
        if count in STEP_AFTER:
            step = functools.partial(stepper.step, state)
            steps[str(count)] = median_milliseconds(step, times=MAX_STEPS, seconds=STATE_SECONDS / 5)
    at_length = _state_at_length(run, stepper, texts)
    return {"state_bytes": sizes, "state_at_length": at_length, "step_milliseconds": steps}


def _state_at_length(run: Run, stepper: Stepper, texts: Sequence[str]) -> dict[str, int]:
    """Return the bytes of the state after the longest input, or after `RUNNING` tokens of a running text.

    For a decoder, the state is the one before its first token, after the longest source.
    """
    tokens = min(MAX_LENGTH, max((len(run.tokenizer.encode(text)) for text in texts), default=RUNNING))
    state = stepper.begin(max(1, tokens))
    if not stepper.reads_source:
        state = stepper.read(max(1, tokens), state)
    return {"tokens": tokens, "bytes": state_bytes(state)}


def _reading(run: Run) -> dict[str, float]:
    """Return the milliseconds to read a text at once, by its length in tokens."""
    module, started = reading_module(run.model), time.perf_counter()
    milliseconds: dict[str, float] = {}
    for count in TEXT_LENGTHS:
        if module is None or time.perf_counter() - started > READING_SECONDS / 2:
            break
        read_text = functools.partial(read_at_once, module, count)
        milliseconds[str(count)] = median_milliseconds(read_text, times=MAX_READINGS, seconds=0.5)
    return milliseconds


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


def _generating(model: TextModel) -> list[float]:
    """Return the mean milliseconds of a token in each of several stretches that a language model generates."""
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


def median_milliseconds(function: Callable[[], object], *, times: int, seconds: float) -> float:
    """Return the median time of a call, after one that is not counted; fewer calls where they take too long."""
    function()
    durations: list[float] = []
    started = time.perf_counter()
    while len(durations) < times and (not durations or time.perf_counter() - started < seconds):
        before = time.perf_counter()
        function()
        durations.append(1000 * (time.perf_counter() - before))
    return statistics.median(durations)


def evenly(items: Sequence[Item], count: int) -> list[Item]:
    """Return up to ``count`` items, spread evenly over all."""
    return [items[i * len(items) // count] for i in range(count)] if len(items) > count else list(items)

"""What a trained model costs to use: the size of its state, the time of a step, of a token, of a sequence at once."""

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..core.contract import MemoryLayer, SequenceLayer
from ..core.state import State, state_bytes
from ..decoding.sampling import Sampling, read, sample
from ..evaluation.intervals import Metrics
from ..models.base_models import TextModel
from ..models.encoder_decoder import EncoderDecoder
from ..runs.run import Run
from ..training.task import evaluating
from .items import items

STATE_AFTER = (1, 10, 100, 1000, 10_000)
STEP_AFTER = (1, 10, 100, 1000)
READ = (16, 64, 256, 1024)
ALLOWED = {"state": 1.5, "reading": 1.0, "generating": 1.0}
"""Seconds that each of the measurements may take; what would come later is left out."""
STEPS, READINGS, GENERATED, ANSWERED = 15, 3, 200, 8
SOURCE = 20
"""Tokens of the source that a decoder writes from."""
LOOKED_AT, LONGEST, RUNNING = 200, 10_000, 1_000
"""Inputs among which the longest is looked for; tokens of it that are read at most, and of a running text."""
PIECE = 256
"""Tokens that are read at once on the way to a state."""


def costs(run: Run, measured: tuple[str, str]) -> Metrics:
    """The costs of a model for one sequence, on the device where it is.

    Args:
        run: a trained model.
        measured: the name of what it was measured on, and which part of that.

    Returns:
        ``state_bytes`` and ``step_milliseconds`` after so many tokens, empty where a layer sees what comes later and
        so has no step; ``state_at_length``, the state after the longest input, as ``tokens`` and ``bytes``;
        ``milliseconds_per_token`` when writing or answering; ``reading_milliseconds`` of a sequence.
    """
    with evaluating(run.model), torch.inference_mode():
        sizes, steps = _state_and_steps(run.model)
        return {
            "state_bytes": sizes,
            "state_at_length": _state_at_length(run, measured),
            "step_milliseconds": steps,
            "milliseconds_per_token": _per_token(run, measured),
            "reading_milliseconds": _reading(run.model),
        }


class _Walk:
    """A model on the way through a sequence, by some tokens at once or by one step; which tokens is of no matter."""

    def __init__(self, model: Any, source: int = SOURCE) -> None:
        self.device = next(model.parameters()).device
        self.model: Any = model if isinstance(model, TextModel | EncoderDecoder) else model.layer
        started = isinstance(model, EncoderDecoder)
        self.state: State = model.encode(_ids(model, source)) if started else self.model.initial_state(1)

    def inputs(self, count: int) -> Tensor:
        """What the model reads: ids ``(1, count)``, or what stands for their embeddings."""
        bare = isinstance(self.model, SequenceLayer)
        return _embedded(self.model, count, self.device) if bare else _ids(self.model, count)

    def read(self, count: int) -> None:
        """Goes on by ``count`` tokens."""
        for start in range(0, count, PIECE):
            _, self.state = self.model(self.inputs(min(PIECE, count - start)), self.state)

    def step(self) -> None:
        """One step from here, without going on."""
        self.model.step(self.inputs(1)[:, 0], self.state)


def steps_alone(model: Any) -> bool:
    """Whether a model goes through a sequence step by step."""
    if isinstance(model, TextModel | EncoderDecoder):
        return True
    layer = getattr(model, "layer", None)
    return isinstance(layer, SequenceLayer) and layer.causal and not isinstance(layer, MemoryLayer)


def _state_and_steps(model: Any) -> tuple[Metrics, Metrics]:
    """Bytes of the state, and milliseconds of a step, after so many tokens."""
    sizes: Metrics = {}
    steps: Metrics = {}
    if not steps_alone(model):
        return sizes, steps
    walk = _Walk(model)
    walk.read(1)
    walk.step()  # what is compiled is made ready
    walk, read_so_far, started = _Walk(model), 0, time.perf_counter()
    for count in STATE_AFTER:
        if time.perf_counter() - started > ALLOWED["state"] / (1 if count < 10_000 else 2):
            break
        walk.read(count - read_so_far)
        read_so_far = count
        sizes[str(count)] = state_bytes(walk.state)
        if count in STEP_AFTER:
            steps[str(count)] = median_milliseconds(walk.step, times=STEPS, most=ALLOWED["state"] / 5)
    return sizes, steps


def _state_at_length(run: Run, measured: tuple[str, str]) -> Metrics | None:
    """The bytes of the state after the longest of some inputs; of a running text after `RUNNING` tokens.

    Of an encoder-decoder, it is the state that the decoder begins with after the longest source. None where a layer
    sees what comes later.
    """
    model = run.model
    if not steps_alone(model):
        return None
    texts = [text for text, _ in items(run.task, *measured, most=LOOKED_AT)]
    tokens = min(LONGEST, max((len(run.tokenizer.encode(text)) for text in texts), default=RUNNING))
    walk = _Walk(model, max(1, tokens))
    if not isinstance(model, EncoderDecoder):
        walk.read(max(1, tokens))
    return {"tokens": tokens, "bytes": state_bytes(walk.state)}


def _reading(model: Any) -> Metrics:
    """Milliseconds to read a sequence of so many tokens at once."""
    found: Metrics = {}
    started = time.perf_counter()
    for count in READ:
        if time.perf_counter() - started > ALLOWED["reading"] / 2:
            break
        found[str(count)] = median_milliseconds(lambda: _read_at_once(model, count), times=READINGS, most=0.5)  # noqa: B023
    return found


def _read_at_once(model: Any, count: int) -> None:
    if isinstance(model, TextModel):
        model(_ids(model, count), model.initial_state(1))
    elif hasattr(model, "encoder"):
        model.encoder(_embedded(model.encoder, count, next(model.parameters()).device))
    else:
        model.layer(_embedded(model.layer, count, next(model.parameters()).device))


def _ids(model: Any, count: int) -> Tensor:
    """Tokens ``(1, count)``, but not the boundary."""
    device = next(model.parameters()).device
    return (torch.arange(count, device=device) % 2 + 1).unsqueeze(0)


def _embedded(layer: SequenceLayer, count: int, device: torch.device) -> Tensor:
    """What stands for the embeddings of tokens ``(1, count, input_size)``; a layer may have no parameters."""
    return torch.sin(torch.arange(count * layer.input_size, device=device)).view(1, count, -1)


def _per_token(run: Run, measured: tuple[str, str]) -> float | None:
    """Milliseconds: of a token written, or of one answered, one text at a time; None where nothing is answered."""
    if isinstance(run.model, TextModel):
        return _writing(run.model)
    spent, tokens, started = 0.0, 0, time.perf_counter()
    for text, _ in items(run.task, *measured, most=ANSWERED):
        before = time.perf_counter()
        answer = run.task.answer(run.model, run.vocabulary, [text])[0]
        spent += time.perf_counter() - before
        written = run.vocabulary.target.encode(answer["text"]) if hasattr(run.model, "encoder") else None
        tokens += len(run.tokenizer.encode(text) if written is None else written) + (written is not None)
        if time.perf_counter() - started > ALLOWED["generating"]:
            break
    return 1000 * spent / tokens if tokens else None


def _writing(model: TextModel) -> float:
    """Milliseconds of a token that a language model draws, the mean over some."""
    logits, state = read(model, _ids(model, SOURCE), model.initial_state(1))
    drawn = sample(model, logits, state, Sampling(), max_tokens=GENERATED, seeds=[0], stop=None)
    next(drawn)  # what is made ready for the first one is not counted
    count, started = 0, time.perf_counter()
    for _ in drawn:
        count += 1
        if time.perf_counter() - started > ALLOWED["generating"]:
            break
    return 1000 * (time.perf_counter() - started) / count


def median_milliseconds(do: Callable[[], object], *, times: int, most: float) -> float:
    """Of some runs of ``do``, after one that is not counted; fewer where they take more than ``most`` seconds."""
    do()
    found: list[float] = []
    started = time.perf_counter()
    while len(found) < times and (not found or time.perf_counter() - started < most):
        before = time.perf_counter()
        do()
        found.append(1000 * (time.perf_counter() - before))
    return statistics.median(found)

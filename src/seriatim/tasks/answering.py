"""From sources to written answers: searched for or drawn, what may not be written, and where an answer looked."""

import functools
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..core.errors import InputError
from ..core.state import select_state
from ..data.tokenizers import END, Tokenizer
from ..data.vocabulary import Vocabulary
from ..decoding.beam import Beam, Hypothesis, beam_search
from ..decoding.ctc import best_alignments, search
from ..decoding.sampling import Sampling, sample
from ..evaluation.intervals import Metrics
from ..models.ctc import CTCTranslator

LONGER, MORE = 2, 32
"""An answer has at most `LONGER` times as many tokens as its source, and `MORE`."""


class Search(NamedTuple):
    """How answers are searched for; see `seriatim.decoding.beam`."""

    beam: int = 1
    length_penalty: float = 0.0
    n_best: int = 1
    min_length: int = 0
    alignments: bool = False
    """Whether answers say where they looked, which takes a second pass."""


class Draws(NamedTuple):
    """How answers are drawn, ``n_best`` a source; see `Sampling`.

    What is drawn for a source depends on it and the seed alone, not on what is answered beside it.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int | None = None
    """None for other answers every time."""


def how_to_answer(settings: Mapping[str, Any]) -> tuple[Search, Draws | None]:
    """The settings of `Search` and, where one of its own is given, of `Draws`.

    Raises:
        InputError: settings of both that exclude each other.
    """
    drawing = {name: value for name, value in settings.items() if name in Draws._fields}
    searching = {name: value for name, value in settings.items() if name not in Draws._fields}
    if drawing and (both := searching.keys() & {"beam", "length_penalty", "min_length"}):
        names = (f"--{name.replace('_', '-')}" for name in (min(both), next(iter(drawing))))
        raise InputError("{}: means nothing where answers are drawn ({}); leave one out".format(*names))
    return Search(**searching), Draws(**drawing) if drawing else None


@functools.lru_cache(maxsize=4)
def never_written(tokenizer: Tokenizer) -> tuple[int, ...]:
    """Tokens that no answer may hold: the unknown one, and line ends of any kind, for an answer is one line."""
    tokens = (token for token in range(tokenizer.vocabulary_size) if token != END)
    return tuple(
        token for token in tokens if token == tokenizer.unknown_id or set(b"\r\n") & set(tokenizer.token_bytes(token))
    )


def find_by_steps(
    model: Any, source: Tensor, lengths: Tensor, how: Search, *, most: Tensor, never: Sequence[int]
) -> list[list[Hypothesis]]:
    """The best answers to each source that beam search finds.

    Args:
        model: an encoder-decoder, or several as one.
        source: ids ``(batch, time)``.
        lengths: ``(batch,)``.
        how: to search.
        most: tokens of each answer at most ``(batch,)``.
        never: tokens that no answer holds.
    """
    return beam_search(
        model,
        model.encode(source, lengths),
        beam=how.beam,
        length_penalty=how.length_penalty,
        n_best=how.n_best,
        min_length=how.min_length,
        max_length=most,
        stop=END,
        banned=never,
    )


def draw_by_steps(
    model: Any, source: Tensor, lengths: Tensor, how: Draws, *, count: int, most: Tensor, never: Sequence[int]
) -> list[list[Hypothesis]]:
    """``count`` answers to each source, drawn from the model's distribution; other arguments as above.

    An answer that is as long as it may be ends there, at the probability that has.
    """
    if count < 1:
        raise InputError(f"n_best: {count} draws no answer; at least 1")
    sampling = Sampling(how.temperature, how.top_k, how.top_p, how.min_p)
    base = random.SystemRandom().getrandbits(63) if how.seed is None else how.seed
    texts = [row[:size] for row, size in zip(source.tolist(), lengths.tolist(), strict=True)]
    seeds = [random.Random(f"{base} {text} {i}").getrandbits(63) for text in texts for i in range(count)]
    rows = torch.arange(len(source), device=source.device).repeat_interleave(count)
    logits, state = model.step(torch.zeros_like(rows), select_state(model.encode(source, lengths), rows))
    answers: list[list[int]] = [[] for _ in seeds]
    drawn = sample(model, logits, state, sampling, max_tokens=int(most.max()), seeds=seeds, stop=END, banned=never)
    for step in drawn:
        for answer, token in zip(answers, step.tokens, strict=True):
            answer.extend([] if token is None else [token])
    limits = most.repeat_interleave(count).tolist()
    answers = [answer[:limit] for answer, limit in zip(answers, limits, strict=True)]
    inputs, targets, sizes = _shifted(answers, source)
    losses = model.token_losses(source[rows], lengths[rows.cpu()], inputs, targets, sizes).double().sum(1).tolist()
    found = [Hypothesis(tuple(answer), -loss, -loss) for answer, loss in zip(answers, losses, strict=True)]
    return [found[i : i + count] for i in range(0, len(found), count)]


def find_at_once(
    model: CTCTranslator, source: Tensor, lengths: Tensor, how: Search, *, most: Tensor, never: Sequence[int]
) -> list[list[Hypothesis]]:
    """The answer of each source's best alignment, or with a beam above 1 the best answers; arguments as above.

    Raises:
        InputError: a setting that has no meaning here.
    """
    if how.length_penalty or how.min_length:
        raise InputError("--length-penalty, --min-length: mean nothing where all of an answer is given at once")
    Beam(how.beam, n_best=how.n_best)  # refuses what does not fit
    found, places = model(source, lengths)
    found = found.index_fill(2, torch.tensor(never, dtype=torch.long, device=found.device), -torch.inf)
    if how.beam == 1:
        return [[best] for best in best_alignments(found, places)]
    sizes = places.tolist()
    return [search(found[row, :size], beam=how.beam, n_best=how.n_best) for row, size in enumerate(sizes)]


def alignments(
    model: Any, source: Tensor, lengths: Tensor, answers: Sequence[Sequence[int]], vocabulary: Vocabulary
) -> Iterator[Metrics]:
    """Where each answer looked: a row of weights over the source for every token, its end included."""
    inputs, _, sizes = _shifted(answers, source)
    weights = model.attention(source, lengths, inputs, sizes).tolist()
    for row, tokens in enumerate(answers):
        size = int(lengths[row])
        yield {
            "source_tokens": [vocabulary.tokenizer.describe(token) for token in source[row, :size].tolist()],
            "target_tokens": [vocabulary.target.describe(token) for token in (*tokens, END)],
            "alignment": [places[:size] for places in weights[row][: len(tokens) + 1]],
        }


def _shifted(answers: Sequence[Sequence[int]], like: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """What a decoder reads and what it is to write ``(batch, time)``; how much of it, ends included ``(batch,)``."""
    sizes = torch.tensor([len(tokens) + 1 for tokens in answers])
    inputs, targets = like.new_full((2, len(answers), int(sizes.max())), END)
    for row, tokens in enumerate(answers):
        inputs[row, 1 : len(tokens) + 1] = targets[row, : len(tokens)] = torch.tensor(tokens)
    return inputs, targets, sizes


def in_words(best: Sequence[Hypothesis], tokenizer: Tokenizer) -> Metrics:
    """The best hypothesis as text, and all of them with their scores."""
    texts = [
        {"text": tokenizer.decode(one.tokens), "score": one.score, "log_probability": one.log_probability}
        for one in best
    ]
    return {**texts[0], "n_best": texts}

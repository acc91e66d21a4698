"""Generated text: its settings, and many texts in one batch, in the order of their prompts."""

import itertools
import random
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypedDict

from torch import nn

from ..core.errors import (
    LOOKED_AT,
    InputError,
    RangeError,
    UnknownNameError,
    check_integer,
    check_number,
    check_text,
    nearest,
    require_known,
    shown,
)
from ..data.repairs import Repairs
from ..data.sources import find_sources
from ..data.text import numbered_lines, read_objects, string_field
from ..data.tokenizers import END, END_TEXT, Tokenizer
from ..decoding.continuous_batch import ContinuousBatch, PromptRead, TokenDrawn
from ..decoding.sampling import StopStrings, TextRequest, check_stop_strings
from ..decoding.token_draws import FINITE, Sampling
from ..layers.positions import learned_positions
from ..models.base_models import TextModel
from ..tasks.data_files import check_lengths

USUAL_TOKENS = 200
"""The largest number of tokens of a text, unless another is given."""
AHEAD = 512
"""Texts that are in progress or complete while an earlier one is not."""
READ_TOGETHER = 16
"""Prompts that are read between two tokens."""


class SamplingSettings(TypedDict, total=False):
    """The keyword arguments of `Run.generate` and `Stream.generate` that say how text is generated.

    All but the last two are fields of `Sampling`, which explains them. ``logit_bias`` maps tokens, as strings, to
    numbers that are added to their logits; ``</s>`` is the end of a text. ``stop`` is a list of strings; the text ends
    before the first of them.
    """

    temperature: float
    top_k: int | None
    top_p: float | None
    min_p: float | None
    typical: float | None
    repetition_penalty: float
    frequency_penalty: float
    presence_penalty: float
    logit_bias: Mapping[str, float] | None
    stop: Sequence[str]


class TextSettings(SamplingSettings, total=False):
    """The keyword arguments of `Run.iter_samples`."""

    max_tokens: int | None
    seed: int | None


def choose_seed(seed: int | None) -> int:
    """Return a seed, or a random one for None; raise InputError for anything but an integer."""
    if seed is None:
        return random.SystemRandom().randrange(2**31)
    return check_integer("seed", seed)


def tokens_to_generate(model: nn.Module, read: int, max_tokens: int | None, location: str) -> int:
    """Return the largest number of tokens that follow ``read`` tokens, the boundary before them included.

    None stands for `USUAL_TOKENS`, or as many as learned positions are left. ``location`` names the text in messages.

    Raises:
        InputError: the model has too few learned positions.
    """
    limit = learned_positions(model)
    check_lengths(limit, [read], lambda _: location, more=max_tokens or 0)
    if max_tokens is not None:
        return max_tokens
    return USUAL_TOKENS if limit is None else min(USUAL_TOKENS, limit - read)


class Generation(NamedTuple):
    """Checked settings, with biases by token id."""

    sampling: Sampling
    biases: dict[int, float]
    stops: tuple[str, ...]

    @classmethod
    def parse(cls, tokenizer: Tokenizer, settings: SamplingSettings) -> "Generation":
        """Check settings; raise InputError for values out of range, and for tokens that the tokenizer does not have."""
        numbers = dict(settings)
        for name in numbers:
            require_known("setting", name, SamplingSettings.__annotations__)
        biases, stops = numbers.pop("logit_bias", None), numbers.pop("stop", ())
        sampling = Sampling(**numbers)  # type: ignore[arg-type]  # it checks them
        return cls(sampling, _parse_biases(tokenizer, biases), check_stop_strings(stops or ()))


def _parse_biases(tokenizer: Tokenizer, biases: object) -> dict[int, float]:
    """Return the biases by token id."""
    if biases is None:
        return {}
    if not isinstance(biases, Mapping):
        raise RangeError(f"logit_bias: {shown(biases)} is not a dict; give numbers by token, as in {{'the': -2}}")
    numbers: dict[str, float] = {}
    for token, value in biases.items():
        check_text(token, "logit_bias")
        numbers[token] = check_number(f"logit_bias: the bias of {shown(token)}", value, FINITE)
    return {find_token(tokenizer, token): number for token, number in numbers.items()}


def find_token(tokenizer: Tokenizer, text: str) -> int:
    """Return the token that stands for exactly this text, or for the end of a text, ``</s>``.

    Raises:
        InputError: there is none; the message names the nearest.
    """
    raw = text.encode()
    encoded = [] if tokenizer.find_unknown(text) else tokenizer.encode(text).tolist()
    if len(encoded) == 1 and encoded[0] != tokenizer.unknown_id and tokenizer.token_bytes(encoded[0]) == raw:
        return int(encoded[0])
    found = (token for token in _written(tokenizer) if raw and tokenizer.token_bytes(token) == raw)
    token = next(found, END if raw and raw in (END_TEXT.encode(), tokenizer.token_bytes(END)) else None)
    if token is None:
        raise UnknownNameError(f"logit_bias: {shown(text)} is no token of the model; {_nearest_token(tokenizer, text)}")
    return token


def _written(tokenizer: Tokenizer) -> Iterator[int]:
    """Yield the tokens that stand for some text."""
    return (token for token in range(tokenizer.vocabulary_size) if token not in (END, tokenizer.unknown_id))


def _nearest_token(tokenizer: Tokenizer, text: str) -> str:
    """Return a hint; of a large vocabulary, the tokens with the same first letter are compared."""
    names = [tokenizer.describe(token) for token in _written(tokenizer)]
    alike = (name for name in names if name.strip()[:1].lower() == text.strip()[:1].lower())
    candidates = names if len(names) <= LOOKED_AT else [*itertools.islice(alike, LOOKED_AT)]
    return nearest(text, candidates or names)


class Prompt(NamedTuple):
    """The beginning of a text, and its file and line for messages."""

    text: str
    location: str = ""


def read_prompts(source: str, file_format: str, repairs: Repairs) -> Iterator[Prompt]:
    """Read prompts: the lines of files, or the field ``prompt`` (or else ``text``) of each object of JSONL.

    ``file_format`` is ``text``, ``jsonl``, or ``auto`` to choose by the name of a file; ``repairs`` records repairs.

    Raises:
        InputError: a file cannot be read, or an object has neither field.
    """
    for file in find_sources(source, file_format=file_format):
        if file.format != "jsonl":
            for number, line in numbered_lines(file, repairs):
                yield Prompt(repairs.text(line, file.name, number), f"{file.name}:{number}")
            continue
        for number, record in read_objects(file, repairs):
            location = f"{file.name}:{number}"
            field = "text" if "text" in record and "prompt" not in record else "prompt"
            yield Prompt(repairs.text(string_field(record, field, location), file.name, number), location)


class _Text:
    """The text of one prompt, as far as it is known."""

    def __init__(self, request: TextRequest, tokenizer: Tokenizer, stops: Sequence[str]) -> None:
        self.request, self.is_complete = request, request.max_tokens == 0
        self.decoder, self.stops = tokenizer.decoder(after=request.prompt[-1]), StopStrings(stops)
        self.chunks: list[str] = []

    def feed(self, token: int | None) -> None:
        """Add a token; None for the end of the text."""
        if token is None:
            self.chunks += [self.stops.feed(self.decoder.finish()), self.stops.finish()]
        else:
            self.chunks.append(self.stops.feed(self.decoder.feed(token)))
        self.is_complete = token is None or self.stops.has_ended


def generate_texts(
    model: TextModel,
    tokenizer: Tokenizer,
    prompts: Iterable[Prompt],
    settings: Generation,
    *,
    max_tokens: int | None,
    seed: int,
    stop: int | None,
) -> Iterator[str]:
    """Generate a text for each prompt, in order; text i depends on its own prompt and the seed ``seed + i`` only.

    A text ends with the token ``stop``, before a stop string, or after ``max_tokens``; see `tokens_to_generate` for
    None. Prompts are read while texts are generated, at most `AHEAD` before the text that is returned next. If reading
    one of them fails, the texts before it are completed first.

    Raises:
        InputError: a prompt has symbols that the tokenizer does not know, or is too long for the model.
    """
    batch = ContinuousBatch(model, stop=stop, banned=banned_tokens(tokenizer, stop))
    requests = _requests(model, tokenizer, prompts, settings, max_tokens, seed)
    texts, in_progress = deque[_Text](), dict[TextRequest, _Text]()
    problem: Exception | None = None
    has_more = True
    while texts or has_more:
        # Prompts may come from a pipe, so that no more are read than the batch soon needs.
        while has_more and len(texts) < AHEAD and len(batch.waiting) < READ_TOGETHER:
            try:
                request = next(requests, None)
            except Exception as error:  # raised again after the texts before it
                request, problem = None, error
            has_more = request is not None
            if request is not None:
                texts.append(text := _Text(request, tokenizer, settings.stops))
                if not text.is_complete:
                    in_progress[request] = text
                    batch.add(request)
        while texts and texts[0].is_complete:
            yield "".join(texts.popleft().chunks)

        # A text that a stop string has ended may still have events.
        for event in batch.advance():
            if event.request not in in_progress or isinstance(event, PromptRead):
                continue
            text = in_progress[event.request]
            text.feed(event.token if isinstance(event, TokenDrawn) else None)
            if text.is_complete:
                del in_progress[event.request]
                batch.end(event.request)
    if problem is not None:
        raise problem


def _requests(
    model: TextModel,
    tokenizer: Tokenizer,
    prompts: Iterable[Prompt],
    settings: Generation,
    max_tokens: int | None,
    seed: int,
) -> Iterator[TextRequest]:
    """Encode prompts; equal ones that follow each other are encoded once."""
    before, tokens = None, list[int]()
    for number, prompt in enumerate(prompts):
        if prompt.text != before:
            try:
                tokenizer.check_known(prompt.text)
            except InputError as error:
                raise (error.with_message(f"{prompt.location}: {error}") if prompt.location else error) from None
            before, tokens = prompt.text, [tokenizer.begin, *tokenizer.encode(prompt.text).tolist()]
        count = tokens_to_generate(model, len(tokens), max_tokens, prompt.location or "prompt")
        yield TextRequest(tokens, seed + number, count, settings.sampling, settings.biases)


def banned_tokens(tokenizer: Tokenizer, stop: int | None) -> list[int]:
    """Return the tokens that are never generated: the unknown one, and the boundary if it ends no text and no line."""
    banned = [] if tokenizer.unknown_id is None else [tokenizer.unknown_id]
    return banned if stop == END or tokenizer.ends_lines else [*banned, END]

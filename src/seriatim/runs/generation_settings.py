"""The settings of generated text: how tokens are drawn, biases of tokens, and strings that end a text."""

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, TypedDict

from torch import nn

from ..config.arguments import check_integer, check_number, check_text
from ..core.errors import LOOKED_AT, InputError, nearest, require_known, shown
from ..data.tokenizers import END, END_TEXT, Tokenizer
from ..decoding.sampling_settings import FINITE, Sampling
from ..decoding.stop_strings import check_stop_strings
from ..layers.positions import check_lengths, learned_positions

USUAL_TOKENS = 200
"""The largest number of tokens of a text, unless another is given."""


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


def tokens_to_generate(model: nn.Module, read: int, max_tokens: int | None, place: str) -> int:
    """Return the largest number of tokens that follow ``read`` tokens, the boundary before them included.

    None stands for `USUAL_TOKENS`, or as many as learned positions are left. ``place`` names the text in messages.

    Raises:
        InputError: the model has too few learned positions.
    """
    limit = learned_positions(model)
    check_lengths(limit, [read], lambda _: place, more=max_tokens or 0)
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
        raise InputError(f"logit_bias: expected tokens with their numbers, as a dict, got {shown(biases)}")
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
    encoded = [] if tokenizer.unknown_pieces(text) else tokenizer.encode(text).tolist()
    if len(encoded) == 1 and encoded[0] != tokenizer.unknown_id and tokenizer.token_bytes(encoded[0]) == raw:
        return int(encoded[0])
    found = (token for token in _written(tokenizer) if raw and tokenizer.token_bytes(token) == raw)
    token = next(found, END if raw and raw in (END_TEXT.encode(), tokenizer.token_bytes(END)) else None)
    if token is None:
        raise InputError(f"logit_bias: {shown(text)} is no token of the model; {_nearest_token(tokenizer, text)}")
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

"""Many texts from one prompt, generated in batches so that the memory is bounded."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from ..core.state import State, select_state, state_bytes
from ..data.tokenizers import END, Tokenizer
from ..decoding.sampling import Sampling, read, sample
from ..models.base_models import TextModel
from .stream import banned_tokens

MEMORY = 1 << 28
"""Largest size of a batch of texts in bytes, as estimated by `rows_together`."""
MAX_ROWS = 256
COPIES = 8
"""Arrays of a row's logits, in float64, that are in memory while a token is sampled."""


def draw_texts(
    model: TextModel,
    tokenizer: Tokenizer,
    prompt: Sequence[int],
    sampling: Sampling,
    *,
    max_tokens: int,
    seeds: range,
    stop: int | None,
) -> Iterator[str]:
    """Generate texts that follow a prompt, one for each seed, in order.

    Args:
        model: in evaluation mode.
        tokenizer: the tokenizer of the model.
        prompt: token ids, without the boundary symbol that begins a text.
        sampling: how tokens are sampled.
        max_tokens: largest number of tokens of a text.
        seeds: the seeds; a text depends on its own seed only.
        stop: the token that ends a text, or None.
    """
    tokens = [END, *prompt]
    beginning = model.initial_state(1)
    start = state_bytes(beginning)
    logits, state = read(model, torch.tensor([tokens], device=model.device), beginning)
    growth = max(0, state_bytes(state) - start) / len(tokens)
    together = rows_together(state_bytes(state) + growth * max_tokens, logits.shape[1], max_tokens)
    banned = banned_tokens(tokenizer, stop)
    for first in range(0, len(seeds), together):
        rows = seeds[first : first + together]
        decoders = [tokenizer.decoder(after=tokens[-1]) for _ in rows]
        texts: list[list[str]] = [[] for _ in rows]
        drawn = sample(
            model, *_repeated(logits, state, len(rows)), sampling,
            max_tokens=max_tokens, seeds=rows, stop=stop, banned=banned,
        )  # fmt: skip
        for step in drawn:
            for text, decoder, token in zip(texts, decoders, step.tokens, strict=True):
                if token is not None:
                    text.append(decoder.feed(token))
        yield from ("".join(text) + decoder.finish() for text, decoder in zip(texts, decoders, strict=True))


def rows_together(state_size: float, vocabulary_size: int, max_tokens: int) -> int:
    """Return the number of texts that are generated as one batch.

    Args:
        state_size: size of a text's state at its end, in bytes.
        vocabulary_size: number of tokens.
        max_tokens: largest number of tokens of a text.
    """
    row = 2 * state_size + COPIES * 8 * vocabulary_size + 64 * min(max_tokens, 1 << 20)  # 64: a piece of text
    return max(1, min(MAX_ROWS, int(MEMORY / row)))


def _repeated(logits: Tensor, state: State, rows: int) -> tuple[Tensor, State]:
    """Return the logits and the state of one text as those of ``rows`` equal ones."""
    index = torch.zeros(rows, dtype=torch.long, device=logits.device)
    return logits[index], select_state(state, index)

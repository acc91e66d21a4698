"""Filling of gaps in lines: a masked language model replaces each ``[MASK]`` by one token."""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ..core.json_object import JsonObject
from ..data.batching import Buckets
from ..data.tokenizers import END, Tokenizer
from ..models import MaskedLanguageModel
from ..models.probabilities import softmax

MASK_TEXT = "[MASK]"
TOGETHER = 64
"""Windows in a batch."""
MAX_PROBABILITIES = 1 << 24
"""Probabilities that are held at once."""
SHOWN = 5
"""Number of tokens that are listed for each gap."""


class Gaps(NamedTuple):
    """A line with gaps: the pieces of text around them, and its tokens with the mask symbol in the gaps and its end.

    ``spaced`` says for each gap whether it is filled by a token that begins with a space.
    """

    pieces: list[str]
    spaced: list[bool]
    ids: np.ndarray


def fill(
    model: MaskedLanguageModel, tokenizer: Tokenizer, lines: Sequence[str], *, unit: str, length: int
) -> list[JsonObject]:
    """Fill each gap of every line with its most probable token, given the line without all of them.

    The boundary, the unknown, reserved tokens and line ends are never filled in. A line without a gap comes back as it
    is. ``unit`` is ``line`` if lines end with the boundary symbol; ``length`` tokens are read at once, and longer lines
    are cut.

    Returns:
        Per line ``text``, and ``masks``: for every gap the likeliest tokens with their probabilities, in a list of
        ``token`` and ``probability``.
    """
    answers: list[JsonObject] = [{"text": line, "masks": []} for line in lines]
    gaps = {row: find_gaps(line, tokenizer, model.mask, unit) for row, line in enumerate(lines) if MASK_TEXT in line}
    for row, best in zip(gaps, likeliest(model, tokenizer, list(gaps.values()), length), strict=True):
        answers[row] = _filled(gaps[row], tokenizer, best)
    return answers


def find_gaps(line: str, tokenizer: Tokenizer, mask: int, unit: str) -> Gaps:
    """Encode the text around the gaps; subwords include the space before them, and so do gaps."""
    pieces, spaced = line.split(MASK_TEXT), []
    for i, piece in enumerate(pieces[:-1]):
        begins = tokenizer.frames and not i and not piece
        spaced.append(gap_includes_space(tokenizer) and (piece.endswith(" ") or begins))
        pieces[i] = piece[:-1] if spaced[i] else piece
    ids = [tokenizer.encode(pieces[0])]
    for piece in pieces[1:]:
        ids += [np.array([mask]), tokenizer.encode(piece)]
    return Gaps(pieces, spaced, np.concatenate([*ids, line_end(tokenizer, unit)]).astype(np.int64))


def line_end(tokenizer: Tokenizer, unit: str) -> np.ndarray:
    """Return the tokens that end a line that a masked language model reads ``(tokens,)``."""
    return np.array([END]) if unit == "line" and not tokenizer.frames else tokenizer.encode("\n")


def gap_includes_space(tokenizer: Tokenizer) -> bool:
    """Return whether a gap after a space is filled by a token that begins with this space."""
    return tokenizer.kind in ("bpe", "unigram", "pretrained")


def likeliest(
    model: MaskedLanguageModel, tokenizer: Tokenizer, lines: Sequence[Gaps], length: int
) -> list[list[list[tuple[int, float]]]]:
    """Return for each gap of each line the likeliest tokens with their probabilities; see `fill`."""
    device, mask = model.embedding.weight.device, model.mask
    windows = [line.ids[start : start + length] for line in lines for start in range(0, len(line.ids), length)]
    windows = [window for window in windows if (window == mask).any()]
    spaced = iter([each for line in lines for each in line.spaced])
    spaced_by_window = [[next(spaced) for _ in range(int((window == mask).sum()))] for window in windows]
    lengths = np.array([len(window) for window in windows], dtype=np.int64)
    most = max(map(len, spaced_by_window), default=1)
    together = max(1, min(TOGETHER, MAX_PROBABILITIES // (most * model.vocabulary_size)))
    buckets = Buckets(lengths, together, lambda rows: rows)
    found: list[list[list[tuple[int, float]]]] = [[] for _ in windows]
    for rows in buckets.read(buckets.in_order()):
        ids = pad_sequence([torch.from_numpy(windows[row]) for row in rows], batch_first=True).to(device)
        gaps = ids == mask
        logits = model(ids, gaps.flatten().nonzero().squeeze(1), lengths=torch.from_numpy(lengths[rows]))
        shares = iter(softmax(logits).cpu())
        for row in rows.tolist():
            found[row] = [_best(next(shares), tokenizer, spaced=each) for each in spaced_by_window[row]]
    flat = iter([best for window in found for best in window])
    return [[next(flat) for _ in line.spaced] for line in lines]


def _best(share: Tensor, tokenizer: Tokenizer, *, spaced: bool) -> list[tuple[int, float]]:
    """Return the likeliest tokens that may fill a gap, given the probability of every token ``(vocabulary,)``."""
    allowed = writable(tokenizer)[int(spaced)]
    values, order = share[allowed].topk(min(SHOWN, len(allowed)))
    return list(zip(allowed[order].tolist(), values.tolist(), strict=True))


def _filled(gaps: Gaps, tokenizer: Tokenizer, likeliest_tokens: Sequence[Sequence[tuple[int, float]]]) -> JsonObject:
    text, masks = [gaps.pieces[0].encode()], []
    for piece, spaced, best in zip(gaps.pieces[1:], gaps.spaced, likeliest_tokens, strict=True):
        masks.append([{"token": tokenizer.describe(token), "probability": share} for token, share in best])
        filled = tokenizer.token_bytes(best[0][0])
        if tokenizer.frames and not (spaced and any(text)):  # the space is not in the line
            filled = filled.removeprefix(b" ")
        text += [filled, piece.encode()]
    return {"text": b"".join(text).decode("utf-8", "replace"), "masks": masks}


@functools.lru_cache(maxsize=4)
def writable(tokenizer: Tokenizer) -> tuple[Tensor, Tensor]:
    """Return the tokens that may fill a gap, and those of them that may do so after a space."""
    written = {token: tokenizer.token_bytes(token) for token in range(tokenizer.vocabulary_size)}
    special = (END, tokenizer.unknown_id, *tokenizer.reserved)
    plain = [token for token, raw in written.items() if token not in special and raw and not set(raw) & set(b"\r\n")]
    with_space = [token for token in plain if tokenizer.starts_word(token)]
    return torch.tensor(plain), torch.tensor(with_space, dtype=torch.long)

"""Filling of gaps in lines: a masked language model replaces each ``[MASK]`` by one token."""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ..data.batching import Buckets
from ..data.tokenizers import END, Tokenizer
from ..evaluation.intervals import Metrics
from ..models import MaskedLanguageModel

MASK_TEXT = "[MASK]"
TOGETHER = 64
"""Windows in a batch."""
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
) -> list[Metrics]:
    """Fill each gap of every line with its most probable token, given the line without all of them.

    The boundary, the unknown, reserved tokens and line ends are never filled in. A line without a gap comes back as it
    is. ``unit`` is ``line`` if lines end with the boundary symbol; ``length`` tokens are read at once, and longer lines
    are cut.

    Returns:
        Per line ``text``, and ``masks``: for every gap the likeliest tokens with their probabilities, in a list of
        ``token`` and ``probability``.
    """
    answers: list[Metrics] = [{"text": line, "masks": []} for line in lines]
    gaps = {row: find_gaps(line, tokenizer, model.mask, unit) for row, line in enumerate(lines) if MASK_TEXT in line}
    for row, shares in zip(gaps, probabilities(model, [each.ids for each in gaps.values()], length), strict=True):
        answers[row] = _filled(gaps[row], tokenizer, shares)
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
    end = np.array([END]) if unit == "line" and not tokenizer.frames else tokenizer.encode("\n")
    return Gaps(pieces, spaced, np.concatenate([*ids, end]).astype(np.int64))


def gap_includes_space(tokenizer: Tokenizer) -> bool:
    """Return whether a gap after a space is filled by a token that begins with this space."""
    return tokenizer.kind in ("bpe", "unigram", "pretrained")


def probabilities(model: MaskedLanguageModel, lines: Sequence[np.ndarray], length: int) -> Sequence[Tensor]:
    """Return the probability of every token at every gap of each line ``(gaps, vocabulary)``, in float64.

    The lines are ids with at least one mask symbol each, which are read in windows of ``length`` tokens.
    """
    device = model.embedding.weight.device
    windows = [ids[start : start + length] for ids in lines for start in range(0, len(ids), length)]
    windows = [window for window in windows if (window == model.mask).any()]
    lengths = np.array([len(window) for window in windows], dtype=np.int64)
    buckets = Buckets(lengths, TOGETHER, lambda rows: rows)
    results = [torch.empty(0, 0)] * len(windows)
    for rows in buckets.read(buckets.in_order()):
        ids = pad_sequence([torch.from_numpy(windows[row]) for row in rows], batch_first=True).to(device)
        gaps = ids == model.mask
        logits = model(ids, gaps.flatten().nonzero().squeeze(1), lengths=torch.from_numpy(lengths[rows]))
        shares = torch.split(torch.softmax(logits.double(), dim=1).cpu(), gaps.sum(1).tolist())
        for row, part in zip(rows.tolist(), shares, strict=True):
            results[row] = part
    return torch.split(torch.cat(results), [int((line == model.mask).sum()) for line in lines]) if windows else ()


def _filled(gaps: Gaps, tokenizer: Tokenizer, shares: Tensor) -> Metrics:
    text, masks = [gaps.pieces[0].encode()], []
    for piece, spaced, share in zip(gaps.pieces[1:], gaps.spaced, shares, strict=True):
        plain, with_space = writable(tokenizer)
        allowed = with_space if spaced else plain
        best = allowed[share[allowed].topk(min(SHOWN, len(allowed))).indices].tolist()
        masks.append([{"token": tokenizer.describe(token), "probability": share[token].item()} for token in best])
        filled = tokenizer.token_bytes(best[0])
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

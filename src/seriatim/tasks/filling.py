"""Gaps in lines, filled by a masked language model: ``[MASK]`` stands for one token, everything else stays as it is."""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..data.tokenizers import END, Tokenizer
from ..models import MaskedLanguageModel

MASK_TEXT = "[MASK]"
SHOWN = 5
"""Tokens named for every gap."""


class Gaps(NamedTuple):
    """A line with gaps.

    Attributes:
        pieces: the text around the gaps, one more than those.
        spaced: whether each gap takes the space before it: a token that holds its own.
        ids: the line's tokens, its end included, with the mask symbol in the gaps.
    """

    pieces: list[str]
    spaced: list[bool]
    ids: np.ndarray


def fill(
    model: MaskedLanguageModel, tokenizer: Tokenizer, lines: Sequence[str], *, unit: str, length: int
) -> list[dict[str, Any]]:
    """Every line with its gaps filled, each by its likeliest token given the line without all of them.

    The boundary, the unknown and line ends are never filled in. A line without a gap comes back as it is.

    Args:
        model: in evaluation mode.
        tokenizer: the model's.
        lines: without line ends.
        unit: how the model has seen lines end, by the boundary symbol or as a stretch of a running text.
        length: tokens read at once; a longer line is cut.

    Returns:
        Per line ``text``, and ``masks``: for every gap the likeliest tokens with their probabilities, in a list of
        ``token`` and ``probability``.
    """
    answers: list[dict[str, Any]] = []
    for line in lines:
        if MASK_TEXT not in line:
            answers.append({"text": line, "masks": []})
            continue
        gaps = find_gaps(line, tokenizer, model.mask, unit)
        answers.append(_filled(gaps, tokenizer, probabilities(model, gaps.ids, length)))
    return answers


def find_gaps(line: str, tokenizer: Tokenizer, mask: int, unit: str) -> Gaps:
    """Encodes the text around the gaps; pieces of words carry the space before them, and so do gaps among them."""
    pieces, spaced = line.split(MASK_TEXT), []
    for i, piece in enumerate(pieces[:-1]):
        spaced.append(tokenizer.kind in ("bpe", "unigram") and piece.endswith(" "))
        pieces[i] = piece[:-1] if spaced[i] else piece
    ids = [tokenizer.encode(pieces[0])]
    for piece in pieces[1:]:
        ids += [np.array([mask]), tokenizer.encode(piece)]
    end = np.array([END]) if unit == "line" else tokenizer.encode("\n")
    return Gaps(pieces, spaced, np.concatenate([*ids, end]).astype(np.int64))


def probabilities(model: MaskedLanguageModel, ids: np.ndarray, length: int) -> Tensor:
    """P of every token at every gap ``(gaps, vocabulary)``, in float64."""
    device, found = model.embedding.weight.device, []
    for start in range(0, len(ids), length):
        window = torch.from_numpy(ids[start : start + length]).to(device)
        positions = (window == model.mask).nonzero().squeeze(1)
        if len(positions):
            found.append(torch.softmax(model(window.unsqueeze(0), positions).double(), dim=1).cpu())
    return torch.cat(found)


def _filled(gaps: Gaps, tokenizer: Tokenizer, shares: Tensor) -> dict[str, Any]:
    text, masks = [gaps.pieces[0].encode()], []
    for piece, spaced, share in zip(gaps.pieces[1:], gaps.spaced, shares, strict=True):
        plain, with_space = writable(tokenizer)
        allowed = with_space if spaced else plain
        best = allowed[share[allowed].topk(min(SHOWN, len(allowed))).indices].tolist()
        masks.append([{"token": tokenizer.describe(token), "probability": share[token].item()} for token in best])
        text += [tokenizer.token_bytes(best[0]), piece.encode()]
    return {"text": b"".join(text).decode("utf-8", "replace"), "masks": masks}


@functools.lru_cache(maxsize=4)
def writable(tokenizer: Tokenizer) -> tuple[Tensor, Tensor]:
    """Tokens that may fill a gap, and those of them that begin with a space."""
    written = {token: tokenizer.token_bytes(token) for token in range(tokenizer.vocabulary_size)}
    plain = [
        token
        for token, raw in written.items()
        if token not in (END, tokenizer.unknown_id) and raw and not set(raw) & set(b"\r\n")
    ]
    with_space = [token for token in plain if written[token].startswith(b" ")]
    return torch.tensor(plain), torch.tensor(with_space, dtype=torch.long)

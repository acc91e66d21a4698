"""From sources to written answers: search, what may not be written, and where an answer looked."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..data.tokenizers import END, Tokenizer
from ..data.vocabulary import Vocabulary
from ..decoding.beam import Beam, Hypothesis, beam_search
from ..decoding.ctc import best_alignments, search
from ..errors import InputError
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


def never_written(tokenizer: Tokenizer) -> list[int]:
    """Tokens that no answer may hold: the unknown one, and line ends, for an answer is one line."""
    tokens = (token for token in range(tokenizer.vocabulary_size) if token != END)
    return [token for token in tokens if token == tokenizer.unknown_id or b"\n" in tokenizer.token_bytes(token)]


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
    sizes = torch.tensor([len(tokens) + 1 for tokens in answers])
    inputs = source.new_zeros(len(answers), int(sizes.max()))
    for row, tokens in enumerate(answers):
        inputs[row, 1 : len(tokens) + 1] = torch.tensor(tokens)
    weights = model.attention(source, lengths, inputs, sizes).tolist()
    for row, tokens in enumerate(answers):
        size = int(lengths[row])
        yield {
            "source_tokens": [vocabulary.tokenizer.describe(token) for token in source[row, :size].tolist()],
            "target_tokens": [vocabulary.target.describe(token) for token in (*tokens, END)],
            "alignment": [places[:size] for places in weights[row][: len(tokens) + 1]],
        }


def in_words(best: Sequence[Hypothesis], tokenizer: Tokenizer) -> Metrics:
    """The best hypothesis as text, and all of them with their scores."""
    texts = [
        {"text": tokenizer.decode(one.tokens), "score": one.score, "log_probability": one.log_probability}
        for one in best
    ]
    return {**texts[0], "n_best": texts}

"""The part of a text whose tokens a comparison looks at one by one, and what is known of each of them."""

from typing import NamedTuple

import numpy as np

from ..data.corpus import Corpus
from ..data.encoding import Statistics
from ..data.text import read_pieces
from ..data.tokenizers import Tokenizer
from ..evaluation.perplexity import BLOCK
from ..evaluation.token_scores import UNKNOWN, TokenLosses, cut_evenly, places_in_lines, token_text

MAX_TOKENS = 30_000  # tokens that are kept
LINES_TOGETHER = 16  # neighbouring lines that are chosen together
PIECE = 120  # approximate characters of a piece of text that is shown
MAX_BYTES = 1 << 24  # size of a text up to which it is read again to name its unknown words
MAX_NAME = 60  # characters of a token that are kept


class ChosenPart(NamedTuple):
    """A part of a text: ``corpus`` is read, and the tokens at some ``places`` in it are kept ``(tokens,)``.

    They are in blocks, whose ``ends`` are counted in kept tokens, and ``at`` are their places in the whole text.
    """

    corpus: Corpus
    places: np.ndarray
    at: np.ndarray
    ends: np.ndarray
    measured: str


def choose_lines(whole: Corpus) -> ChosenPart:
    """Choose neighbouring lines, evenly spread over a text, of about `MAX_TOKENS` tokens together."""
    starts, ends = whole.spans(1)
    lengths, lines = ends - starts, np.arange(len(ends))
    if lengths.sum() > MAX_TOKENS:
        groups = -(-len(lines) // LINES_TOGETHER)
        wanted = max(1, int(MAX_TOKENS / lengths.mean() / LINES_TOGETHER))
        first = np.unique(np.arange(min(wanted, groups)) * groups // min(wanted, groups)) * LINES_TOGETHER
        lines = (first[:, None] + np.arange(LINES_TOGETHER)).ravel()
        lines = lines[lines < len(ends)]
    limits = lengths[lines].cumsum()
    lines = lines[: max(1, int(np.searchsorted(limits, 2 * MAX_TOKENS, side="right")))]
    at = np.concatenate([np.arange(starts[line], ends[line]) for line in lines.tolist()])
    ids = np.asarray(whole.ids[at])
    some = f"in {len(lines):,} of {len(ends):,} lines, evenly spread" if len(lines) < len(ends) else "in all lines"
    ends = lengths[lines].cumsum()
    part = Corpus(ids, ends, Statistics(), tokenizer=whole.tokenizer)
    return ChosenPart(part, np.arange(len(ids)), at, ends, f"{len(ids):,} tokens {some}")


def choose_blocks(whole: Corpus, read: int) -> ChosenPart:
    """Choose blocks that are evenly spread over the first ``read`` tokens of a running text."""
    ids = np.asarray(whole.ids[:read])
    size = max(1, min(BLOCK, len(ids) // 20))
    count = -(-len(ids) // size)
    kept = max(1, min(count, MAX_TOKENS // size))
    blocks = np.arange(kept) * count // kept
    spans = [np.arange(block * size, min(len(ids), (block + 1) * size)) for block in blocks.tolist()]
    ends, places = np.cumsum([len(span) for span in spans]), np.concatenate(spans)
    total = "" if len(ids) == len(whole.ids) else f" of {len(whole.ids):,}"
    measured = f"all {len(ids):,} tokens" if not total else f"the first {len(ids):,}{total} tokens"
    if len(places) < len(ids):
        first = "the first " * bool(total)
        measured = f"{len(places):,} of {first}{len(ids):,} tokens, in {kept} blocks that are evenly spread"
    part = Corpus(ids, None, Statistics(), tokenizer=whole.tokenizer)
    return ChosenPart(part, places, places, ends, measured)


def with_losses(part: ChosenPart, nats: np.ndarray, whole: Corpus, train: Corpus, tokenizer: Tokenizer) -> TokenLosses:
    """Return the losses of the chosen tokens, from those of all tokens that were read ``(tokens read,)``."""
    ids = np.asarray(part.corpus.ids).astype(np.int64)
    texts = {token: token_text(tokenizer, token) for token in np.unique(ids).tolist()}
    ending = np.array([token for token, text in texts.items() if text.rstrip(" ").endswith("\n")], np.int64)
    positions = places_in_lines(ids, np.isin(ids, ending))
    counts = train.counts(tokenizer.vocabulary_size)
    chosen = ids[part.places]
    unknown = np.zeros(len(chosen), bool) if tokenizer.unknown_id is None else chosen == tokenizer.unknown_id
    statistics = whole.statistics
    characters = max(1.0, statistics.characters / max(1, statistics.tokens))
    piece_ends, piece_blocks = cut_evenly(part.ends, max(8, round(PIECE / characters)))
    return TokenLosses(
        nats[part.places],
        chosen,
        positions[part.places],
        np.where(unknown, UNKNOWN, counts[chosen]),
        piece_ends,
        piece_blocks,
        {token: _shortened(texts[token]) for token in np.unique(chosen).tolist()},
        spelled_words(whole, part.at[unknown], np.flatnonzero(unknown), tokenizer),
        part.measured,
    )


def spelled_words(whole: Corpus, at: np.ndarray, places: np.ndarray, tokenizer: Tokenizer) -> dict[int, str]:
    """Return the words in place of the unknown tokens ``at`` some places of a text, by other ``places``, in order.

    The text is read again, unless it is large; without a word for each unknown token, the answer is empty.
    """
    if not len(at) or not whole.sources or whole.statistics.bytes > MAX_BYTES:
        return {}
    words = [word for piece in read_pieces(whole.sources) for word in tokenizer.unknown_pieces(piece.text)]
    if len(words) != whole.statistics.unknown_tokens:
        return {}
    ranks = (np.asarray(whole.ids) == tokenizer.unknown_id).cumsum()[at] - 1
    return {place: _shortened(words[rank]) for place, rank in zip(places.tolist(), ranks.tolist(), strict=True)}


def _shortened(text: str) -> str:
    return text if len(text) <= MAX_NAME else f"{text[: MAX_NAME - 1]}…"

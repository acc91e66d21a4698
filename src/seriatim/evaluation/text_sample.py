"""Samples of a text that stand for all of it: lines or stretches that are spread evenly over the text.

The first tokens of a text are its title, its licence or its first author, so that no measurement is made of them alone.
"""

from typing import NamedTuple

import numpy as np

from ..data.corpus import Corpus
from ..data.encoding import Statistics
from .token_scores import counted

STRETCH = 500  # tokens of a stretch that is a text of its own
MIN_STRETCHES = 20  # of a text that is shorter than the sample, so that intervals have observations


class TextSample(NamedTuple):
    """A sample of a text: ``corpus`` is read, and the tokens at the positions ``kept`` in it are kept ``(tokens,)``.

    They are in lines or stretches, whose ``ends`` are counted in kept tokens, and ``at`` are their positions in the
    full text. ``measured`` says in words what they are.
    """

    corpus: Corpus
    kept: np.ndarray
    at: np.ndarray
    ends: np.ndarray
    measured: str

    @property
    def stretch_of(self) -> np.ndarray:
        """The number of the line or stretch of each kept token ``(tokens,)``."""
        return np.repeat(np.arange(len(self.ends)), np.diff(self.ends, prepend=0))


def choose_sample(text: Corpus, tokens: int, *, stretch: int, read: int, at_least: int = MIN_STRETCHES) -> TextSample:
    """Choose about so many tokens of a text, in whole lines, or in stretches of a running text.

    Stretches are shorter than asked for where a short text would have fewer than ``at_least``.

    A running text of at most ``read`` tokens is read from its beginning, so that the loss of a token is that of the
    ordinary evaluation. Of a longer text, each stretch is read after as many tokens as can be read with this limit.
    """
    if text.ends is not None:
        return _choose_lines(text, tokens)
    return _choose_stretches(text, tokens, max(1, min(stretch, len(text.ids) // at_least)), read)


def sample_text(text: Corpus, tokens: int | None) -> Corpus:
    """Return a text of about so many tokens of another one, in whole lines or in stretches that become lines.

    Its counts of words and bytes are estimated from those of all of the text. None, or a short text, gives all of it.
    """
    if tokens is None or len(text.ids) <= tokens:
        return text
    corpus = choose_sample(text, tokens, stretch=min(STRETCH, tokens), read=tokens, at_least=1).corpus
    fraction = len(corpus.ids) / len(text.ids)
    for name, value in vars(text.statistics).items():
        setattr(
            corpus.statistics, name, value * fraction if isinstance(value, float) else max(1, round(value * fraction))
        )
    return corpus


def _choose_lines(text: Corpus, tokens: int) -> TextSample:
    starts, ends = text.spans(1)
    lengths, lines = ends - starts, np.arange(len(ends))
    if lengths.sum() > tokens:
        # One random line of each group of neighbours: lines at equal distances might all be of one speaker.
        wanted = min(len(lines), max(1, int(tokens / lengths.mean())))
        random = np.random.default_rng(0)
        lines = ((np.arange(wanted) + random.random(wanted)) * len(ends) / wanted).astype(np.int64)

    # Lines differ in length, so that those chosen may be much longer than the mean; the sample ends where they are.
    limits = lengths[lines].cumsum()
    lines = lines[: max(1, int(np.searchsorted(limits, 2 * tokens, side="right")))]
    at = np.concatenate([np.arange(starts[line], ends[line]) for line in lines.tolist()])
    some = f"in {len(lines):,} of {len(ends):,} lines, spread over the text" if len(lines) < len(ends) else ""
    measured = f"{len(at):,} tokens {some}" if some else f"all {counted(len(at), 'tokens')}"
    line_ends = lengths[lines].cumsum()
    corpus = Corpus(np.asarray(text.ids[at]), line_ends, Statistics(), tokenizer=text.tokenizer)
    return TextSample(corpus, np.arange(len(at)), at, line_ends, measured)


def _choose_stretches(text: Corpus, tokens: int, size: int, read: int) -> TextSample:
    total = len(text.ids)
    blocks = -(-total // size)
    count = max(1, min(blocks, tokens // size))
    starts = np.arange(count) * blocks // count * size
    ends = np.minimum(starts + size, total)
    at = np.concatenate([np.arange(start, end) for start, end in zip(starts.tolist(), ends.tolist(), strict=True)])
    measured = f"{len(at):,} tokens in {count:,} stretches spread over the text"
    measured = measured if len(at) < total else f"all {counted(total, 'tokens')}"
    kept_ends = (ends - starts).cumsum()
    if total <= read:
        corpus = Corpus(np.asarray(text.ids[:]), None, Statistics(), tokenizer=text.tokenizer)
        return TextSample(corpus, at, at, kept_ends, measured)

    # A long text is not read as a whole: what is read before each stretch is a line of its own with it.
    before = max(0, read // count - size)
    begins = np.maximum(0, starts - before)
    read_ends = (ends - begins).cumsum()
    ids = np.concatenate([text.ids[begin:end] for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)])
    kept = at + np.repeat(read_ends - ends, ends - starts)
    measured += f", each read after up to {before:,} tokens before it" if before else ""
    return TextSample(Corpus(ids, read_ends, Statistics(), tokenizer=text.tokenizer), kept, at, kept_ends, measured)

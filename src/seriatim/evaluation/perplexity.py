"""Perplexity of language models per token and per word, and bits per byte.

The text is read in one pass, and the state is carried from window to window: the context is never cut. ``loss`` is in
nats per token and ``perplexity`` is its exponential; both count ``<unk>`` as one word, as published figures do.
``word_perplexity`` (line ends count as words) and ``bits_per_byte`` can be compared across tokenizers: they include the
cost of spelling the unknown words (`seriatim.data.tokenizers`).
"""

import math
from collections.abc import Callable, Iterable, Iterator

import numpy as np
import torch

from ..core.errors import check_integer
from ..core.json_object import JsonObject
from ..core.state import State
from ..data.batches import Batches
from ..data.corpus import Corpus
from ..data.encoding import Statistics
from ..models.base_models import TextModel
from .intervals import interval, mean

WINDOW = 256
LINES_TOGETHER = 64
COUNTS = ("tokens", "words", "bytes", "lines", "unknown_tokens")
BLOCK = 500
"""Tokens of a running text that count as one observation in the interval, since neighbours are not independent."""


def text_metrics(losses: np.ndarray, sizes: np.ndarray, counts: Statistics) -> JsonObject:
    """Compute the metrics of a text from the summed losses and sizes of its blocks ``(blocks,)``, and its counts.

    Returns:
        ``loss perplexity word_perplexity bits_per_byte``, each with its 95 % interval as ``NAME_low`` and
        ``NAME_high`` (None if the text is one observation), and ``tokens words bytes lines unknown_tokens``.
    """
    # Tokens of one block are not independent, so that blocks are the observations of the interval. The other figures
    # rise with the loss, so that the bounds of their intervals are those of the loss.
    loss, *bounds = interval(np.stack([losses, sizes], axis=1), mean)
    spelled = counts.spelling_nats / counts.tokens
    tokens_per_word = counts.tokens / (counts.words + counts.lines)
    tokens_per_byte = counts.tokens / counts.bytes

    def with_interval(name: str, compute: Callable[[float], float]) -> JsonObject:
        low, high = (None if bound is None else compute(bound) for bound in bounds)
        return {name: compute(loss), f"{name}_low": low, f"{name}_high": high}

    return {
        **with_interval("loss", lambda loss: loss),
        **with_interval("perplexity", safe_exp),
        **with_interval("word_perplexity", lambda loss: safe_exp((loss + spelled) * tokens_per_word)),
        **with_interval("bits_per_byte", lambda loss: (loss + spelled) * tokens_per_byte / math.log(2)),
        **{name: getattr(counts, name) for name in COUNTS},
    }


def unigram_metrics(train: Corpus, held_out: Corpus, vocabulary_size: int, *, word_dropout: float = 0.0) -> JsonObject:
    """Compute perplexity and bits per byte of a unigram model with add-one counts of the training text.

    ``word_dropout`` is the fraction of the tokens that occur once which count as the unknown token, as models learn it.
    """
    counts, held_out_counts = (corpus.counts(vocabulary_size) for corpus in (train, held_out))
    once = train.seen_once() if word_dropout else None
    if once is not None and train.tokenizer is not None:
        counts = np.where(once, 1 - word_dropout, counts)
        counts[train.tokenizer.unknown_id] += word_dropout * once.sum()
    cost = math.log(counts.sum() + vocabulary_size) - np.log(counts + 1)
    statistics, total = held_out.statistics, float(held_out_counts @ cost)
    return {
        "perplexity": safe_exp(total / statistics.tokens),
        "bits_per_byte": (total + statistics.spelling_nats) / statistics.bytes / math.log(2),
    }


def block_size(corpus: Corpus) -> int:
    """Return the number of tokens of a block of a running text, which counts as one observation."""
    return max(1, min(BLOCK, len(corpus.ids) // 20))


def sum_blocks(corpus: Corpus, chunks: Iterable[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """Return the summed loss and the number of tokens of each block: a line, or up to `BLOCK` tokens of a stream.

    ``chunks`` holds positions of tokens in the text, and −log P of each token in nats.
    """
    block = block_size(corpus)
    starts = np.arange(0, len(corpus.ids), block) if corpus.ends is None else corpus.spans(1)[0]
    losses = np.zeros(len(starts))
    for positions, values in chunks:
        np.add.at(losses, np.searchsorted(starts, positions, side="right") - 1, values)
    return losses, np.diff(starts, append=len(corpus.ids)).astype(float)


def each_loss(model: TextModel, corpus: Corpus, *, window: int = WINDOW) -> np.ndarray:
    """Return −log P of every token of a text ``(tokens,)``, in nats.

    The text is encoded by the model's tokenizer. The number of tokens read at once, ``window``, changes the memory
    needed, not the result.
    """
    losses = np.empty(len(corpus.ids))
    for positions, values in window_losses(model, corpus, window):
        losses[positions] = values
    return losses


@torch.no_grad()
def window_losses(model: TextModel, corpus: Corpus, window: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield for each window the positions of its tokens in the text, and −log P of each token in nats."""
    window = check_integer("window", window, minimum=1)
    if (known := model.text_losses(corpus.ids)) is not None:
        yield np.arange(len(known)), known
        return

    # A running text is one row whose state is carried on; lines are read side by side, each from the initial state.
    batches = Batches(corpus, 1 if corpus.ends is None else LINES_TOGETHER, window)
    training, state = model.training, None
    model.eval()
    try:
        for batch in batches.read(batches.in_order()):
            start: State | None = None if batch.fresh else state
            inputs, targets = batch.inputs.to(model.device), batch.targets.to(model.device)
            losses, state = model.token_losses(inputs, targets, start, lengths=batch.lengths)
            steps = np.arange(targets.shape[1])
            positions = (batches.starts_of(batch.rows) + batch.start)[:, None] + steps
            if batch.lengths is None:
                yield positions.ravel(), losses.double().cpu().numpy().ravel()
            else:
                valid = steps < batch.lengths.numpy()[:, None]
                yield positions[valid], losses.double().cpu().numpy()[valid]
    finally:
        model.train(training)


def safe_exp(x: float) -> float:
    """Return the exponential, which is infinite beyond what a float can hold."""
    try:
        return math.exp(x)
    except OverflowError:
        return math.inf

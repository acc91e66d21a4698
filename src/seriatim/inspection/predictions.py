"""What a language model says of every token of a text, a window at a time: log P of the whole vocabulary.

A model that reads forwards predicts each token from those before it; a masked one predicts each from all others, which
takes a pass over the window for every token, or with ``every`` k, as in training and evaluation, k passes.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ..core.errors import InputError
from ..data.batching import Batches, cut
from ..data.corpus import Corpus
from ..data.encoding import Statistics
from ..data.tokenizers import END, Tokenizer
from ..models.base_models import TextModel
from ..models.masked_language_model import MaskedLanguageModel
from ..report.token_axis import visible
from ..runs.stream import refuse_unknown
from ..training.task import evaluating

if TYPE_CHECKING:
    from ..runs.run import Run

ELEMENTS_TOGETHER = 1 << 22
"""Numbers of log probabilities that are held at once."""
LINES_TOGETHER, WINDOW = 16, 256
MASKED_TOGETHER = 32
"""Copies of a window, each with other gaps, that are read at once."""


def encode_text(run: "Run", text: str) -> Corpus:
    """A text as a language model's run would read it from a file: one running text, or lines with their ends.

    Raises:
        InputError: characters never seen in training, or nothing but words never seen. Some such words among others
            are read as the unknown word, as in every measurement.
    """
    tokenizer, lines = run.tokenizer, run.config.data.unit == "line"
    read = "".join(text.split("\n")) if lines else text
    if tokenizer.kind != "word":
        refuse_unknown(tokenizer, read)
    if lines:
        ids, sizes = tokenizer.encode_lines(text if text.endswith("\n") else f"{text}\n")
        corpus = Corpus(ids, sizes.cumsum(), Statistics())
    else:
        corpus = Corpus(tokenizer.encode(text), None, Statistics())
    if not np.any((corpus.ids != END) & (corpus.ids != tokenizer.unknown_id)):
        refuse_unknown(tokenizer, text)  # of words
        raise InputError("the text is empty; give some with --text or --text-file")
    return corpus


def log_probabilities(run: "Run", corpus: Corpus, *, every: int | None = None) -> Iterator[tuple[np.ndarray, Tensor]]:
    """Window by window: which tokens of a text they are, and log P of every token there, ``(places, vocabulary)``.

    Args:
        run: a language model, or a masked one.
        corpus: a text; every token of it is predicted once.
        every: of a masked model, how far apart tokens are that are masked at once; None masks each alone.
    """
    with evaluating(run.model):
        if isinstance(run.model, MaskedLanguageModel):
            yield from _masked(run.model, corpus, run.config.training.sequence_length, every)
        else:
            yield from _forwards(run.model, corpus)


def _forwards(model: TextModel, corpus: Corpus) -> Iterator[tuple[np.ndarray, Tensor]]:
    rows = 1 if corpus.ends is None else LINES_TOGETHER
    window = max(1, min(WINDOW, ELEMENTS_TOGETHER // (rows * model.vocabulary_size)))
    batches, state = Batches(corpus, rows, window), None
    for batch in batches.read(batches.in_order()):
        start = None if batch.fresh else state
        logits, state = model(batch.inputs.to(model.device), start, lengths=batch.lengths)
        position = np.arange(batch.targets.shape[1])
        places = (batches.starts[batch.rows] + batch.start)[:, None] + position
        lengths = np.full(len(places), len(position)) if batch.lengths is None else batch.lengths.numpy()
        valid = position < lengths[:, None]
        yield places[valid], torch.log_softmax(logits[torch.from_numpy(valid)].double(), dim=1)


def _masked(
    model: MaskedLanguageModel, corpus: Corpus, length: int, every: int | None
) -> Iterator[tuple[np.ndarray, Tensor]]:
    device: Any = model.embedding.weight.device
    windows = cut(corpus, length)
    for start, size in zip(windows.starts.tolist(), windows.lengths.tolist(), strict=True):
        ids = torch.from_numpy(np.asarray(corpus.ids[start : start + size], dtype=np.int64)).to(device)
        passes = min(every or size, size)
        for offsets in torch.split(torch.arange(passes, device=device), MASKED_TOGETHER):
            gaps = torch.arange(size, device=device) % passes == offsets.unsqueeze(1)  # (copies, T)
            logits = model(ids.masked_fill(gaps, model.mask), gaps.flatten().nonzero().squeeze(1))
            yield start + gaps.nonzero()[:, 1].cpu().numpy(), torch.log_softmax(logits.double(), dim=1)


def name_of(tokenizer: Tokenizer, token: int) -> str:
    """A token in a list of others; the boundary is a line end where it stands for one."""
    return "↵" if token == END and tokenizer.ends_lines else visible(tokenizer.describe(token))


def text_of(tokenizer: Tokenizer, token: int) -> str:
    """A token as it stands in a text: words with the space that follows them, the boundary as the line end it is."""
    if token == END:
        return "\n"
    return f"{tokenizer.describe(token)} " if tokenizer.ends_lines else tokenizer.describe(token)


def isolated(text: str) -> str:
    """A quotation inside a sentence or a list: one from right to left does not reorder what is around it."""
    return f"\N{FIRST STRONG ISOLATE}{text}\N{POP DIRECTIONAL ISOLATE}"

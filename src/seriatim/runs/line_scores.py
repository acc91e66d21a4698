"""The probability of lines, each as a text of its own."""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from ..config import Config
from ..core.errors import InputError
from ..data.arguments import check_text, iterate_items
from ..data.batching import Batches
from ..data.corpus import Corpus
from ..data.text_blocks import Statistics
from ..data.tokenizers import END, Tokenizer
from ..evaluation.perplexity import LINES_TOGETHER, WINDOW
from ..layers.positions import check_lengths, learned_positions
from ..models.base_models import TextModel
from ..tasks.data_files import warn_of_long


class LineScore(NamedTuple):
    """The probability of a text."""

    log_probability: float  # in nats
    tokens: int  # number of tokens that were predicted
    bytes: int  # size of the text in UTF-8


def score_lines(model: TextModel, tokenizer: Tokenizer, config: Config, lines: Iterable[str]) -> list[LineScore]:
    """Compute the probability of each line; see `Run.score`."""
    texts = list(iterate_items(lines, "score"))
    for number, text in enumerate(texts):
        check_text(text, f"score: item {number}")
    if not texts:
        return []
    if any("\n" in text for text in texts):
        raise InputError("score takes lines; one of them contains a line end, split it")
    end = tokenizer.encode_continued("\n") if config.data.unit == "stream" else np.array([END])
    ids = [np.concatenate([tokenizer.encode(text), end]).astype(np.int64) for text in texts]
    sizes = np.array([len(part) for part in ids])
    check_lengths(learned_positions(model), sizes, lambda number: f"score: item {number}")
    warn_of_long(sizes, config, name="score", items="lines")
    batches = Batches(
        Corpus(np.concatenate(ids), sizes.cumsum(), Statistics(), tokenizer=tokenizer), LINES_TOGETHER, WINDOW
    )
    totals, state = np.zeros(len(texts)), None
    for batch in batches.read(batches.in_order()):
        inputs, targets = batch.inputs.to(model.device), batch.targets.to(model.device)
        losses, state = model.token_losses(inputs, targets, None if batch.fresh else state, lengths=batch.lengths)
        totals[batch.rows] -= losses.double().sum(1).cpu().numpy()
    rows = zip(totals.tolist(), sizes.tolist(), texts, strict=True)
    return [LineScore(total, size, len(text.encode())) for total, size, text in rows]

"""Metrics of sequence to sequence from the losses and the answers of pairs."""

from typing import TypeAlias

import numpy as np
from torch import Tensor

from ..core.json_object import JsonObject
from ..core.lengths import valid_mask
from ..data.batching import Buckets
from ..data.encoded_pairs import PairBatch, Pairs
from ..evaluation.intervals import Measure, mean, with_interval
from ..evaluation.perplexity import safe_exp
from ..evaluation.translation import translation_measures, translation_metrics
from ..models.ctc_translator import CTCTranslator
from ..models.encoder_decoder import EncoderDecoder
from ..models.probabilities import checked_losses
from .task import evaluating

TOGETHER = 32
"""Number of pairs that are read or answered together."""
Translator: TypeAlias = EncoderDecoder | CTCTranslator


def alignment_losses(model: CTCTranslator, batch: PairBatch) -> Tensor:
    """Return −log P of each target ``(batch,)``, summed over its alignments with the source."""
    source, targets = (part.to(model.output.weight.device) for part in (batch.source, batch.targets))
    return model.losses(source, batch.source_lengths, targets, batch.target_lengths - 1)


def pair_losses(model: Translator, data: Pairs) -> np.ndarray:
    """Return for every pair the summed −log P in nats and the number of target tokens ``(pairs, 2)``."""
    batches = Buckets(data.source.lengths + data.target.lengths, TOGETHER, data.batch)
    losses = np.zeros((len(data.sources), 2))
    with evaluating(model) as device:
        for batch in batches.read(batches.in_order()):
            lengths = batch.target_lengths
            if isinstance(model, CTCTranslator):
                total = checked_losses(alignment_losses(model, batch))
            else:
                source, inputs, targets = (part.to(device) for part in (batch.source, batch.inputs, batch.targets))
                total = model.token_losses(source, batch.source_lengths, inputs, targets, lengths).double().sum(1)
            losses[batch.rows, 0] = total.cpu().numpy()
            losses[batch.rows, 1] = lengths.numpy()
    return losses


def likelihood(losses: np.ndarray) -> JsonObject:
    """Return loss and perplexity with intervals, from the result of `pair_losses`."""
    metrics = with_interval("loss", losses, mean)
    return metrics | {
        name.replace("loss", "perplexity"): None if value is None else safe_exp(value)
        for name, value in metrics.items()
    }


def pair_measures(losses: np.ndarray, answers: list[str], data: Pairs) -> dict[str, Measure]:
    """Return the contribution of each item to each metric; ``losses`` are of pairs, and ``answers`` of items."""
    return {"loss": Measure(data.summed(losses), mean), **translation_measures(answers, data.references)}


def pair_metrics(losses: np.ndarray, answers: list[str], data: Pairs) -> JsonObject:
    """Return all metrics of some pairs; see `pair_measures`."""
    return {**likelihood(data.summed(losses)), **answer_metrics(answers, data)}


def answer_metrics(answers: list[str], data: Pairs) -> JsonObject:
    """Return the metrics of the answers to the items of some pairs."""
    counts = {
        "pairs": len(data.sources),
        "source_tokens": int(data.source.lengths.sum()),
        "tokens": int(data.target.lengths.sum()) + len(data.sources),
        "unknown_tokens": data.unknown(),
    }
    return {**translation_metrics(answers, data.references), **counts, **data.repairs.facts()}


def exact_share(model: EncoderDecoder, data: Pairs) -> float:
    """Return the share of items to which greedy search gives one of the targets.

    An answer is exact if each target token is the most probable one after those before it, which needs no search.
    """
    hits = np.zeros(len(data.first_rows), bool)
    batches = Buckets(data.source.lengths + data.target.lengths, TOGETHER, data.batch)
    with evaluating(model) as device:
        for batch in batches.read(batches.in_order()):
            source, inputs, targets = (part.to(device) for part in (batch.source, batch.inputs, batch.targets))
            logits, _ = model(inputs, model.encode(source, batch.source_lengths), lengths=batch.target_lengths)
            padding = ~valid_mask(batch.target_lengths, targets.shape[1]).to(device)
            exact = ((logits.argmax(2) == targets) | padding).all(1).cpu().numpy()
            hits[data.items[batch.rows[exact]]] = True
    return float(hits.mean())

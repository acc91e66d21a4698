"""What inspection shows of n-gram models."""

from dataclasses import dataclass

from torch import Tensor

from ..core.errors import InputError
from ..evaluation.intervals import Metrics
from ..models.base_models import TextModel
from ..models.ngram import NGram
from ..models.ngrams.unseen import sparsity
from .text_view import CausalTextView


@dataclass(frozen=True)
class NgramView(CausalTextView[TextModel]):
    """View of an n-gram model with its n-grams, ``counts``; None if a trained model is mixed with them."""

    counts: NGram | None

    sections = ("ngrams",)

    def ngram_counts(self, text: str) -> Metrics:
        """Return how many n-grams of a text the training text lacks."""
        if self.counts is None:
            raise InputError("the run does not count n-grams")
        lookups = self.counts.look_up(self.encode(text).ids)
        return sparsity(lookups, self.counts.seen, self.counts.vocabulary_size, impossible=0)

    def embeddings(self) -> Tensor:
        """Raise an error, since the model has no embeddings."""
        raise InputError(
            "an n-gram model has no embeddings: its counts treat every word as different from every other word, so "
            "that nothing learned about one carries over to similar ones"
        )

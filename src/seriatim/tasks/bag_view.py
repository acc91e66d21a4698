"""What inspection shows of a bag of n-grams: the effect of each word on the label, and wrong labels."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ..evaluation.error_analysis import MAX_ITEMS, Mistakes
from ..models.bag import Bag
from .classification_view import mistakes_of
from .documents import Documents, predictions
from .view import View, no_words
from .view_types import LabelEffect


@dataclass(frozen=True)
class BagView(View[Bag]):
    """View of a bag of n-grams, with `Classification.read` to read data."""

    read_documents: Callable[..., Documents]

    title = "classifier"
    prediction_name = "the distribution of the label"
    correct_name = "labels correct"
    context_name = "the label"
    first_section = "label-effect"

    def note_unknown(self, ids: np.ndarray) -> list[str]:
        """Return no note: the characters of a word outside the vocabulary of tokens are read all the same."""
        return []

    def label_effect(self, text: str) -> LabelEffect:
        """Return how the predicted label depends on each of the first words.

        The model has no order of reading, so that there are no labels of prefixes.
        """
        words = text.split()[: self.max_tokens]
        if not words:
            raise no_words()
        parts = [words, *(words[:i] + words[i + 1 :] for i in range(len(words)))]
        shares = self.probabilities([" ".join(part) for part in parts])
        names = [f"{word} " for word in words]
        return LabelEffect(names, list(self.vocabulary.labels), shares[0], None, shares[1:])

    def probabilities(self, texts: Sequence[str]) -> np.ndarray:
        """Return P(label) of some texts ``(texts, labels)``."""
        return self.model.probabilities(texts).cpu().numpy()

    def mistakes(self, spec: str, file_format: str | None) -> Mistakes:
        """Return the mistakes; the worst examples are those with the highest confidence in the wrong label."""
        whole = self.read_documents(spec, file_format=file_format)
        texts = list(whole.strings or ())[:MAX_ITEMS]
        data = whole._replace(labels=whole.labels[:MAX_ITEMS], strings=texts)
        return mistakes_of(texts, len(whole.labels), data, whole.label_names, predictions(self.model, data))

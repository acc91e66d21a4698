"""Models: a sequence layer with the embeddings, outputs and losses of a task."""

from .classifier import Classifier
from .language_model import LanguageModel
from .masked_language_model import MaskedLanguageModel

__all__ = ["Classifier", "LanguageModel", "MaskedLanguageModel"]

"""Models: a sequence layer with what a task puts around it."""

from .classifier import Classifier
from .language_model import LanguageModel
from .masked_language_model import MaskedLanguageModel

__all__ = ["Classifier", "LanguageModel", "MaskedLanguageModel"]

"""Models: a sequence layer with what a task puts around it."""

from .classifier import Classifier
from .language_model import LanguageModel

__all__ = ["Classifier", "LanguageModel"]

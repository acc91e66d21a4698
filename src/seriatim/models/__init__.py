"""Models: a sequence layer with what a task puts around it."""

from .language_model import LanguageModel

__all__ = ["LanguageModel"]

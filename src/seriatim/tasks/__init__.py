"""Every task by name: what it reads, what it trains, how it is measured."""

from ..config import Config
from ..training.task import Task
from .classification import Classification
from .language_modelling import LanguageModelling
from .masking import Masking
from .seq2seq import SequenceToSequence
from .tagging import Tagging

TASKS: dict[str, type[Task]] = {
    "lm": LanguageModelling,
    "mlm": Masking,
    "classify": Classification,
    "tag": Tagging,
    "seq2seq": SequenceToSequence,
}


def find(config: Config) -> Task:
    """The task that a configuration names, with that configuration."""
    return TASKS[config.task](config)

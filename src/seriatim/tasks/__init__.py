"""Every task by name: what it reads, what it trains, how it is measured."""

from ..config import Config
from ..core.errors import InputError, closest, nearest
from ..layers import current, names, split_names
from ..layers.origins import import_references
from ..training.task import AnyTask
from .classification import Classification
from .counting import LAYER, Counting
from .language_modelling import LanguageModelling
from .masking import Masking
from .seq2seq import SequenceToSequence
from .tagging import Tagging

TASKS: dict[str, type[AnyTask]] = {
    "lm": LanguageModelling,
    "mlm": Masking,
    "classify": Classification,
    "tag": Tagging,
    "seq2seq": SequenceToSequence,
}


def find(config: Config) -> AnyTask:
    """The task that a configuration names, with that configuration.

    Raises:
        InputError: counts are asked of a task that has none, or meant by a name that is not theirs.
    """
    known, name = [LAYER, *names()], ",".join(split_names(config.model.layer))
    if name not in known and "," not in name and closest(name, known) in (LAYER, None):
        raise InputError(f"unknown layer {name!r}; {nearest(name, known)}")
    if config.model.layer == LAYER:
        if config.task != "lm":
            raise InputError(f"model.layer: {LAYER} is a language model by itself; take task lm, or another layer")
        return Counting(config)
    return TASKS[config.task](config)


def with_current_layer(config: Config) -> Config:
    """Return the configuration of a new training with the present names of its layers.

    Layers that are written as ``FILE:Class`` are imported.

    Raises:
        InputError: code that cannot be imported.

    Warns:
        UserWarning: the configuration has a former name.
    """
    fields: dict[str, object] = {"layer": current(import_references(config.model.layer))}
    if isinstance(decoder := config.model.options.get("decoder"), str):
        fields["options"] = {**config.model.options, "decoder": import_references(decoder)}
    return config.model_copy(update={"model": config.model.model_copy(update=fields)})

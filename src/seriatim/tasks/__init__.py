"""The tasks by name: what each reads, trains, measures and answers.

To add a task, write a subclass of `seriatim.training.task.Task` in a file of this package and add a line to `TASKS`; a
task outside the package is added by `register`.
"""

from collections.abc import Iterable, Mapping

import torch

from ..config import Config, Model
from ..core.contract import MemoryLayer
from ..core.errors import InputError, closest, first_line, nearest, shown
from ..layers import current, names, split_names
from ..layers import find as find_layer
from ..layers.declared_options import accepted, check_options
from ..layers.origins import import_references, outside_names, stacks_of
from ..layers.outside_code import line_of
from ..layers.registry import REGISTRY, place_of
from ..testing import LawError, check_quickly
from ..training.task import AnyTask
from .bag_of_ngrams import BagClassification
from .base_tasks import with_model
from .classification import Classification
from .counting import Counting
from .feature_tagging import FeatureTagging
from .language_modelling import LanguageModelling
from .masking import Masking
from .rules import Rules
from .seq2seq import SequenceToSequence
from .tagging import Tagging

TASKS: dict[str, type[AnyTask]] = {
    "lm": LanguageModelling,
    "mlm": Masking,
    "classify": Classification,
    "tag": Tagging,
    "seq2seq": SequenceToSequence,
}
"""The tasks, by the value of ``task`` in a configuration."""
STANDALONE: dict[str, type[AnyTask]] = {
    "ngram": Counting,
    "bag": BagClassification,
    "features": FeatureTagging,
    "rules": Rules,
}
"""Models that are not built from layers, by the value of ``model.layer``: each is a special case of a task."""


def register(name: str, task: type[AnyTask]) -> None:
    """Add a task, so that ``task: NAME`` in a configuration and ``seriatim train NAME`` use it.

    Raises:
        InputError: another task has the name.
    """
    if TASKS.get(name, task) is not task:
        raise InputError(f"{name}: a task of this name is registered already; choose another name")
    TASKS[name] = task


def task_type(task: str, layer: str | None = None) -> type[AnyTask]:
    """Return the class of a task, or of the standalone model that ``layer`` names.

    Raises:
        InputError: there is no such task, or the model is not one for this task.
    """
    if task not in TASKS:
        raise InputError(f"task: {shown(task)} does not fit; {nearest(task, list(TASKS))}")
    if layer not in STANDALONE:
        return TASKS[task]
    model = STANDALONE[layer]
    if not issubclass(model, TASKS[task]):
        names_of = ", ".join(name for name, kind in TASKS.items() if issubclass(model, kind))
        raise InputError(f"model.layer: {layer} is a model for task {names_of}; take that task, or another layer")
    return model


def shared_options(task: str, layer: str, options: Mapping[str, object] | None = None) -> dict[str, object]:
    """Return options of a standalone model that is compared with networks of a task.

    An option that both have by name gets the value of the networks: that of ``options``, or the default of the task.
    """
    sections = [kind.own_options for kind in (task_type(task), task_type(task, layer))]
    if any(section is None for section in sections):
        return {}
    usual, own = (section.model_fields for section in sections if section is not None)
    given = options or {}
    return {name: given[name] if name in given else usual[name].get_default() for name in usual if name in own}


def find(config: Config) -> AnyTask:
    """Return the task of a configuration.

    Raises:
        InputError: there is no such task or model, or the configuration does not fit it.
    """
    known, layer = layer_names(), ",".join(split_names(config.model.layer))
    if layer not in known and "," not in layer and closest(layer, known) in (*STANDALONE, None):
        raise InputError(f"unknown layer {layer!r}; {nearest(layer, known)}")
    return task_type(config.task, config.model.layer)(config)


def layer_names() -> list[str]:
    """Return every value of ``model.layer``: standalone models and layers."""
    return [*STANDALONE, *names()]


def with_current_layer(config: Config) -> Config:
    """Return the configuration of a new training with the present names of its layers, and warn of former ones.

    Layers that are written as ``FILE:Class`` are imported, and layers of the user's own are checked.

    Raises:
        InputError: code that cannot be imported, or a layer that breaks the contract.
    """
    fields: dict[str, object] = {}
    if (layer := current(import_references(config.model.layer))) != config.model.layer:
        fields["layer"] = layer  # assigned only if it differs: a task may choose a layer that was not given
    if isinstance(decoder := config.model.options.get("decoder"), str):
        fields["options"] = {**config.model.options, "decoder": import_references(decoder)}
    config = with_model(config, **fields)
    check_own_layers(stacks_of(config), config.model)
    return config


def check_own_layers(stacks: Iterable[str], model: Model) -> None:
    """Build each layer from outside the library once, and check the contract with one short batch.

    ``stacks`` are names of layers, or several with commas between them; ``model`` gives the width and the options.

    Raises:
        InputError: a layer cannot be built or breaks the contract; the message names the file, the class and the law.
    """
    for name in outside_names(stacks):
        if name not in REGISTRY:
            continue
        architecture, size = find_layer(name), model.hidden_size
        options = accepted(architecture, model.options)
        check_options(name, options)
        try:
            with torch.random.fork_rng():
                part = architecture(size, size, **options)
        except InputError:
            raise
        except (Exception, SystemExit) as error:
            place = place_of(architecture, "__init__") or name
            raise InputError(
                f"{place}: {architecture.__qualname__}({size}, {size}) cannot be built "
                f"({type(error).__name__}: {first_line(error)}); correct its constructor, which takes input_size and "
                "hidden_size first"
            ) from None
        if isinstance(part, MemoryLayer):
            continue
        try:
            check_quickly(part)
        except LawError as error:
            defined = place_of(architecture, "forward") or name
            file = defined.rpartition(":")[0]
            if error.__cause__ is not None:
                place = line_of(error.__cause__, file, default=defined)
                raise InputError(f"{place}: {error}; correct this line") from None
            raise InputError(f"{defined}: {error}") from None

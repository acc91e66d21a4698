"""The kinds of tasks by name, and how a configuration finds its own."""

import importlib
from collections.abc import Iterable, Mapping
from typing import Literal

import torch

from ..config import Config, Model
from ..core import errors
from ..core.contract import MemoryLayer
from ..core.errors import closest, first_line, nearest, shown
from ..data.sources import builtin_task
from ..layers import find as find_layer
from ..layers import names, split_names
from ..layers.option_types import accepted
from ..layers.outside_code import import_references, line_of, outside_names, stacks_of
from ..layers.registry import NAME, REGISTRY, check_options, location_of
from ..testing import LawError, check_quickly
from .defaults import with_model
from .names import FITTED_NAMES, TASK_SUMMARIES
from .task import Task, TaskKind

TASKS: dict[str, TaskKind] = {name: importlib.import_module(f".{name}", __package__).KIND for name in TASK_SUMMARIES}
"""The tasks for networks, by the value of ``task`` in a configuration."""
FITTED: dict[str, TaskKind] = {name: importlib.import_module(f".{name}", __package__).KIND for name in FITTED_NAMES}
"""The models that are fitted directly, by the value of ``model.layer``; each is for one task."""


def register(name: str, task: TaskKind) -> None:
    """Add a task, so that ``task: NAME`` in a configuration and ``seriatim train NAME`` use it.

    Raises:
        InputError: another task has the name, or ``task`` is no `TaskKind`.
    """
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise errors.MalformedError(
            f"register: {shown(name)} cannot be the name of a task; use letters, digits, - and _, "
            "and begin with a letter"
        )
    if not isinstance(task, TaskKind):
        raise errors.ContractError(
            f"{name}: {shown(task)} is not a task; give a seriatim.tasks.task.TaskKind, which composes "
            "a reader, a model builder, an objective, an evaluator and a predictor"
        )
    if TASKS.get(name, task) is not task:
        raise errors.ExistsError(f"{name}: a task of this name is registered already; choose another name")
    TASKS[name] = task
    TASK_SUMMARIES[name] = task.summary


def find_kind(task: str, layer: str | None = None) -> TaskKind:
    """Return the kind of a task for networks, or for the directly fitted model that ``layer`` names.

    Raises:
        InputError: there is no such task, or the model is not one for this task.
    """
    if task not in TASKS:
        raise errors.UnknownNameError(f"task: {shown(task)} does not fit; {nearest(task, list(TASKS))}")
    if layer not in FITTED:
        return TASKS[task]
    kind = FITTED[layer]
    if kind.name != task:
        raise errors.MismatchError(
            f"model.layer: {layer} is a model for task {kind.name}; take that task, or another layer"
        )
    return kind


def shared_options(task: str, layer: str, options: Mapping[str, object] | None = None) -> dict[str, object]:
    """Return options of a directly fitted model that is compared with networks of a task.

    An option that both have by name gets the value of the networks: that of ``options``, or the default of the task.
    """
    sections = [kind.options for kind in (find_kind(task), find_kind(task, layer))]
    if any(section is None for section in sections):
        return {}
    network_fields, fitted_fields = (section.model_fields for section in sections if section is not None)
    given = options or {}
    return {
        name: given[name] if name in given else field.get_default()
        for name, field in network_fields.items()
        if name in fitted_fields
    }


def kind_of(config: Config) -> TaskKind:
    """Return the kind of the task of a configuration.

    Raises:
        InputError: there is no such task or model.
    """
    known, layer = layer_names(), ",".join(split_names(config.model.layer))
    if layer not in known and "," not in layer and closest(layer, known) in (*FITTED, None):
        raise errors.UnknownNameError(f"unknown layer {layer!r}; {nearest(layer, known)}")
    return find_kind(config.task, config.model.layer)


def open_task(config: Config) -> Task:
    """Return the task of a configuration whose defaults are filled in, such as that of a run; see `with_defaults`."""
    task = kind_of(config).open(config)
    task.evaluator.chosen = config.training.metric
    return task


def with_defaults(config: Config) -> Config:
    """Return the configuration with the defaults of its task that need no data.

    Raises:
        InputError: there is no such task or model, or the configuration does not fit it.
    """
    training = config.training.model_copy(update={"baseline": chosen_baseline(config)})
    return kind_of(config).defaults(config.model_copy(update={"training": training}))


def new_task(config: Config) -> Task:
    """Return the task of a configuration, with the defaults that need no data; see `with_defaults`."""
    return open_task(with_defaults(config))


def chosen_baseline(config: Config) -> Literal["simple", "none"]:
    """Return whether the simple baseline is trained, too: ``training.baseline``, or what the data suggest.

    A synthetic task studies what the network remembers. A baseline that solves it would hide that, unless it is given a
    weight in the answers.
    """
    if config.training.baseline is not None:
        return config.training.baseline
    is_synthetic = builtin_task(config.data.train) is not None
    return "none" if is_synthetic and not config.training.baseline_weight else "simple"


def layer_names() -> list[str]:
    """Return every value of ``model.layer``: directly fitted models and layers."""
    return [*FITTED, *names()]


def with_imported_layers(config: Config) -> Config:
    """Return the configuration of a new training, whose layers of the user's own are checked.

    Layers that are written as ``FILE:Class`` are imported.

    Raises:
        InputError: code that cannot be imported, or a layer that breaks the contract.
    """
    fields: dict[str, object] = {}
    if (layer := import_references(config.model.layer)) != config.model.layer:
        fields["layer"] = layer  # assigned only if it differs: a task may choose a layer that was not given
    if isinstance(decoder := config.model.options.get("decoder"), str):
        fields["options"] = {**config.model.options, "decoder": import_references(decoder)}
    config = with_model(config, **fields)
    check_outside_layers(stacks_of(config), config.model)
    return config


def check_outside_layers(stacks: Iterable[str], model: Model) -> None:
    """Build each layer from outside the library once, and check the contract with one short batch.

    ``stacks`` are names of layers, or several with commas between them; ``model`` gives the width and the options.

    Raises:
        InputError: a layer cannot be built or breaks the contract; the message names the file, the class and the law.
    """
    # A layer is built in the width of the model and with its options, where most mistakes show. The generators of
    # random numbers are left as they were, so that a check changes no training.
    for name in outside_names(stacks):
        if name not in REGISTRY:
            continue
        architecture, size = find_layer(name), model.hidden_size
        options = accepted(architecture, model.options)
        check_options(name, options)
        try:
            with torch.random.fork_rng():
                layer = architecture(size, size, **options)
        except errors.InputError:
            raise
        except (Exception, SystemExit) as error:
            location = location_of(architecture, "__init__") or name
            raise errors.ContractError(
                f"{location}: {architecture.__qualname__}({size}, {size}) cannot be built "
                f"({type(error).__name__}: {first_line(error)}); correct its constructor, which takes input_size and "
                "hidden_size first"
            ) from None
        if isinstance(layer, MemoryLayer):
            continue
        try:
            check_quickly(layer)
        except LawError as error:
            # An error names the line that raised it; a wrong result has no line, and names the method.
            defined = location_of(architecture, "forward") or name
            file = defined.rpartition(":")[0]
            if error.__cause__ is not None:
                location = line_of(error.__cause__, file, default=defined)
                raise errors.ContractError(f"{location}: {error}; correct this line") from None
            raise errors.ContractError(f"{defined}: {error}; correct this method") from None

"""Defaults of configurations: those that need no data, and those that depend on the amount of data.

docs/defaults.md says how they were chosen. All functions return a changed copy, or values by dotted name.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from ..config import BATCH_SIZE, Config, Section, Training, resolve
from ..core.errors import InputError
from ..core.json_object import JsonObject
from ..data.sources import builtin_task, builtin_tokens
from ..layers import REGISTRY, find, options_of, split_names
from ..layers.outside_code import stacks_of
from ..layers.registry import resolve_options

SIZES = ("layer", "bidirectional", "embedding_size", "hidden_size", "num_layers", "residual")
"""Fields of the model that determine the shapes of its parameters, besides the layer's options."""
SHAPELESS = {"causal", "window"}
"""Options that no shape depends on."""
OUTPUT = ("tie_weights", "output_bias")
"""Fields of the model that determine the parameters of its output layer."""
SGD_RATE = 1.0
"""Default learning rate of SGD, for every layer and task."""
BASELINE_WEIGHTS = (0.2, 0.35, 0.5, 0.65, 0.8)
"""Weights of a simple baseline in the answers of both models, of which the best is chosen."""
USUAL_WEIGHT = 0.65
"""Weight of a simple baseline in the answers of taggers and classifiers that have no held-out data to choose it on."""
NO_DROPOUT, DROPOUT_GROWTH, MOST_DROPOUT = 0.4, 0.3, 0.5
"""Number of parameters of a language model for each token of its text up to which it has no dropout; what ten times as
many add to the dropout; and the largest dropout."""
FEW_PASSES = 3
"""A text that is read less often is not learned by heart, so that its model has no dropout."""
Options = TypeVar("Options", bound=Section)


# Defaults that need no data


def fill(config: Config, values: JsonObject) -> Config:
    """Return the configuration with values for those fields that are open, by dotted name.

    A field is open if it is None, or if nobody has given or decided it, so that it has its usual value.
    """
    return config.replaced({name: value for name, value in values.items() if _is_open(config, name)})


def _is_open(config: Config, name: str) -> bool:
    section, _, key = name.rpartition(".")
    if section == "model.options":
        return config.model.options.get(key) is None
    fields = getattr(config, section)
    return getattr(fields, key) is None or key not in fields.model_fields_set


def with_model(config: Config, **fields: object) -> Config:
    """Return the configuration with other values of some fields of its model."""
    return config.model_copy(update={"model": config.model.model_copy(update=fields)})


def with_options(config: Config, **options: object) -> Config:
    """Return the configuration with values for those options of its model that are None."""
    known = config.model.options
    return with_model(
        config, options={**known, **{key: value for key, value in options.items() if known.get(key) is None}}
    )


def with_kind(config: Config, kind: str | None) -> Config:
    """Return the configuration with this kind of tokens, unless it names a kind, or a run to take a tokenizer from.

    None leaves the kind to be chosen from the training data.

    A built-in task whose texts are single strings of letters is read as characters; as words, a text would be one
    token.
    """
    if config.training.init is not None:
        return config
    kind = config.tokenizer.kind or builtin_tokens(config.data.train) or kind
    return config.model_copy(update={"tokenizer": config.tokenizer.model_copy(update={"kind": kind})})


def token_kind(config: Config) -> str | None:
    """Return the kind of tokens that a configuration names, or that of the run that ``training.init`` names.

    None if there is no such run, which is reported when it is opened.
    """
    if config.training.init is None or config.tokenizer.kind is not None:
        return config.tokenizer.kind
    try:
        return resolve(Path(config.training.init) / "config.yaml").tokenizer.kind
    except (InputError, OSError):
        return None


def seeing_everything(config: Config) -> Config:
    """Return the configuration of a task that reads whole sequences: in both directions, unless it says otherwise.

    A layer with the option ``causal`` reads later inputs itself; any other layer runs once from each end. The synthetic
    tasks with labels ask what a layer remembers to the end, so that they are read in one direction.
    """
    name, options = config.model.layer, config.model.options
    asks_memory = builtin_task(config.data.train) == "classify"
    if config.model.bidirectional is not None or "causal" in options or asks_memory:
        return with_model(config, bidirectional=bool(config.model.bidirectional))
    if all("causal" in options_of(one, options) for one in split_names(name)):
        return with_model(config, bidirectional=False, options={**options, "causal": False})
    return with_model(config, bidirectional=True)


def like_initial(config: Config, *, reads_forwards: bool = False, shaping_options: Sequence[str] = ()) -> Config:
    """Return the configuration with the layer of the run that ``training.init`` names, unless it gives its own.

    With the layer come its sizes and its options; whether it is causal and has a window only if the task reads
    forwards, too. From a run of the same task also come the fields of the output layer and ``shaping_options``.
    """
    if config.training.init is None:
        return config
    try:
        theirs = resolve(Path(config.training.init) / "config.yaml")
    except (InputError, OSError):  # reported when the run is opened
        return config

    # A layer of the user's own may not be imported yet; it is then refused where the run is opened.
    model, is_same = theirs.model, theirs.task == config.task
    if not all(name in REGISTRY for name in split_names(model.layer)):
        return config

    # What the user gives stays, even if it does not fit the weights: that is refused later, by name.
    given = config.model.model_dump(exclude_unset=True, exclude_none=True)
    missing = [name for name in (*SIZES, *(OUTPUT if is_same else ())) if name not in given]
    fields = {name: getattr(model, name) for name in missing}
    if not reads_forwards and not model.options.get("causal", True):
        fields.pop("bidirectional", None)  # a single direction that sees everything, as `seeing_everything` chooses
    if "layer" in missing:
        known = {name for layer in split_names(model.layer) for name in options_of(layer, model.options)}
        known -= set() if reads_forwards else SHAPELESS
        known |= set(shaping_options) if is_same else set()
        taken = {name: value for name, value in model.options.items() if name in known}
        fields["options"] = {**taken, **config.model.options}
    return with_model(config, **fields)


def split_options(kind: type[Options], config: Config) -> tuple[Options, dict[str, Any]]:
    """Return the options of the task, and what is left for the layers; see `resolve_options` for errors."""
    return resolve_options(kind, stacks_of(config), config.model.options)


def network_defaults(config: Config, section: type[Section], *, shaping_options: Sequence[str] = ()) -> Config:
    """Fill in the defaults of a network that reads whole sequences: words, both directions, and the task's options.

    ``shaping_options`` are those that decide what the model computes; a training takes them from its initial run.
    """
    config = like_initial(config, shaping_options=shaping_options)
    config = seeing_everything(with_kind(config, "word"))
    options, rest = split_options(section, config)
    return with_model(config, options={**rest, **options.model_dump()})


# Defaults that depend on the amount of data


def default_rate(config: Config, usual: float, layer: str | None = None) -> float:
    """Return the default learning rate: the one that the layer declares for the task (`Stateful.learning_rates`).

    Of several layers (in a stack, or an encoder and its decoder) the smallest rate is taken. ``usual`` is that of the
    task (`TaskKind.learning_rate`), and ``layer`` replaces that of ``config``.
    """
    if config.training.optimizer == "sgd":
        return SGD_RATE
    decoder = config.model.options.get("decoder")
    stacks = [layer or config.model.layer, *([decoder] if isinstance(decoder, str) else [])]
    return min(rate_of(name, config.task, usual) for stack in stacks for name in split_names(stack))


def rate_of(layer: str, task: str, usual: float) -> float:
    """Return the default learning rate with AdamW: the one that a layer declares for a task, or the usual one."""
    return find(layer).learning_rates.get(task, usual)


def has_budget(training: Training) -> bool:
    """Return whether a number of epochs, steps or tokens is given; minutes alone only limit a training."""
    return {training.epochs, training.steps, training.tokens} != {None}


def small_batches(items: int) -> int:
    """Return a batch size for ``items`` training sequences: a power of two, 8 for 1,600 or fewer and 32 for many.

    Little data is read more often, so that it needs more steps for each reading.
    """
    return next((size for size in (8, 16) if items <= 200 * size), BATCH_SIZE)


def text_dropout(parameters: int, tokens: int, passes: float | None) -> float:
    """Return the dropout of a language model with so many parameters on a text with so many tokens.

    ``passes`` is how often the budget lets it read the text; None if it reads until that no longer helps.
    """
    if passes is not None and passes < FEW_PASSES:
        return 0.0
    grown = DROPOUT_GROWTH * math.log10(max(1, parameters) / max(1, tokens) / NO_DROPOUT)
    return round(min(max(grown, 0.0), MOST_DROPOUT), 1)


def planned_passes(training: Training, tokens: int, step_tokens: int) -> float | None:
    """Return how often a budget lets a training read its text; None if no number of epochs, steps or tokens is given.

    ``step_tokens`` is the number of tokens of a step.
    """
    steps = None if training.steps is None else training.steps * step_tokens / max(1, tokens)
    read = None if training.tokens is None else training.tokens / max(1, tokens)
    return min((one for one in (training.epochs, steps, read) if one is not None), default=None)

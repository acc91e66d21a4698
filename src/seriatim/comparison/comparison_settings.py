"""The settings of a comparison, and the checks that turn them into a `Plan` before any data is read."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..config import Config, read_yaml, resolve
from ..core.errors import InputError, nearest
from ..layers import current, options_of
from ..layers.origins import origin_of, register_reference, registered
from ..layers.outside_code import is_reference
from ..tasks import STANDALONE, layer_names, task_type
from ..tasks.own_layers import check_own_layers
from ..training.optimizers import default_rate as default_rate_of_layer
from .metric import choose_metric
from .plan import WIDTH, Budget, Plan, Sized, architecture, is_counted, parts, stack_name, width_of

Source = Config | Mapping[str, Any] | str | Path
"""A configuration: an object, a dict, or the path of a YAML file."""
DEFAULT_MINUTES = 2.0
BUDGETS = ("minutes", "tokens", "steps")
MAX_SEEDS, MAX_TRIALS = 100, 100


@dataclass(frozen=True)
class ComparisonSettings:
    """What a comparison needs beside the configuration. `seriatim.compare` documents the fields; None is not set."""

    layers: Sequence[str]
    minutes: float | None = None
    tokens: int | None = None
    steps: int | None = None
    parameters: int | str | None = None
    seeds: int = 1
    tune: int | None = None
    metric: str | None = None
    widths: Sequence[int] | None = None
    command: str = ""


def make_plan(source: Source, settings: ComparisonSettings, *, overrides: Mapping[str, Any] | None = None) -> Plan:
    """Check the settings and the configuration, and make a plan, which `fit_plan` completes with the data.

    Args:
        source: the configuration, without layer and budget.
        settings: the settings of the comparison.
        overrides: dotted names of fields to values, which replace those of the configuration.

    Raises:
        InputError: the settings or the configuration are invalid.
    """
    tree = source.model_dump(exclude_unset=True) if isinstance(source, Config) else source
    tree = tree if isinstance(tree, Mapping) else read_yaml(Path(tree))
    fields = resolve(tree, overrides).model_dump(exclude_unset=True)  # without defaults
    task = resolve({"task": fields.get("task", "lm")}).task
    layers = check_layers(with_widths(settings.layers, settings.widths), task)
    swept = any(width_of(layer) is not None for layer in layers)
    if swept and settings.parameters is not None and all(width_of(row) or is_counted(row) for row in layers):
        raise InputError("--parameters: the widths of all layers are given; leave out --parameters or the widths")
    budget, tune = _budget(settings, fields), _trials(settings.tune)
    if tune is not None and budget.steps is not None and budget.steps < 2 * tune:
        raise InputError(f"--steps: {budget.steps} is too little to be shared with trials; give {2 * tune} or more")
    if _has(fields, "model.layer"):
        raise InputError("model.layer: a comparison has several layers; give them with --layers A,B,C")
    if _has(fields, "training.init"):
        raise InputError("training.init: the layers of a comparison start from random parameters; leave it out")
    base = _base(fields, causal=swept and task_type(task).works_causally)
    options = share_options(layers, base.model.options, task)
    check_own_layers([stack_name(row) for row in layers], base.model)
    plan = Plan(
        command=settings.command,
        base=base,
        layers=layers,
        sized={layer: unsolved(layer, base, options[layer]) for layer in layers},
        budget=budget,
        parameters=parse_parameters(settings.parameters),
        seeds=seeds_from(base.training.seed, settings.seeds),
        tune=tune,
        metric=settings.metric or "",
        automatic=[
            name.partition(".")[2]
            for name in ("training.evaluate_every", "model.embedding_size")
            if not _has(fields, name)
        ],
    )
    for layer in layers:  # finding the task also checks the options of the layer
        choose_metric(plan.task(layer), settings.metric)
    return plan


def unsolved(row: str, base: Config, options: dict[str, Any]) -> Sized:
    """Return a row with the configured sizes, its options and its learning rate."""
    rate = base.training.learning_rate
    if rate is None and not is_counted(row):
        rate = default_rate_of_layer(base, stack_name(row))
    return Sized(
        hidden_size=width_of(row) or base.model.hidden_size,
        embedding_size=base.model.embedding_size,
        options=options,
        learning_rate=rate,
    )


def check_layers(layers: Sequence[str], task: str) -> list[str]:
    """Return the names of the rows, with former names of layers replaced by the present ones.

    Raises:
        InputError: no layer, an unknown layer, a layer named twice, or a width that is invalid.
    """
    rows = [current(layer.replace("+", ",")).replace(",", "+") for layer in register_references(layers) if layer]
    if not rows:
        raise InputError("--layers: no layer is named; for instance --layers rnn,lstm,transformer (seriatim layers)")
    known = layer_names()
    for row in rows:
        _check_width(row)
        for part in parts(row):
            if part not in known:
                raise InputError(f"--layers: unknown layer {part!r}; {nearest(part, known)}")
            if part in STANDALONE and part != row:
                raise InputError(f"--layers: {part} is a whole model; use it alone")
            task_type(task, part)  # checks that they fit each other
    duplicate = next((row for row in rows if rows.count(row) > 1), None)
    if duplicate is not None:
        raise InputError(f"--layers: {duplicate} is named twice; leave one out")
    return rows


def register_references(layers: Sequence[str]) -> list[str]:
    """Import the layers that are written as ``FILE:Class``, and return the rows with the names of the classes."""
    rows = []
    for layer in map(str.strip, layers):
        stack, sign, width = layer.rpartition(WIDTH)
        if not sign or not width.isdigit():
            stack, sign, width = layer, "", ""
        stack_parts = [register_reference(part) if is_reference(part) else part for part in stack.split("+")]
        rows.append("+".join(stack_parts) + sign + width)
    return rows


def record_code(plan: Plan) -> None:
    """Record in the plan where layers from outside the library are defined.

    Raises:
        InputError: the processes that train could not import a layer.
    """
    plan.code = [origin_of(name).to_record() for name in registered_layers(plan.layers, plan.base)]


def with_widths(layers: Sequence[str], widths: Sequence[int] | None) -> list[str]:
    """Return a row for every layer at every width; a counted model has no width.

    Raises:
        InputError: a width that is not a positive whole number, or a layer that already has a width.
    """
    if widths is None:
        return list(layers)
    for width in widths:
        if not isinstance(width, int) or isinstance(width, bool) or width < 1:
            raise InputError(f"--widths: {width!r} is not a width; give whole numbers above 0, for instance 16,32,64")
    if not widths:
        raise InputError("--widths: no width is given; for instance --widths 16,32,64")
    if named := next((layer for layer in layers if WIDTH in layer), None):
        raise InputError(f"--layers: {named} already has a width; leave out {WIDTH} and the number, or --widths")
    rows: list[str] = []
    for layer in filter(None, map(str.strip, layers)):
        rows += [layer] if is_counted(layer) else [f"{layer}{WIDTH}{width}" for width in widths]
    return rows


def _check_width(row: str) -> None:
    _, sign, width = row.partition(WIDTH)
    if sign and not (width.isascii() and width.isdigit() and len(width) <= 10 and 0 < int(width) < 2**31):
        raise InputError(f"--layers: {row}: {width!r} is not a width; give a whole number, for instance lstm@32")
    if sign and is_counted(architecture(row)):
        raise InputError(f"--layers: {row}: {architecture(row)} has no width; give {architecture(row)} alone")


def registered_layers(rows: Sequence[str], base: Config) -> list[str]:
    """Return the names of the user's own layers that a comparison builds, as part of a row or as decoder."""
    decoder = base.model.options.get("decoder")
    used = {name for row in [*rows, *([decoder] if isinstance(decoder, str) else [])] for name in parts(row)}
    return [name for name in registered() if name in used]


def share_options(layers: Sequence[str], options: Mapping[str, Any], task: str) -> dict[str, dict[str, Any]]:
    """Return for every layer the model options that it or the task accepts.

    Raises:
        InputError: an option that no layer accepts.
    """
    kind = task_type(task).own_options
    of_task = set() if kind is None else set(kind.model_fields)
    known = {layer: _option_names(layer, options) for layer in layers}
    every_name = of_task.union(*known.values())
    for name in options:
        if name not in every_name:
            hint = nearest(name, sorted(every_name))
            raise InputError(f"model.options.{name}: none of {', '.join(layers)} has such an option; {hint}")
    return {
        layer: {name: value for name, value in options.items() if name in known[layer] | of_task} for layer in layers
    }


def _option_names(layer: str, options: Mapping[str, Any]) -> set[str]:
    if layer in STANDALONE:
        kind = STANDALONE[layer].own_options
        return set() if kind is None else set(kind.model_fields)
    decoder = options.get("decoder")
    stacks = [layer, decoder] if isinstance(decoder, str) else [layer]
    return {name for part in itertools.chain(*map(parts, stacks)) for name in options_of(part, options)}


def parse_parameters(text: int | str | None) -> int | None:
    """Return ``1M``, ``500k`` or ``1_000_000`` as a number.

    Raises:
        InputError: the text is not a number.
    """
    if text is None:
        return None
    number = str(text).strip().replace("_", "").replace(",", "").lower()
    factor = {"k": 10**3, "m": 10**6, "g": 10**9, "b": 10**9}.get(number[-1:], 1)
    try:
        count = float(number[:-1] if factor > 1 else number) * factor
        if not 1 <= count < 2**40:
            raise ValueError
    except ValueError:
        raise InputError(f"--parameters: {text!r} is not a number of parameters; for instance 500k or 1M") from None
    return round(count)


def seeds_from(first: int, count: int) -> list[int]:
    """Return ``count`` seeds, beginning with the configured one.

    Raises:
        InputError: too few or too many seeds.
    """
    if not isinstance(count, int) or not 1 <= count <= MAX_SEEDS:
        raise InputError(f"--seeds: must be from 1 to {MAX_SEEDS}, got {count}")
    return list(range(first, first + count))


def _trials(count: int | None) -> int | None:
    if count is not None and (not isinstance(count, int) or not 2 <= count <= MAX_TRIALS):
        raise InputError(f"--tune: must be from 2 to {MAX_TRIALS}, got {count}")
    return count


def _has(tree: Mapping[str, Any], name: str) -> bool:
    section, _, key = name.partition(".")
    return (tree.get(section) or {}).get(key) is not None


def _budget(settings: ComparisonSettings, fields: Mapping[str, Any]) -> Budget:
    """Return the one budget, given as ``--minutes M`` or as ``--training.minutes M``, and so for tokens and steps."""
    if _has(fields, "training.epochs"):
        raise InputError("training.epochs: a comparison gives every layer the same minutes, tokens or steps; give one")
    amounts = {name: getattr(settings, name) for name in BUDGETS if getattr(settings, name) is not None}
    for name in BUDGETS:
        if _has(fields, f"training.{name}"):
            amounts.setdefault(name, fields["training"][name])
    if len(amounts) > 1:
        first, second, *_ = amounts
        raise InputError(f"--{second}: the budget is already given in {first}; leave one of them out")
    for name, value in amounts.items():
        if not isinstance(value, int | float) or not 0 < value < 2**31 or (name != "minutes" and value != int(value)):
            kind = "number" if name == "minutes" else "whole number"
            raise InputError(f"--{name}: must be a {kind} above 0, got {value}")
    return Budget(**(amounts or {"minutes": DEFAULT_MINUTES}))


def _base(fields: Mapping[str, Any], *, causal: bool) -> Config:
    """Return the configuration that all rows share; ``causal`` where layers must read in one direction by default."""
    training = {name: value for name, value in (fields.get("training") or {}).items() if name not in BUDGETS}
    defaults: dict[str, Any] = {"training.steps": 1}
    if causal:  # a layer that reads in both directions has no state to measure
        defaults["model.bidirectional"] = False
    tree = {**{name: value for name, value in fields.items() if name != "out"}, "training": training}
    return resolve(tree, {name: value for name, value in defaults.items() if not _has(fields, name)})

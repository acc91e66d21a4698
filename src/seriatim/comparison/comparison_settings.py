"""The settings of a comparison, and the checks that turn them into a `Plan` before any data is read."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pydantic import ValidationError

from ..config import Config, ConfigSource, Fields, resolve
from ..core.errors import InputError, nearest
from ..layers import current, options_of
from ..layers.outside_code import is_reference, register_reference
from ..tasks import FITTED, check_own_layers, chosen_baseline, find_kind, layer_names, shared_options
from ..tasks.defaults import default_rate
from .metric import choose_metric
from .plan import BASELINE, WIDTH, Budget, Plan, Sized, architecture, is_counted, parts, stack_name, width_of

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


def make_plan(
    source: ConfigSource, settings: ComparisonSettings, overrides: Mapping[str, object] | None = None
) -> Plan:
    """Make a plan, which `fit_plan` completes with the data; arguments and errors are those of `seriatim.compare`."""
    source = source.model_dump(exclude_unset=True) if isinstance(source, Config) else source
    config = resolve(source, overrides)
    model = config.model.model_dump(exclude_unset=True, exclude_none=True)
    training = config.training.model_dump(exclude_unset=True, exclude_none=True)
    layers = _check_layers(_with_widths(settings.layers, settings.widths), config.task)
    swept = any(width_of(row) is not None for row in layers)
    if swept and settings.parameters is not None and all(width_of(row) or is_counted(row) for row in layers):
        raise InputError("--parameters: the widths of all layers are given; leave out --parameters or the widths")
    budget, tune = _budget(settings, training), settings.tune
    if tune is not None:
        _check_count("--tune", tune, 2, MAX_TRIALS)
        if budget.steps is not None and budget.steps < 2 * tune:
            raise InputError(f"--steps: {budget.steps} is too little to be shared with trials; give {2 * tune} or more")
    if "layer" in model:
        raise InputError("model.layer: a comparison has several layers; give them with --layers A,B,C")
    if "init" in training:
        raise InputError("training.init: the layers of a comparison start from random parameters; leave it out")
    defaults: dict[str, object] = {"training.steps": 1, "training.baseline": "none"}
    baseline = find_kind(config.task).reference_model if chosen_baseline(config) == "simple" else None
    automatic = [name for name in ("evaluate_every", "embedding_size") if name not in training | model]
    if baseline is not None and baseline not in layers:
        layers, automatic = [*layers, baseline], [*automatic, BASELINE]
    if swept and find_kind(config.task).supports_unidirectional and "bidirectional" not in model:
        defaults["model.bidirectional"] = False  # a layer that reads in both directions has no state to measure
    base = resolve(config.model_dump(exclude_unset=True, exclude={"training": set(BUDGETS)}), defaults)
    check_own_layers([stack_name(row) for row in layers], base.model)
    plan = Plan(
        command=settings.command,
        base=base,
        layers=layers,
        sized=_unsolved(layers, base),
        budget=budget,
        parameters=parse_parameters(settings.parameters),
        seeds=_seeds_from(base.training.seed, settings.seeds),
        tune=tune,
        metric=settings.metric or "",
        baseline=baseline,
        automatic=automatic,
    )
    for row in layers:  # finding the task also checks the options of the layer
        choose_metric(plan.task(row), settings.metric)
    return plan


def extend_plan(plan: Plan, layers: Sequence[str] | None, widths: Sequence[int] | None, seeds: int | None) -> list[str]:
    """Add layers and seeds to a plan, and return the new rows; arguments and errors are those of `resume`."""
    added: list[str] = []
    if widths is not None:
        layers = _with_widths(layers or list(dict.fromkeys(map(architecture, plan.layers))), widths)
    if layers is not None:
        rows = _check_layers(layers, plan.base.task)
        if BASELINE in plan.automatic and plan.baseline in plan.layers and plan.baseline not in rows:
            rows.append(plan.baseline)
        if missing := next((row for row in plan.layers if row not in rows), None):
            raise InputError(f"--layers: {missing} is in the comparison already; name all its layers, then new ones")
        added = [row for row in rows if row not in plan.layers]
        plan.sized = _unsolved(rows, plan.base) | plan.sized
        plan.layers = rows
    if seeds is not None:
        longer = _seeds_from(plan.seeds[0], seeds)
        if len(longer) < len(plan.seeds):
            raise InputError(f"--seeds: the comparison has {len(plan.seeds)} already; give as many or more")
        plan.seeds = longer
    return added


def _unsolved(rows: Sequence[str], base: Config) -> dict[str, Sized]:
    """Return rows with the configured sizes, their options and their learning rates."""
    options, model = share_options(rows, base.model.options, base.task), base.model
    sized = {}
    for row in rows:
        rate = base.training.learning_rate
        if rate is None and not is_counted(row):
            rate = default_rate(base, stack_name(row))
        sized[row] = Sized(
            hidden_size=width_of(row) or model.hidden_size,
            embedding_size=model.embedding_size,
            options=options[row],
            learning_rate=rate,
        )
    return sized


def _check_layers(layers: Sequence[str], task: str) -> list[str]:
    """Return the names of the rows, with former names of layers replaced by the present ones."""
    rows = [current(layer.replace("+", ",")).replace(",", "+") for layer in register_references(layers) if layer]
    if not rows:
        raise InputError("--layers: no layer is named; for instance --layers rnn,lstm,transformer (seriatim layers)")
    known = layer_names()
    for row in rows:
        _check_width(row)
        for part in parts(row):
            if part not in known:
                raise InputError(f"--layers: unknown layer {part!r}; {nearest(part, known)}")
            if part in FITTED and part != row:
                raise InputError(f"--layers: {part} is a whole model; use it alone")
            find_kind(task, part)  # checks that they fit each other
    duplicate = next((row for row in rows if rows.count(row) > 1), None)
    if duplicate is not None:
        raise InputError(f"--layers: {duplicate} is named twice; leave one out")
    return rows


def register_references(layers: Sequence[str]) -> list[str]:
    """Import the layers that are written as ``FILE:Class``, and return the rows with the names of the classes."""
    rows = []
    for layer in layers:
        stack, *width = re.split(rf"(?={WIDTH}\d+$)", layer.strip())
        names = [register_reference(part) if is_reference(part) else part for part in stack.split("+")]
        rows.append("+".join(names) + "".join(width))
    return rows


def _with_widths(layers: Sequence[str], widths: Sequence[int] | None) -> list[str]:
    """Return a row for every layer at every width; a counted model has no width."""
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
    name, sign, width = row.partition(WIDTH)
    if sign and not (width.isascii() and width.isdigit() and len(width) <= 10 and 0 < int(width) < 2**31):
        raise InputError(f"--layers: {row}: {width!r} is not a width; give a whole number, for instance lstm@32")
    if sign and is_counted(name):
        raise InputError(f"--layers: {row}: {name} has no width; give {name} alone")


def share_options(rows: Sequence[str], options: Fields, task: str) -> dict[str, Fields]:
    """Return for every row the model options that its layers or the task accept; refuse one that no row accepts."""
    known = {row: _option_names(row, options, task) for row in rows}
    names = set().union(*known.values())
    for name in options:
        if name not in names:
            hint = nearest(name, sorted(names))
            raise InputError(f"model.options.{name}: none of {', '.join(rows)} has such an option; {hint}")
    given = {row: {name: value for name, value in options.items() if name in known[row]} for row in rows}
    return {row: shared_options(task, row) | given[row] if is_counted(row) else given[row] for row in rows}


def _option_names(row: str, options: Fields, task: str) -> set[str]:
    """Return the options of the task, of a counted model, or of the layers of a row and of the decoder."""
    sections = [each.options for each in (find_kind(task), find_kind(task, row)) if each.options]
    decoder = options.get("decoder")
    stacks = [] if is_counted(row) else [row, *([decoder] if isinstance(decoder, str) else [])]
    names = {name for stack in stacks for layer in parts(stack) for name in options_of(layer, options)}
    return names.union(*(section.model_fields for section in sections))


def parse_parameters(text: int | str | None) -> int | None:
    """Return ``1M``, ``500k`` or ``1_000_000`` as a number; refuse what is not a number."""
    if text is None:
        return None
    number = str(text).strip().replace("_", "").replace(",", "").lower()
    factor = {"k": 10**3, "m": 10**6, "g": 10**9, "b": 10**9}.get(number[-1:], 1)
    try:
        count = float(number[:-1] if factor > 1 else number) * factor
    except ValueError:
        count = 0.0
    if not 1 <= count < 2**40:
        raise InputError(f"--parameters: {text!r} is not a number of parameters; for instance 500k or 1M")
    return round(count)


def _seeds_from(first: int, count: int) -> list[int]:
    """Return ``count`` seeds, beginning with the configured one."""
    _check_count("--seeds", count, 1, MAX_SEEDS)
    return list(range(first, first + count))


def _check_count(option: str, count: int, least: int, largest: int) -> None:
    if not isinstance(count, int) or not least <= count <= largest:
        raise InputError(f"{option}: must be from {least} to {largest}, got {count}")


def _budget(settings: ComparisonSettings, training: Fields) -> Budget:
    """Return the one budget, given as ``--minutes M`` or as ``--training.minutes M``, and so for tokens and steps."""
    if "epochs" in training:
        raise InputError("training.epochs: a comparison gives every layer the same minutes, tokens or steps; give one")
    given = {name: training[name] for name in BUDGETS if name in training}
    given |= {name: getattr(settings, name) for name in BUDGETS if getattr(settings, name) is not None}
    if len(given) > 1:
        first, second, *_ = given
        raise InputError(f"--{second}: the budget is already given in {first}; leave one of them out")
    try:
        return Budget(**(given or {"minutes": DEFAULT_MINUTES}))
    except ValidationError:
        ((name, value),) = given.items()
        kind = "number" if name == "minutes" else "whole number"
        raise InputError(f"--{name}: must be a {kind} above 0, got {value}") from None

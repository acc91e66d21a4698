"""From what a user asks for to a `Plan`: everything that can be wrong is found before anything is trained."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..config import Config, read_yaml, resolve
from ..core.errors import InputError
from ..data.vocabulary import Vocabulary
from ..tasks import find
from ..tasks.counting import LAYER as COUNTED
from ..training.task import AnyTask
from .metric import choose_metric
from .plan import BUDGETS, DEFAULT_MINUTES, Budget, Plan, Sized, check_layers, default_rate, share_options
from .row_names import width_of, with_widths
from .shared_data import read_data
from .sizes import set_width, solve_sizes

READING_BOTH_WAYS = ("classify", "tag")
"""Tasks whose layers read in both directions unless told otherwise."""
MOST_SEEDS, MOST_TRIALS = 100, 100


@dataclass
class Wishes:
    """What a user asks for beside the configuration; None is not given. See `seriatim.compare`."""

    layers: Sequence[str]
    minutes: float | None = None
    tokens: int | None = None
    steps: int | None = None
    parameters: int | str | None = None
    seeds: int = 1
    tune: int | None = None
    metric: str | None = None
    command: str = ""
    widths: Sequence[int] | None = None


def make_plan(
    source: Config | Mapping[str, Any] | str | Path, wishes: Wishes, *, overrides: Mapping[str, Any] | None = None
) -> Plan:
    """Settles a comparison as far as can be without reading its data; `fit_plan` does the rest.

    Raises:
        InputError: whatever is wrong with layers, budget, metric or configuration.
    """
    given = _given(source, overrides)
    task = resolve({"task": given.get("task", "lm")}).task
    layers = check_layers(with_widths(wishes.layers, wishes.widths), task)
    swept = any(width_of(layer) is not None for layer in layers)
    if swept and wishes.parameters is not None and all(width_of(each) or each == COUNTED for each in layers):
        raise InputError("--parameters: the widths of all layers are given; leave out --parameters or the widths")
    budget, tune = _budget(wishes, given), _trials(wishes.tune)
    if tune is not None and budget.steps is not None and budget.steps < 2 * tune:
        raise InputError(f"--steps: {budget.steps} is too little to be shared with trials; give {2 * tune} or more")
    _refuse(given)
    usual: dict[str, Any] = {"training.steps": 1}
    if swept and task in READING_BOTH_WAYS:
        usual["model.bidirectional"] = False  # what reads in both directions has no state to measure
    base = resolve(_without_budgets(given), {name: value for name, value in usual.items() if not _has(given, name)})
    shared = share_options(layers, base.model.options, task)
    sized = {
        layer: Sized(
            hidden_size=width_of(layer) or base.model.hidden_size,
            embedding_size=base.model.embedding_size,
            options=shared[layer],
            learning_rate=default_rate(layer, base),
        )
        for layer in layers
    }
    plan = Plan(
        command=wishes.command,
        base=base,
        layers=layers,
        sized=sized,
        budget=budget,
        parameters=parse_parameters(wishes.parameters),
        seeds=seeds_from(base.training.seed, wishes.seeds),
        tune=tune,
        metric=wishes.metric or "",
        automatic=[
            name
            for name, field in (
                ("evaluate_every", "training.evaluate_every"),
                ("embedding_size", "model.embedding_size"),
            )
            if not _has(given, field)
        ],
    )
    for layer in layers:  # whose options are looked at, too
        choose_metric(find(plan.config(layer, plan.seeds[0])), wishes.metric)
    return plan


def fit_plan(plan: Plan, *, layers: Sequence[str] | None = None) -> Vocabulary:
    """Reads the data, checks it, and solves the widths of layers.

    Args:
        plan: receives the sizes.
        layers: those to solve; None for all.

    Returns:
        The vocabulary that all share.

    Raises:
        InputError: whatever is wrong with the data, a budget shorter than a step, or too few parameters.
    """
    wanted = plan.layers if layers is None else layers
    task, vocabulary, train, valid = read_data(plan)
    plan.described = task.describe(train)
    for layer in wanted:
        find(plan.config(layer, plan.seeds[0])).check(train, valid)
    _check_tokens(plan, task, train)
    trained = [layer for layer in wanted if layer != COUNTED]
    if solved_for := [layer for layer in trained if width_of(layer) is None]:
        solve_sizes(plan, solved_for, vocabulary, fresh=layers is None)
    for layer in trained:
        if width_of(layer) is not None:
            set_width(plan, layer, vocabulary)
    solved = find(plan.config(wanted[0], plan.seeds[0]))
    plan.metric = choose_metric(solved, plan.metric or None, selects=solved.selection_metric(vocabulary)).key
    return vocabulary


def parse_parameters(text: int | str | None) -> int | None:
    """``1M``, ``500k``, ``1_000_000`` as a number.

    Raises:
        InputError: it is none.
    """
    if text is None:
        return None
    number = str(text).strip().replace("_", "").replace(",", "").lower()
    factor = {"k": 10**3, "m": 10**6, "g": 10**9, "b": 10**9}.get(number[-1:], 1)
    try:
        found = float(number[:-1] if factor > 1 else number) * factor
        if not 1 <= found < 2**40:
            raise ValueError
    except ValueError:
        raise InputError(f"--parameters: {text!r} is no number of parameters; give one such as 500k or 1M") from None
    return round(found)


def seeds_from(first: int, count: int) -> list[int]:
    """The seeds of ``--seeds N``: that of the configuration and those after it.

    Raises:
        InputError: fewer than 1, or more than there may be.
    """
    if not isinstance(count, int) or not 1 <= count <= MOST_SEEDS:
        raise InputError(f"--seeds: {count} does not fit; give 1 to {MOST_SEEDS}")
    return list(range(first, first + count))


def _trials(count: int | None) -> int | None:
    if count is not None and (not isinstance(count, int) or not 2 <= count <= MOST_TRIALS):
        raise InputError(f"--tune: {count} does not fit; give 2 to {MOST_TRIALS} learning rates to try")
    return count


def _given(source: Config | Mapping[str, Any] | str | Path, overrides: Mapping[str, Any] | None) -> dict[str, Any]:
    """What was given of a configuration, as a tree: defaults are not in it."""
    if isinstance(source, Config):
        tree: Mapping[str, Any] = source.model_dump(exclude_unset=True)
    else:
        tree = source if isinstance(source, Mapping) else read_yaml(Path(source))
    return resolve(tree, overrides).model_dump(exclude_unset=True)


def _has(tree: Mapping[str, Any], name: str) -> bool:
    section, _, key = name.partition(".")
    return (tree.get(section) or {}).get(key) is not None


def _budget(wishes: Wishes, given: Mapping[str, Any]) -> Budget:
    """The one budget: ``--minutes M`` or ``--training.minutes M``, and so of the others."""
    if _has(given, "training.epochs"):
        raise InputError("training.epochs: a comparison gives every layer the same minutes, tokens or steps; give one")
    found: dict[str, Any] = {name: getattr(wishes, name) for name in BUDGETS if getattr(wishes, name) is not None}
    for name in BUDGETS:
        if _has(given, f"training.{name}"):
            found.setdefault(name, given["training"][name])
    if len(found) > 1:
        first, second, *_ = found
        raise InputError(f"--{second}: the budget is given in {first} already; leave one of them out")
    for name, value in found.items():
        if not isinstance(value, int | float) or not 0 < value < 2**31 or (name != "minutes" and value != int(value)):
            raise InputError(
                f"--{name}: {value} is no budget; give a {'' if name == 'minutes' else 'whole '}number above 0"
            )
    return Budget(**(found or {"minutes": DEFAULT_MINUTES}))


def _refuse(given: Mapping[str, Any]) -> None:
    """Fields that have no meaning where several layers are trained."""
    if _has(given, "model.layer"):
        raise InputError("model.layer: a comparison has several; give them with --layers A,B,C")
    if _has(given, "training.init"):
        raise InputError("training.init: in a comparison all layers start from nothing; leave it out")


def _without_budgets(given: Mapping[str, Any]) -> dict[str, Any]:
    training = {name: value for name, value in (given.get("training") or {}).items() if name not in BUDGETS}
    return {**{name: value for name, value in given.items() if name != "out"}, "training": training}


def _check_tokens(plan: Plan, task: AnyTask, train: Any) -> None:
    """Raises InputError where a budget of tokens is less than a step reads."""
    if plan.budget.tokens is None:
        return
    batches = task.batches(train)
    one = next(iter(batches.read(batches.shuffled(plan.seeds[0], 0)))).tokens
    if plan.budget.tokens < one * (2 * plan.tune if plan.tune else 1):
        shared = f", and half of it is shared by {plan.tune} trials" if plan.tune else ""
        raise InputError(
            f"--tokens: {plan.budget.tokens:,} is too little, one step reads {one:,}{shared}; give more, or lower "
            "training.batch_size"
        )

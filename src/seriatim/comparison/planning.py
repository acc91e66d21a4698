"""From what a user asks for to a `Plan`: everything that can be wrong is found before anything is trained."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ..config import Config, read_yaml, resolve
from ..data.vocabulary import Vocabulary
from ..errors import InputError
from ..tasks import find
from ..tasks.counting import LAYER as COUNTED
from ..training.setup import learn
from ..training.task import Task
from .metric import choose_metric
from .plan import (
    BATCH_SIZE,
    BUDGETS,
    DEFAULT_MINUTES,
    DEFAULTS,
    USUAL_BATCH_SIZE,
    Budget,
    Plan,
    Sized,
    check_layers,
    default_rate,
    share_options,
)
from .widths import TOLERANCE, Widths, count_parameters

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


def make_plan(
    source: Config | Mapping[str, Any] | str | Path, wishes: Wishes, *, overrides: Mapping[str, Any] | None = None
) -> Plan:
    """Settles a comparison as far as can be without reading its data; `fit_plan` does the rest.

    Raises:
        InputError: whatever is wrong with layers, budget, metric or configuration.
    """
    given = _given(source, overrides)
    task = resolve({"task": given.get("task", "lm")}).task
    layers = check_layers(wishes.layers, task)
    budget, tune = _budget(wishes, given), _trials(wishes.tune)
    if tune is not None and budget.steps is not None and budget.steps < 2 * tune:
        raise InputError(f"--steps: {budget.steps} is too little to be shared with trials; give {2 * tune} or more")
    _refuse(given)
    usual = {**DEFAULTS, "training.batch_size": BATCH_SIZE.get(task, USUAL_BATCH_SIZE), "training.steps": 1}
    base = resolve(_without_budgets(given), {name: value for name, value in usual.items() if not _has(given, name)})
    shared = share_options(layers, base.model.options, task)
    sized = {
        layer: Sized(
            hidden_size=base.model.hidden_size,
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
        automatic=[name for name in ("warmup_steps", "evaluate_every") if not _has(given, f"training.{name}")]
        + (["embedding_size"] if not _has(given, "model.embedding_size") else []),
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
    if trained:
        _solve(plan, trained, vocabulary, fresh=layers is None)
    solved = find(plan.config(wanted[0], plan.seeds[0]))
    with torch.device("meta"):
        solved.make_model(vocabulary)  # which settles what chooses weights
    plan.metric = choose_metric(solved, plan.metric or None, selects=solved.selects).key
    return vocabulary


class SharedData(NamedTuple):
    """What every row of a comparison shares: a task that reads the data, the vocabulary, and the data as read."""

    task: Task
    vocabulary: Vocabulary
    train: Any
    valid: Any


def read_data(plan: Plan) -> SharedData:
    """Reads the data of a comparison and settles ``plan.digests``, or checks the data against them.

    Raises:
        InputError: whatever is wrong with the data, or data that has changed since the comparison began.
    """
    task = find(plan.config(plan.layers[0], plan.seeds[0]))
    check_held_out(plan, task)
    vocabulary, _ = learn(task)
    spec = task.validation_spec()
    train = task.read(task.training_spec(), "train", vocabulary)
    valid = None if spec is None else task.read(spec, "valid", vocabulary)
    digests = {
        "train": str(train.key),
        "tokenizer": vocabulary.fingerprint(),
        "valid": "" if valid is None else str(valid.key),
        "measured": str(task.read(*plan.measured(), vocabulary).key),
    }
    names = {"train": f"data.train: {task.training_spec()}", "valid": f"data.valid: {spec}"}
    for part, digest in digests.items():
        if plan.digests.get(part, digest) != digest:
            name = names.get(part, part if part == "tokenizer" else plan.measured()[0])
            raise InputError(
                f"{name} has changed since this comparison began; restore it, or start a new comparison with another "
                "--out"
            )
    plan.digests = digests
    return SharedData(task, vocabulary, train, valid)


def check_held_out(plan: Plan, task: Task) -> None:
    """Raises InputError where there is nothing to measure on, or to tune on."""
    task.training_spec()
    if task.validation_spec() is None and plan.base.data.test is None:
        raise InputError("data.valid: no held-out data to measure on; give --valid FILE, or --data.test FILE")
    if task.validation_spec() is None and plan.tune is not None:
        raise InputError("--tune: learning rates are chosen on held-out data; give --valid FILE")


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


def _check_tokens(plan: Plan, task: Task, train: Any) -> None:
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


def _solve(plan: Plan, layers: Sequence[str], vocabulary: Vocabulary, *, fresh: bool) -> None:
    """Finds the sizes of layers, with one embedding for all; ``fresh`` where it may still be chosen."""
    widths = {layer: Widths(plan.config(layer, plan.seeds[0]), vocabulary) for layer in layers}
    size = plan.base.model.embedding_size
    if plan.parameters is None:
        first = plan.config(layers[0], plan.seeds[0])
        if first.model.tie_weights:
            first.model.embedding_size = first.model.hidden_size
        plan.parameters = count_parameters(first, vocabulary)
    target = plan.parameters
    if fresh:
        size = plan.base.model.embedding_size = _common_embedding(plan, widths, target)
    adjust = plan.base.model.options.get("vectors") is None
    for layer, one in widths.items():
        hidden_size, embedding_size, parameters = one.solve(target, size, adjust=adjust)
        sized = plan.sized[layer]
        update = {"hidden_size": hidden_size, "embedding_size": embedding_size, "parameters": parameters}
        plan.sized[layer] = sized.model_copy(update=update)


def _common_embedding(plan: Plan, widths: Mapping[str, Widths], target: int) -> int:
    """The widest embedding, halving that of the configuration, that leaves every layer room for a width.

    Room is any at all where the embedding was asked for; else a width of half the embedding's.

    Raises:
        InputError: so few parameters cannot be had.
    """
    size = plan.base.model.embedding_size
    automatic = "embedding_size" in plan.automatic
    fixed = plan.base.model.options.get("vectors") is not None
    while True:
        least = {layer: one.least(size) for layer, one in widths.items()}
        tight = {layer: found for layer, found in least.items() if found is None or found > (1 + TOLERANCE) * target}
        roomy = automatic and size > 1 and any(_cramped(one, target, size) for one in widths.values())
        if not tight and not roomy:
            return size
        if size == 1 or fixed:
            layer = max(tight, key=lambda name: tight[name] or 0)
            raise InputError(
                f"--parameters: {target:,} is less than {layer} can have with this vocabulary; give at least "
                f"{tight[layer]:,}, or a smaller tokenizer.vocabulary_size"
            )
        size //= 2


def _cramped(widths: Widths, target: int, embedding_size: int) -> bool:
    """Whether the embedding takes so much that the layer is narrower than half of it."""
    found = widths.count(max(1, embedding_size // 2), embedding_size)
    return not widths.tied and found is not None and found > target

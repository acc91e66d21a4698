"""From the arguments of `compare` to a complete `Plan`: first what needs no data, then what reads them."""

import functools
import math
import re
import shlex
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from pydantic import ValidationError

from ..config import Config, ConfigSource, resolve
from ..core.errors import (
    ConflictError,
    DuplicateError,
    FixedError,
    InputError,
    MismatchError,
    NotSupportedError,
    RangeError,
    RequiredError,
    UnknownNameError,
    nearest,
)
from ..core.json_object import JsonObject
from ..data.sources import builtin_task, check_named_by_run
from ..data.vocabulary import Vocabulary
from ..layers import options_of
from ..layers.outside_code import is_reference, register_reference
from ..tasks import (
    FITTED,
    check_outside_layers,
    chosen_baseline,
    find_kind,
    layer_names,
    new_task,
    open_task,
    shared_options,
)
from ..tasks.defaults import default_rate, fill
from ..tasks.model_size import count_parameters
from ..tasks.task import Evaluator, Task, TaskData
from ..training.finish import refuse_long
from ..training.settle import settle_texts, warn_of_overlap, with_data_defaults
from .plan import (
    BASELINE,
    START_NEW,
    WIDTH,
    Budget,
    Plan,
    Sized,
    architecture,
    choose_metric,
    is_non_neural,
    layers_of,
    stack_name,
    width_of,
)

DEFAULT_MINUTES = 2.0
BUDGETS = ("minutes", "tokens", "steps")
VALIDATE_TOKENS, VALIDATE_FRACTION = 10_000, 0.05
"""Tokens of a text that every row validates on while it is trained, and the fraction of a budget of tokens that is, at
most: so few that a row can validate often enough for a curve."""
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

    # The arguments are checked before anything is filled in, so that a message names what the user wrote.
    swept = any(width_of(row) is not None for row in layers)
    if swept and settings.parameters is not None and all(width_of(row) or is_non_neural(row) for row in layers):
        raise ConflictError("--parameters: the widths of all layers are given; leave out --parameters or the widths")
    budget, tune = _budget(settings, training), settings.tune
    if tune is not None:
        _check_count("--tune", tune, 2, MAX_TRIALS)
        if budget.steps is not None and budget.steps < 2 * tune:
            raise RangeError(f"--steps: {budget.steps} are too few to share with trials; give {2 * tune} or more")
    if "layer" in model:
        raise ConflictError("model.layer: a comparison has several layers; give them with --layers A,B,C")
    if "init" in training:
        raise ConflictError("training.init: the layers of a comparison start from random parameters; leave it out")

    if config.data.features:
        raise NotSupportedError("data.features: the layers of a comparison read words alone; leave it out")

    # What a comparison decides itself is a default, so that its trainings differ in nothing but the layer.
    defaults: dict[str, object] = {"training.steps": 1, "training.baseline": "none"}
    baseline = find_kind(config.task).reference_model if chosen_baseline(config) == "simple" else None
    automatic = [name for name in ("evaluate_every", "embedding_size") if name not in training | model]
    if "evaluate_every" in automatic and find_kind(config.task).evaluator.sample is not Evaluator.sample:
        most = VALIDATE_TOKENS if budget.tokens is None else max(1, int(VALIDATE_FRACTION * budget.tokens))
        defaults["training.validate_tokens"] = min(VALIDATE_TOKENS, most)
    if baseline is not None and baseline not in layers:
        layers, automatic = [*layers, baseline], [*automatic, BASELINE]
    if swept and find_kind(config.task).supports_unidirectional and "bidirectional" not in model:
        defaults["model.bidirectional"] = False  # a layer that reads in both directions has no state to measure
    base = resolve(config.model_dump(exclude_unset=True, exclude={"training": set(BUDGETS)}), defaults)
    check_outside_layers([stack_name(row) for row in layers], base.model)

    # The plan is checked by making the task of every row, which also checks the options of its layer.
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
        # The baseline was added to the plan, not named by the user, who need not repeat it.
        rows = _check_layers(layers, plan.base.task)
        if BASELINE in plan.automatic and plan.baseline in plan.layers and plan.baseline not in rows:
            rows.append(plan.baseline)
        if missing := next((row for row in plan.layers if row not in rows), None):
            raise FixedError(f"--layers: {missing} is in the comparison already; name all its layers, then new ones")
        added = [row for row in rows if row not in plan.layers]
        plan.sized = _unsolved(rows, plan.base) | plan.sized
        plan.layers = rows
    if seeds is not None:
        # Rows that are finished keep their seeds, so that seeds can only be added.
        longer = _seeds_from(plan.seeds[0], seeds)
        if len(longer) < len(plan.seeds):
            raise FixedError(f"--seeds: the comparison has {len(plan.seeds)} already; give as many or more")
        plan.seeds = longer
    return added


def _unsolved(rows: Sequence[str], base: Config) -> dict[str, Sized]:
    """Return rows with the configured sizes, their options and their learning rates."""
    options, model = divide_options(rows, base.model.options, base.task), base.model
    sized = {}
    for row in rows:
        rate = base.training.learning_rate
        if rate is None and not is_non_neural(row):
            rate = default_rate(base, find_kind(base.task).learning_rate, stack_name(row))
        sized[row] = Sized(
            hidden_size=width_of(row) or model.hidden_size,
            embedding_size=model.embedding_size,
            options=options[row],
            learning_rate=rate,
        )
    return sized


def _check_layers(layers: Sequence[str], task: str) -> list[str]:
    """Return the names of the rows."""
    rows = [layer for layer in register_references(layers) if layer]
    if not rows:
        raise RequiredError("--layers: no layer is named; for instance --layers rnn,lstm,transformer (seriatim layers)")

    # All names are checked before anything is trained: a comparison can take hours.
    known = layer_names()
    for row in rows:
        _check_width(row)
        for layer in layers_of(row):
            if layer not in known:
                raise UnknownNameError(f"--layers: unknown layer {layer!r}; {nearest(layer, known)}")
            if layer in FITTED and layer != row:
                raise ConflictError(f"--layers: {layer} is a whole model; use it alone")
            find_kind(task, layer)  # checks that they fit each other
    duplicate = next((row for row in rows if rows.count(row) > 1), None)
    if duplicate is not None:
        raise DuplicateError(f"--layers: {duplicate} is named twice; leave one out")
    return rows


def register_references(layers: Sequence[str]) -> list[str]:
    """Import the layers that are written as ``FILE:Class``, and return the rows with the names of the classes."""
    rows = []
    for layer in layers:
        stack, *width = re.split(rf"(?={WIDTH}\d+$)", layer.strip())
        names = [register_reference(layer) if is_reference(layer) else layer for layer in stack.split("+")]
        rows.append("+".join(names) + "".join(width))
    return rows


def _with_widths(layers: Sequence[str], widths: Sequence[int] | None) -> list[str]:
    """Return a row for every layer at every width; a counted model has no width."""
    if widths is None:
        return list(layers)
    for width in widths:
        if not isinstance(width, int) or isinstance(width, bool) or width < 1:
            raise RangeError(f"--widths: {width!r} is not a width; give whole numbers above 0, for instance 16,32,64")
    if not widths:
        raise RequiredError("--widths: no width is given; for instance --widths 16,32,64")
    if named := next((layer for layer in layers if WIDTH in layer), None):
        raise ConflictError(f"--layers: {named} already has a width; leave out {WIDTH} and the number, or --widths")
    rows: list[str] = []
    for layer in filter(None, map(str.strip, layers)):
        rows += [layer] if is_non_neural(layer) else [f"{layer}{WIDTH}{width}" for width in widths]
    return rows


def _check_width(row: str) -> None:
    name, sign, width = row.partition(WIDTH)
    if sign and not (width.isascii() and width.isdigit() and len(width) <= 10 and 0 < int(width) < 2**31):
        raise RangeError(f"--layers: {row}: {width!r} is not a width; give a whole number, for instance lstm@32")
    if sign and is_non_neural(name):
        raise NotSupportedError(f"--layers: {row}: {name} has no width to set; give {name} alone")


def divide_options(rows: Sequence[str], options: JsonObject, task: str) -> dict[str, JsonObject]:
    """Return for every row the model options that its layers or the task accept; refuse one that no row accepts."""
    known = {row: _option_names(row, options, task) for row in rows}
    names = set().union(*known.values())
    for name in options:
        if name not in names:
            hint = nearest(name, sorted(names))
            raise UnknownNameError(f"model.options.{name}: none of {', '.join(rows)} has such an option; {hint}")
    given = {row: {name: value for name, value in options.items() if name in known[row]} for row in rows}
    return {row: shared_options(task, row) | given[row] if is_non_neural(row) else given[row] for row in rows}


def _option_names(row: str, options: JsonObject, task: str) -> set[str]:
    """Return the options of the task, of a counted model, or of the layers of a row and of the decoder."""
    sections = [each.options for each in (find_kind(task), find_kind(task, row)) if each.options]
    decoder = options.get("decoder")
    stacks = [] if is_non_neural(row) else [row, *([decoder] if isinstance(decoder, str) else [])]
    names = {name for stack in stacks for layer in layers_of(stack) for name in options_of(layer, options)}
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
        raise RangeError(f"--parameters: {text!r} is not a number of parameters; for instance 500k or 1M")
    return round(count)


def _seeds_from(first: int, count: int) -> list[int]:
    """Return ``count`` seeds, beginning with the configured one."""
    _check_count("--seeds", count, 1, MAX_SEEDS)
    return list(range(first, first + count))


def _check_count(option: str, count: int, least: int, largest: int) -> None:
    if not isinstance(count, int) or not least <= count <= largest:
        raise RangeError(f"{option}: {count} is out of range; give a number from {least} to {largest}")


def _budget(settings: ComparisonSettings, training: JsonObject) -> Budget:
    """Return the one budget, given as ``--minutes M`` or as ``--training.minutes M``, and so for tokens and steps."""
    if "epochs" in training:
        raise ConflictError(
            "training.epochs: a comparison gives every layer the same minutes, tokens or steps; give one"
        )
    given = {name: training[name] for name in BUDGETS if name in training}
    given |= {name: getattr(settings, name) for name in BUDGETS if getattr(settings, name) is not None}
    if len(given) > 1:
        first, second, *_ = given
        raise ConflictError(f"--{second}: the budget is already given in {first}; leave one of them out")
    try:
        return Budget(**(given or {"minutes": DEFAULT_MINUTES}))
    except ValidationError:
        ((name, value),) = given.items()
        kind = "number" if name == "minutes" else "whole number"
        raise RangeError(f"--{name}: {value} is not a {kind} above 0; give one") from None


# What all rows of a comparison share: the data, the tokenizer, and the number of parameters.


def read_data(plan: Plan) -> tuple[Task, Vocabulary, TaskData, TaskData | None]:
    """Read the data of a comparison, and write ``plan.digests``, or refuse data that have changed since they were.

    Returns:
        The task that reads the data, the vocabulary, the training data and the held-out data.
    """
    config, _, vocabulary = settle_texts(plan.config(plan.layers[0]))
    plan.base = plan.base.replaced({"data.valid": config.data.valid})
    task = open_task(config)

    # Rows are compared by figures on held-out data, and tuned on them, so that both must exist before any training.
    train_source, valid_source = task.files.training_source(), task.files.validation_source()
    if valid_source is None and plan.base.data.test is None:
        raise RequiredError("data.valid: no held-out data to measure on; give --valid FILE, or --data.test FILE")
    if valid_source is None and plan.tune is not None:
        raise RequiredError("--tune: learning rates are chosen on held-out data; give --valid FILE")
    for source in (train_source, valid_source, plan.base.data.test):
        meant = builtin_task(source) if source else None
        if source and meant and next(task.reader.labelled_items(source, "test"), None) is None:
            remedy = f"write: seriatim compare {meant} --data {shlex.quote(source)}"
            raise NotSupportedError(
                f"{source}: rows are compared by their answers, and {plan.base.task} gives none; {remedy}"
            )

    # The digests keep a resumed comparison from mixing rows of different data.
    train = task.reader.read(train_source, "train", vocabulary)
    valid = None if valid_source is None else task.reader.read(valid_source, "valid", vocabulary)
    measured = task.reader.read(*plan.measured(), vocabulary)
    subjects = {
        "train": (f"data.train: {train_source}", train.key),
        "tokenizer": ("tokenizer", vocabulary.fingerprint()),
        "valid": (f"data.valid: {valid_source}", "" if valid is None else valid.key),
        "measured": (plan.measured().source, measured.key),
    }
    for name, (subject, digest) in subjects.items():
        if plan.digests.get(name, digest) != digest:
            raise MismatchError(f"{subject} has changed since this comparison began; restore it, or {START_NEW}")
    plan.digests = {name: digest for name, (_, digest) in subjects.items()}
    return task, vocabulary, train, valid


def fit_plan(plan: Plan, *, layers: Sequence[str] | None = None) -> Vocabulary:
    """Complete a plan: read and check the data, solve the widths, and choose the metric; return the vocabulary.

    In a comparison that is extended, ``layers`` are the new rows. Invalid data, a budget shorter than a step, or too
    few parameters are refused.
    """
    task, vocabulary, train, valid = read_data(plan)
    plan.described = task.reader.describe(train)
    rows = plan.layers if layers is None else layers
    warn_of_overlap(task, train, valid)
    if layers is None and task.objective is not None:
        plan.base = fill(plan.base, task.kind.shared_defaults(plan.base, train))
    if BASELINE in plan.automatic and plan.baseline in rows:
        _check_baseline(plan, train, valid)
    rows = [row for row in rows if row in plan.layers]

    # Sizes are solved once the vocabulary is known, because it has most of the parameters of a small model.
    trained = [row for row in rows if not is_non_neural(row)]
    if trained and plan.budget.tokens is not None:
        _check_tokens(plan, plan.budget.tokens, plan.task(trained[0]), train)
    if solved := [row for row in trained if width_of(row) is None]:
        _solve_sizes(plan, solved, vocabulary, choose_embedding=layers is None)
    for row in trained:
        if (width := width_of(row)) is not None:
            sized = plan.sized[row]
            sized.embedding_size = width if plan.base.model.tie_weights else plan.base.model.embedding_size
            try:
                sized.parameters = count_parameters(plan.task(row).builder, vocabulary)
            except ValueError as error:
                problem = f"{architecture(row)} does not accept the width {width} ({error})"
                raise RangeError(f"--widths: {problem}; give other widths") from None
    for row in rows:
        _with_batches(plan.task(row), train).check(train, valid)
    # Some models have no loss.
    fewest = min((plan.task(row) for row in rows), key=lambda task: len(task.evaluator.metrics))
    plan.metric = choose_metric(fewest, plan.metric or None, vocabulary).key
    return vocabulary


def _check_baseline(plan: Plan, train: TaskData, valid: TaskData | None) -> None:
    """Remove the row of the simple baseline, which nobody asked for, with a warning if it cannot be trained."""
    task = plan.task(plan.baseline)
    try:
        refuse_long(task.config, train)
        task.check(train, valid)
    except InputError as error:
        warnings.warn(f"the simple baseline is left out: {error}", stacklevel=2)
        plan.layers = [row for row in plan.layers if row != plan.baseline]
        plan.baseline = None


def check_data_named(plan: Plan) -> None:
    """Refuse a configuration that names data which must not be read without asking."""
    sources = {f"data.{split}": getattr(plan.base.data, split) for split in ("train", "valid", "test")}
    sources["model.options.vectors"] = plan.base.model.options.get("vectors")
    for field, source in sources.items():
        if isinstance(source, str):
            check_named_by_run(source, field, downloads=True)


def _with_batches(task: Task, train: TaskData) -> Task:
    """Return the task with the size of batches, and other values, that suit the training data."""
    return open_task(with_data_defaults(task.config, train)) if task.objective is not None else task


def _check_tokens(plan: Plan, tokens: int, task: Task, train: TaskData) -> None:
    """Refuse a budget of tokens that is less than one step of a trained row reads."""
    objective = _with_batches(task, train).objective
    assert objective is not None
    batches = objective.batches(train)
    step = next(iter(batches.read(batches.shuffled(plan.seeds[0], 0)))).tokens
    if tokens < step * (2 * plan.tune if plan.tune else 1):
        shared = f", and {plan.tune} trials share half of the budget" if plan.tune else ""
        raise RangeError(
            f"--tokens: {tokens:,} is too little, one step reads {step:,}{shared}; give more, or lower "
            "training.batch_size"
        )


# The width at which a model has a number of parameters. The number of parameters grows with the width, so bisection
# finds the width. Among the widths within 2 % of the target, the roundest is chosen: multiples of 32 compute faster
# than odd numbers. Parameters that every size of the model has, such as tables of hashed features, are left out of
# these 2 %, since beside a large table any width would do.

TOLERANCE = 0.02
MULTIPLES = (32, 16, 8, 4, 2, 1)
MAX_REFUSED = 64
"""Consecutive widths that a layer may refuse before the search stops."""
CountParameters = Callable[[int], int | None]
"""From a size to the number of parameters; None where the layer refuses the size."""


class WidthSolver:
    """Solves the width of one layer in a configuration, whose ``hidden_size`` and ``embedding_size`` are replaced."""

    def __init__(self, config: Config, vocabulary: Vocabulary) -> None:
        self.config, self.vocabulary = config, vocabulary
        self.tied = config.model.tie_weights
        self.count = functools.cache(self._count)

    def _count(self, hidden_size: int, embedding_size: int) -> int | None:
        """Return the number of parameters; None where the layer refuses the sizes."""
        update = {"hidden_size": hidden_size, "embedding_size": hidden_size if self.tied else embedding_size}
        config = self.config.model_copy(update={"model": self.config.model.model_copy(update=update)})
        try:
            return count_parameters(new_task(config).builder, self.vocabulary)
        except ValueError:
            return None

    def minimum(self, embedding_size: int) -> int | None:
        """Return the smallest possible number of parameters; None where the layer accepts no width."""
        counts = (self.count(size, embedding_size) for size in range(1, MAX_REFUSED + 1))
        return next((count for count in counts if count is not None), None)

    def is_cramped(self, target: int, embedding_size: int) -> bool:
        """Return whether the embedding leaves the layer less than half of its own width."""
        count = self.count(max(1, embedding_size // 2), embedding_size)
        return not self.tied and count is not None and count > target

    def solve(self, target: int, embedding_size: int) -> tuple[int, int, int]:
        """Return ``hidden_size``, ``embedding_size`` and the number of parameters that are nearest to the target.

        ``embedding_size`` is that of all layers; where no width comes within 2 %, this layer gets another one, unless
        its vectors were given.

        Raises:
            InputError: the layer accepts no width.
        """
        allowance = TOLERANCE * max(0, target - (self.minimum(1) or 0))
        largest = max(1024, 4 * math.isqrt(target))  # beyond, a width only pads a layer with hardly any parameters

        def distance(hidden_size: int, embedding_size: int) -> int:
            return abs((self.count(hidden_size, embedding_size) or 0) - target)

        # Round widths first: of those within the tolerance, the roundest computes fastest.
        widths: list[int] = []
        for multiple in MULTIPLES:
            widths += _around(lambda size: self.count(size, embedding_size), target, multiple, largest)
            if any(distance(width, embedding_size) <= allowance for width in widths):
                break
        if not widths:
            count_parameters(new_task(self.config).builder, self.vocabulary)  # raises an error in the options
            name = self.config.model.layer
            raise NotSupportedError(
                f"model.hidden_size: layer {name!r} accepts no width up to {MAX_REFUSED}; choose another layer"
            )

        # Where no width comes near, another size of the embedding makes up the difference.
        hidden_size = min(widths, key=lambda width: (distance(width, embedding_size), width))
        if self.tied:
            embedding_size = hidden_size
        elif not has_vectors(self.config) and distance(hidden_size, embedding_size) > allowance:
            others = _around(lambda size: self.count(hidden_size, size), target, 1, target)
            embedding_size = min((embedding_size, *others), key=lambda size: distance(hidden_size, size))
        total = self.count(hidden_size, embedding_size)
        assert total is not None
        return hidden_size, embedding_size, total


def has_vectors(config: Config) -> bool:
    """Return whether the embeddings of tokens are given, which decides their size."""
    return config.model.options.get("vectors") is not None


def _around(count: CountParameters, target: int, multiple: int, largest: int) -> list[int]:
    """Return the largest multiple with at most ``target`` parameters, and the next one, as far as they exist."""

    def accepted(multiples: Iterable[int]) -> int | None:
        return next((multiple * i for i in multiples if count(multiple * i) is not None), None)

    low, high = 0, largest // multiple
    while low < high:  # the last accepted size at or below the target lies in low..high
        middle = (low + high + 1) // 2
        size = accepted(range(middle, min(middle + MAX_REFUSED, high) + 1))
        if size is not None and (count(size) or 0) <= target:
            low = size // multiple
        else:
            high = middle - 1
    return [size for size in (multiple * low, accepted(range(low + 1, low + MAX_REFUSED))) if size]


def _solve_sizes(plan: Plan, rows: Sequence[str], vocabulary: Vocabulary, *, choose_embedding: bool) -> None:
    """Solve the sizes of rows for the number of parameters of the plan, or else that of the first row.

    ``choose_embedding`` says whether the embedding size, which all rows share, may be reduced.
    """
    solvers = {row: WidthSolver(plan.config(row), vocabulary) for row in rows}
    if plan.parameters is None:
        first = plan.config(rows[0])
        if first.model.tie_weights:
            first = first.replaced({"model.embedding_size": first.model.hidden_size})
        plan.parameters = count_parameters(new_task(first).builder, vocabulary)
    if choose_embedding:
        size = _common_embedding(plan, solvers, plan.parameters)
        plan.base = plan.base.replaced({"model.embedding_size": size})
    for row, solver in solvers.items():
        sized = plan.sized[row]
        solved = solver.solve(plan.parameters, plan.base.model.embedding_size)
        sized.hidden_size, sized.embedding_size, sized.parameters = solved


def _common_embedding(plan: Plan, solvers: Mapping[str, WidthSolver], target: int) -> int:
    """Halve the configured embedding size until every layer has a width for the target.

    Where the size was not set by the user, every layer gets at least half the width of the embedding.
    """
    size = plan.base.model.embedding_size
    may_shrink = not has_vectors(plan.base)
    automatic = may_shrink and "embedding_size" in plan.automatic

    # All rows share the embedding, so the row with the least room determines its size.
    while True:
        minima = {row: solver.minimum(size) or 0 for row, solver in solvers.items()}
        tightest = max(minima, key=lambda row: minima[row])
        tight = minima[tightest] > (1 + TOLERANCE) * target
        cramped = automatic and size > 1 and any(solver.is_cramped(target, size) for solver in solvers.values())
        if not tight and not cramped:
            return size

        # Vectors that were given keep their size, and no size is below 1: then the target itself is too small.
        if size == 1 or not may_shrink:
            raise RangeError(
                f"--parameters: {target:,} is less than {tightest} can have with this vocabulary; give at least "
                f"{minima[tightest]:,}, or a smaller tokenizer.vocabulary_size"
            )
        size //= 2

"""What all rows of a comparison share: the data, the tokenizer, and the number of parameters."""

import shlex
import warnings
from collections.abc import Mapping, Sequence

from ..config import Config
from ..core.errors import InputError
from ..data.sources import builtin_task, check_named_by_run
from ..data.vocabulary import Vocabulary
from ..tasks import new_task, open_task
from ..tasks.model_size import count_parameters
from ..tasks.task import ModelBuilder, Task, TaskData
from ..training.finish import refuse_long
from ..training.overlap import warn_of_overlap
from ..training.settle import settle_texts, with_data_defaults
from ..training.width_solver import TOLERANCE, WidthSolver
from .metric import choose_metric
from .plan import BASELINE, START_NEW, Plan, architecture, is_counted, width_of


def read_data(plan: Plan) -> tuple[Task, Vocabulary, TaskData, TaskData | None]:
    """Read the data of a comparison, and write ``plan.digests``, or refuse data that have changed since they were.

    Returns:
        The task that reads the data, the vocabulary, the training data and the held-out data.
    """
    config, _, vocabulary = settle_texts(plan.config(plan.layers[0]))
    plan.base = plan.base.replaced({"data.valid": config.data.valid})
    task = open_task(config)
    train_spec, valid_spec = task.files.training_source(), task.files.validation_source()
    if valid_spec is None and plan.base.data.test is None:
        raise InputError("data.valid: no held-out data to measure on; give --valid FILE, or --data.test FILE")
    if valid_spec is None and plan.tune is not None:
        raise InputError("--tune: learning rates are chosen on held-out data; give --valid FILE")
    for spec in (train_spec, valid_spec, plan.base.data.test):
        if spec and (meant := builtin_task(spec)) and next(task.reader.labelled_items(spec, "test"), None) is None:
            remedy = f"write: seriatim compare {meant} --data {shlex.quote(spec)}"
            raise InputError(f"{spec}: rows are compared by their answers, and {plan.base.task} gives none; {remedy}")
    train = task.reader.read(train_spec, "train", vocabulary)
    valid = None if valid_spec is None else task.reader.read(valid_spec, "valid", vocabulary)
    measured = task.reader.read(*plan.measured(), vocabulary)
    parts = {
        "train": (f"data.train: {train_spec}", train.key),
        "tokenizer": ("tokenizer", vocabulary.fingerprint()),
        "valid": (f"data.valid: {valid_spec}", "" if valid is None else valid.key),
        "measured": (plan.measured().spec, measured.key),
    }
    for part, (name, digest) in parts.items():
        if plan.digests.get(part, digest) != digest:
            raise InputError(f"{name} has changed since this comparison began; restore it, or {START_NEW}")
    plan.digests = {part: digest for part, (_, digest) in parts.items()}
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
    if BASELINE in plan.automatic and plan.baseline in rows:
        _check_baseline(plan, train, valid)
    rows = [row for row in rows if row in plan.layers]
    _check_tokens(plan, task, train)
    trained = [row for row in rows if not is_counted(row)]
    if solved := [row for row in trained if width_of(row) is None]:
        _solve_sizes(plan, solved, vocabulary, choose_embedding=layers is None)
    for row in trained:
        if (width := width_of(row)) is not None:
            sized = plan.sized[row]
            sized.embedding_size = width if plan.base.model.tie_weights else plan.base.model.embedding_size
            try:
                sized.parameters = count_parameters(plan.task(row).builder, vocabulary)
            except ValueError as error:
                name = architecture(row)
                raise InputError(f"--widths: {name} does not accept the width {width}: {error}") from None
    for row in rows:
        _with_batches(plan.task(row), train).check(train, valid)
    fewest = min(
        (plan.task(row) for row in rows), key=lambda task: len(task.evaluator.metrics)
    )  # some models have no loss
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
    specs = {f"data.{part}": getattr(plan.base.data, part) for part in ("train", "valid", "test")}
    specs["model.options.vectors"] = plan.base.model.options.get("vectors")
    for field, spec in specs.items():
        if isinstance(spec, str):
            check_named_by_run(spec, field, downloads=True)


def _with_batches(task: Task, train: TaskData) -> Task:
    """Return the task with the size of batches, and other values, that suit the training data."""
    return open_task(with_data_defaults(task.config, train)) if task.objective is not None else task


def _check_tokens(plan: Plan, task: Task, train: TaskData) -> None:
    """Refuse a budget of tokens that is less than one step reads."""
    if plan.budget.tokens is None:
        return
    objective = _with_batches(task, train).objective
    assert objective is not None
    batches = objective.batches(train)
    step = next(iter(batches.read(batches.shuffled(plan.seeds[0], 0)))).tokens
    if plan.budget.tokens < step * (2 * plan.tune if plan.tune else 1):
        shared = f", and {plan.tune} trials share half of the budget" if plan.tune else ""
        raise InputError(
            f"--tokens: {plan.budget.tokens:,} is too little, one step reads {step:,}{shared}; give more, or lower "
            "training.batch_size"
        )


def _solve_sizes(plan: Plan, rows: Sequence[str], vocabulary: Vocabulary, *, choose_embedding: bool) -> None:
    """Solve the sizes of rows for the number of parameters of the plan, or else that of the first row.

    ``choose_embedding`` says whether the embedding size, which all rows share, may be reduced.
    """
    solvers = {row: WidthSolver(plan.config(row), vocabulary, _builder_of) for row in rows}
    if plan.parameters is None:
        first = plan.config(rows[0])
        if first.model.tie_weights:
            first = first.replaced({"model.embedding_size": first.model.hidden_size})
        plan.parameters = count_parameters(_builder_of(first), vocabulary)
    if choose_embedding:
        size = _common_embedding(plan, solvers, plan.parameters)
        plan.base = plan.base.replaced({"model.embedding_size": size})
    has_vectors = plan.base.model.options.get("vectors") is not None
    for row, solver in solvers.items():
        sizes = solver.solve(plan.parameters, plan.base.model.embedding_size, adjust=not has_vectors)
        sized = plan.sized[row]
        sized.hidden_size, sized.embedding_size, sized.parameters = sizes


def _builder_of(config: Config) -> ModelBuilder:
    return new_task(config).builder


def _common_embedding(plan: Plan, solvers: Mapping[str, WidthSolver], target: int) -> int:
    """Halve the configured embedding size until every layer has a width for the target.

    Where the size was not set by the user, every layer gets at least half the width of the embedding.
    """
    size = plan.base.model.embedding_size
    may_shrink = plan.base.model.options.get("vectors") is None
    automatic = may_shrink and "embedding_size" in plan.automatic
    while True:
        minima = {row: solver.minimum(size) or 0 for row, solver in solvers.items()}
        tightest = max(minima, key=lambda row: minima[row])
        tight = minima[tightest] > (1 + TOLERANCE) * target
        cramped = automatic and size > 1 and any(solver.is_cramped(target, size) for solver in solvers.values())
        if not tight and not cramped:
            return size
        if size == 1 or not may_shrink:
            raise InputError(
                f"--parameters: {target:,} is less than {tightest} can have with this vocabulary; give at least "
                f"{minima[tightest]:,}, or a smaller tokenizer.vocabulary_size"
            )
        size //= 2

"""The data that all rows of a comparison share: read and checked before training, and recognized by digests."""

from collections.abc import Sequence
from typing import NamedTuple

from ..core.errors import InputError
from ..data.paths import check_named_by_run
from ..data.vocabulary import Vocabulary
from ..training.setup import learn
from ..training.task import AnyTask
from ..training.task_data import TaskData
from .equal_parameters import set_width, solve_sizes
from .metric import choose_metric
from .plan import Plan, is_counted, width_of


class SharedData(NamedTuple):
    """The task that reads the data of a comparison, the vocabulary, the training data and the held-out data."""

    task: AnyTask
    vocabulary: Vocabulary
    train: TaskData
    valid: TaskData | None


def read_data(plan: Plan) -> SharedData:
    """Read the data of a comparison, and write ``plan.digests`` or compare the data with them.

    Raises:
        InputError: the data are invalid, or have changed since the comparison began.
    """
    task = plan.task()
    train_spec, valid_spec = task.training_spec(), task.validation_spec()
    if valid_spec is None and plan.base.data.test is None:
        raise InputError("data.valid: no held-out data to measure on; give --valid FILE, or --data.test FILE")
    if valid_spec is None and plan.tune is not None:
        raise InputError("--tune: learning rates are chosen on held-out data; give --valid FILE")
    vocabulary, _ = learn(task)
    train = task.read(train_spec, "train", vocabulary)
    valid = None if valid_spec is None else task.read(valid_spec, "valid", vocabulary)
    digests = {
        "train": str(train.key),
        "tokenizer": vocabulary.fingerprint(),
        "valid": "" if valid is None else str(valid.key),
        "measured": str(task.read(*plan.measured(), vocabulary).key),
    }
    names = {
        "train": f"data.train: {train_spec}",
        "tokenizer": "tokenizer",
        "valid": f"data.valid: {valid_spec}",
        "measured": plan.measured().spec,
    }
    for part, digest in digests.items():
        if plan.digests.get(part, digest) != digest:
            raise InputError(
                f"{names[part]} has changed since this comparison began; restore it, or start a new comparison with "
                "another --out"
            )
    plan.digests = digests
    return SharedData(task, vocabulary, train, valid)


def fit_plan(plan: Plan, *, layers: Sequence[str] | None = None) -> Vocabulary:
    """Complete a plan: read and check the data, solve the widths, and choose the metric.

    Args:
        plan: receives the sizes, the digests of the data and the metric.
        layers: rows to solve, in a comparison that is extended; None for all.

    Returns:
        The vocabulary that all rows share.

    Raises:
        InputError: the data are invalid, the budget is shorter than a step, or the parameters are too few.
    """
    task, vocabulary, train, valid = read_data(plan)
    plan.described = task.describe(train)
    rows = plan.layers if layers is None else layers
    for row in rows:
        plan.task(row).check(train, valid)
    _check_tokens(plan, task, train)
    trained = [row for row in rows if not is_counted(row)]
    if solved := [row for row in trained if width_of(row) is None]:
        solve_sizes(plan, solved, vocabulary, choose_embedding=layers is None)
    for row in trained:
        if width_of(row) is not None:
            set_width(plan, row, vocabulary)
    plan.metric = choose_metric(plan.task(rows[0]), plan.metric or None, vocabulary).key
    return vocabulary


def check_data_named(plan: Plan) -> None:
    """Raise InputError where the configuration of a comparison names data that must not be read without asking."""
    data = plan.base.data
    specs: dict[str, object] = {"data.train": data.train, "data.valid": data.valid, "data.test": data.test}
    specs["model.options.vectors"] = plan.base.model.options.get("vectors")
    for field, spec in specs.items():
        if isinstance(spec, str):
            check_named_by_run(spec, field, downloads=True)


def _check_tokens(plan: Plan, task: AnyTask, train: TaskData) -> None:
    """Raise InputError where a budget of tokens is less than one step reads."""
    if plan.budget.tokens is None:
        return
    batches = task.batches(train)
    step = next(iter(batches.read(batches.shuffled(plan.seeds[0], 0)))).tokens
    if plan.budget.tokens < step * (2 * plan.tune if plan.tune else 1):
        shared = f", and {plan.tune} trials share half of the budget" if plan.tune else ""
        raise InputError(
            f"--tokens: {plan.budget.tokens:,} is too little, one step reads {step:,}{shared}; give more, or lower "
            "training.batch_size"
        )

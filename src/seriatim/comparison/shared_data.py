"""The data that all rows of a comparison share: read once before anything is trained, and known again by digests."""

from typing import Any, NamedTuple

from ..core.errors import InputError
from ..data.vocabulary import Vocabulary
from ..tasks import find
from ..training.setup import learn
from ..training.task import AnyTask
from .plan import Plan


class SharedData(NamedTuple):
    """What every row of a comparison shares: a task that reads the data, the vocabulary, and the data as read."""

    task: AnyTask
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


def check_held_out(plan: Plan, task: AnyTask) -> None:
    """Raises InputError where there is nothing to measure on, or to tune on."""
    task.training_spec()
    if task.validation_spec() is None and plan.base.data.test is None:
        raise InputError("data.valid: no held-out data to measure on; give --valid FILE, or --data.test FILE")
    if task.validation_spec() is None and plan.tune is not None:
        raise InputError("--tune: learning rates are chosen on held-out data; give --valid FILE")

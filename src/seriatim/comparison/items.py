"""The items of a data set as texts, with what is true of each: what samples, timings and distances are made of."""

import functools
from collections.abc import Iterable
from itertools import islice

from ..tasks.classification import Classification
from ..tasks.seq2seq import SequenceToSequence
from ..tasks.tagging import Tagging
from ..training.task import AnyTask

Item = tuple[str, str]
"""An input as `Task.answer` takes it, and the answer that is right."""


def items(task: AnyTask, spec: str, part: str, *, most: int) -> list[Item]:
    """Up to ``most`` items of some data, spread evenly over it; none where a task has no answers to be right.

    Args:
        task: that of a run.
        spec: the data's name.
        part: of it, where it has several.
        most: how many.
    """
    found = _all(task, spec, part)
    return [found[i * len(found) // most] for i in range(most)] if len(found) > most else found


@functools.lru_cache(maxsize=1)
def _all(task: AnyTask, spec: str, part: str) -> list[Item]:
    return list(islice(_each(task, spec, part), 100_000))


def _each(task: AnyTask, spec: str, part: str) -> Iterable[Item]:
    if isinstance(task, Classification):
        return ((row.text, str(row.label)) for row in task.rows(spec, part))
    if isinstance(task, Tagging):
        return ((" ".join(one.words), " ".join(one.tags)) for one in task.sentences(spec, part))
    if isinstance(task, SequenceToSequence):
        return ((pair.source, pair.target) for pair in task.pairs(spec, part))
    return ()

"""Makes a run of a checkpoint of the ``transformers`` library."""

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from ..config import resolve
from ..core.errors import InputError
from ..data.pretrained_tokenizer import PretrainedTokenizer
from ..data.vocabulary import Vocabulary
from ..runs.run import Run
from ..tasks import find
from ..training.run_files import check_out
from .checkpoint_reader import CheckpointTensors, located, read_fields, read_tokenizer
from .families.checkpoint_family import Family, Rule
from .families.known_families import family_of
from .imported_run import parameter_shapes, write_run


def import_checkpoint(source: str, out: str | None, *, overwrite: bool = False) -> Run:
    """Make a run of the folder of a checkpoint, or of ``hf:NAME``.

    Raises:
        InputError: the architecture, an option or a file is not supported, missing or damaged, or the disk is full.
    """
    check_out(out, overwrite=overwrite)
    source_folder = located(source)
    fields = read_fields(source_folder)
    family = family_of(fields, str(source_folder / "config.json"))
    settings, rules = family.model(), family.rules()
    tensors = CheckpointTensors(source_folder)
    rules = without_prefix(family, rules, tensors)
    table = next(rule.theirs[0] for rule in rules if rule.kind == "table")
    check_names(family, rules, tensors)
    if len(shape := tensors.shape(table)) != 2:
        raise InputError(f"{source_folder}: {table} has the shape {shape}, which is no table; check the files")
    tokenizer = read_tokenizer(source_folder, fields, shape[0])
    config = {"task": "lm", "data": {"unit": family.unit}, "tokenizer": {"kind": "pretrained"}, "model": settings}
    task, vocabulary = find(resolve(config)), Vocabulary({"tokenizer": tokenizer})
    parameters = parameter_shapes(task, vocabulary)
    assert parameters.keys() == {rule.ours for rule in rules}, parameters.keys() ^ {rule.ours for rule in rules}
    check_shapes(rules, tensors, parameters)
    return write_run(out, task, vocabulary, converted(rules, tensors, tokenizer), overwrite=overwrite)


def without_prefix(family: Family, rules: list[Rule], tensors: CheckpointTensors) -> list[Rule]:
    """Return the rules for the names of a checkpoint, in which a prefix that all of them would have may be missing."""
    if any(name.startswith(family.prefix) for name in tensors.names()):
        return rules
    return [rule._replace(theirs=tuple(name.removeprefix(family.prefix) for name in rule.theirs)) for rule in rules]


def check_names(family: Family, rules: list[Rule], tensors: CheckpointTensors) -> None:
    """Raise InputError for the first tensor that is missing, or that no rule reads."""
    expected = {name for rule in rules for name in rule.theirs}
    if missing := sorted(expected - tensors.names()):
        raise InputError(f"{tensors.folder}: the tensor {missing[0]} is missing; check that the folder is complete")
    others = sorted(tensors.names() - expected)
    unread = [
        name for name in others if not name.endswith(family.ignored) and not (family.is_tied and "lm_head" in name)
    ]
    if unread:
        raise InputError(
            f"{tensors.folder}: the tensor {unread[0]} has no place in a model here; use another checkpoint"
        )


def check_shapes(rules: list[Rule], tensors: CheckpointTensors, parameters: dict[str, tuple[int, ...]]) -> None:
    """Raise InputError for the first tensor of another shape than the configuration says."""
    for rule in rules:
        given = [torch.empty(tensors.shape(name), device="meta") for name in rule.theirs]
        try:
            shape = tuple(rule.to_ours(given, lambda table: table).shape)
        except (RuntimeError, ValueError):
            shape = ()
        if shape != parameters[rule.ours]:
            shapes = ", ".join(str(tuple(tensor.shape)) for tensor in given)
            raise InputError(
                f"{tensors.folder}: {rule.theirs[0]} has the shape {shapes}, unlike config.json; check the files"
            )


def converted(
    rules: list[Rule], tensors: CheckpointTensors, tokenizer: PretrainedTokenizer
) -> Iterator[tuple[str, np.ndarray]]:
    """Yield every parameter, one at a time."""
    for rule in rules:
        parts = [tensors.read(name) for name in rule.theirs]
        yield rule.ours, rule.to_ours(parts, exchanged_rows(tokenizer)).contiguous().numpy()


def exchanged_rows(tokenizer: PretrainedTokenizer) -> Callable[[Tensor], Tensor]:
    """Return a function that exchanges the rows of a table as the tokenizer exchanges ids."""

    def exchange(table: Tensor) -> Tensor:
        order = torch.arange(len(table))
        order[[0, tokenizer.end]] = order[[tokenizer.end, 0]]
        return table[order]

    return exchange

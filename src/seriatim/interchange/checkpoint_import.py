"""Makes a run of a checkpoint of the ``transformers`` library."""

import warnings
from collections.abc import Iterator

import numpy as np
import torch

from ..config import resolve
from ..core.errors import InputError
from ..data.pretrained_tokenizer import PretrainedTokenizer
from ..data.tokenizers import Tokenizer
from ..data.vocabulary import Vocabulary
from ..runs.run import Run
from ..tasks import new_task
from ..training.run_files import check_out
from .checkpoint_reader import CheckpointTensors, located, read_fields, read_tokenizer
from .families.checkpoint_family import ConversionRule, Family, TokenRows
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
    family.model()  # names what is not supported before files are read
    tensors = CheckpointTensors(source_folder)
    check_tied(family, tensors)
    settings, rules = family.model(), with_names(family, family.rules(), tensors)
    table = next(rule.theirs[0] for rule in rules if rule.kind == "table")
    family.check_names(tensors.names(), str(source_folder))
    check_names(family, rules, tensors)
    if len(shape := tensors.shape(table)) != 2:
        raise InputError(f"{source_folder}: {table} has the shape {shape}, which is no table; check the files")
    tokenizer = read_tokenizer(source_folder, family, shape[0])
    config = {
        "task": family.task,
        "data": {"unit": family.unit},
        "tokenizer": {"kind": "pretrained"},
        "model": settings,
        "training": family.training(),
    }
    task, vocabulary = new_task(resolve(config)), Vocabulary({"tokenizer": tokenizer})
    parameters = parameter_shapes(task, vocabulary)
    assert parameters.keys() == {rule.ours for rule in rules}, parameters.keys() ^ {rule.ours for rule in rules}
    check_shapes(rules, tensors, parameters, token_rows(tokenizer))
    return write_run(out, task, vocabulary, converted(rules, tensors, tokenizer), overwrite=overwrite)


def check_tied(family: Family, tensors: CheckpointTensors) -> None:
    """Take the output layer of a checkpoint that stores it beside another embedding, whatever `config.json` says.

    Raises:
        InputError: a model here cannot hold both.
    """
    names = tensors.names()
    for first, second in family.tied.items() if family.is_tied else ():
        first = family.name_in(names, first)
        if not {first, second} <= names or torch.equal(tensors.read(first), tensors.read(second)):
            continue
        problem = f"{tensors.folder}: {first} and {second} differ, which tie_word_embeddings makes one tensor"
        if not family.can_untie:
            raise InputError(f"{problem}; write the checkpoint again with the one that is right")
        warnings.warn(f"{problem}; both are kept, as transformers does from version 5 on", stacklevel=3)
        family.fields = {**family.fields, "tie_word_embeddings": False}


def with_names(family: Family, rules: list[ConversionRule], tensors: CheckpointTensors) -> list[ConversionRule]:
    """Return the rules for the names of a checkpoint, which differ from those of others in some ways."""
    names = tensors.names()
    return [rule._replace(theirs=tuple(family.name_in(names, name) for name in rule.theirs)) for rule in rules]


def check_names(family: Family, rules: list[ConversionRule], tensors: CheckpointTensors) -> None:
    """Raise InputError for the first tensor that is missing, or that no rule reads."""
    expected = {name for rule in rules for name in rule.theirs}
    if missing := sorted(expected - tensors.names()):
        raise InputError(f"{tensors.folder}: the tensor {missing[0]} is missing; check that the folder is complete")
    dropped = sorted(name for name in tensors.names() - expected if name.startswith(family.dropped))
    others = sorted(tensors.names() - expected - set(dropped))
    copies = set(family.tied.values()) if family.is_tied else set[str]()
    unread = [name for name in others if not name.endswith(family.ignored) and name not in copies]
    if unread:
        raise InputError(
            f"{tensors.folder}: the tensor {unread[0]} has no place in a model here; use another checkpoint"
        )
    if dropped:
        warnings.warn(f"{tensors.folder}: left out, as no model here has them: {', '.join(dropped)}", stacklevel=3)


def check_shapes(
    rules: list[ConversionRule], tensors: CheckpointTensors, parameters: dict[str, tuple[int, ...]], tokens: TokenRows
) -> None:
    """Raise InputError for the first tensor of another shape than the configuration says."""
    for rule in rules:
        given = [torch.empty(tensors.shape(name), device="meta") for name in rule.theirs]
        try:
            shape = tuple(rule.to_ours(given, tokens).shape)
        except (RuntimeError, ValueError, IndexError, TypeError):
            shape = ()
        if shape != parameters[rule.ours]:
            shapes = ", ".join(str(tuple(tensor.shape)) for tensor in given)
            raise InputError(
                f"{tensors.folder}: {rule.theirs[0]} has the shape {shapes}, unlike config.json; check the files"
            )


def converted(
    rules: list[ConversionRule], tensors: CheckpointTensors, tokenizer: PretrainedTokenizer
) -> Iterator[tuple[str, np.ndarray]]:
    """Yield every parameter, one at a time."""
    for rule in rules:
        parts = [tensors.read(name) for name in rule.theirs]
        yield rule.ours, rule.to_ours(parts, token_rows(tokenizer)).contiguous().numpy()


def token_rows(tokenizer: Tokenizer) -> TokenRows:
    """Return the order of the rows of tables for the ids of a tokenizer."""
    return TokenRows(tokenizer.end, tokenizer.mask) if isinstance(tokenizer, PretrainedTokenizer) else TokenRows()

"""The options that layers and tasks declare, and the one place that resolves ``model.options``.

A layer declares its options as the keyword-only arguments of its constructor, with a type of `option_types`, a default,
and a line in the ``Args`` of the class docstring. A task declares them as the fields of a `Section`, each with a
docstring below it. ``seriatim layers --json``, the page `docs/options.md` and the errors are made from these.
"""

import functools
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, TypeVar

from pydantic import ValidationError

from ..config import Section, explain
from ..core.contract import RecurrentCell, Wrap
from ..core.errors import InputError, nearest
from ..recurrence import Recurrent
from .block import Residual
from .cross_attention import CrossAttention
from .feed_forward import feed_forward
from .option_types import Json, check_value, describe_type
from .positions import ABSOLUTE, Positions
from .registry import find, split_names

Options = Mapping[str, object]
TaskOptions = TypeVar("TaskOptions", bound=Section)
ARGS = re.compile(r"^Args:(\n {4,}.*)*", re.MULTILINE)
ARGUMENT = re.compile(r"^ {4}(\w+): (.*(?:\n {5,}.*)*)", re.MULTILINE)


@dataclass(frozen=True)
class Option:
    """One option of a layer or a task."""

    name: str  # the key in model.options
    annotation: object  # the type of its values, as declared; inspect.Parameter.empty if there is none
    default: object = None
    help: str = ""  # one line
    limits: tuple[object, ...] = ()  # declared beside the type

    def describe(self) -> dict[str, Json]:
        """Return ``type``, ``default``, ``range``, ``choices`` and ``help``; None where there is no such limit."""
        kind, allowed, choices = describe_type(self.annotation, self.limits)
        return {"type": kind, "default": self.default, "range": allowed, "choices": choices, "help": self.help}


BLOCK_HELP = "Put the layer into a block with norms and a feed-forward network (true), or not (false)."
BLOCK = Option("block", bool | None, help=BLOCK_HELP)
POSITION_NORM_HELP = "Normalize the sums of inputs and absolute positions, below all blocks, as BERT does."
POSITION_NORM = Option("position_norm", bool, default=False, help=POSITION_NORM_HELP)
FINAL_NORM_HELP = "Normalize the outputs of the top block, where norms come first."
FINAL_NORM = Option("final_norm", bool, default=True, help=FINAL_NORM_HELP)
WEIGHT_DROPOUT = "weight_dropout"
MIXTURE = ("experts_per_token", "balance")
"""Options that only work together with ``num_experts``."""


def wrap_of(name: str, options: Options) -> Wrap:
    """Return what is put around a layer: its own choice, unless the option ``block`` says otherwise."""
    block = options.get("block")
    if block is not None:
        return "block" if block else "none"
    architecture = find(name)
    return "none" if issubclass(architecture, RecurrentCell) else architecture.wrap


def options_of(name: str, options: Options | None = None) -> dict[str, Option]:
    """Return the options of one architecture, given others: what is put around it has options, too."""
    options = options or {}
    architecture, wrap = find(name), wrap_of(name, options)
    known = declared(architecture)
    if issubclass(architecture, RecurrentCell):
        known |= recurrent_options(architecture)
    if options.get("position") == "learned":
        known |= {"max_length": declared(Positions)["max_length"]}
    if wrap != "none":
        known |= {POSITION_NORM.name: POSITION_NORM} if options.get("position") in ABSOLUTE else {}
        known |= {FINAL_NORM.name: FINAL_NORM} if options.get("norm_first", True) else {}
        known |= {
            key: value for key, value in declared(Residual).items() if key in ("norm", "norm_first", "norm_epsilon")
        }
        memory = declared(CrossAttention)
        known |= memory if options.get("memory_size") is not None else {"memory_size": memory["memory_size"]}
    if wrap == "block":
        mixture = MIXTURE if options.get("num_experts") is None else ()
        known |= {key: value for key, value in declared(feed_forward).items() if key not in mixture}
    return known | {BLOCK.name: BLOCK}


def recurrent_options(cell: type[RecurrentCell]) -> dict[str, Option]:
    """Return the options of a recurrent cell's loop; weights are dropped only if the cell names them."""
    options = declared(Recurrent)
    return options if cell.recurrent_weights else {key: options[key] for key in options if key != WEIGHT_DROPOUT}


def check_options(name: str, options: Options) -> None:
    """Raise InputError where no layer of a stack has an option, or its value does not fit."""
    known = {key: option for layer in split_names(name) for key, option in options_of(layer, options).items()}
    for key, value in options.items():
        if key not in known:
            raise InputError(f"layer {name!r} has no option {key!r}; {_condition(key) or nearest(key, list(known))}")
        check_value(f"model.options.{key}", value, known[key].annotation)


def resolve_options(
    section: type[TaskOptions], stacks: Sequence[str], given: Options
) -> tuple[TaskOptions, dict[str, Any]]:
    """Share out ``model.options`` between a task and the layers of its model.

    Returns:
        The options of the task, and what is left for the layers; `check_options` checks their values.

    Raises:
        InputError: a value that does not fit the task, or a name that is nearly one of the task's.
    """
    rest = {name: value for name, value in given.items() if name not in section.model_fields}
    try:
        options = section.model_validate({name: given[name] for name in given if name not in rest})
    except ValidationError as error:
        raise InputError(f"model.options.{explain(error)}") from None
    known = {key for stack in stacks for layer in split_names(stack) for key in options_of(layer, rest)}
    for key in rest:
        if key not in known and get_close_matches(key, section.model_fields, cutoff=0.8):
            raise InputError(f"model.options.{key}: no such option; {nearest(key, list(section.model_fields))}")
    return options, rest


def task_options(section: type[Section]) -> dict[str, Option]:
    """Return the options that a task declares."""
    return {
        name: Option(
            name,
            field.annotation,
            field.get_default(call_default_factory=True),
            _line(field.description or ""),
            tuple(field.metadata),
        )
        for name, field in section.model_fields.items()
    }


def declared(function: Callable[..., object]) -> dict[str, Option]:
    """Return the keyword-only arguments of a class or a function as options."""
    return dict(_declared(function))


@functools.cache  # reading signatures and docstrings takes milliseconds, and a training asks many times
def _declared(function: Callable[..., object]) -> dict[str, Option]:
    parts = reversed(function.__mro__) if isinstance(function, type) else [function]
    texts = {name: text for part in parts for name, text in arguments_of(inspect.cleandoc(part.__doc__ or "")).items()}
    return {
        name: Option(name, _type_of(one), None if one.default is one.empty else one.default, texts.get(name, ""))
        for name, one in _signature(function).parameters.items()
        if one.kind is one.KEYWORD_ONLY
    }


def _signature(function: Callable[..., object]) -> inspect.Signature:
    """Return a signature whose types are types, also where ``from __future__ import annotations`` makes them text."""
    try:
        return inspect.signature(function, eval_str=True)
    except Exception:  # a type that is imported for type checkers only
        return inspect.signature(function)


def _type_of(parameter: inspect.Parameter) -> object:
    """Return the declared type of an option, or else the type of its default; a default of 1 allows any number."""
    kinds: dict[type, object] = {bool: bool, int: float, float: float, str: str}
    default = kinds.get(type(parameter.default), parameter.empty)
    known = parameter.annotation is not parameter.empty and not isinstance(parameter.annotation, str)
    return parameter.annotation if known else default


def accepted(function: Callable[..., object], options: Options) -> dict[str, Any]:
    """Return those of some options that a class or a function takes by keyword only."""
    return {key: options[key] for key in declared(function) if key in options}


def arguments_of(docstring: str) -> dict[str, str]:
    """Return what the ``Args`` of a docstring say of each argument, in one line each."""
    section = ARGS.search(docstring)
    return {name: _line(text) for name, text in ARGUMENT.findall(section[0] if section else "")}


def _line(text: str) -> str:
    """Return a text on one line, as a sentence."""
    text = " ".join(text.replace("``", "`").split())
    return text[:1].upper() + text[1:] + ("" if not text or text.endswith(".") else ".")


def _condition(key: str) -> str:
    """Return what an option needs, if it is one that only works together with another."""
    if key == WEIGHT_DROPOUT:
        return "it needs a recurrent cell that names weights in its class attribute recurrent_weights"
    if key in MIXTURE:
        return "it needs model.options.num_experts"
    if key == POSITION_NORM.name:
        return "it needs model.options.position learned or sinusoidal, and a layer in a block"
    if key == FINAL_NORM.name:
        return "it needs model.options.norm_first true, and a layer in a block"
    if key in declared(Positions):
        return "it needs model.options.position learned"
    if key in declared(Residual) | declared(feed_forward) or key == "memory_size":
        return "it needs model.options.block true"
    return ""

"""The options of a task, which stand beside the layer's own in ``model.options``."""

from difflib import get_close_matches
from typing import Any, TypeVar

from pydantic import ValidationError

from ..config import Config, Section, explain
from ..core.errors import InputError, nearest
from ..data.builtin import builtin_tokens
from ..layers import options_of, split_names

Options = TypeVar("Options", bound=Section)


def split_options(kind: type[Options], config: Config) -> tuple[Options, dict[str, Any]]:
    """The task's own options, and what is left for the layer.

    Raises:
        InputError: a value that does not fit, or a name that is nearly one of the task's.
    """
    given = config.model.options
    own = {name: value for name, value in given.items() if name in kind.model_fields}
    rest = {name: value for name, value in given.items() if name not in kind.model_fields}
    try:
        options = kind.model_validate(own)
    except ValidationError as error:
        raise InputError(f"model.options.{explain(error)}") from None
    _refuse_misspelt(kind, rest, [config.model.layer, getattr(options, "decoder", None) or config.model.layer])
    return options, rest


def _refuse_misspelt(kind: type[Section], rest: dict[str, Any], layers: list[str]) -> None:
    """An option that no layer has and that looks like one of the task's is meant for the task."""
    known = {key for name in layers for one in split_names(name) for key in options_of(one, rest)}
    for key in rest:
        if key not in known and get_close_matches(key, kind.model_fields, cutoff=0.8):
            raise InputError(f"model.options.{key}: no such option; {nearest(key, list(kind.model_fields))}")


def settled_options(kind: type[Section], config: Config) -> Config:
    """The configuration with every option of the task written out."""
    own, rest = split_options(kind, config)
    return _with_model(config, options={**rest, **own.model_dump()})


def seeing_everything(config: Config) -> Config:
    """For tasks whose sequences are there from the beginning: both directions, unless the configuration says otherwise.

    Layers that can see later inputs themselves do; others run once from each end.
    """
    name, options = config.model.layer, dict(config.model.options)
    if config.model.bidirectional is not None or "causal" in options:
        return _with_model(config, bidirectional=bool(config.model.bidirectional))
    if all("causal" in options_of(one, options) for one in split_names(name)):
        return _with_model(config, bidirectional=False, options={**options, "causal": False})
    return _with_model(config, bidirectional=True)


def with_kind(config: Config, kind: str) -> Config:
    """The configuration with this kind of tokens, unless it names another, or a run to take its tokenizer from.

    A built-in task whose texts are letters in a row is read as characters: as words, a text would be one token.
    """
    if config.training.init is not None:
        return config
    tokenizer = config.tokenizer.model_copy(
        update={"kind": config.tokenizer.kind or builtin_tokens(config.data.train) or kind}
    )
    return config.model_copy(update={"tokenizer": tokenizer})


def _with_model(config: Config, **fields: Any) -> Config:
    return config.model_copy(update={"model": config.model.model_copy(update=fields)})

"""Settle the options of a task, which share ``model.options`` with those of its layers."""

from typing import Any, TypeVar

from ..config import Config, Section
from ..data.builtin import builtin_tokens
from ..layers import options_of, split_names
from ..layers.declared_options import resolve_options
from ..layers.origins import stacks_of

Options = TypeVar("Options", bound=Section)


def split_options(kind: type[Options], config: Config) -> tuple[Options, dict[str, Any]]:
    """Return the options of the task, and what is left for the layers; see `resolve_options`.

    Raises:
        InputError: a value that does not fit, or a name that is nearly one of the task's.
    """
    return resolve_options(kind, stacks_of(config), config.model.options)


def settled_options(kind: type[Section], config: Config) -> Config:
    """Return the configuration with a value for every option of the task."""
    options, rest = split_options(kind, config)
    return _with_model(config, options={**rest, **options.model_dump()})


def seeing_everything(config: Config) -> Config:
    """Return the configuration of a task that reads whole sequences: in both directions, unless it says otherwise.

    A layer with the option ``causal`` reads later inputs itself; any other layer runs once from each end.
    """
    name, options = config.model.layer, dict(config.model.options)
    if config.model.bidirectional is not None or "causal" in options:
        return _with_model(config, bidirectional=bool(config.model.bidirectional))
    if all("causal" in options_of(one, options) for one in split_names(name)):
        return _with_model(config, bidirectional=False, options={**options, "causal": False})
    return _with_model(config, bidirectional=True)


def with_kind(config: Config, kind: str) -> Config:
    """Return the configuration with this kind of tokens, unless it names a kind, or a run to take a tokenizer from.

    A built-in task whose texts are single strings of letters is read as characters; as words, a text would be one
    token.
    """
    if config.training.init is not None:
        return config
    tokenizer = config.tokenizer.model_copy(
        update={"kind": config.tokenizer.kind or builtin_tokens(config.data.train) or kind}
    )
    return config.model_copy(update={"tokenizer": tokenizer})


def _with_model(config: Config, **fields: Any) -> Config:
    return config.model_copy(update={"model": config.model.model_copy(update=fields)})

"""The typed configuration: a YAML file, a dict, or dotted options on the command line.

Whatever it came from, an unknown key or a value of the wrong type is one line that names the key.
"""

from collections.abc import Mapping
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from .core.errors import InputError, nearest, shown
from .storage.plain_yaml import dump_plain, load_plain
from .storage.safe_files import read_text

Count = Annotated[int, Field(ge=1, lt=2**31, strict=True)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Rate = Annotated[float, Field(ge=0, lt=1)]
LARGEST = 1 << 16
"""Bytes of a configuration, at most."""


class Section(BaseModel):
    """A group of fields; a key that does not exist is an error."""

    model_config = ConfigDict(extra="forbid", validate_assignment=True, use_attribute_docstrings=True)


class Data(Section):
    """Which texts, and how they are cut into sequences.

    ``unit`` is ``stream`` (one running text) or ``line`` (every line its own sequence), for language models. ``text``
    and ``label`` name the columns (or fields) of labelled texts, ``column`` that of the tags of a CoNLL file.
    ``strict`` refuses data that would need a repair.
    """

    model_config = ConfigDict(coerce_numbers_to_str=True)  # ``column: 3`` in a YAML file is the name of a column

    train: str | None = None
    valid: str | None = None
    test: str | None = None
    format: Literal["auto", "text", "jsonl", "tsv", "csv", "conllu", "conll"] = "auto"
    unit: Literal["stream", "line"] = "stream"
    text: str = "text"
    label: str = "label"
    column: str | None = None
    strict: bool = False


class Tokenizer(Section):
    """How text becomes tokens; ``kind`` None is what the task usually takes.

    ``vocabulary_size`` counts the special symbols; None is no limit (8,000 for bpe and unigram). ``min_count`` leaves
    what is rarer in the training text unknown.
    """

    kind: Literal["byte", "char", "word", "bpe", "unigram"] | None = None
    vocabulary_size: Count | None = None
    min_count: Count = 1
    lowercase: bool = False


class Model(Section):
    """The architecture. ``options`` holds the layer's own, and the task's; ``bidirectional`` None is up to the task.

    ``initial`` ``zeros`` begins with every parameter at zero instead of the usual initialisation of each layer.
    ``output_bias``: whether the output layer, whose softmax gives the probabilities, has a bias.
    """

    layer: str = "lstm"
    embedding_size: Count = 128
    hidden_size: Count = 256
    num_layers: Annotated[int, Field(ge=1, le=1000, strict=True)] = 1
    dropout: Annotated[float, Field(ge=0, le=0.99)] = 0.0
    variational_dropout: bool = False
    residual: bool = False
    tie_weights: bool = False
    output_bias: bool = True
    bidirectional: bool | None = None
    initial: Literal["usual", "zeros"] = "usual"
    options: dict[str, Any] = Field(default_factory=dict)


class Training(Section):
    """How the model is trained.

    The first of ``epochs``, ``steps``, ``tokens`` and ``minutes`` to be spent ends the training; with none given, 10
    epochs. ``batch_size`` counts sequences, ``sequence_length`` tokens of each (the reach of truncated
    backpropagation), ``accumulate`` batches a step. ``learning_rate`` None takes the rate that the layer declares for
    the task (SGD: 1). ``warmup_steps`` None lets the rate of Adam and AdamW rise over the first 5 % of the budget of
    a ``cosine``, and no rate of another schedule. ``schedule`` ``plateau`` divides the rate by ``anneal`` whenever
    the held-out loss is not below its lowest value so far. With ``tolerance`` or ``patience`` given, training stops
    after ``patience`` (1) validations in a row whose held-out loss is lower than that of the validation before by
    less than ``tolerance`` (0) nats. ``keep`` says which weights become the run's: the best by the metric of the
    task, or the last. Validation comes every epoch, and every ``evaluate_every`` steps if that is given.
    ``checkpoint_every`` counts steps. Where a loss or a gradient is NaN or infinite, ``nonfinite`` says whether the
    training stops or the step is skipped. ``init`` is a run from whose tokenizer, embedding and layer this one
    starts.
    """

    epochs: Count | None = None
    steps: Count | None = None
    tokens: Annotated[int, Field(ge=1, lt=2**53, strict=True)] | None = None
    minutes: Positive | None = None
    batch_size: Count = 32
    sequence_length: Count = 64
    accumulate: Count = 1
    optimizer: Literal["sgd", "adam", "adamw"] = "adamw"
    learning_rate: Positive | None = None
    schedule: Literal["constant", "cosine", "plateau"] = "cosine"
    warmup_steps: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    anneal: Annotated[float, Field(gt=1, allow_inf_nan=False)] = 4.0
    weight_decay: NonNegative = 0.0
    clip: Positive | None = 1.0
    patience: Count | None = None
    tolerance: NonNegative | None = None
    keep: Literal["best", "last"] = "best"
    evaluate_every: Count | None = None
    checkpoint_every: Count = 1000
    nonfinite: Literal["stop", "skip"] = "stop"
    precision: Literal["float32", "bfloat16", "auto"] = "auto"
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 1
    device: str = "auto"
    init: str | None = None

    @model_validator(mode="after")
    def _some_budget(self) -> "Training":
        if self.epochs is self.steps is self.tokens is self.minutes is None:
            self.__dict__["epochs"] = 10
        return self


class Config(Section):
    """Everything a run needs. ``out`` is the folder to write and is not kept in the run's own config."""

    task: str = "lm"
    out: str | None = None
    data: Data = Field(default_factory=Data)
    tokenizer: Tokenizer = Field(default_factory=Tokenizer)
    model: Model = Field(default_factory=Model)
    training: Training = Field(default_factory=Training)

    def to_yaml(self) -> str:
        """The configuration as YAML, without ``out``: a run can be moved."""
        return dump_plain(self.model_dump(exclude={"out"}))


def resolve(source: "Config | Mapping[str, Any] | str | Path", overrides: Mapping[str, Any] | None = None) -> Config:
    """Makes a `Config` of a config, a dict, or the path of a YAML file.

    Args:
        source: where to start.
        overrides: dotted names to values, applied last.

    Raises:
        InputError: a key that does not exist (the nearest is named) or a value that does not fit.
    """
    tree, where = _tree(source, overrides or {})
    try:
        return Config.model_validate(tree)
    except ValidationError as error:
        raise InputError(where + explain(error)) from None


def resolve_leniently(
    source: "Config | Mapping[str, Any] | str | Path", overrides: Mapping[str, Any] | None = None
) -> tuple[Config, list[str]]:
    """As `resolve`, with the default in place of every field that does not fit, and everything that is wrong.

    Raises:
        InputError: the file cannot be read.
    """
    tree, where = _tree(source, overrides or {})
    try:
        return Config.model_validate(tree), []
    except ValidationError as error:
        wrong = error.errors()
        for each in wrong:
            _drop(tree, [str(part) for part in each["loc"]])
        return Config.model_validate(tree), [where + explain(error, i) for i in range(len(wrong))]


def _drop(tree: dict[str, Any], path: list[str]) -> None:
    """Takes out a field that does not fit, or what it is part of."""
    for key in path[:-1]:
        if not isinstance(tree.get(key), dict):
            tree.pop(key, None)
            return
        tree = tree[key]
    tree.pop(path[-1], None)


def _tree(
    source: "Config | Mapping[str, Any] | str | Path", overrides: Mapping[str, Any]
) -> tuple[dict[str, Any], str]:
    """Everything that is given, and how messages about it begin."""
    where = ""
    if isinstance(source, Config):
        tree = source.model_dump()
    elif isinstance(source, Mapping):
        tree = _copy(source)
    else:
        tree, where = read_yaml(Path(source)), f"{source}: "
    for name, value in overrides.items():
        _set(tree, name, value)
    return tree, where


def set_fields(config: Config, values: Mapping[str, Any]) -> None:
    """Sets some fields of a configuration in place.

    Args:
        config: the configuration.
        values: dotted names to values.

    Raises:
        InputError: a value that does not fit.
    """
    for name, value in values.items():
        section, _, key = name.rpartition(".")
        try:
            setattr(getattr(config, section), key, value)
        except ValidationError as error:
            raise InputError(f"{section}.{explain(error)}") from None


def read_yaml(path: Path) -> dict[str, Any]:
    """Reads a YAML mapping; nothing in it is executed.

    Raises:
        InputError: no such file, too large, not YAML, or not a mapping of plain values.
    """
    text = read_text(path, max_bytes=LARGEST, remedy="give a YAML file")
    try:
        tree = load_plain(text)
    except (yaml.YAMLError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        raise InputError(f"{path}{line}: not valid YAML ({getattr(error, 'problem', error)}); mend this line") from None
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise InputError(f"{path}:1: a configuration is a mapping of sections; see config.yaml of any run")
    return tree


def fields() -> list[str]:
    """Every dotted name."""
    return [
        name if not _section(name) else f"{name}.{key}"
        for name in Config.model_fields
        for key in (_section(name).model_fields if _section(name) else [name])
    ]


def text_fields() -> set[str]:
    """The dotted names of fields whose value is text, even where it looks like a number or a truth value."""
    sections = {name: _section(name) for name in Config.model_fields if _section(name)}
    return {
        f"{name}.{key}"
        for name, section in sections.items()
        for key, field in section.model_fields.items()
        if _is_text(field.annotation)
    }


def parse_value(text: str) -> Any:
    """The value of an option on the command line, read as a value in a YAML file: number, true, null, list, text."""
    if len(text) > LARGEST:
        return text
    try:
        return load_plain(text)
    except (yaml.YAMLError, ValueError):
        return text


def explain(error: ValidationError, number: int = 0) -> str:
    """One of the things that are wrong, the first by default, as one line: the key, the reason, the next step."""
    first = error.errors()[number]
    path = [str(part) for part in first["loc"]]
    name, given = ".".join(path), first.get("input")
    if first["type"] == "extra_forbidden":
        known = fields()
        siblings = [field for field in known if field.rsplit(".", 1)[0] == ".".join(path[:-1])] or list(
            Config.model_fields
        )
        matches = nearest(name, siblings)
        return f"unknown key {name}; {matches if matches.startswith('did') else nearest(name, known)}"
    reason = first["msg"].removeprefix("Value error, ")
    return f"{name}: {shown(given)} does not fit; {reason[0].lower()}{reason[1:]}"


def _section(name: str) -> Any:
    annotation = Config.model_fields[name].annotation
    return annotation if isinstance(annotation, type) and issubclass(annotation, Section) else None


def _is_text(annotation: Any) -> bool:
    """Whether a type is ``str``, a choice of texts, or one of these with None."""
    if get_origin(annotation) is Literal:
        return all(isinstance(choice, str) for choice in get_args(annotation))
    if get_origin(annotation) in (Union, UnionType):
        return all(part is NoneType or _is_text(part) for part in get_args(annotation))
    return annotation is str


def _copy(tree: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _copy(value) if isinstance(value, Mapping) else value for key, value in tree.items()}


def _set(tree: dict[str, Any], name: str, value: Any) -> None:
    *path, last = name.split(".")
    for key in path:
        branch = tree.setdefault(key, {})
        if not isinstance(branch, dict):
            raise InputError(f"{name}: {key} is a value, not a section")
        tree = branch
    tree[last] = value

"""The typed configuration of a run: its fields, how it is read, and what is wrong with one.

It comes from a YAML file, a dict, or dotted options on the command line. An unknown key or a value that does not fit is
reported in one line that names the key.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NoReturn, TypeAlias, TypeVar, Union, get_args, get_origin

import yaml
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationError,
    ValidationInfo,
    field_validator,
)

from .core.errors import InputError, MalformedError, MismatchError, RangeError, UnknownNameError, nearest, shown
from .core.json_object import JsonObject
from .core.problems import UNKNOWN, Problem, problems_of
from .storage.files import dump_plain, load_plain, read_text

Count = Annotated[int, Field(ge=1, lt=2**31, strict=True)]


def _ascii_number(value: object) -> object:
    """Refuse a text that is no number with the digits 0 to 9: `float` would read 1_0.0 and ١٠, too."""
    if isinstance(value, str) and not re.fullmatch(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?", value):
        raise ValueError("input should be a valid number")
    return value


Number = Annotated[float, BeforeValidator(_ascii_number)]
Positive = Annotated[Number, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[Number, Field(ge=0, allow_inf_nan=False)]
Rate = Annotated[Number, Field(ge=0, lt=1)]
BATCH_SIZE = 32
"""Usual number of sequences of a batch, where the training data do not say otherwise."""
MAX_BEAM = 64
"""The largest width of beam search that a command, a run or a server takes; wider than about 50 rarely helps."""


class SettledError(TypeError):
    """Raised where somebody changes a configuration whose values are all decided."""


class Section(BaseModel):
    """A group of fields; a key that does not exist is an error.

    A settled one cannot be changed; see `Config.settled`.
    """

    model_config = ConfigDict(extra="forbid", validate_assignment=True, use_attribute_docstrings=True)
    _settled: bool = PrivateAttr(default=False)

    def __setattr__(self, name: str, value: object) -> None:
        self._refuse_if_settled(name)
        super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        self._refuse_if_settled(name)
        super().__delattr__(name)

    def _refuse_if_settled(self, name: str) -> None:
        if (self.__pydantic_private__ or {}).get("_settled"):
            raise SettledError(f"{name}: the configuration is settled; make a changed copy with Config.replaced")


class Fixed:
    """Refuses to change a list or a mapping; a copy of it can be changed."""

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise SettledError("model.options: the configuration is settled; make a changed copy with Config.replaced")

    __setitem__ = __delitem__ = __iadd__ = __imul__ = __ior__ = update = setdefault = pop = popitem = clear = _refuse
    append = extend = insert = remove = sort = reverse = _refuse


class FixedDict(Fixed, dict[str, object]):
    """A mapping that cannot be changed."""

    def __reduce__(self) -> tuple[type, tuple[dict[str, object]]]:
        return dict, (dict(self),)


class FixedList(Fixed, list[object]):
    """A list that cannot be changed."""

    def __reduce__(self) -> tuple[type, tuple[list[object]]]:
        return list, (list(self),)


def fixed(value: Any) -> Any:
    """Return a plain value whose lists and mappings cannot be changed, at any depth."""
    if isinstance(value, dict):
        return FixedDict({key: fixed(one) for key, one in value.items()})
    return FixedList(map(fixed, value)) if isinstance(value, list) else value


class Data(Section):
    """The data, and how they are read."""

    model_config = ConfigDict(coerce_numbers_to_str=True)  # ``column: 3`` in a YAML file names a column

    train: str | None = None
    """The training data: a file, a folder, a glob, - or a built-in corpus."""
    valid: str | None = None
    """The validation data, a fraction of the training data such as 10%, or none; by default a fraction."""
    test: str | None = None
    """The data that a comparison is measured on, if not the validation data."""
    format: Literal["auto", "text", "jsonl", "tsv", "csv", "fasttext", "conllu", "conll"] = "auto"
    """The format of the files; auto goes by their names."""
    unit: Literal["stream", "line"] = "stream"
    """One running text, or a sequence in each line (lm and mlm)."""
    text: str = "text"
    """The column or field of the text."""
    label: str = "label"
    """The column or field of the label."""
    column: str | None = None
    """The column of the tags in a CoNLL file; by default the last."""
    features: Annotated[str, Field(pattern=r"[^,\s]")] | None = None
    """Further columns of a CoNLL file that a tagger reads, with commas: their numbers, or their names in CoNLL-U."""
    strict: bool = False
    """Refuse data that need a repair."""
    spellings: Literal["auto", "exact"] = "auto"
    """Whether labels and tags that differ in letter case can be one (auto), or never are (exact)."""
    alternatives: bool = True
    """Whether the targets of equal sources are alternatives, of which the best counts, or each pair counts."""
    markers: Annotated[str, Field(pattern=r"^(auto|keep|\S+ \S+)$")] = "auto"
    """Two words around each line that are left out, such as "<s> </s>"; auto finds them, keep reads them as words."""

    @property
    def further(self) -> list[str]:
        """The columns of ``features``."""
        return [*dict.fromkeys(name.strip() for name in (self.features or "").split(",") if name.strip())]


class Tokenizer(Section):
    """How text becomes tokens."""

    kind: Literal["byte", "char", "word", "bpe", "unigram", "pretrained"] | None = None
    """The kind of tokens; the default depends on the task."""
    vocabulary_size: Count | None = None
    """The largest number of tokens, special symbols included; by default no limit (8,000 for bpe and unigram)."""
    min_count: Count = 1
    """Words or characters that occur less often in the training text are unknown."""
    lowercase: bool = False
    """Convert text to lower case."""
    sample_bytes: Count | None = None
    """Learn bpe and unigram from so many bytes, spread evenly over the training text; by default 256,000,000."""


class Model(Section):
    """The architecture."""

    layer: str = "lstm"
    """The architecture, or several with commas; `seriatim layers` lists them."""
    embedding_size: Count = 128
    """The width of the embedding."""
    hidden_size: Count = 256
    """The width of each layer."""
    num_layers: Annotated[int, Field(ge=1, le=1000, strict=True)] = 1
    """The number of layers."""
    dropout: Annotated[Number, Field(ge=0, le=0.99)] | None = None
    """Dropout on embeddings, between layers and before the output; by default it follows the amount of data."""
    variational_dropout: bool = False
    """Drop the same units at every step of a sequence."""
    residual: bool = False
    """Add the input of each layer to its output."""
    tie_weights: bool = False
    """Use the embedding as the output matrix."""
    output_bias: bool = True
    """Whether the output layer, whose softmax gives the probabilities, has a bias."""
    bidirectional: bool | None = None
    """Read in both directions; the default depends on the task."""
    initial: Literal["usual", "zeros"] = "usual"
    """The initial parameters: those usual for the layer, or all zeros."""
    options: JsonObject = Field(default_factory=dict)
    """Options of the layer and of the task."""


class Training(Section):
    """How the model is trained.

    A training ends when the first of ``epochs``, ``steps``, ``tokens`` and ``minutes`` is reached. If none of the first
    three is given, it also ends when the validation metric stops improving. What is None is decided by
    `seriatim.training.settle`, ``minutes`` included if no budget is given.
    """

    epochs: Count | None = None
    """Train for so many epochs."""
    steps: Count | None = None
    """Train for so many steps of the optimizer."""
    tokens: Annotated[int, Field(ge=1, lt=2**53, strict=True)] | None = None
    """Train on so many tokens."""
    minutes: Positive | None = None
    """Train for so many minutes at most."""
    batch_size: Count | None = None
    """The number of sequences of a batch, on average for lines and tagged sentences; by default it follows the data."""
    sequence_length: Count = 64
    """The number of tokens of each sequence, which is the reach of truncated backpropagation."""
    accumulate: Count = 1
    """The number of batches of a step."""
    optimizer: Literal["sgd", "adam", "adamw"] = "adamw"
    """The optimizer."""
    learning_rate: Positive | None = None
    """The learning rate; by default the one that the layer declares for the task (1 for sgd)."""
    schedule: Literal["constant", "cosine", "plateau"] | None = None
    """How the learning rate changes; by default cosine for a given budget, else constant."""
    warmup_steps: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    """Steps in which the learning rate rises; by default 5 % of the budget of a cosine schedule (0 for sgd)."""
    anneal: Annotated[Number, Field(gt=1, allow_inf_nan=False)] = 4.0
    """The schedule plateau divides the rate by it whenever the validation loss has no new lowest value."""
    average: Rate | None = None
    """The decay of the moving average of the weights that is validated and saved; 0 saves the weights themselves."""
    average_after: Count | None = None
    """Average the weights uniformly, after so many validations in a row without a new lowest loss."""
    weight_decay: NonNegative = 0.0
    """The weight decay of matrices."""
    clip: Positive | None = 1.0
    """The largest norm of the gradient; null for none."""
    patience: Count | None = None
    """End after so many validations in a row without improvement."""
    tolerance: NonNegative | None = None
    """A validation improves if its loss is so many nats below that of the one before; patience is then 1 by default."""
    keep: Literal["best", "last"] = "best"
    """The weights of the run: the best by the metric of the task, or the last."""
    metric: str | None = None
    """The metric by which the weights are selected; by default that of the task, which may depend on the labels."""
    evaluate_every: Count | None = None
    """Validate every so many steps, too, and not only after each epoch."""
    validate_tokens: Count | None = None
    """Validate on so many tokens of a text, spread over it, during training; null for all. The summary is of all."""
    checkpoint_every: Count = 1000
    """Write a checkpoint every so many steps."""
    nonfinite: Literal["stop", "skip"] = "stop"
    """What to do with a step whose loss or gradient is NaN or infinite."""
    precision: Literal["float32", "bfloat16", "auto"] = "auto"
    """The precision; auto is bfloat16 on GPUs that support it, else float32."""
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 1
    """The same seed gives the same training on one machine."""
    device: str = "auto"
    """Where to train: auto, cpu, cuda or mps."""
    baseline: Literal["simple", "none"] | None = None
    """Whether the simple baseline of the task is trained, too; by default it is, but not for synthetic tasks."""
    baseline_weight: Rate | Literal["auto"] | None = None
    """The weight of the baseline in the answers; auto chooses it, which is the default for classify and tag, else 0."""
    init: str | None = None
    """A run whose tokenizer, embedding and layer are the starting point."""
    parallel: Literal["data", "fsdp"] = "data"
    """With torchrun: every rank has the whole model, or a shard of each parameter."""
    rank_timeout: Positive = 600.0
    """With torchrun: seconds that a rank waits for the others."""

    @field_validator("average_after")
    @classmethod
    def _one_average(cls, value: int | None, others: ValidationInfo) -> int | None:
        if value is not None and others.data.get("average"):
            raise ValueError("training.average averages the weights already; leave one of them out")
        return value


class Config(Section):
    """The configuration of a run. ``out`` is the folder to write; the run's own configuration does not contain it."""

    task: str = "lm"
    out: str | None = None
    data: Data = Field(default_factory=Data)
    tokenizer: Tokenizer = Field(default_factory=Tokenizer)
    model: Model = Field(default_factory=Model)
    training: Training = Field(default_factory=Training)

    def replaced(self, values: Mapping[str, object]) -> "Config":
        """Return a copy with other values for some fields, by dotted name; it is settled if this one is.

        Raises:
            InputError: there is no such field, or a value does not fit.
        """
        copy, options = self._copy({**self.model.options}, settled=False), {}
        for name, value in values.items():
            section, _, key = name.rpartition(".")
            if section == "model.options":
                options[key] = value
                continue
            if name not in fields():
                raise UnknownNameError(f"unknown key {name}; {nearest(name, fields())}", place=name)
            try:
                setattr(getattr(copy, section) if section else copy, key, value)
            except ValidationError as error:
                raise RangeError(f"{section}{'.' * bool(section)}{explain(error, {key: value})}") from None
        copy.model.options.update(options)
        return copy.settled() if self._settled else copy

    def settled(self) -> "Config":
        """Return a copy that nobody can change, neither its fields nor the options of its model."""
        return self._copy(fixed(dict(self.model.options)), settled=True)

    def _copy(self, options: JsonObject, *, settled: bool) -> "Config":
        sections = {name: getattr(self, name).model_copy() for name in _sections()}
        sections["model"] = sections["model"].model_copy(update={"options": options})
        copy = self.model_copy(update=sections)
        for section in (copy, *sections.values()):
            object.__setattr__(section, "__pydantic_private__", {"_settled": settled})
        return copy

    def to_yaml(self) -> str:
        """Return the configuration as YAML, without ``out``, because a run can be moved."""
        return dump_plain(self.model_dump(exclude={"out"}))


MAIN = (
    *("data.train", "data.valid", "tokenizer.kind", "model.layer", "model.hidden_size", "model.num_layers"),
    *("training.minutes", "training.batch_size", "training.learning_rate", "training.seed"),
)
"""The fields that are set most often, which the help lists first."""
MAIN_HEADING = "the fields that matter first"


def describe_fields() -> dict[str, list[tuple[str, str, str]]]:
    """Return the name, the default and the description of every field, in groups by heading."""
    described = {
        f"{section}.{key}": (f"{section}.{key}", _default(field.default), field.description or "")
        for section, kind in _sections().items()
        for key, field in kind.model_fields.items()
        if key != "options"
    }
    groups = {MAIN_HEADING: [described.pop(name) for name in MAIN]}
    for name, row in described.items():
        groups.setdefault(name.partition(".")[0], []).append(row)
    return groups


def _default(value: object) -> str:
    """Return a default as the command line takes it; nothing if the default is chosen or explained in words."""
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)


def fields() -> list[str]:
    """Return every dotted name."""
    sections = _sections()
    inner = {name: [f"{name}.{key}" for key in section.model_fields] for name, section in sections.items()}
    return [field for name in Config.model_fields for field in inner.get(name, [name])]


def text_fields() -> set[str]:
    """Return the dotted names of fields whose value is text, even if it looks like a number or a truth value."""
    return {
        f"{name}.{key}"
        for name, section in _sections().items()
        for key, field in section.model_fields.items()
        if _is_text(field.annotation)
    }


def _sections() -> dict[str, type[Section]]:
    kinds = {name: field.annotation for name, field in Config.model_fields.items()}
    return {name: kind for name, kind in kinds.items() if isinstance(kind, type) and issubclass(kind, Section)}


def _is_text(annotation: object) -> bool:
    """Return whether a type is ``str`` or a choice of texts, with or without None."""
    if get_origin(annotation) is Literal:
        return all(isinstance(choice, str) for choice in get_args(annotation))
    if get_origin(annotation) in (Union, UnionType):
        return all(argument is NoneType or _is_text(argument) for argument in get_args(annotation))
    return annotation is str


# Reading a configuration


MAX_BYTES = 1 << 16
"""The largest size of a configuration."""
Settings = TypeVar("Settings", bound="Section")
ConfigSource: TypeAlias = Config | Mapping[str, Any] | str | Path
"""A configuration, a dict, the path of a YAML file, or ``builtin:`` and the name of a recipe, such as ``awd-lstm``."""
BUILT_IN = "builtin:"
RECIPES = Path(__file__).parent / "recipes"
"""The folder of the recipes: configurations that come with the library."""


def resolve(source: ConfigSource, overrides: Mapping[str, object] | None = None) -> Config:
    """Return a `Config`; ``overrides``, values by dotted name, are applied last.

    Raises:
        InputError: an unknown key (the message names the nearest one) or a value that does not fit.
    """
    tree, where = _read(source, overrides or {})
    try:
        return Config.model_validate(tree)
    except ValidationError as error:
        raise input_error_of(error, tree, where) from None


def resolve_leniently(source: ConfigSource, overrides: Mapping[str, object] | None = None) -> tuple[Config, list[str]]:
    """Return a `Config` with the default for every field that does not fit, and a message for each of them.

    Raises:
        InputError: the file cannot be read.
    """
    tree, where = _read(source, overrides or {})
    try:
        return Config.model_validate(tree), []
    except ValidationError as error:
        problems = problems_of(error, tree)
        for problem in problems:
            _drop(tree, list(map(str, problem.path)))
        return Config.model_validate(tree), [where + _explain(problem) for problem in problems]


def _drop(tree: JsonObject, path: list[str]) -> None:
    """Remove a field that does not fit, or the value that takes the place of its section."""
    for key in path[:-1]:
        if not isinstance(tree.get(key), dict):
            tree.pop(key, None)
            return
        tree = tree[key]
    tree.pop(path[-1], None)


def _read(source: ConfigSource, overrides: Mapping[str, object]) -> tuple[JsonObject, str]:
    """Return all fields that are given, and the beginning of messages about them."""
    where = ""
    if isinstance(source, Config):
        tree = _given(source)
    elif isinstance(source, Mapping):
        tree = _copy(source)
    elif not isinstance(source, str | Path):
        raise RangeError(f"config: {shown(source)} is not a configuration; give a Config, a dict or the path of a file")
    else:
        tree, where = read_yaml(_path_of(source)), f"{source}: "
        task = overrides.get("task")
        if where.startswith(BUILT_IN) and task not in (None, tree["task"]):
            raise MismatchError(f"{where}a recipe for {tree['task']}, not for {task}; leave out --config")
    for name, value in overrides.items():
        _set(tree, name, value)
    return tree, where


def _given(section: Section) -> JsonObject:
    """Return the fields of a section that were given, or changed in place; others keep their defaults.

    A task can choose what nobody gave, such as the layer.
    """
    tree: JsonObject = {}
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        if isinstance(value, Section):
            tree[name] = _given(value)
        elif name in section.model_fields_set or value != field.get_default(call_default_factory=True):
            tree[name] = _copy(value) if isinstance(value, Mapping) else value
    return tree


def _path_of(source: str | Path) -> Path:
    """Return the path of a configuration; raise InputError if it names a recipe that does not exist."""
    if not str(source).startswith(BUILT_IN):
        return Path(source)
    name, names = str(source).removeprefix(BUILT_IN), sorted(path.stem for path in RECIPES.glob("*.yaml"))
    if name not in names:
        raise UnknownNameError(f"no recipe is called {name!r}; {nearest(name, names)}")
    return RECIPES / f"{name}.yaml"


def read_settings(kind: type[Settings], settings: Mapping[str, object]) -> Settings:
    """Return keyword arguments as a settings object; raise InputError if one does not fit."""
    for name in settings:
        if name not in kind.model_fields:
            raise UnknownNameError(f"{name}: no such setting; {nearest(name, list(kind.model_fields))}")
    try:
        return kind.model_validate(dict(settings))
    except ValidationError as error:
        raise input_error_of(error, settings) from None


def read_yaml(path: Path) -> JsonObject:
    """Read a YAML mapping; nothing in it is executed.

    Raises:
        InputError: the file is missing, too large, not YAML, or not a mapping of plain values.
    """
    text = read_text(path, max_bytes=MAX_BYTES, remedy="give a YAML file")
    try:
        tree = load_plain(text)
    except (yaml.YAMLError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", error)
        raise MalformedError(f"{path}{line}: not valid YAML ({problem}); correct this line") from None
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise MalformedError(f"{path}:1: a configuration is a mapping of sections; see config.yaml of any run")
    return tree


def parse_value(text: str) -> object:
    """Return the value of a command-line option, read as a value in YAML: number, true, null, list or text."""
    if len(text) > MAX_BYTES:
        return text
    try:
        return load_plain(text)
    except (yaml.YAMLError, ValueError):
        return text


def _copy(tree: Mapping[str, object]) -> JsonObject:
    return {key: _copy(value) if isinstance(value, Mapping) else value for key, value in tree.items()}


def _set(tree: JsonObject, name: str, value: object) -> None:
    *path, last = name.split(".")
    for key in path:
        branch = tree.setdefault(key, {})
        if not isinstance(branch, dict):
            raise RangeError(f"{name}: {key} is a value, not a section; remove the value")
        tree = branch
    tree[last] = value


# What is wrong with a configuration, in one line: field, reason, next step


def input_error_of(error: ValidationError, data: object, where: str = "") -> InputError:
    """Return the first of the problems of some data; ``where`` is the beginning of the message, such as the file."""
    problem = problems_of(error, data)[0]
    kind = UnknownNameError if problem.kind == UNKNOWN else RangeError
    return kind(where + _explain(problem), place=where.removesuffix(": ") or problem.name)


def explain(error: ValidationError, data: object) -> str:
    """Return the first of the problems of some data in one line: key, reason and remedy."""
    return _explain(problems_of(error, data)[0])


def _explain(problem: Problem) -> str:
    name = problem.name
    if problem.kind != UNKNOWN:
        return f"{name}: {problem.reason}"
    known, section = fields(), name.rpartition(".")[0]
    siblings = [field for field in known if field.rsplit(".", 1)[0] == section] or list(Config.model_fields)
    hint = nearest(name, siblings)
    return f"unknown key {name}; {hint if hint.startswith('did') else nearest(name, known)}"

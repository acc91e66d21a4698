"""The sections of a configuration and their fields, typed."""

from collections.abc import Mapping
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NoReturn, TypeAlias, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationInfo, field_validator

from ..storage.plain_yaml import dump_plain

Count = Annotated[int, Field(ge=1, lt=2**31, strict=True)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Rate = Annotated[float, Field(ge=0, lt=1)]
BATCH_SIZE = 32
"""Usual number of sequences of a batch, where the training data do not say otherwise."""
Fields: TypeAlias = dict[str, Any]
"""The fields of a section, or of the whole configuration, by name."""


class SettledError(TypeError):
    """Raised where somebody changes a configuration whose values are all decided."""


class Section(BaseModel):
    """A group of fields; a key that does not exist is an error.

    A settled one cannot be changed; see `Config.settled`.
    """

    model_config = ConfigDict(extra="forbid", validate_assignment=True, use_attribute_docstrings=True)
    _settled: bool = PrivateAttr(default=False)

    def __setattr__(self, name: str, value: Any) -> None:
        if (self.__pydantic_private__ or {}).get("_settled"):
            raise SettledError(f"{name}: the configuration is settled; make a changed copy with Config.replaced")
        super().__setattr__(name, value)


class Fixed:
    """Refuses to change a list or a mapping; a copy of it can be changed."""

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise SettledError("model.options: the configuration is settled; make a changed copy with Config.replaced")

    __setitem__ = __delitem__ = __iadd__ = __ior__ = update = setdefault = pop = popitem = clear = _refuse
    append = extend = insert = remove = sort = reverse = _refuse


class FixedDict(Fixed, dict[str, Any]):
    """A mapping that cannot be changed."""

    def __reduce__(self) -> tuple[type, tuple[dict[str, Any]]]:
        return dict, (dict(self),)


class FixedList(Fixed, list[Any]):
    """A list that cannot be changed."""

    def __reduce__(self) -> tuple[type, tuple[list[Any]]]:
        return list, (list(self),)


def fixed(value: Any) -> Any:
    """Return a plain value whose lists and mappings cannot be changed, at any depth."""
    if isinstance(value, dict):
        return FixedDict({key: fixed(one) for key, one in value.items()})
    return FixedList(map(fixed, value)) if isinstance(value, list) else value


class Data(Section):
    """The texts, and how they are split into sequences.

    ``unit`` is ``stream`` (one running text) or ``line`` (every line is a sequence), for language models. ``text`` and
    ``label`` name the columns or fields of labelled texts; ``column`` names the column of the tags of a CoNLL file.
    ``strict`` refuses data that needs a repair. With ``spellings: exact``, labels and tags that differ in letter case
    are never one label. ``alternatives`` says whether the targets of pairs with equal sources are alternatives, of
    which the best counts, or whether each pair counts. ``markers`` are two words that other tools write around each
    line, such as ``<s> </s>``, and that are left out; ``keep`` reads them as words, and ``auto`` leaves them out where
    every line of the training data has both.
    """

    model_config = ConfigDict(coerce_numbers_to_str=True)  # ``column: 3`` in a YAML file names a column

    train: str | None = None
    valid: str | None = None
    test: str | None = None
    format: Literal["auto", "text", "jsonl", "tsv", "csv", "fasttext", "conllu", "conll"] = "auto"
    unit: Literal["stream", "line"] = "stream"
    text: str = "text"
    label: str = "label"
    column: str | None = None
    strict: bool = False
    spellings: Literal["auto", "exact"] = "auto"
    alternatives: bool = True
    markers: Annotated[str, Field(pattern=r"^(auto|keep|\S+ \S+)$")] = "auto"


class Tokenizer(Section):
    """How text becomes tokens; ``kind`` None is the default of the task.

    ``vocabulary_size`` includes the special symbols; None is no limit (8,000 for bpe and unigram). Words or characters
    that occur less than ``min_count`` times in the training text are unknown. The kinds bpe and unigram are learned
    from at most ``sample_bytes`` bytes, spread evenly over the training text; None is 256,000,000.
    """

    kind: Literal["byte", "char", "word", "bpe", "unigram", "pretrained"] | None = None
    vocabulary_size: Count | None = None
    min_count: Count = 1
    lowercase: bool = False
    sample_bytes: Count | None = None


class Model(Section):
    """The architecture. ``options`` holds options of the layer and of the task.

    ``bidirectional`` None is the default of the task, and ``dropout`` None is chosen from the amount of training data.
    ``initial: zeros`` sets every parameter to zero instead of the usual initialisation of each layer. ``output_bias``
    says whether the output layer, whose softmax gives the probabilities, has a bias.
    """

    layer: str = "lstm"
    embedding_size: Count = 128
    hidden_size: Count = 256
    num_layers: Annotated[int, Field(ge=1, le=1000, strict=True)] = 1
    dropout: Annotated[float, Field(ge=0, le=0.99)] | None = None
    variational_dropout: bool = False
    residual: bool = False
    tie_weights: bool = False
    output_bias: bool = True
    bidirectional: bool | None = None
    initial: Literal["usual", "zeros"] = "usual"
    options: Fields = Field(default_factory=dict)


class Training(Section):
    """How the model is trained.

    Training ends when the first of ``epochs``, ``steps``, ``tokens`` and ``minutes`` is reached. If none
    of the first three is given, it also ends when the held-out metric stops improving. What is None is chosen from the
    amount of training data (`seriatim.training.adaptive_defaults`), ``minutes`` included if no budget is given.

    ``batch_size`` is the number of sequences, ``sequence_length`` the number of tokens of each (the reach of truncated
    backpropagation), and ``accumulate`` the number of batches of a step. ``learning_rate`` None is the rate that the
    layer declares for the task (1 for SGD). The schedule is ``cosine`` for a budget that is given, else ``constant``.
    ``warmup_steps`` None raises the rate of Adam and AdamW during the first 5 % of the budget of a ``cosine`` schedule.
    The schedule ``plateau`` divides the rate by ``anneal`` whenever the validation loss is not below its lowest value
    so far. ``average`` is the decay of the exponential moving average of the weights that is validated and saved; 0
    saves the weights themselves. ``average_after`` averages them uniformly instead, from the first validation on before
    which so many validations in a row had no new lowest loss.

    Training stops after ``patience`` successive validations without improvement, that is without a new best value of
    the metric that selects the weights. If ``tolerance`` is given, a validation improves instead if its loss is at
    least so many nats below that of the validation before, and ``patience`` is 1 by default. ``keep`` selects the
    weights of the run: the best by the metric of the task, or the last. The model is validated after every epoch, and
    every ``evaluate_every`` steps if that is given. ``checkpoint_every`` is a number of steps. If a loss or a gradient
    is NaN or infinite, ``nonfinite`` says whether the training stops or the step is skipped. ``init`` names a run whose
    tokenizer, embedding and layer are the starting point. ``baseline`` says whether the simple baseline of the task is
    trained on the same data, for comparison; None is ``none`` for the built-in synthetic tasks, which study the network
    alone, and else ``simple``. ``baseline_weight`` is its weight in the answers, which are those of both models
    together; 0 leaves the baseline out, and ``auto`` chooses the weight on the held-out data. None is ``auto`` for
    taggers and classifiers, and 0 for other tasks.

    If ``torchrun`` starts several processes, the ranks, each computes a part of every batch. ``parallel: data`` gives
    each the whole model; ``fsdp`` gives each a part of every parameter, gradient and state of the optimizer. A rank
    waits ``rank_timeout`` seconds for the others before the training ends with an error.
    """

    epochs: Count | None = None
    steps: Count | None = None
    tokens: Annotated[int, Field(ge=1, lt=2**53, strict=True)] | None = None
    minutes: Positive | None = None
    batch_size: Count | None = None
    sequence_length: Count = 64
    accumulate: Count = 1
    optimizer: Literal["sgd", "adam", "adamw"] = "adamw"
    learning_rate: Positive | None = None
    schedule: Literal["constant", "cosine", "plateau"] | None = None
    warmup_steps: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    anneal: Annotated[float, Field(gt=1, allow_inf_nan=False)] = 4.0
    average: Rate | None = None
    average_after: Count | None = None
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
    baseline: Literal["simple", "none"] | None = None
    baseline_weight: Rate | Literal["auto"] | None = None
    init: str | None = None
    parallel: Literal["data", "fsdp"] = "data"
    rank_timeout: Positive = 600.0

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
            ValidationError: a value does not fit.
        """
        copy, options = self._copy({**self.model.options}, settled=False), {}
        for name, value in values.items():
            section, _, key = name.rpartition(".")
            if section == "model.options":
                options[key] = value
            else:
                setattr(getattr(copy, section) if section else copy, key, value)
        copy.model.options.update(options)
        return copy.settled() if self._settled else copy

    def settled(self) -> "Config":
        """Return a copy that nobody can change, neither its fields nor the options of its model."""
        return self._copy(fixed(dict(self.model.options)), settled=True)

    def _copy(self, options: Fields, *, settled: bool) -> "Config":
        sections = {name: getattr(self, name).model_copy() for name in _sections()}
        sections["model"] = sections["model"].model_copy(update={"options": options})
        copy = self.model_copy(update=sections)
        for section in (copy, *sections.values()):
            object.__setattr__(section, "__pydantic_private__", {"_settled": settled})
        return copy

    def to_yaml(self) -> str:
        """Return the configuration as YAML, without ``out``, because a run can be moved."""
        return dump_plain(self.model_dump(exclude={"out"}))


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
        return all(part is NoneType or _is_text(part) for part in get_args(annotation))
    return annotation is str

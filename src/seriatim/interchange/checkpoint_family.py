"""How the tensors of another library's checkpoint correspond to the parameters of a model here, in both directions."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from ..config import Model
from ..core.errors import NotSupportedError, RangeError, shown
from ..core.json_object import JsonObject

Kind = Literal[
    "same", "transposed", "joined", "rows", "kernel", "table", "scaled table", "outputs", "positions", "less one"
]  # fmt: skip
"""``joined``: several tensors, one after another along their first dimension. ``rows``: some rows of these. ``kernel``:
that of a convolution of each channel, (channels, 1, size) there and (size, channels) here. ``table``: a row for each
token that is read, in the order of `TokenRows`. ``scaled table``: the same in a library that multiplies rows by the
root of their width. ``outputs``: a row or a number for each token that is predicted. ``positions``: a row for each
position, to which the first row of a second tensor is added, as each text has one segment. ``less one``: a gain, of
which 1 is subtracted there."""


class TokenRows(NamedTuple):
    """The order of the rows of tokens: the first one and that of the token ``end`` are exchanged.

    The row of the token ``mask`` is repeated after the last one where tokens are read: it is the mask symbol here.
    """

    end: int = 0
    mask: int | None = None

    def exchanged(self, table: Tensor) -> Tensor:
        """Return a table of one of the two libraries in the order of the other."""
        order = torch.arange(len(table))
        order[[0, self.end]] = order[[self.end, 0]]
        return table[order]

    def with_mask(self, table: Tensor) -> Tensor:
        """Return our table of the tokens that are read."""
        ours = self.exchanged(table)
        return ours if self.mask is None else torch.cat([ours, table[self.mask].unsqueeze(0)])

    def without_mask(self, table: Tensor) -> Tensor:
        """Return their table of the tokens that are read."""
        if self.mask is None:
            return self.exchanged(table)
        theirs = self.exchanged(table[:-1])
        theirs[self.mask] = table[-1]
        return theirs


def root_of_width(table: Tensor) -> float:
    """Return the root of the width of a table, in bfloat16 as in the code of Gemma."""
    return float(torch.tensor(table.shape[1] ** 0.5, dtype=torch.bfloat16))


Convert = Callable[[Tensor, TokenRows], Tensor]
FORMS: dict[Kind, tuple[Convert, Convert]] = {
    "same": (lambda theirs, tokens: theirs, lambda ours, tokens: ours),
    "transposed": (lambda theirs, tokens: theirs.t(), lambda ours, tokens: ours.t()),
    "kernel": (lambda theirs, tokens: theirs.squeeze(1).t(), lambda ours, tokens: ours.t().unsqueeze(1)),
    "table": (lambda theirs, tokens: tokens.with_mask(theirs), lambda ours, tokens: tokens.without_mask(ours)),
    "scaled table": (
        lambda theirs, tokens: tokens.with_mask(theirs) * root_of_width(theirs),
        lambda ours, tokens: tokens.without_mask(ours) / root_of_width(ours),
    ),
    "less one": (lambda theirs, tokens: theirs + 1, lambda ours, tokens: ours - 1),
    "outputs": (lambda theirs, tokens: tokens.exchanged(theirs), lambda ours, tokens: tokens.exchanged(ours)),
}
"""How a single tensor becomes a parameter here, and how a parameter becomes one there."""


class ConversionRule(NamedTuple):
    """One parameter here, and the tensors there that it consists of."""

    ours: str
    theirs: tuple[str, ...]
    kind: Kind = "same"
    rows: tuple[int, ...] = ()  # of kind "rows": those of the joined tensors that the parameter consists of
    sizes: tuple[int, ...] = ()  # and how many each tensor has

    def to_ours(self, tensors: Sequence[Tensor], tokens: TokenRows) -> Tensor:
        """Return the parameter; ``tokens`` is the order of the rows of a table."""
        if self.kind == "joined":
            return torch.cat(list(tensors))
        if self.kind == "rows":
            return torch.cat(list(tensors))[list(self.rows)]
        if self.kind == "positions":
            positions, segments = tensors
            if positions.shape[1:] != segments.shape[1:]:
                raise ValueError("tables of different widths")
            return positions + segments[0]
        (tensor,) = tensors
        return FORMS[self.kind][0](tensor, tokens)

    def to_theirs(self, parameter: Tensor, sizes: Sequence[int], tokens: TokenRows) -> list[Tensor]:
        """Return the tensors, of which the joined ones have ``sizes`` rows; rows of other parameters are 0."""
        if self.kind == "joined":
            return list(torch.split(parameter, list(sizes)))
        if self.kind == "rows":
            joined = parameter.new_zeros(sum(self.sizes), *parameter.shape[1:])
            joined[list(self.rows)] = parameter
            return list(torch.split(joined, list(self.sizes)))
        if self.kind == "positions":
            return [parameter, torch.zeros_like(parameter[:1])]
        return [FORMS[self.kind][1](parameter, tokens)]


class ModelFacts(NamedTuple):
    """A model here: its configuration, its options with their defaults, and where messages say it is."""

    model: Model
    options: JsonObject
    where: str

    def demand(self, **expected: object) -> None:
        """Raise InputError for the first option of the layer that has another value."""
        for name, value in expected.items():
            if self.options.get(name, value) != value:
                raise NotSupportedError(
                    f"{self.where}: model.options.{name} {shown(self.options[name])} cannot be written; "
                    f"train with {shown(value)}"
                )


class Field(NamedTuple):
    """A field of `config.json` that is an option of a layer here.

    The default stands for a field that is missing; `Family.default_of` returns one that depends on other fields. A
    number with a point can be any positive number, and others are whole numbers. Where there are choices, the field is
    one of their names there, by which they give the name here.
    """

    name: str
    default: float | None = None
    choices: dict[str, str] | None = None
    chosen: str = ""  # the choice that stands for a missing field


def renamed(
    names: Mapping[str, str], ours: str, theirs: str, *, ends: Sequence[str] = ("weight", "bias"), kind: Kind = "same"
) -> list[ConversionRule]:
    """Return the rules of modules with the same parameters here and there, whose names are given as ours and theirs.

    Args:
        names: the names of the modules.
        ours: the prefix of those here.
        theirs: the prefix of those there.
        ends: the names of the parameters of a module.
        kind: how a ``weight`` is stored there; other parameters are stored as here.
    """
    return [
        ConversionRule(f"{ours}{here}.{end}", (f"{theirs}{there}.{end}",), kind if end == "weight" else "same")
        for here, there in names.items()
        for end in ends
    ]


class Family:
    """Checkpoints that a model here can hold; a subclass for each kind of architecture."""

    model_types: ClassVar[tuple[str, ...]]
    task: ClassVar[str] = "lm"
    layer: ClassVar[str] = "transformer"
    sizes: ClassVar[tuple[str, str]] = ("hidden_size", "num_hidden_layers")
    """The fields of the width and of the number of layers."""
    options: ClassVar[Mapping[str, Field]]
    """The options of the layer that are fields, in the order in which an export writes them."""
    fixed: ClassVar[JsonObject] = {}
    """The other options of every model of the family."""
    demanded: ClassVar[JsonObject] = {}
    """Options that may have no other value here, besides the fixed ones, as no checkpoint could say so."""
    mixes: ClassVar[bool] = False
    """Whether the layers of a checkpoint may differ."""
    has_own_heads: ClassVar[bool] = True
    """Whether a checkpoint can say how wide heads are, and that keys have fewer heads than queries."""
    prefix: ClassVar[str]
    """The prefix of all names but that of the output layer; some checkpoints leave it out."""
    unit: ClassVar[str] = "stream"
    """The value of ``data.unit``; ``line`` where learned positions limit the length of a text."""
    ignored: ClassVar[tuple[str, ...]] = ()
    """Suffixes of the names of tensors that are not parameters, or are copies of others."""
    dropped: ClassVar[tuple[str, ...]] = ()
    """Prefixes of the names of parameters that a model here does not have; an import says so."""
    tied: ClassVar[Mapping[str, str]]
    """The two names of each tensor that has two in the library; a checkpoint stores it under either, or both."""
    can_untie: ClassVar[bool] = True
    """Whether a model here can hold an output layer apart from the embedding."""
    has_output_bias: ClassVar[bool] = False
    special_tokens: ClassVar[Mapping[str, str]] = {"end": "eos", "begin": "bos"}
    """What `config.json` and `tokenizer_config.json` call the special tokens."""
    needed: ClassVar[tuple[str, ...]] = ("end",)
    """Those that must be there."""

    def __init__(self, fields: JsonObject, where: str) -> None:
        self.fields, self.where = fields, where

    def model(self) -> JsonObject:
        """Return the section ``model`` of the configuration, or raise InputError for an option that we do not have."""
        width, depth = map(self.number, self.sizes)
        return {
            "layer": self.layer,
            "embedding_size": width,
            "hidden_size": width,
            "num_layers": depth,
            "dropout": 0.0,
            "tie_weights": self.is_tied,
            "output_bias": self.has_output_bias,
            "options": self.layer_options(),
        }

    def layer_options(self) -> JsonObject:
        """Return the options of the layer; raise InputError for a field with which no model here can be made."""
        return {**self.fixed, **{name: self.read(field) for name, field in self.options.items()}}

    def read(self, field: Field) -> str | float:
        """Return the option that a field gives."""
        if field.choices is not None:
            return self.choose(field.name, field.choices, field.chosen)
        if isinstance(field.default, float):
            return self.real(field.name, field.default)
        return self.number(field.name, self.default_of(field.name) if field.default is None else field.default)

    def default_of(self, name: str) -> int | None:
        """Return what the other library takes for a field that is missing, if that depends on other fields."""
        return None

    def training(self) -> JsonObject:
        """Return the section ``training`` of the configuration."""
        return {}

    def rules(self) -> list[ConversionRule]:
        """Return the rule for each parameter of the model."""
        raise NotImplementedError

    def name_in(self, names: Collection[str], name: str) -> str:
        """Return what the name of a rule is among the names of a checkpoint, all of which may lack the prefix."""
        other = self.tied.get(name, "") if self.is_tied else ""
        name = name if any(each.startswith(self.prefix) for each in names) else name.removeprefix(self.prefix)
        return other if name not in names and other in names else name

    def check_names(self, names: Collection[str], where: str) -> None:
        """Raise InputError if a part is missing that a message should name."""

    def check_tokenizer(self, content: JsonObject, settings: JsonObject) -> None:
        """Raise InputError if `tokenizer.json` and `tokenizer_config.json` do not fit this family."""

    @classmethod
    def fields_for(cls, facts: "ModelFacts") -> JsonObject:
        """Return the fields of `config.json` for a model here; raise InputError if this family cannot hold it."""
        heads: JsonObject = {}
        if not cls.has_own_heads:
            count = facts.options["num_heads"]
            heads = {"head_size": facts.model.hidden_size // count, "num_kv_heads": count}
        facts.demand(**cls.fixed, **cls.demanded, **heads)

        # Two names there may be one activation here: the first of them is written.
        fields: JsonObject = dict(zip(cls.sizes, (facts.model.hidden_size, facts.model.num_layers), strict=True))
        for name, (field, _, choices, _) in cls.options.items():
            value = facts.options[name]
            names = {ours: theirs for theirs, ours in reversed((choices or {}).items())}
            if choices is not None and value not in names:
                known = ", ".join(names)
                raise NotSupportedError(
                    f"{facts.where}: model.options.{name} {value} cannot be written; train with {known}"
                )
            fields[field] = names.get(value, value)
        return fields

    @classmethod
    def token_ids(cls, begin: int, end: int) -> JsonObject:
        """Return the fields of `config.json` for the ids of special tokens."""
        return {"bos_token_id": begin, "eos_token_id": end}

    def rows(self, count: int) -> list[int]:
        """Return the rows of ``count`` joined tensors."""
        raise NotImplementedError

    def require(self, **expected: object) -> None:
        """Raise InputError if a field is present and has another value than the only one that we have."""
        for name, value in expected.items():
            given = self.fields.get(name, value)
            if given != value:
                raise NotSupportedError(
                    f"{self.where}: {name} {shown(given)} is not supported, only {shown(value)}; use another checkpoint"
                )

    def number(self, name: str, default: int | None = None) -> int:
        """Return a field, or raise InputError if it is missing or not a positive whole number."""
        value = self.fields.get(name)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
            raise RangeError(
                f"{self.where}: {name} must be a positive whole number, got {shown(value)}; check the file"
            )
        return value

    def real(self, name: str, default: float, fields: JsonObject | None = None) -> float:
        """Return a field of these or of other fields, or raise InputError if it is not a positive number."""
        value = (self.fields if fields is None else fields).get(name)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            raise RangeError(f"{self.where}: {name} must be a positive number, got {shown(value)}; check the file")
        return float(value)

    def rotary(self, base: float, *, fraction: float = 1.0) -> tuple[float, float]:
        """Return the base of the angles of rotary positions, and which part of a head is rotated.

        Both are given as the other library takes them where they are missing. InputError: positions are scaled.
        """
        base = self.real("rope_theta", base)
        fraction = self.real("partial_rotary_factor", fraction)
        for name in ("rope_scaling", "rope_parameters"):
            parameters = self.fields.get(name) or {}
            if not isinstance(parameters, dict):
                raise RangeError(f"{self.where}: {name} must be an object, got {shown(parameters)}; check the file")
            kind = parameters.get("rope_type", parameters.get("type", "default"))
            if kind != "default":
                raise NotSupportedError(
                    f"{self.where}: rope_type {shown(kind)} is not supported; "
                    "use a checkpoint of plain rotary positions"
                )
            base = self.real("rope_theta", base, parameters)
            fraction = self.real("partial_rotary_factor", fraction, parameters)
        return base, fraction

    @property
    def is_tied(self) -> bool:
        """Whether the output layer has the weights of the embedding."""
        return bool(self.fields.get("tie_word_embeddings", self.tied_by_default))

    tied_by_default: ClassVar[bool] = False

    def choose(self, name: str, choices: Mapping[str, str], default: str) -> str:
        """Return what a named choice of the other library is called here."""
        value = self.fields.get(name, default)
        if not isinstance(value, str) or value not in choices:
            raise NotSupportedError(f"{self.where}: {name} {shown(value)} is not supported; use {', '.join(choices)}")
        return choices[value]

    def tables(self, embedding: str, head: str) -> list[ConversionRule]:
        """Return the rules of the embedding and of the output layer."""
        first = [ConversionRule("embedding.weight", (embedding,), "table")]
        return first if self.is_tied else [*first, ConversionRule("output.weight", (head,), "outputs")]

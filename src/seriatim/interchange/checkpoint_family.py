"""How the tensors of another library's checkpoint correspond to the parameters of a model here, in both directions."""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from ..config import Fields, Model
from ..core.errors import InputError, shown

Kind = Literal["same", "transposed", "joined", "kernel", "table", "outputs", "positions"]
"""``joined``: several tensors, one after another along their first dimension. ``kernel``: that of a convolution of each
channel, (channels, 1, size) there and (size, channels) here. ``table``: a row for each token that is read, in the order
of `TokenRows`. ``outputs``: a row or a number for each token that is predicted. ``positions``: a row for each position,
to which the first row of a second tensor is added, as each text has one segment."""


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


class ConversionRule(NamedTuple):
    """One parameter here, and the tensors there that it consists of."""

    ours: str
    theirs: tuple[str, ...]
    kind: Kind = "same"

    def to_ours(self, tensors: Sequence[Tensor], tokens: TokenRows) -> Tensor:
        """Return the parameter; ``tokens`` is the order of the rows of a table."""
        if self.kind == "joined":
            return torch.cat(list(tensors))
        if self.kind == "positions":
            positions, segments = tensors
            if positions.shape[1:] != segments.shape[1:]:
                raise ValueError("tables of different widths")
            return positions + segments[0]
        (tensor,) = tensors
        if self.kind == "transposed":
            return tensor.t()
        if self.kind == "kernel":
            return tensor.squeeze(1).t()
        if self.kind == "table":
            return tokens.with_mask(tensor)
        return tokens.exchanged(tensor) if self.kind == "outputs" else tensor

    def to_theirs(self, parameter: Tensor, sizes: Sequence[int], tokens: TokenRows) -> list[Tensor]:
        """Return the tensors, of which the joined ones have ``sizes`` rows."""
        if self.kind == "joined":
            return list(torch.split(parameter, list(sizes)))
        if self.kind == "transposed":
            return [parameter.t()]
        if self.kind == "kernel":
            return [parameter.t().unsqueeze(1)]
        if self.kind == "positions":
            return [parameter, torch.zeros_like(parameter[:1])]
        if self.kind == "table":
            return [tokens.without_mask(parameter)]
        return [tokens.exchanged(parameter) if self.kind == "outputs" else parameter]


class ModelFacts(NamedTuple):
    """A model here: its configuration, its options with their defaults, and where messages say it is."""

    model: Model
    options: Fields
    where: str

    def demand(self, **expected: object) -> None:
        """Raise InputError for the first option of the layer that has another value."""
        for name, value in expected.items():
            if self.options.get(name, value) != value:
                raise InputError(
                    f"{self.where}: model.options.{name} {shown(self.options[name])} has no place there, only "
                    f"{shown(value)} has"
                )


class Family:
    """Checkpoints that a model here can hold; a subclass for each kind of architecture."""

    model_types: ClassVar[tuple[str, ...]]
    task: ClassVar[str] = "lm"
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

    def __init__(self, fields: Fields, where: str) -> None:
        self.fields, self.where = fields, where

    def model(self) -> Fields:
        """Return the section ``model`` of the configuration, or raise InputError for an option that we do not have."""
        raise NotImplementedError

    def section(self, layer: str, size: int, num_layers: int, options: Fields) -> Fields:
        """Return the section ``model`` for a layer with some options."""
        return {
            "layer": layer,
            "embedding_size": size,
            "hidden_size": size,
            "num_layers": num_layers,
            "dropout": 0.0,
            "tie_weights": self.is_tied,
            "output_bias": self.has_output_bias,
            "options": options,
        }

    def training(self) -> Fields:
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

    def check_tokenizer(self, content: Fields, settings: Fields) -> None:
        """Raise InputError if `tokenizer.json` and `tokenizer_config.json` do not fit this family."""

    @classmethod
    def fields_for(cls, facts: "ModelFacts") -> Fields:
        """Return the fields of `config.json` for a model here; raise InputError if this family cannot hold it."""
        raise NotImplementedError

    @classmethod
    def token_ids(cls, begin: int, end: int) -> Fields:
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
                raise InputError(
                    f"{self.where}: {name} {shown(given)} is not supported, only {shown(value)}; use another checkpoint"
                )

    def number(self, name: str, default: int | None = None) -> int:
        """Return a field, or raise InputError if it is missing or not a positive whole number."""
        value = self.fields.get(name)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
            raise InputError(
                f"{self.where}: {name} must be a positive whole number, got {shown(value)}; check the file"
            )
        return value

    def real(self, name: str, default: float, fields: Fields | None = None) -> float:
        """Return a field of these or of other fields, or raise InputError if it is not a positive number."""
        value = (self.fields if fields is None else fields).get(name)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            raise InputError(f"{self.where}: {name} must be a positive number, got {shown(value)}; check the file")
        return float(value)

    @property
    def is_tied(self) -> bool:
        """Whether the output layer has the weights of the embedding."""
        return bool(self.fields.get("tie_word_embeddings", self.tied_by_default))

    tied_by_default: ClassVar[bool] = False

    def choose(self, name: str, choices: Mapping[str, str], default: str) -> str:
        """Return what a named choice of the other library is called here."""
        value = self.fields.get(name, default)
        if not isinstance(value, str) or value not in choices:
            raise InputError(f"{self.where}: {name} {shown(value)} is not supported; known are {', '.join(choices)}")
        return choices[value]

    def tables(self, embedding: str, head: str) -> list[ConversionRule]:
        """Return the rules of the embedding and of the output layer."""
        first = [ConversionRule("embedding.weight", (embedding,), "table")]
        return first if self.is_tied else [*first, ConversionRule("output.weight", (head,), "outputs")]

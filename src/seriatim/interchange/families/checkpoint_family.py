"""How the tensors of another library's checkpoint correspond to the parameters of a model here, in both directions."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from ...config import Fields, Model
from ...core.errors import InputError, shown

Kind = Literal["same", "transposed", "joined", "kernel", "table"]
"""``joined``: several tensors, one after another along their first dimension. ``kernel``: that of a convolution of each
channel, (channels, 1, size) there and (size, channels) here. ``table``: a row for each token, two of them exchanged."""


class Rule(NamedTuple):
    """One parameter here, and the tensors there that it consists of."""

    ours: str
    theirs: tuple[str, ...]
    kind: Kind = "same"

    def to_ours(self, tensors: Sequence[Tensor], exchange: Callable[[Tensor], Tensor]) -> Tensor:
        """Return the parameter; ``exchange`` exchanges the rows of a table."""
        if self.kind == "joined":
            return torch.cat(list(tensors))
        (tensor,) = tensors
        if self.kind == "transposed":
            return tensor.t()
        if self.kind == "kernel":
            return tensor.squeeze(1).t()
        return exchange(tensor) if self.kind == "table" else tensor

    def to_theirs(self, parameter: Tensor, sizes: Sequence[int], exchange: Callable[[Tensor], Tensor]) -> list[Tensor]:
        """Return the tensors, of which the joined ones have ``sizes`` rows."""
        if self.kind == "joined":
            return list(torch.split(parameter, list(sizes)))
        if self.kind == "transposed":
            return [parameter.t()]
        if self.kind == "kernel":
            return [parameter.t().unsqueeze(1)]
        return [exchange(parameter) if self.kind == "table" else parameter]


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
    prefix: ClassVar[str]
    """The prefix of all names but that of the output layer; some checkpoints leave it out."""
    unit: ClassVar[str] = "stream"
    """The value of ``data.unit``; ``line`` where learned positions limit the length of a text."""
    ignored: ClassVar[tuple[str, ...]] = ()
    """Suffixes of the names of tensors that are not parameters."""

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
            "output_bias": False,
            "options": options,
        }

    def rules(self) -> list[Rule]:
        """Return the rule for each parameter of the model."""
        raise NotImplementedError

    @classmethod
    def fields_for(cls, facts: "ModelFacts") -> Fields:
        """Return the fields of `config.json` for a model here; raise InputError if this family cannot hold it."""
        raise NotImplementedError

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

    def tables(self, embedding: str, head: str) -> list[Rule]:
        """Return the rules of the embedding and of the output layer."""
        first = [Rule("embedding.weight", (embedding,), "table")]
        return first if self.is_tied else [*first, Rule("output.weight", (head,), "table")]

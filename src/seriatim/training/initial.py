"""A training that starts from another run: its tokenizer, its embedding and its layer, whatever both are trained to do.

A. Dai and Q. Le, "Semi-supervised sequence learning", NIPS 2015; J. Devlin et al., "BERT", NAACL 2019.
"""

import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..config import Config, Model, Tokenizer, resolve
from ..core.errors import InputError
from ..data.vocabulary import Vocabulary, load_vocabulary
from ..layers import options_of, split_names
from ..storage.weights import load_tensors, read_metadata, refuse_nonfinite

GROUPS = ("embedding.", "layer.")
"""How the names of the parameters begin that are taken."""
TABLE = "embedding.weight"
SIZES = ("layer", "bidirectional", "embedding_size", "hidden_size", "num_layers", "residual")
"""Fields of the model that its parameters hang on, with the layer's options after them."""
SHAPELESS = {"causal", "window"}
"""Options that no parameter hangs on."""


@dataclass(frozen=True)
class Initial:
    """What is taken from a run.

    Attributes:
        folder: the run's.
        config: as it was trained.
        vocabulary: its own.
        parameters: of its embedding and layer, by name.
    """

    folder: Path
    config: Config
    vocabulary: Vocabulary
    parameters: dict[str, Tensor]

    def settle(self, config: Config) -> None:
        """Puts the run's settings of the tokenizer in place of those of ``config``.

        Raises:
            InputError: ``config`` asks for another tokenizer.
        """
        for name, field in Tokenizer.model_fields.items():
            given, own = getattr(config.tokenizer, name), getattr(self.config.tokenizer, name)
            if given not in (field.default, own):
                raise InputError(
                    f"tokenizer.{name}: {given} contradicts training.init, as the tokenizer of {self.folder} "
                    f"has {own}; leave it out"
                )
        config.tokenizer = self.config.tokenizer.model_copy()

    def with_tokenizer(self, learned: Vocabulary) -> Vocabulary:
        """A vocabulary with the run's tokenizer of inputs; labels and whatever else it has are kept."""
        return replace(learned, tokenizers={**learned.tokenizers, "tokenizer": self.vocabulary.tokenizer})

    @torch.no_grad()
    def copy_to(self, model: nn.Module, config: Model) -> None:
        """Gives a model the run's parameters.

        Tables of embeddings are copied as far as both have rows: a masked language model's has one more, that of the
        mask symbol, which is left out, or keeps its fresh values.

        Raises:
            InputError: the parameters are not the model's, or have other shapes.
        """
        own = {name: value for name, value in model.named_parameters() if name.startswith(GROUPS)}
        if not own or not self.parameters:
            where = "this task's model" if not own else self.folder
            raise InputError(f"training.init: {where} has no embedding and layer under these names; leave it out")
        for name in sorted(own.keys() | self.parameters.keys(), key=lambda name: (name != TABLE, name)):
            mine, theirs = own.get(name), self.parameters.get(name)
            if mine is None or theirs is None or not self._fits(name, mine, theirs):
                raise InputError(
                    f"training.init: {name} has {_shape(theirs)} in {self.folder} and {_shape(mine)} here; "
                    f"{self._advice(config)}"
                )
        for name, mine in own.items():
            theirs = self.parameters[name]
            rows = slice(min(len(mine), len(theirs))) if name == TABLE else ...
            mine[rows] = theirs[rows].to(mine)

    def _fits(self, name: str, mine: Tensor, theirs: Tensor) -> bool:
        if name != TABLE:
            return mine.shape == theirs.shape
        tokens = self.vocabulary.tokenizer.vocabulary_size
        return mine.shape[1] == theirs.shape[1] and min(len(mine), len(theirs)) >= tokens

    def _advice(self, config: Model) -> str:
        """Which fields to set so that the parameters fit: sizes, or else options of the layer."""
        theirs = self.config.model
        odd: dict[str, Any] = {
            f"model.{name}": getattr(theirs, name) for name in SIZES if getattr(theirs, name) != getattr(config, name)
        }
        if not odd:
            options = {**config.options, **theirs.options}
            known = {name for one in split_names(theirs.layer) for name in options_of(one, options)}
            odd = {
                f"model.options.{name}": theirs.options.get(name)
                for name in sorted(known & options.keys() - SHAPELESS)
                if theirs.options.get(name) != config.options.get(name)
            }
        said = ", ".join(
            f"leave out {name}" if value is None else f"set {name} to {str(value).lower()}"
            for name, value in odd.items()
        )
        return f"{said}, as there" if said else "start from a run with the same layer"


@torch.no_grad()
def set_to_zero(model: nn.Module) -> None:
    """Sets every parameter to zero.

    Warns:
        UserWarning: gradients cannot break the symmetry between units that begin equal.
    """
    for parameter in model.parameters():
        parameter.zero_()
    warnings.warn(
        "model.initial: zeros cannot break symmetry: units that begin equal have equal gradients and stay equal, and "
        "most weights have no gradient at all; expect little more than the frequencies of tokens or labels",
        stacklevel=2,
    )


def open_initial(path: str) -> Initial:
    """Reads what a run has to give.

    Raises:
        InputError: no such run, or a file of it is missing, damaged, or belongs to another.
    """
    folder = Path(path)
    if not (folder / "config.yaml").is_file():
        raise InputError(f"training.init: {folder} is not a run; give the folder that seriatim train --out made")
    config, vocabulary = resolve(folder / "config.yaml"), load_vocabulary(folder)
    weights = folder / "model.safetensors"
    if read_metadata(weights).get("tokenizer") != vocabulary.fingerprint():
        raise InputError(f"{folder}/tokenizer.json: does not belong to the weights beside it; restore the run's own")
    parameters = {name: value for name, value in load_tensors(weights).items() if name.startswith(GROUPS)}
    refuse_nonfinite(parameters, weights)
    return Initial(folder, config, vocabulary, parameters)


def _shape(value: Tensor | None) -> str:
    return "no place" if value is None else f"shape {tuple(value.shape)}"

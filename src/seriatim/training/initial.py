"""Initial parameters: all zeros, or those of another run.

They can be all zeros, or the embedding and the layer of another run, whatever its task (A. Dai and Q. Le,
"Semi-supervised sequence learning", NIPS 2015; J. Devlin et al., "BERT", NAACL 2019); or all that fit of a run of the
same task with the same vocabulary.
"""

import warnings
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from ..config import Config, Model, Tokenizer, resolve
from ..core.errors import ConflictError, MismatchError, MissingError
from ..data.vocabulary import Vocabulary, load_vocabulary
from ..layers import options_of, split_names
from ..storage.files import dump_plain
from ..storage.weights import load_tensors, read_metadata, refuse_nonfinite
from ..storage.written_folders import steadily
from ..tasks.defaults import SHAPELESS, SIZES

PREFIXES, CHARACTERS = ("embedding.", "layer."), "characters."
"""Prefixes of the names of the parameters that are copied; those of characters only if both models read them."""
TABLE = "embedding.weight"


@dataclass(frozen=True)
class Initial:
    """A run that a training starts from."""

    folder: Path
    config: Config
    vocabulary: Vocabulary
    parameters: dict[str, Tensor]  # of its embedding, its layer and its reader of characters, by name
    others: dict[str, Tensor]  # all other parameters, such as those of its output layer, by name

    def with_tokenizer(self, learned: Vocabulary) -> Vocabulary:
        """Return a vocabulary with the run's tokenizers of inputs and characters; labels and other tokenizers stay."""
        taken = {name: self.vocabulary.tokenizers.get(name) for name in ("tokenizer", "characters")}
        tokenizers = {name: taken.get(name) or tokenizer for name, tokenizer in learned.tokenizers.items()}
        return replace(learned, tokenizers=tokenizers)

    @torch.no_grad()
    def copy_to(self, model: nn.Module, config: Config, vocabulary: Vocabulary) -> None:
        """Copy the run's parameters into a model.

        Of embedding tables the rows that both have are copied: that of a masked language model has one more row, for
        the mask symbol, which is left out or keeps its initial values. If only this model reads characters, their
        weights keep their initial values, also those in the layer. Other parameters are copied if the task and the
        vocabulary are the same, where the model has them in the same shape.

        Raises:
            InputError: the model has other parameters, or other shapes.
        """
        # Everything is compared before anything is copied: an error leaves the model as it was.
        with_characters = any(name.startswith(CHARACTERS) for name in self.parameters)
        prefixes = (*PREFIXES, CHARACTERS) if with_characters else PREFIXES
        targets = {name: value for name, value in model.named_parameters() if name.startswith(prefixes)}
        if not targets or not self.parameters:
            where = "this task's model" if not targets else self.folder
            raise MismatchError(f"training.init: {where} has no parameters named embedding.* or layer.*; leave it out")
        parameters = self.parameters
        appended = 0 if with_characters else getattr(getattr(model, "characters", None), "output_size", 0)
        for name in sorted(targets.keys() | parameters.keys(), key=lambda name: (name != TABLE, name)):
            target, source = targets.get(name), parameters.get(name)
            if target is None or source is None or not self._fits(name, target, source, appended):
                problem = f"has shape {_shape(source)} in {self.folder} and shape {_shape(target)} here"
                if source is None or target is None:
                    problem = f"is a parameter of {'this model' if source is None else self.folder} only"
                raise MismatchError(f"training.init: {name} {problem}; {self._advice(config.model)}")

        # A table of embeddings can have more rows, or columns for characters, which keep their initial values.
        for name, target in targets.items():
            source = parameters[name]
            rows = slice(min(len(target), len(source))) if name == TABLE else ...
            columns = (..., slice(source.shape[-1])) if source.dim() else ...
            target[rows][columns] = source[rows].to(target)

        # An output layer fits only the same task with the same vocabulary.
        if config.task == self.config.task and vocabulary.fingerprint() == self.vocabulary.fingerprint():
            others = self.others
            for name, target in model.named_parameters():
                if name in others and others[name].shape == target.shape:
                    target.copy_(others[name])

    def _fits(self, name: str, target: Tensor, source: Tensor, appended: int) -> bool:
        if name != TABLE:
            wider = target.shape[:-1] == source.shape[:-1] and target.shape[-1] == source.shape[-1] + appended
            return wider or target.shape == source.shape
        tokens = self.vocabulary.tokenizer.vocabulary_size
        return target.shape[1] == source.shape[1] and min(len(target), len(source)) >= tokens

    def _advice(self, config: Model) -> str:
        """Return which fields to set so that the parameters fit: sizes, or else options of the layer."""
        theirs = self.config.model
        different: dict[str, object] = {
            f"model.{name}": getattr(theirs, name) for name in SIZES if getattr(theirs, name) != getattr(config, name)
        }
        # Sizes explain most differences of shape; options of the layer explain the rest.
        if not different:
            options = {**config.options, **theirs.options}
            known = {name for layer in split_names(theirs.layer) for name in options_of(layer, options)}
            different = {
                f"model.options.{name}": theirs.options.get(name)
                for name in sorted(known & options.keys() - SHAPELESS)
                if theirs.options.get(name) != config.options.get(name)
            }
        advice = ", ".join(
            f"leave out {name}" if value is None else f"set {name} to {dump_plain(value).splitlines()[0]}"
            for name, value in different.items()
        )
        if advice:
            return f"{advice}, as there"
        reads = config.options.get("characters", "none") != "none"
        hint = ", or set model.options.characters to none and model.options.word_features to []" if reads else ""
        return f"start from a run with the same layer{hint}"


@torch.no_grad()
def set_to_zero(model: nn.Module) -> None:
    """Set every parameter to zero, and warn that gradients cannot break the symmetry between equal units."""
    for parameter in model.parameters():
        parameter.zero_()
    warnings.warn(
        "model.initial: zeros cannot break symmetry: units that begin equal have equal gradients and stay equal, and "
        "most weights have no gradient at all; expect little more than the frequencies of tokens or labels",
        stacklevel=2,
    )


def open_initial(config: Config) -> Initial:
    """Read the run that ``training.init`` names.

    Raises:
        InputError: there is no such run; one of its files is missing, damaged, or belongs to another run; or ``config``
            asks for zeros or for another tokenizer.
    """
    if config.model.initial == "zeros":
        raise ConflictError("model.initial: zeros cannot be used with training.init; leave one of them out")
    folder = Path(str(config.training.init))
    return steadily(folder, lambda: _read_initial(config, folder))


def _read_initial(config: Config, folder: Path) -> Initial:
    if not (folder / "config.yaml").is_file():
        raise MissingError(f"training.init: {folder} is not a run; give the folder that seriatim train --out wrote")
    theirs, vocabulary = resolve(folder / "config.yaml"), load_vocabulary(folder)
    if theirs.data.features and theirs.data.features != config.data.features:
        raise MismatchError(f"training.init: {folder} reads data.features {theirs.data.features}; give the same here")
    weights = folder / "model.safetensors"
    if read_metadata(weights).get("tokenizer") != vocabulary.fingerprint():
        raise MismatchError(
            f"{folder}/tokenizer.json: does not belong to the weights beside it; restore the file of the run"
        )

    # The embedding and the layer are taken over by name; the output layer only if task and vocabulary agree.
    prefixes = (*PREFIXES, CHARACTERS)
    tensors = load_tensors(weights)
    refuse_nonfinite(tensors, weights)
    parameters = {name: value for name, value in tensors.items() if name.startswith(prefixes)}
    others = {name: value for name, value in tensors.items() if name not in parameters}

    # The tokens of the run are those of the new one, so that other settings of a tokenizer would mean nothing.
    for name, field in Tokenizer.model_fields.items():
        value, expected = getattr(config.tokenizer, name), getattr(theirs.tokenizer, name)
        if value not in (field.default, expected):
            raise ConflictError(
                f"tokenizer.{name}: {value} contradicts training.init, as the tokenizer of {folder} has {expected}; "
                "leave it out"
            )
    return Initial(folder, theirs, vocabulary, parameters, others)


def _shape(value: Tensor | None) -> str:
    return "" if value is None else str(tuple(value.shape))

"""What models that are fitted directly have in common: opening them, their options, defaults and description."""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from torch import Tensor, nn

from ..config import Config, Section
from ..core.errors import DamagedError, InputError, NotSupportedError, UnknownNameError, nearest
from ..data.vocabulary import Vocabulary
from ..layers.option_types import task_options
from ..layers.registry import DISTANCES, TOKENS, WIDTH, resolve_options
from ..storage.weights import load_tensors, refuse_nonfinite
from .defaults import with_kind, with_model
from .task import ModelBuilder

Options = TypeVar("Options", bound=Section)


class FittedBuilder(ModelBuilder[nn.Module]):
    """Opens models that are fitted directly: their parameters, of which the number is not known before, are read whole.

    `Fitter.fit` writes them.
    """

    refuses_nonfinite: bool = True  # whether all values are read at once, and NaN and infinity refused

    def build(self, vocabulary: Vocabulary) -> nn.Module:
        """Return a model without parameters."""
        return nn.Module()

    @abstractmethod
    def open(self, tensors: Mapping[str, Tensor], vocabulary: Vocabulary) -> nn.Module:
        """Return the model with these parameters by name; raise ValueError if they are damaged, or of another model."""

    def load(self, vocabulary: Vocabulary, weights: Path) -> nn.Module:
        """Open the parameters in a file."""
        tensors = load_tensors(weights)
        if self.refuses_nonfinite:
            refuse_nonfinite(tensors, weights)
        try:
            return self.open(tensors, vocabulary)
        except InputError:
            raise
        except ValueError as error:
            raise DamagedError(f"{weights}: {error}; restore the file of the run") from None

    def combine(self, models: Sequence[nn.Module]) -> nn.Module:
        """Refuse to combine models, whose features or rules differ."""
        raise NotSupportedError(f"ensembles are not supported for the layer {self.config.model.layer}; give one run")


def read_options(section: type[Options], config: Config) -> Options:
    """Read ``model.options`` of a standalone model, and refuse one that does not exist or does not fit."""
    options, rest = resolve_options(section, (), config.model.options)
    for key in rest:
        raise UnknownNameError(f"model.options.{key}: no such option; {nearest(key, list(section.model_fields))}")
    return options


def fitted_defaults(section: type[Section], config: Config, kind: str | None) -> Config:
    """Fill in the defaults: tokens of a kind (None: chosen from the data), all options, and the precision float32."""
    config = with_model(with_kind(config, kind), options=read_options(section, config).model_dump())
    return config.model_copy(update={"training": config.training.model_copy(update={"precision": "float32"})})


def describe_fitted(
    name: str,
    *,
    keeps: str,
    paper: str,
    section: type[Section],
    state_bytes: int | None = None,
    path_length: Callable[[int], int | None] = lambda distance: None,
) -> dict[str, object]:
    """Return what `seriatim.layers.describe` returns of layers, for a model that is not built from layers.

    ``state_bytes`` is the size of its state after any number of tokens, and ``path_length`` the number of steps that
    connect two tokens at a distance; None where the model reads a sequence as a whole.
    """
    return {
        "name": name,
        "keeps": keeps,
        "parallel": True,
        "paper": paper,
        "hidden_size": WIDTH,
        "state_bytes": {str(count): state_bytes for count in TOKENS},
        "path_lengths": {str(distance): path_length(distance) for distance in DISTANCES},
        "options": section().model_dump(),
        "option_details": {key: option.describe() for key, option in task_options(section).items()},
    }

"""What is compared with what, and under which budget: settled before anything is trained, and kept in the folder."""

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from ..config import Config, Count, Positive, Section, explain, read_yaml, resolve
from ..core.errors import InputError, nearest
from ..data.builtin import SPLITS
from ..layers import current, names, options_of
from ..layers.origins import registered
from ..storage.plain_yaml import dump_plain
from ..tasks import TASKS
from ..tasks.counting import LAYER as COUNTED
from ..tasks.counting import Options as CountingOptions
from ..training.optimizers import default_rate as default_of_layer
from ..version import __version__
from .row_names import bare, check_width, parts

FORMAT = "seriatim comparison 1"
DEFAULT_MINUTES = 2.0
BUDGETS = ("minutes", "tokens", "steps")


class Sized(Section):
    """One layer with its sizes as solved.

    ``options`` are those of the model's that the layer, or the task, knows.
    """

    hidden_size: Count
    embedding_size: Count
    options: dict[str, Any] = Field(default_factory=dict)
    learning_rate: Positive | None = None
    parameters: int | None = None


class Budget(Section):
    """What each layer may spend: one of three."""

    minutes: Positive | None = None
    tokens: Annotated[int, Field(ge=1, lt=2**53, strict=True)] | None = None
    steps: Count | None = None

    def given(self) -> dict[str, Any]:
        """The one that is given."""
        return self.model_dump(exclude_none=True)


class Plan(Section):
    """A comparison.

    ``base`` is the configuration of every training but for the layer, its sizes and its budget. ``automatic`` names the
    fields of it that follow from the number of steps, which is not known before a layer's speed is. ``parameters`` is
    what the widths were solved for; None where only counting is compared.
    ``described`` is how much there is to learn from, in words. ``digests`` identify the data that every row shares:
    the tokenizer, the training data, the held-out data and the data that rows are measured on.
    """

    format: Literal["seriatim comparison 1"] = "seriatim comparison 1"
    version: str = __version__
    command: str = ""
    base: Config
    layers: list[str]
    sized: dict[str, Sized] = Field(default_factory=dict)
    budget: Budget
    parameters: int | None = None
    seeds: list[int]
    tune: int | None = None
    metric: str
    described: str = ""
    digests: dict[str, str] = Field(default_factory=dict)
    automatic: list[str] = Field(default_factory=list)

    def config(self, layer: str, seed: int) -> Config:
        """The configuration of one training, without its budget and its folder."""
        sized, counted = self.sized[layer], layer == COUNTED
        model: dict[str, Any] = {"layer": bare(layer).replace("+", ","), "options": sized.options}
        if not counted:
            model |= {"hidden_size": sized.hidden_size, "embedding_size": sized.embedding_size}
        tree = self.base.model_dump(exclude={"out"})
        tree["model"] |= model
        tree["training"] |= {"seed": seed, "learning_rate": sized.learning_rate}
        return resolve(tree)

    def measured(self) -> tuple[str, str]:
        """What the layers are measured on, and the part of it that is taken where it has several."""
        data = self.base.data
        if data.test is not None:
            return data.test, "test"
        train = data.train or ""
        if train.startswith("builtin:") and train.count(":") == 1 and data.valid is None:
            return train, "test"
        assert data.valid is not None
        return data.valid, "valid"

    def measured_in_words(self) -> str:
        """The same, for people."""
        spec, part = self.measured()
        whole = spec.startswith("builtin:") and spec.rsplit(":", 1)[-1].split("-")[0] not in SPLITS
        return f"{spec}, part {part}" if whole else spec

    def to_yaml(self) -> str:
        """The text of `comparison.yaml`."""
        return dump_plain(self.model_dump(exclude={"base": {"out"}}))


def read_plan(folder: Path) -> Plan:
    """The plan of a comparison's folder.

    Raises:
        InputError: there is none, or it is damaged.
    """
    path = folder / "comparison.yaml"
    if not path.is_file():
        raise InputError(f"{folder}: not a comparison (no comparison.yaml); give the folder that seriatim compare made")
    tree = read_yaml(path)
    if tree.get("format") != FORMAT:
        raise InputError(
            f"{path}: has another format than this version writes; start a new comparison with another --out"
        )
    refuse_version(path, tree.get("version"))
    try:
        return Plan.model_validate(tree)
    except ValidationError as error:
        raise InputError(
            f"{path}: {explain(error)}; restore it, or start the comparison again with --overwrite"
        ) from None


def refuse_version(path: Path, found: object) -> None:
    """Raises InputError for what another version made: its figures would stand beside those of this one."""
    if found != __version__:
        raise InputError(
            f"{path}: was made by Seriatim {found}, and this is {__version__}; figures of two versions cannot be "
            "compared; start a new comparison with another --out"
        )


def check_layers(layers: Sequence[str], task: str) -> list[str]:
    """The rows of a list: ``A+B`` for a stack that mixes two layers, ``A@32`` for a layer of width 32.

    Raises:
        InputError: no layer, one that is unknown, or one that is named twice.
    """
    found = [current(layer.replace("+", ",")).replace(",", "+") for layer in map(str.strip, layers) if layer]
    if not found:
        raise InputError("--layers: no layer is named; for instance --layers rnn,lstm,transformer (seriatim layers)")
    known = [*names(), COUNTED]
    for layer in found:
        check_width(layer)
        for part in parts(layer):
            if part not in known:
                raise InputError(f"--layers: unknown layer {part!r}; {nearest(part, known)}")
            if part == COUNTED and (layer != COUNTED or task != "lm"):
                raise InputError(f"--layers: {COUNTED} is a language model by itself; take it alone, with task lm")
    twice = next((layer for layer in found if found.count(layer) > 1), None)
    if twice is not None:
        raise InputError(f"--layers: {twice} is named twice; leave one out")
    return found


def own_layers(layers: Sequence[str], base: Config) -> list[str]:
    """The names of the user's own layers among those that a comparison builds, decoders included."""
    decoder = base.model.options.get("decoder")
    used = {name for layer in [*layers, *([decoder] if isinstance(decoder, str) else [])] for name in parts(layer)}
    return [name for name in registered() if name in used]


def share_options(layers: Sequence[str], options: Mapping[str, Any], task: str) -> dict[str, dict[str, Any]]:
    """Which of the model's options go to which layer: those that it knows, and the task's own.

    Raises:
        InputError: an option that none knows.
    """
    kind = TASKS[task].own_options
    own = set() if kind is None else set(kind.model_fields)
    known = {
        layer: set(CountingOptions.model_fields) if layer == COUNTED else _known(layer, options) for layer in layers
    }
    everything = own.union(*known.values())
    for name in options:
        if name not in everything:
            hint = nearest(name, sorted(everything))
            raise InputError(f"model.options.{name}: none of {', '.join(layers)} has such an option; {hint}")
    return {layer: {name: value for name, value in options.items() if name in known[layer] | own} for layer in layers}


def _known(layer: str, options: Mapping[str, Any]) -> set[str]:
    decoder = options.get("decoder")
    stacks = [layer, decoder] if isinstance(decoder, str) else [layer]
    return {key for one in itertools.chain(*map(parts, stacks)) for key in options_of(one, options)}


def default_rate(layer: str, base: Config) -> float | None:
    """The learning rate of a layer: the one given for all, or its default for the task; None for counting."""
    if base.training.learning_rate is not None or layer == COUNTED:
        return base.training.learning_rate
    return default_of_layer(base, bare(layer).replace("+", ","))

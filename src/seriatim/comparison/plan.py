"""The plan of a comparison: layers, sizes, budget, seeds and data, stored as `comparison.yaml`.

A row of a comparison has a name: ``lstm``, ``mamba+transformer`` for a stack that mixes two layers, ``lstm@32`` for a
layer of width 32.
"""

from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field, ValidationError

from ..config import Config, Count, Positive, Section, explain, read_yaml, resolve
from ..core.errors import InputError
from ..data.builtin import SPLITS
from ..layers import split_names
from ..layers.origins import Origin
from ..storage.plain_yaml import dump_plain
from ..tasks import STANDALONE, find
from ..training.task import AnyTask
from ..version import __version__

FORMAT = "seriatim comparison 1"
WIDTH = "@"
"""The sign between a layer and its width in the name of a row."""


class DataPart(NamedTuple):
    """The name of some data (a file, a folder or a built-in corpus), and the part of a built-in corpus to read."""

    spec: str
    part: str

    def __str__(self) -> str:
        """Return the name, with the part where the name does not say it."""
        names_part = self.spec.rsplit(":", 1)[-1].split("-")[0] in SPLITS
        return f"{self.spec}, part {self.part}" if self.spec.startswith("builtin:") and not names_part else self.spec


class Sized(Section):
    """A layer with its sizes. ``options`` are the model options that the layer or the task accepts."""

    hidden_size: Count
    embedding_size: Count
    options: dict[str, Any] = Field(default_factory=dict)
    learning_rate: Positive | None = None
    parameters: int | None = None


class Budget(Section):
    """The budget of each layer: minutes of training, tokens or steps. Exactly one is set."""

    minutes: Positive | None = None
    tokens: Annotated[int, Field(ge=1, lt=2**53, strict=True)] | None = None
    steps: Count | None = None

    def amount(self) -> dict[str, float]:
        """Return the field that is set, with its value."""
        return self.model_dump(exclude_none=True)


class Plan(Section):
    """A comparison.

    Attributes:
        base: the configuration that all trainings share, without layer, sizes and budget.
        sized: the sizes of each row, by its name.
        parameters: the target of the solved widths; None where no layer is trained.
        described: the amount of training data, in words.
        digests: identify the data of the comparison: ``tokenizer``, ``train``, ``valid`` and ``measured``.
        code: where layers from outside the library are defined; see `seriatim.layers.origins`.
        automatic: fields of ``base`` that were not set, and that depend on the speed or the sizes of a layer.
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
    code: list[dict[str, str | None]] = Field(default_factory=list)

    def origins(self) -> list[Origin]:
        """Return where the layers from outside the library are defined."""
        return [Origin.from_record(record, "comparison.yaml") for record in self.code]

    def config(self, row: str, seed: int | None = None) -> Config:
        """Return the configuration of one training, without budget and folder; the first seed by default."""
        sized = self.sized[row]
        tree = self.base.model_dump(exclude={"out"})
        tree["model"] |= {"layer": stack_name(row), "options": sized.options}
        if not is_counted(row):
            tree["model"] |= {"hidden_size": sized.hidden_size, "embedding_size": sized.embedding_size}
        tree["training"] |= {"seed": self.seeds[0] if seed is None else seed, "learning_rate": sized.learning_rate}
        return resolve(tree)

    def task(self, row: str | None = None) -> AnyTask:
        """Return the task of a row, by default of the first one."""
        return find(self.config(self.layers[0] if row is None else row))

    def measured(self) -> DataPart:
        """Return the data that rows are measured on: the test data, or else the held-out data."""
        data = self.base.data
        if data.test is not None:
            return DataPart(data.test, "test")
        train = data.train or ""
        if train.startswith("builtin:") and train.count(":") == 1 and data.valid is None:
            return DataPart(train, "test")
        assert data.valid is not None
        return DataPart(data.valid, "valid")

    def to_yaml(self) -> str:
        """Return the text of `comparison.yaml`."""
        return dump_plain(self.model_dump(exclude={"base": {"out"}}))


def read_plan(folder: Path) -> Plan:
    """Read the plan of a comparison from its folder.

    Raises:
        InputError: the folder has no plan, the plan is damaged, or another version wrote it.
    """
    path = folder / "comparison.yaml"
    if not path.is_file():
        raise InputError(f"{folder}: not a comparison (no comparison.yaml); give a folder that seriatim compare wrote")
    tree = read_yaml(path)
    if tree.get("format") != FORMAT:
        raise InputError(
            f"{path}: its format differs from the one this version writes; start a new comparison with another --out"
        )
    check_version(path, tree.get("version"))
    try:
        return Plan.model_validate(tree)
    except ValidationError as error:
        raise InputError(f"{path}: {explain(error)}; restore it, or start again with --overwrite") from None


def check_version(path: Path, version: object) -> None:
    """Raise InputError where another version wrote a file, because its figures cannot be compared with present ones."""
    if version != __version__:
        raise InputError(
            f"{path}: was made by Seriatim {version}, and this is {__version__}; figures of two versions cannot be "
            "compared; start a new comparison with another --out"
        )


def architecture(row: str) -> str:
    """Return the name of a row without its width."""
    return row.partition(WIDTH)[0]


def stack_name(row: str) -> str:
    """Return the layers of a row as ``model.layer`` names them: ``mamba,transformer``."""
    return architecture(row).replace("+", ",")


def parts(row: str) -> list[str]:
    """Return the layers of a row, of which a mixed stack has several."""
    return split_names(stack_name(row))


def width_of(row: str) -> int | None:
    """Return the width in the name of a row; None where the width is solved for equal parameters."""
    _, sign, width = row.partition(WIDTH)
    return int(width) if sign else None


def is_counted(row: str) -> bool:
    """Return whether the model of a row is counted in one pass instead of trained by gradients."""
    return row in STANDALONE

"""What an inspection is about: a run, and the part of a text that is inspected."""

import functools
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeVar

from ..core.errors import EmptyError, InputError, RangeError, check_text
from ..data.sources import check_named_by_run
from ..data.text import normal_line_ends
from ..evaluation.context_use import ContextExcess
from ..layers.outside_code import AllowCode
from ..pages.page import PageBlock
from ..pages.strip import Lens
from ..pages.wording import short_name
from ..runs.run import Run, load
from ..tasks.explainer import Examples, Explainer, LabelledData
from ..version import __version__

Result = TypeVar("Result")
ALONE = "the network alone"
"""What a run without its simple baseline is called."""


class SectionBody(NamedTuple):
    """The blocks of one section of a page, and lenses for the strip of the first screen.

    Lenses count tokens as the strip does: those that the model reads come first, in their order. Of a language model
    the first one is the boundary symbol, so that what is about predicted tokens begins at token 1.
    """

    blocks: list[PageBlock]
    lenses: Sequence[Lens] = ()


class ReferenceAnswer(NamedTuple):
    """The right answers to a text: its label, the tags of its words, or its translations; the name of the data."""

    answers: Sequence[str]
    data: str


@dataclass(frozen=True)
class InspectedRun:
    """A run, the part of a text that is inspected (see `Explainer.inspected`), and sentences on what is left out.

    For the rest see `inspect`.
    """

    run: Run
    text: str
    notes: tuple[str, ...]
    beam: int
    data: str | None = None
    file_format: str | None = None
    permutations: int = 0

    @functools.cached_property
    def explainer(self) -> Explainer:
        """What can be shown of the run's model."""
        return explainer_of(self.run)

    @property
    def inputs(self) -> Examples:
        """The text as the model reads it."""
        return self.explainer.require(self.explainer.inputs)

    @property
    def labelled(self) -> LabelledData:
        """What reads data with right answers."""
        return self.explainer.require(self.explainer.labelled)

    @functools.cached_property
    def item(self) -> object:
        """What the sections read: the text, for a translator together with the answer that its search finds."""
        return (self.text, self.answer) if self.explainer.searches else self.text

    @functools.cached_property
    def answer(self) -> str:
        """The answer that the search of a translator finds."""
        return self.explainer.require(self.explainer.search)(self.text, self.beam).text

    @property
    def is_blended(self) -> bool:
        """Whether the run answers with its network together with its simple baseline."""
        return self.run.answering is not self.run.model

    @property
    def layer(self) -> str:
        """The name of the layer or standalone model of the run."""
        return self.run.config.model.layer

    def held_out(self) -> str | None:
        """Return the data to find mistakes in: the given data, or the run's own test or held-out data."""
        source = self.data or self.run.config.data.test or self.run.task.files.validation_source()
        return source if self.data or source != "-" else None

    @property
    def held_out_name(self) -> str:
        """The name of the data of `held_out` for a reader, without folders; it says which split of a corpus is read."""
        source = self.held_out()
        name = short_name(self.run.task.files.name_of(source))
        return f"{name}, part test" if source and source.startswith("builtin:") and source.count(":") == 1 else name

    def check_held_out(self, source: str) -> None:
        """Raise an InputError if the run itself names data that must not be read without being asked for."""
        if not self.data:
            check_named_by_run(self.run.task.files.subset(source, "test").source, f"{self.run.path}/config.yaml")

    def from_held_out(self, read: Callable[[str, str | None], Result]) -> Result | None:
        """Return what a capability reads of the held-out data; None if there are none or it cannot read them.

        The arguments of ``read`` are the data and their format.
        """
        source = self.held_out()
        if source is None:
            return None
        try:
            self.check_held_out(source)
            return read(source, self.file_format)
        except InputError:  # the section on mistakes reports it
            return None

    @functools.cached_property
    def context_excess(self) -> ContextExcess | None:
        """How much short contexts cost on the held-out data; None if this is not measured."""
        explainer = self.explainer
        return self.from_held_out(lambda *data: explainer.require(explainer.context_excess)(*data))

    def reference_answer(self) -> ReferenceAnswer | None:
        """Return the right answer to the inspected text; None if the held-out data lack it or cannot be read."""
        answers = self.from_held_out(lambda *data: self.labelled.reference_answer(self.text, *data))
        return None if answers is None else ReferenceAnswer(answers, self.held_out_name)

    def held_out_items(self, count: int, tokens: int) -> list[object]:
        """Return items of the held-out data; see `LabelledData.held_out`. There are none if the data cannot be read."""
        items = self.from_held_out(lambda *data: self.labelled.held_out(*data, count=count, tokens=tokens))
        return list(items or [])


def explainer_of(run: Run) -> Explainer:
    """Return what can be shown of a run's model."""
    return run.task.explainer(run.model, run.vocabulary, run.answering)


def prepare(
    run: Run, text: str, *, beam: int, data: str | None, file_format: str | None, permutations: int = 0
) -> InspectedRun:
    """Check a run, a text and the beam, and cut the text to the size that is inspected."""
    if beam < 1:
        raise RangeError(f"--beam: {beam} is too small; give 1 or more")
    check_text(text, "text")
    text = run.task.files.given_text(run.vocabulary, normal_line_ends(text), "--text")
    if not text.strip():
        raise EmptyError("the text is empty; give some with --text or --text-file")
    text, notes = explainer_of(run).inspected(text)
    return InspectedRun(run, text, tuple(notes), beam, data, file_format, permutations)


def open_run(run: Run | str | Path, *, allow_code: AllowCode = False) -> tuple[Run, tuple[str, ...]]:
    """Open a run as `seriatim.load` does; warn if another version wrote it, and return sentences on what may differ."""
    run = run if isinstance(run, Run) else load(run, allow_code=allow_code)
    version = (run.summary.get("versions") or {}).get("seriatim", __version__)
    if version == __version__:
        return run, ()
    differs = f"{run.path}: made by seriatim {version}, and this is {__version__}"
    warnings.warn(f"{differs}; its results may differ from those of that version", stacklevel=3)
    return run, (f"The run was made by seriatim {version}, and this page by {__version__}.",)

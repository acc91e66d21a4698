"""What models of a task answer: the items that are answered, the answers, and what a comparison needs of them."""

import functools
import warnings
from abc import ABC
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Generic, TypeVar

from torch import nn

from ..core.errors import InputError
from ..data.arguments import check_text
from ..data.normal_forms import note_other_form
from ..data.readers import Source, read_items
from ..data.repairs import Repairs, with_warnings
from ..data.vocabulary import Vocabulary
from ..evaluation.intervals import Metrics
from .data_parts import DataParts

Model = TypeVar("Model", bound=nn.Module)


class TaskAnswers(DataParts, ABC, Generic[Model]):
    """The part of a `Task` that answers."""

    tags_words: ClassVar[bool] = False  # whether an answer has one tag for each word of the input

    def new_repairs(self, vocabulary: Vocabulary | None = None) -> Repairs:
        """Return an empty record of repairs, which refuses them if ``data.strict`` says so, and notes boundary markers.

        Given a vocabulary, it also notes texts in another normal form.
        """
        repairs = Repairs(strict=self.config.data.strict)
        repairs.looks_for_markers = True
        if vocabulary is not None:
            repairs.examine = functools.partial(note_other_form, vocabulary=vocabulary, repairs=repairs)
        return repairs

    def items(
        self, sources: Sequence[Source], file_format: str | None, vocabulary: Vocabulary, repairs: Repairs
    ) -> Iterator[object]:
        """Read the items to answer: the lines of a text, or the texts of JSONL; other formats raise InputError."""
        self.refuse_format(file_format)
        return read_items(sources, repairs)

    def items_for(self, vocabulary: Vocabulary, sources: Sequence[Source], file_format: str | None) -> Iterator[object]:
        """Read the items that a model with this vocabulary answers, and warn of repairs at the end."""
        read = functools.partial(self.items, sources, file_format, vocabulary)
        return with_warnings(read, self.input_repairs(vocabulary, sources, read))

    def input_repairs(
        self, vocabulary: Vocabulary, sources: Sequence[Source], read: Callable[..., Iterable[object]]
    ) -> Repairs:
        """Return a record of repairs for the inputs of a model, which ``read(repairs=...)`` reads from some files."""
        repairs = self.new_repairs(vocabulary)
        is_live = any(source.is_live for source in sources)  # then no text can be read twice
        if not self.tags_words:  # every word has an answer
            with warnings.catch_warnings():  # of what is read again
                warnings.simplefilter("ignore")
                repairs.markers = self.markers_in([] if is_live else [map(str, read(repairs=Repairs()))])
        return repairs

    def given_text(self, vocabulary: Vocabulary, text: str, name: str) -> str:
        """Return a text of the command line as the data of a model are read, and warn of it; messages name ``name``."""
        repairs = self.new_repairs(vocabulary)
        repairs.markers = self.markers_in([])
        if repairs.markers is None:
            repairs.note_markers(text, name, 1)
        text = repairs.text(text, name, 1)
        repairs.warn()
        return text

    def refuse_format(self, file_format: str | None) -> None:
        """Raise InputError for a format other than plain lines, whose lines would be answered as something else."""
        if file_format not in (None, "auto", "text", "jsonl"):
            raise InputError(f"--format {file_format}: {self.config.task} answers lines; give text or jsonl")

    def check_item(self, item: object, name: str) -> None:
        """Raise InputError for an item from Python that `answer` cannot read: by default, anything but a text.

        The message calls the item ``name``.
        """
        check_text(item, name)

    def answer(self, model: Model, vocabulary: Vocabulary, items: Sequence[Any], **settings: object) -> list[Metrics]:
        """Answer each item, a value that `check_item` accepts, if the task has answers.

        Args:
            model: of the task.
            vocabulary: of the model.
            items: the items.
            settings: fields of `answer_settings`.

        Returns:
            For each item ``text``, which the command prints, and details.
        """
        raise InputError(f"predict: the task {self.config.task} does not support it; use generate or score")

    # Comparison

    def labelled_items(self, spec: str, split: str) -> Iterator[tuple[str, str]]:
        """Yield inputs, as `answer` reads them, with the right answers; nothing where answers have no truth."""
        return iter(())

    def measured_items(self, vocabulary: Vocabulary, spec: str, split: str) -> Iterator[tuple[str, Sequence[str]]]:
        """Yield the items that `Task.measures` counts, as `answer` reads them, each with its right answers.

        Labels are spelled as a model with this vocabulary spells them.
        """
        return ((text, (truth,)) for text, truth in self.labelled_items(spec, split))

    def labels_of(self, answer: str) -> Sequence[str] | None:
        """Return the labels in an answer, or in a right answer of `labelled_items`; None if answers are no labels.

        Two answers to one input have equal numbers of labels, which a comparison counts by class.
        """
        return None

    def timed_tokens(self, vocabulary: Vocabulary, text: str, answer: Mapping[str, object]) -> int:
        """Return the number of tokens that the time of an answer is divided by."""
        return len(vocabulary.tokenizer.encode(text))

"""Reading tagged sentences for a task."""

from abc import abstractmethod
from collections.abc import Iterator, Sequence

from ..data.conll import Sentence, read_sentences
from ..data.holding_out import is_held_out, share_of
from ..data.repairs import Repairs
from ..data.tag_sets import TagSet, marks_chunks
from ..data.vocabulary import Vocabulary
from ..training.task import Batch, Data, Model
from .base_tasks import LabelledTask


class TaggedFiles(LabelledTask[Data, Batch, Model]):
    """A task on sentences whose words have tags."""

    @property
    @abstractmethod
    def scheme(self) -> str:
        """The scheme of tags that mark chunks; see `read_sentences`."""

    def sentences(
        self,
        spec: str,
        split: str,
        file_format: str | None = None,
        repairs: Repairs | None = None,
        labels: Sequence[str] | None = None,
    ) -> Iterator[Sentence]:
        """Read the sentences of ``spec`` with their tags; see `read_sentences` for ``labels`` and ``repairs``."""
        data = self.config.data
        wanted, part = file_format or data.format, self.part(spec, split)
        sentences = read_sentences(
            self.sources(part.spec, part.split, wanted),
            file_format=wanted,
            column=data.column,
            scheme=self.scheme,
            labels=labels,
            exact=data.spellings == "exact",
            repairs=repairs or self.new_repairs(),
        )
        return part.chosen(sentences, lambda sentence: " ".join(sentence.words))

    def labelled_items(self, spec: str, split: str) -> Iterator[tuple[str, str]]:
        """Yield sentences with their tags, both as words in one line."""
        return ((" ".join(one.words), " ".join(one.tags)) for one in self.sentences(spec, split))

    def measured_items(self, vocabulary: Vocabulary, spec: str, split: str) -> Iterator[tuple[str, Sequence[str]]]:
        """Yield sentences with their tags as the vocabulary spells them, both as words in one line."""
        sentences = self.sentences(spec, split, labels=vocabulary.labels)
        return ((" ".join(one.words), (" ".join(one.tags),)) for one in sentences)

    def has_content(self, spec: str, split: str) -> bool:
        """Return whether there is a sentence; held-out ones must have tags that can be measured: see `check`."""
        if split == "train":
            return super().has_content(spec, split)
        trained = {tag for sentence in self.sentences(self.training_spec(), "train") for tag in sentence.tags}
        labels = sorted(trained)
        held_out = [tag for sentence in self.sentences(spec, split, labels=labels) for tag in sentence.tags]
        return not trained.isdisjoint(held_out) and (marks_chunks(held_out) or not TagSet.known(labels).style)

    def why_undivided(self, share: str, *, none_held_out: bool) -> str:
        """Say that the part would have no tag in common with the rest, or no chunk; or see `LabelledTask`."""
        rows = (row for row, _ in self.labelled_items(self.training_spec(), "train"))
        if none_held_out and any(is_held_out(row, share_of(share)) for row in rows):
            return "none of its tags would be in the rest, or no chunk in it"
        return super().why_undivided(share, none_held_out=none_held_out)

"""Reading texts: one running text, or lines that are sequences of their own."""

import functools
from collections import deque
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from ..config import Config
from ..core.errors import MismatchError
from ..core.json_object import JsonObject
from ..data.batches import Windows, cut
from ..data.corpus import SAMPLED, Corpus, count_text, describe_tokenizer_sample, encode_corpus, fit_corpus_tokenizer
from ..data.encoding import BLOCK
from ..data.repairs import Repairs
from ..data.source_content import find_repairs
from ..data.spellings import note_other_form
from ..data.text import Source, read_chunks, read_items, read_lines, read_whole_lines
from ..data.tokenizers import END
from ..data.vocabulary import Vocabulary
from ..evaluation.token_scores import counted
from .data_files import (
    check_lengths,
    declared_positions,
    end_split,
    explain_equal_rows,
    line_split,
    text_size,
    usual_fraction,
    usual_fraction_of_text,
    warn_of_long,
)
from .task import Data, Reader


class TextReader(Reader[Data]):
    """Reads one running text, or lines of text (``data.unit``)."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.unit = config.data.unit

    def default_split(self) -> str:
        """Return the fraction of lines, or of a running text if it is long enough."""
        sources = self.files.sources(self.files.training_source(), "train")
        if self.unit == "line":
            return usual_fraction(sum(text.count("\n") for text in read_whole_lines(sources)))
        return usual_fraction_of_text(text_size(sources))

    def has_content(self, source: str, split: str) -> bool:
        """Return whether there is text beside white space."""
        return any(chunk.text.strip() for chunk in read_chunks(self.sources(source, split)))

    def explain_empty_split(self, fraction: str, *, none_held_out: bool) -> str:
        """Say that all lines are equal, or where a running text has no line."""
        sources = self.files.sources(self.files.training_source(), "train")
        if self.divides_lines(sources):
            lines = [line for line in read_lines(sources) if line.strip()]
            return explain_equal_rows(lines, "lines", none_held_out=none_held_out)
        return f"no line of text begins {'in' if none_held_out else 'before'} its last {fraction}"

    def divides_lines(self, sources: list[Source]) -> bool:
        """Return whether lines are held out, and not the end of a running text."""
        return self.unit == "line" or any(source.format == "jsonl" for source in sources)

    def texts(self, source: str, split: str, file_format: str | None = None) -> list[Iterable[str]]:
        """Return the lines of a text as they are written."""
        subset = self.files.subset(source, split)
        return [read_lines(self.files.sources(subset.source, subset.split, file_format))]

    def whole_sources(self, source: str, split: str, file_format: str | None = None) -> list[Source]:
        """Find the files of some text, of which a fraction may be held out."""
        subset = self.files.subset(source, split)
        markers = self.files.markers_in(self.texts(source, split, file_format))
        sources = self.files.sources(subset.source, subset.split, file_format)
        return [one._replace(markers=markers) for one in sources]

    def sources(self, source: str, split: str, file_format: str | None = None) -> list[Source]:
        """Find the files of some text; of a running text the end is held out, else lines."""
        subset, sources = self.files.subset(source, split), self.whole_sources(source, split, file_format)
        if not subset.fraction:
            return sources
        if self.divides_lines(sources):
            return [line_split(one, subset.fraction, held_out=subset.held_out) for one in sources]
        return end_split(sources, subset.fraction, held_out=subset.held_out)

    def learn_vocabulary(self) -> Vocabulary:
        """Learn the tokenizer from the training text."""
        sources = self.sources(self.files.training_source(), "train")
        return Vocabulary({"tokenizer": fit_corpus_tokenizer(sources, self.config.tokenizer, unit=self.unit)})

    def read_corpus(self, source: str, split: str, vocabulary: Vocabulary, *, file_format: str | None = None) -> Corpus:
        """Read and encode a text, which must have a known token; see `Reader.read`. Warn of repairs."""
        repairs = self.find_repairs(source, split, file_format)
        sources, tokenizer = self.sources(source, split, file_format), vocabulary.tokenizer
        corpus = encode_corpus(sources, tokenizer, unit=self.unit)
        corpus.repairs = repairs

        # Texts in another normal form have unknown tokens, or, where no token is unknown, cost more tokens. The text is
        # read again for their positions; the training text itself has the form that the vocabulary was learned from.
        is_other = source != self.config.data.train and not self.files.subset(source, split).held_out
        if is_other and (tokenizer.unknown_id is None or corpus.statistics.unknown_tokens):
            again = Repairs()  # what is found is known from above
            again.examine = functools.partial(note_other_form, vocabulary=vocabulary, repairs=repairs)
            deque(read_items(sources, again), maxlen=0)
        repairs.warn()
        if not corpus.statistics.unknown_tokens:
            return corpus

        blocks = (corpus.ids[start : start + BLOCK] for start in range(0, len(corpus.ids), BLOCK))
        if not any(np.any((block != END) & (block != tokenizer.unknown_id)) for block in blocks):
            raise MismatchError(
                f"{sources[0].name}: all its {tokenizer.kind}s are unknown; check the file, lower "
                "tokenizer.min_count, or raise tokenizer.vocabulary_size"
            )
        return corpus

    def location(self, corpus: Corpus, row: int, source: str, split: str, file_format: str | None) -> str:
        """Return the file and line of a line of a text, also of one whose lines are in part held out."""
        subset = self.files.subset(source, split)
        return corpus.location(row, self.files.sources(subset.source, subset.split, file_format))

    def find_repairs(self, source: str, split: str, file_format: str | None = None) -> Repairs:
        """Return the repairs that a text needs; none of a held-out fraction, whose file the training split has, too.

        Raises:
            InputError: the text needs a repair, and ``data.strict`` refuses them.
        """
        repairs = self.files.new_repairs()
        if not self.files.subset(source, split).held_out:
            find_repairs(self.whole_sources(source, split, file_format), repairs)
        return repairs

    def check_readable(self, source: str, split: str) -> None:
        """Read the text and discard it; see `Reader.check_readable`."""
        for _ in read_chunks(self.sources(source, split)):
            pass
        self.find_repairs(source, split)

    def count(self, source: str, split: str, vocabulary: Vocabulary) -> dict[str, object]:
        """Return the statistics of a text, and its repairs."""
        sources = self.sources(source, split)
        counts = count_text(sources, vocabulary.tokenizer, unit=self.unit)
        counts |= self.find_repairs(source, split).lines()
        if split == "train" and (sample := self.describe_sample(sources)):
            counts["tokenizer_sample"] = sample
        return counts

    def describe_sample(self, sources: Sequence[Source]) -> str:
        """Say which fraction of a large text subwords are learned from; empty if that is all."""
        if self.config.training.init is not None or self.config.tokenizer.kind not in SAMPLED or not sources:
            return ""
        return describe_tokenizer_sample(sources, self.config.tokenizer, unit=self.unit)


class CorpusReader(TextReader[Corpus]):
    """Reads texts for models that read forwards: language models and n-grams."""

    def read(self, source: str, split: str, vocabulary: Vocabulary, *, file_format: str | None = None) -> Corpus:
        """Read and encode a text, and refuse lines with more tokens than learned positions; see `Reader.read`."""
        corpus = self.read_corpus(source, split, vocabulary, file_format=file_format)
        lengths, items = corpus.lengths(1), "lines" if self.unit == "line" else "texts"
        warn_of_long(lengths, self.config, name=self.files.name_of(source), items=items)
        location = functools.partial(self.location, corpus, source=source, split=split, file_format=file_format)
        check_lengths(declared_positions(self.config.model.options), lengths, location)
        return corpus

    def describe(self, data: Corpus) -> str:
        """Return the number of tokens and words."""
        return _size(data)

    def tokenizer_sample(self, train: Corpus) -> str:
        """See `TextReader.describe_sample`."""
        return self.describe_sample(train.sources)

    def training_statistics(self, train: Corpus) -> JsonObject:
        """Return the number of documents; the end of a text is learned from several only."""
        return {"documents": train.statistics.documents}


class WindowReader(TextReader[Windows]):
    """Reads texts for masked language models, in windows of at most ``training.sequence_length`` tokens."""

    def read(self, source: str, split: str, vocabulary: Vocabulary, *, file_format: str | None = None) -> Windows:
        """Read and encode a text in windows; see `Reader.read`."""
        corpus = self.read_corpus(source, split, vocabulary, file_format=file_format)
        return cut(corpus, self.config.training.sequence_length)

    def describe(self, data: Windows) -> str:
        """Return the number of tokens and windows."""
        return f"{_size(data.corpus)} in {len(data.starts):,} windows"

    def items(
        self, sources: Sequence[Source], file_format: str | None, vocabulary: Vocabulary, repairs: Repairs
    ) -> Iterator[object]:
        """Read lines, since an answer is the line itself."""
        self.refuse_format(file_format)
        return read_items(sources, repairs, one_line=True)


def _size(corpus: Corpus) -> str:
    counts = corpus.statistics
    unknown = f", {counted(counts.unknown_tokens, 'tokens')} unknown" if counts.unknown_tokens else ""
    return f"{counted(counts.tokens, 'tokens')} ({counted(counts.words, 'words')}{unknown})"

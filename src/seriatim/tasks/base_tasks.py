"""Base classes of the tasks, and the defaults of their configurations."""

import functools
import warnings
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np

from ..config import Config, Section, resolve
from ..core.errors import InputError, shown
from ..data.builtin import builtin_task, builtin_tokens
from ..data.corpus import Corpus, count_text, describe_tokenizer_sample, encode_corpus, fit_corpus_tokenizer
from ..data.encoding import BLOCK
from ..data.holding_out import end_part, line_part, text_size, usual_share, usual_share_of_text
from ..data.normal_forms import note_other_form
from ..data.readers import Source, read_items, read_lines, read_pieces, read_whole_lines
from ..data.repairs import DataWarning, Repairs
from ..data.source_content import find_repairs
from ..data.tokenizer_sample import SAMPLED
from ..data.tokenizers import END
from ..data.vocabulary import Vocabulary
from ..layers import REGISTRY, options_of, split_names
from ..layers.declared_options import resolve_options
from ..layers.origins import stacks_of
from ..training.data_parts import why_rows_undivided
from ..training.loop import Trainer
from ..training.setup import SHAPELESS, SIZES
from ..training.task import Batch, Data, Model, Task

OUTPUT = ("tie_weights", "output_bias")
"""Fields of the model that determine the parameters of its output layer."""
MAX_LISTED = 200  # the largest number of labels that `check` lists
WEIGHTS = (0.2, 0.35, 0.5, 0.65, 0.8)
"""Weights of a simple baseline in the answers of both models, of which the best is chosen."""
USUAL_WEIGHT = 0.65
"""Weight of a simple baseline in the answers of taggers and classifiers that have no held-out data to choose it on."""
Options = TypeVar("Options", bound=Section)


class TextTask(Task[Data, Batch, Model]):
    """A task on one running text, or on lines of text."""

    baseline_name = "a unigram"
    counts = ("tokens", "words", "lines", "bytes", "unknown_tokens")

    @property
    def unit(self) -> str:
        """``stream`` for one running text, or ``line``."""
        return self.config.data.unit

    def usual_share(self) -> str:
        """Return the share of lines, or of a running text if it is long enough."""
        spec = self.training_spec()
        if self.unit == "line":
            return usual_share(sum(text.count("\n") for text in read_whole_lines(super().sources(spec, "train"))))
        return usual_share_of_text(text_size(super().sources(spec, "train")))

    def has_content(self, spec: str, split: str) -> bool:
        """Return whether there is text beside white space."""
        return any(piece.text.strip() for piece in read_pieces(self.sources(spec, split)))

    def why_undivided(self, share: str, *, none_held_out: bool) -> str:
        """Say that all lines are equal, or where a running text has no line."""
        sources = super().sources(self.training_spec(), "train")
        if self.divides_lines(sources):
            lines = [line for line in read_lines(sources) if line.strip()]
            return why_rows_undivided(lines, "lines", none_held_out=none_held_out)
        return f"no line of text begins {'in' if none_held_out else 'before'} its last {share}"

    def divides_lines(self, sources: list[Source]) -> bool:
        """Return whether lines are held out, and not the end of a running text."""
        return self.unit == "line" or any(source.format == "jsonl" for source in sources)

    def sides(self, spec: str, split: str, file_format: str | None = None) -> list[Iterable[str]]:
        """Return the lines of a text as they are written."""
        part = self.part(spec, split)
        return [read_lines(super().sources(part.spec, part.split, file_format))]

    def whole_sources(self, spec: str, split: str, file_format: str | None = None) -> list[Source]:
        """Find the files of some text, of which a part may be held out."""
        part, markers = self.part(spec, split), self.markers(spec, split, file_format)
        sources = super().sources(part.spec, part.split, file_format)
        return [source._replace(markers=markers) for source in sources]

    def sources(self, spec: str, split: str, file_format: str | None = None) -> list[Source]:
        """Find the files of some text; of a running text the end is held out, else lines."""
        part, sources = self.part(spec, split), self.whole_sources(spec, split, file_format)
        if not part.share:
            return sources
        if self.divides_lines(sources):
            return [line_part(source, part.share, held_out=part.held_out) for source in sources]
        return end_part(sources, part.share, held_out=part.held_out)

    def learn_vocabulary(self) -> Vocabulary:
        """Learn the tokenizer from the training text."""
        sources = self.sources(self.training_spec(), "train")
        return Vocabulary({"tokenizer": fit_corpus_tokenizer(sources, self.config.tokenizer, unit=self.unit)})

    def read_corpus(self, spec: str, split: str, vocabulary: Vocabulary, *, file_format: str | None = None) -> Corpus:
        """Read and encode a text, which must have a known token; see `Task.read`. Warn of repairs."""
        repairs = self.find_repairs(spec, split, file_format)
        sources, tokenizer = self.sources(spec, split, file_format), vocabulary.tokenizer
        corpus = encode_corpus(sources, tokenizer, unit=self.unit)
        corpus.repairs = repairs
        self.settle_markers(spec, repairs)
        is_other = spec != self.config.data.train and not self.part(spec, split).held_out
        if is_other and (tokenizer.unknown_id is None or corpus.statistics.unknown_tokens):
            again = Repairs()  # what is found is known from above
            again.examine = functools.partial(note_other_form, vocabulary=vocabulary, repairs=repairs)
            deque(read_items(sources, again), maxlen=0)
        repairs.warn()
        if not corpus.statistics.unknown_tokens:
            return corpus
        blocks = (corpus.ids[start : start + BLOCK] for start in range(0, len(corpus.ids), BLOCK))
        if not any(np.any((block != END) & (block != tokenizer.unknown_id)) for block in blocks):
            raise InputError(
                f"{sources[0].name}: only unknown {tokenizer.kind}s; is it the right file, "
                "and tokenizer.min_count and vocabulary_size fit for it?"
            )
        return corpus

    def place(self, corpus: Corpus, row: int, spec: str, split: str, file_format: str | None) -> str:
        """Return the file and line of a line of a text, also of one whose lines are in part held out."""
        part = self.part(spec, split)
        return corpus.place(row, super().sources(part.spec, part.split, file_format))

    def find_repairs(self, spec: str, split: str, file_format: str | None = None) -> Repairs:
        """Return the repairs that a text needs; none of a held-out share, whose file the training part has, too.

        Raises:
            InputError: the text needs a repair, and ``data.strict`` refuses them.
        """
        repairs = self.new_repairs()
        if not self.part(spec, split).held_out:
            find_repairs(self.whole_sources(spec, split, file_format), repairs)
        return repairs

    def skim(self, spec: str, split: str) -> None:
        """Read the text and discard it; see `Task.skim`."""
        super().skim(spec, split)
        self.find_repairs(spec, split)

    def count(self, spec: str, split: str, vocabulary: Vocabulary) -> dict[str, object]:
        """Return the statistics of a text, and its repairs."""
        sources = self.sources(spec, split)
        counts = count_text(sources, vocabulary.tokenizer, unit=self.unit)
        counts |= self.find_repairs(spec, split).lines()
        if split == "train" and (sample := self._describe_sample(sources)):
            counts["tokenizer_sample"] = sample
        return counts

    def tokenizer_sample(self, train: Data) -> str:
        """Say which part of a large text subwords were learned from."""
        return self._describe_sample(train.sources) if isinstance(train, Corpus) else ""

    def _describe_sample(self, sources: Sequence[Source]) -> str:
        if self.config.training.init is not None or self.config.tokenizer.kind not in SAMPLED or not sources:
            return ""
        return describe_tokenizer_sample(sources, self.config.tokenizer, unit=self.unit)


class LayeredTask(Task[Data, Batch, Model]):
    """A task whose model is built from layers; ``model.options`` holds its own ``options`` and ``layer_options``."""

    estimator = Trainer
    own_options: ClassVar[type[Section]]
    options: Section
    shaping_options: ClassVar[tuple[str, ...]] = ()
    """Options of the task that decide what its model computes; a training takes them from its initial run."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.options, self.layer_options = split_options(self.own_options, self.config)

    @classmethod
    def with_defaults(cls, config: Config) -> Config:
        """Fill in the defaults: word tokens, layers that read in both directions, and the options of the task."""
        config = like_initial(config, own_options=cls.shaping_options)
        config = seeing_everything(with_kind(config, "word"))
        options, rest = split_options(cls.own_options, config)
        return with_model(config, options={**rest, **options.model_dump()})


class LabelledTask(LayeredTask[Data, Batch, Model]):
    """A task on labelled data, which `labelled_items` reads."""

    def usual_share(self) -> str:
        """Return the share of the rows."""
        return usual_share(sum(1 for _ in self.labelled_items(self.training_spec(), "train")))

    def has_content(self, spec: str, split: str) -> bool:
        """Return whether there is a row."""
        return next(iter(self.labelled_items(spec, split)), None) is not None

    def why_undivided(self, share: str, *, none_held_out: bool) -> str:
        """Say that all inputs are equal, or that chance puts them on one side."""
        inputs = [row for row, _ in self.labelled_items(self.training_spec(), "train")]
        return why_rows_undivided(inputs, "inputs", none_held_out=none_held_out)

    def reported(self, repairs: Repairs, spec: str, split: str) -> Repairs:
        """Return the repairs of some data; none of a held-out share, whose file is read for the training part, too."""
        self.settle_markers(spec, repairs)
        return self.new_repairs() if self.part(spec, split).held_out else repairs

    def skim(self, spec: str, split: str) -> None:
        """Read the data and discard it; see `Task.skim`."""
        for _ in self.labelled_items(spec, split):
            pass


def listed(counts: Counter[str]) -> list[str]:
    """Return labels with their counts, the most frequent first, and how many are left out."""
    shown = [f"{label} {count:,}" for label, count in counts.most_common(MAX_LISTED)]
    return [*shown, *([f"and {len(counts) - MAX_LISTED:,} others"] if len(counts) > MAX_LISTED else [])]


def name_unseen(noun: str, unseen: Mapping[str, str]) -> str:
    """Name the first label that does not occur in the training data; ``unseen`` has the place of each such label."""
    label, where = next(iter(unseen.items()))
    which = shown(label) + (f" and {len(unseen) - 1:,} more do" if len(unseen) > 1 else " does")
    return f"{where}: the {noun} {which} not occur in the training data"


def warn_of_unseen(noun: str, unseen: Mapping[str, str], count: int, items: str) -> None:
    """Warn of labels that do not occur in the training data, and of the ``count`` items that have them.

    ``items`` are these items in words. The warning names the same place for every reading, so that it is shown once.
    """
    verb = "counts" if count == 1 else "count"
    warnings.warn(f"{name_unseen(noun, unseen)}; {items} {verb} as wrong", DataWarning, stacklevel=2)


def split_options(kind: type[Options], config: Config) -> tuple[Options, dict[str, Any]]:
    """Return the options of the task, and what is left for the layers; see `resolve_options` for errors."""
    return resolve_options(kind, stacks_of(config), config.model.options)


def seeing_everything(config: Config) -> Config:
    """Return the configuration of a task that reads whole sequences: in both directions, unless it says otherwise.

    A layer with the option ``causal`` reads later inputs itself; any other layer runs once from each end. The synthetic
    tasks with labels ask what a layer remembers to the end, so that they are read in one direction.
    """
    name, options = config.model.layer, config.model.options
    asks_memory = builtin_task(config.data.train) == "classify"
    if config.model.bidirectional is not None or "causal" in options or asks_memory:
        return with_model(config, bidirectional=bool(config.model.bidirectional))
    if all("causal" in options_of(one, options) for one in split_names(name)):
        return with_model(config, bidirectional=False, options={**options, "causal": False})
    return with_model(config, bidirectional=True)


def like_initial(config: Config, *, reads_forwards: bool = False, own_options: Sequence[str] = ()) -> Config:
    """Return the configuration with the layer of the run that ``training.init`` names, unless it gives its own.

    With the layer come its sizes and its options; whether it is causal and has a window only if the task reads
    forwards, too. From a run of the same task also come the fields of the output layer and the task's ``own_options``.
    """
    if config.training.init is None:
        return config
    try:
        theirs = resolve(Path(config.training.init) / "config.yaml")
    except (InputError, OSError):  # reported when the run is opened
        return config
    model, is_same = theirs.model, theirs.task == config.task
    if not all(name in REGISTRY for name in split_names(model.layer)):
        return config
    given = config.model.model_dump(exclude_unset=True, exclude_none=True)
    missing = [name for name in (*SIZES, *(OUTPUT if is_same else ())) if name not in given]
    fields = {name: getattr(model, name) for name in missing}
    if not reads_forwards and not model.options.get("causal", True):
        fields.pop("bidirectional", None)  # a single direction that sees everything, as `seeing_everything` chooses
    if "layer" in missing:
        known = {name for layer in split_names(model.layer) for name in options_of(layer, model.options)}
        known -= set() if reads_forwards else SHAPELESS
        known |= set(own_options) if is_same else set()
        taken = {name: value for name, value in model.options.items() if name in known}
        fields["options"] = {**taken, **config.model.options}
    return with_model(config, **fields)


def with_kind(config: Config, kind: str | None) -> Config:
    """Return the configuration with this kind of tokens, unless it names a kind, or a run to take a tokenizer from.

    None leaves the kind to be chosen from the training data.

    A built-in task whose texts are single strings of letters is read as characters; as words, a text would be one
    token.
    """
    if config.training.init is not None:
        return config
    kind = config.tokenizer.kind or builtin_tokens(config.data.train) or kind
    return config.model_copy(update={"tokenizer": config.tokenizer.model_copy(update={"kind": kind})})


def token_kind(config: Config) -> str | None:
    """Return the kind of tokens that a configuration names, or that of the run that ``training.init`` names.

    None if there is no such run, which is reported when it is opened.
    """
    if config.training.init is None or config.tokenizer.kind is not None:
        return config.tokenizer.kind
    try:
        return resolve(Path(config.training.init) / "config.yaml").tokenizer.kind
    except (InputError, OSError):
        return None


def with_model(config: Config, **fields: object) -> Config:
    """Return the configuration with other values of some fields of its model."""
    return config.model_copy(update={"model": config.model.model_copy(update=fields)})

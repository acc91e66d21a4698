"""A text of any task as its model reads it, and the loss at its end."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from ..core.errors import InputError
from ..data.conll import Sentence
from ..data.tagged_corpus import TaggedBatch, TaggedCorpus
from ..data.tokenizers import END, Tokenizer
from ..layers.positions import learned_positions
from ..runs.run import Run
from ..tasks.filling import find_gaps
from .leaves import roots

MASK = "[MASK]"


@dataclass(frozen=True)
class Example:
    """One sequence.

    Attributes:
        inputs: ids that are read; a translator's source.
        targets: what is to be answered: the next tokens, a label, tags; a translator's target, its end included.
        tokens: the inputs, a name each.
        written: what a decoder reads, a name each; empty where there is none.
        words: of a sentence to be tagged.
    """

    inputs: tuple[int, ...]
    targets: tuple[int, ...]
    tokens: tuple[str, ...]
    written: tuple[str, ...] = ()
    words: tuple[str, ...] = ()

    @property
    def shape(self) -> tuple[int, int]:
        """Examples of one shape can be read together."""
        return len(self.inputs), len(self.targets)

    @property
    def longest(self) -> int:
        """Inputs, or what a decoder reads, whichever is more."""
        return max(len(self.inputs), len(self.written))

    def beginning(self, most: int) -> "Example":
        """The first inputs, and the first of what a decoder reads."""
        first = self.part(0, most)
        return replace(first, targets=first.targets[:most], written=self.written[:most])

    def part(self, start: int, end: int) -> "Example":
        """Some of the inputs, with the targets that belong to each where they do."""
        one_each = len(self.targets) == len(self.inputs) and not self.written
        copies = len(self.tokens) // len(self.inputs)
        return replace(
            self,
            inputs=self.inputs[start:end],
            targets=self.targets[start:end] if one_each else self.targets,
            tokens=self.tokens[start * copies : end * copies],
            words=self.words[start:end],
        )


class Reading(NamedTuple):
    """How the models of one task read.

    Attributes:
        examples: from a run and one text, what is read of it, sequence by sequence.
        forward: runs a model over examples of one shape, once.
        loss: −log P of each example ``(batch,)``, in nats: where reading forwards ends, or (``first``) where reading
            backwards does. In float64, where the gradient of an answer that is all but certain is not yet zero.
        cut: whether a stretch of a sequence is an example like another.
        two_ends: whether these are two places, so that a model that reads both ways has two losses.
    """

    examples: Callable[[Run, Any], list[Example]]
    forward: Callable[[Any, Run, Sequence[Example]], object]
    loss: Callable[[Any, Run, Sequence[Example], bool], Tensor]
    cut: bool = False
    two_ends: bool = False


def reading(run: Run) -> Reading:
    """That of a run's task."""
    return READINGS[run.config.task]


def read_examples(run: Run, text: Any) -> list[Example]:
    """What a model reads of a text, sequence by sequence; where positions are learned, no more of each than they are.

    Args:
        run: of any task.
        text: a string; for tagging also a sentence of a file, for translators also a source and its target.

    Raises:
        InputError: there is nothing in it to read.
    """
    found = [example for example in reading(run).examples(run, text) if example.inputs]
    if not found:
        raise InputError("text: nothing in it to read; give a few words")
    places = learned_positions(run.model)
    if places is None:
        return found
    return [example.beginning(places // max(1, len(example.tokens) // len(example.inputs))) for example in found]


def read(run: Run, example: Example) -> None:
    """Runs a run's model over one example; n-grams, which are counted, have no layers that could be watched."""
    if any(True for _ in roots(run.model)):
        reading(run).forward(run.model, run, [example])


def windows(run: Run, texts: Sequence[Any], *, length: int, count: int) -> list[Example]:
    """At most ``count`` stretches of at most ``length`` inputs, spread evenly over texts, each for a loss at its end.

    Of a running text they are half as long as it is at most, so that there are many of them.
    """
    sequences = [example for text in texts for example in read_examples(run, text)]
    places = np.linspace(0, len(sequences) - 1, min(count, len(sequences))).round().astype(int).tolist()
    each = count // len(places)
    found: list[Example] = []
    for sequence in (sequences[place] for place in places):
        size = len(sequence.inputs)
        wanted = min(length, size if each == 1 else math.ceil(size / 2))
        if not reading(run).cut:
            found.append(sequence.part(max(0, size - length), size))
            continue
        ends = np.unique(np.linspace(wanted, size, min(each, size - wanted + 1)).round().astype(int)).tolist()
        found += [sequence.part(end - wanted, end) for end in ends[-each:]]
    return found


def as_tensors(run: Run, batch: Sequence[Example]) -> tuple[Tensor, Tensor]:
    """Inputs and targets of examples of one shape, ``(batch, ...)`` each."""
    inputs, targets = ([getattr(example, name) for example in batch] for name in ("inputs", "targets"))
    return torch.tensor(inputs, device=run.device), torch.tensor(targets, dtype=torch.long, device=run.device)


def _named(ids: Sequence[int], tokenizer: Tokenizer) -> tuple[str, ...]:
    return tuple(MASK if token >= tokenizer.vocabulary_size else tokenizer.describe(token) for token in ids)


def _lines(run: Run, text: str) -> list[np.ndarray]:
    """The ids of a running text, or of each line with its end."""
    if run.config.data.unit == "stream":
        return [run.tokenizer.encode(text)] if text else []
    return [np.append(run.tokenizer.encode(line), END) for line in text.split("\n") if line.strip()]


def _continued(run: Run, text: str) -> list[Example]:
    found = []
    for ids in _lines(run, text):
        inputs, targets = [END, *ids[:-1].tolist()], ids.tolist()
        found.append(Example(tuple(inputs), tuple(targets), _named(inputs, run.tokenizer)))
    return found


def _read_on(model: Any, run: Run, batch: Sequence[Example]) -> Tensor:
    hidden: Tensor = model.features(as_tensors(run, batch)[0], None, None)[0]
    return hidden


def _next_token(model: Any, run: Run, batch: Sequence[Example], first: bool) -> Tensor:
    logits = model.output(_read_on(model, run, batch)[:, -1])
    return F.cross_entropy(logits.double(), as_tensors(run, batch)[1][:, -1], reduction="none")


def _gapped(run: Run, text: str) -> list[Example]:
    """Lines, cut where a model has never seen longer ones; what stands in a gap is not known, and so no target."""
    length, found = run.task.length, []  # type: ignore[attr-defined]
    for line in text.split("\n"):
        if not line.strip():
            continue
        ids = find_gaps(line, run.tokenizer, run.model.mask, run.config.data.unit).ids.tolist()
        pieces = [tuple(ids[start : start + length]) for start in range(0, len(ids), length)]
        found += [Example(piece, piece, _named(piece, run.tokenizer)) for piece in pieces]
    return found


def _read_gaps(model: Any, run: Run, batch: Sequence[Example]) -> Tensor:
    inputs, _ = as_tensors(run, batch)
    hidden: Tensor = model(inputs, inputs.new_zeros(1))
    return hidden


def _masked(model: Any, run: Run, batch: Sequence[Example], first: bool) -> Tensor:
    """Of the last token, masked, or of the first."""
    inputs, targets = as_tensors(run, batch)
    place = 0 if first else inputs.shape[1] - 1
    inputs[:, place] = model.mask
    rows = torch.arange(len(batch), device=inputs.device) * inputs.shape[1] + place
    logits = model(inputs, rows).double()
    truth = targets[:, place]
    known = truth.where(truth < model.mask, logits.argmax(1))  # a gap of the text itself
    return F.cross_entropy(logits, known, reduction="none")


def _to_be_labelled(run: Run, text: str) -> list[Example]:
    from ..tasks.documents import encode

    ids = encode([text], [0], run.vocabulary).ids.tolist()[: learned_positions(run.model)]
    if not ids:
        return []
    with torch.no_grad():
        label = int(run.model(torch.tensor([ids], device=run.device)).argmax())
    return [Example(tuple(ids), (label,), _named(ids, run.tokenizer))]


def _logits(model: Any, run: Run, batch: Sequence[Example]) -> Tensor:
    logits: Tensor = model(as_tensors(run, batch)[0])
    return logits


def _label(model: Any, run: Run, batch: Sequence[Example], first: bool) -> Tensor:
    logits = _logits(model, run, batch).double()
    return F.cross_entropy(logits, as_tensors(run, batch)[1][:, 0], reduction="none")


def _sentence(run: Run, text: str | Sentence) -> list[Example]:
    words = tuple(text.split() if isinstance(text, str) else text.words)
    if not words:
        return []
    numbers = {label: i for i, label in enumerate(run.vocabulary.labels)}
    (answer,) = run.task.answer(run.model, run.vocabulary, [" ".join(words) if isinstance(text, str) else text])
    ids = tuple(range(len(words)))
    return [Example(ids, tuple(numbers[tag] for tag in answer["tags"]), words, words=words)]


def tagged_batch(run: Run, batch: Sequence[Example]) -> TaggedBatch:
    """Sentences to be tagged, as a tagger reads them."""
    sentences = [Sentence(list(example.words), [], [], [], 0, "", 0) for example in batch]
    corpus = TaggedCorpus(sentences, run.vocabulary, labelled=False)
    return corpus.batch(np.arange(len(batch))).to(run.device)


def _scores(model: Any, run: Run, batch: Sequence[Example]) -> Tensor:
    scores: Tensor = model(tagged_batch(run, batch))
    return scores


def _tags(model: Any, run: Run, batch: Sequence[Example], first: bool) -> Tensor:
    """Of the last word's tag, or of the first's, each for itself."""
    place = 0 if first else -1
    targets = torch.tensor([example.targets[place] for example in batch], device=run.device)
    return F.cross_entropy(_scores(model, run, batch)[:, place].double(), targets, reduction="none")


def _pair(run: Run, text: str | Sequence[Any]) -> list[Example]:
    """A source with its target, or with the model's own answer."""
    source = text if isinstance(text, str) else str(text[0])
    target = next(iter(run.predict([source]))) if isinstance(text, str) else str(text[1])
    tokenizer, written = run.tokenizer, run.vocabulary.target
    ids, answer = (side.encode(line).tolist() for side, line in ((tokenizer, source), (written, target)))
    ids, answer = ([token for token in side if token != END] for side in (ids, answer))
    names = _named(ids, tokenizer)
    copies = getattr(run.model, "upsample", 1)
    names = tuple(name for name in names for _ in range(copies))
    return [Example(tuple(ids), (*answer, END), names, _named([END, *answer], written))]


def _write(model: Any, run: Run, batch: Sequence[Example]) -> Tensor:
    source, targets = as_tensors(run, batch)
    written: Tensor
    if hasattr(model, "upsample"):
        written, _ = model(source, torch.full((len(batch),), source.shape[1]))
    else:
        inputs = torch.cat([torch.zeros_like(targets[:, :1]), targets[:, :-1]], dim=1)
        written, _ = model.features(inputs, model.encode(source), None)
    return written


def _answer_end(model: Any, run: Run, batch: Sequence[Example], first: bool) -> Tensor:
    """Of the last token of the target; where all of it is given at once, of the whole."""
    source, targets = as_tensors(run, batch)
    if hasattr(model, "upsample"):
        sizes = [torch.full((len(batch),), side.shape[1]) for side in (source, targets[:, :-1])]
        losses: Tensor = model.losses(source, sizes[0], targets[:, :-1], sizes[1])
        return losses
    logits = model.output(_write(model, run, batch)[:, -1])
    return F.cross_entropy(logits.double(), targets[:, -1], reduction="none")


READINGS = {
    "lm": Reading(_continued, _read_on, _next_token, cut=True),
    "mlm": Reading(_gapped, _read_gaps, _masked, cut=True, two_ends=True),
    "classify": Reading(_to_be_labelled, _logits, _label),
    "tag": Reading(_sentence, _scores, _tags, two_ends=True),
    "seq2seq": Reading(_pair, _write, _answer_end),
}

"""A run's own answer to a text, and how it holds when only the last k tokens of the text are seen."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..core.errors import InputError
from ..data.batching import padded
from ..data.conll import Sentence
from ..data.encoded_pairs import encode_side
from ..data.tagged_corpus import TaggedCorpus
from ..data.tokenizers import END
from ..layers.positions import learned_positions
from ..tasks.answering import AnswerSettings, Sources, answer_limits, excluded_tokens, search_stepwise
from ..tasks.documents import encode
from ..training.task import evaluating

if TYPE_CHECKING:
    from ..runs.run import Run


class Answer(NamedTuple):
    """A translator's answer.

    Attributes:
        source: ids ``(1, source_time)``.
        lengths: of it ``(1,)``.
        tokens: of the answer, its end not among them.
        log_probability: of the answer with its end, in nats.
    """

    source: Tensor
    lengths: Tensor
    tokens: tuple[int, ...]
    log_probability: float

    def shifted(self) -> tuple[Tensor, Tensor]:
        """What the decoder reads, and what it is to write, both ``(1, time)``."""
        return torch.tensor([[END, *self.tokens]]), torch.tensor([[*self.tokens, END]])


def own_answer(run: "Run", text: str, *, beam: int = 1) -> Answer:
    """The answer to a source that `Run.predict` gives, as tokens.

    Args:
        run: an encoder-decoder.
        text: the source, of which as much is read as there are learned positions.
        beam: hypotheses kept at once; 1 takes the likeliest token always.

    Raises:
        InputError: a beam below 1, or a run that gives all of an answer at once.
    """
    if not hasattr(run.model, "encode"):
        raise InputError("a ctc run gives all of an answer at once; none of its tokens has a probability of its own")
    side, places = encode_side([text], run.tokenizer), learned_positions(run.model)
    source, lengths = side.rows(np.array([0]))
    most: int = run.task.options.max_target_length  # type: ignore[attr-defined]
    if places is not None:
        source, lengths, most = source[:, :places], lengths.clamp(max=places), min(most, places - 1)
    with evaluating(run.model) as device:
        excluded = excluded_tokens(run.vocabulary.target)
        sources = Sources(source.to(device), lengths, answer_limits(lengths, most), excluded)
        (best,) = search_stepwise(run.model, sources, AnswerSettings(beam=beam))
    return Answer(source, lengths, best[0].tokens, best[0].log_probability)


def answer_by_context(run: "Run", text: str, sizes: Sequence[int]) -> dict[int | None, float]:
    """−log P of what a run answers to a text, when it sees but the last k tokens of it.

    The answer is that to the whole text: the label of a classifier, the last word's tag, a translation.

    Args:
        run: trained to ``classify``, ``tag`` or ``seq2seq``.
        text: one line.
        sizes: the k to try.

    Returns:
        Nats (of a translation, for each of its tokens) for every k, and for None, which is the whole text.

    Raises:
        InputError: there is no token in the text, or the run gives all of an answer at once.
    """
    of = {"classify": _label, "tag": _tag, "seq2seq": _translation}[run.config.task]
    with evaluating(run.model):
        found = of(run, text, sizes)
    return dict(zip([*sizes, None], found, strict=True))


def _label(run: "Run", text: str, sizes: Sequence[int]) -> list[float]:
    data = encode([text], [0], run.vocabulary)
    windows, lengths = _windows(data.ids, sizes, learned_positions(run.model))
    shares = run.model.probabilities(windows.to(run.device), lengths)
    return _nats(shares[:, int(shares[-1].argmax())])


def _tag(run: "Run", text: str, sizes: Sequence[int]) -> list[float]:
    words = text.split()
    if not words:
        raise _nothing()
    most = learned_positions(run.model) or len(words)
    parts = [words[-size:] for size in (*(min(size, most) for size in sizes), most)]
    corpus = TaggedCorpus((Sentence(part, [], [], [], 0, "", 0) for part in parts), run.vocabulary, labelled=False)
    batch = corpus.batch(np.arange(len(parts))).to(run.device)
    shares = run.model.marginals(run.model(batch), batch.lengths)
    last = shares[torch.arange(len(parts)), batch.lengths - 1].double()
    return _nats(last[:, int(last[-1].argmax())])


def _translation(run: "Run", text: str, sizes: Sequence[int]) -> list[float]:
    answer = own_answer(run, text)
    windows, lengths = _windows(answer.source[0].numpy(), sizes, None)
    inputs, targets = (part.expand(len(windows), -1).to(run.device) for part in answer.shifted())
    losses = run.model.token_losses(windows.to(run.device), lengths, inputs, targets)
    return [float(loss) for loss in losses.double().mean(1)]


def _windows(ids: np.ndarray, sizes: Sequence[int], most: int | None) -> tuple[Tensor, Tensor]:
    """The last k of some tokens for every k, and all of them ``(sizes + 1, time)``; how many ``(sizes + 1,)``."""
    if not len(ids):
        raise _nothing()
    lengths = np.minimum([*sizes, len(ids)], min(len(ids), most or len(ids)))
    return torch.from_numpy(padded(ids, len(ids) - lengths, lengths)), torch.from_numpy(lengths)


def _nats(shares: Tensor) -> list[float]:
    return [max(0.0, -float(share)) for share in shares.log()]


def _nothing() -> InputError:
    return InputError("the text has no words; give some with --text or --text-file")

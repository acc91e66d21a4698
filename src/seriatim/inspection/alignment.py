"""Which part of a source each token of a translation came from: the weights of a decoder's attention.

D. Bahdanau, K. Cho and Y. Bengio, "Neural machine translation by jointly learning to align and translate", ICLR 2015.
Attention with one head is an alignment by itself. Of several heads the mean is taken, in the topmost layer that looks
at the source; what each head does alone `attention.attention_maps` shows.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..core.errors import InputError
from .attention import LARGEST, attention_maps

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ..runs.run import Run

BEAM = 5


@dataclass(frozen=True)
class Aligned:
    """An answer, and where each of its tokens looked.

    Attributes:
        how: it was searched for, in words.
        text: the answer.
        log_probability: of it, its end included, in nats.
        source_tokens: of the text.
        target_tokens: of the answer, its end included.
        weights: a row for every token of the answer, of a weight for every token of the source; empty where the decoder
            has no attention.
        heads: over how many the weights are means.
        limits: of how much the weights are, in words; empty where of everything.
    """

    how: str
    text: str
    log_probability: float
    source_tokens: Sequence[str] = ()
    target_tokens: Sequence[str] = ()
    weights: Sequence[Sequence[float]] = ()
    heads: int = 1
    limits: str = ""


def align(run: "Run", text: str, *, beam: int = BEAM) -> list[Aligned]:
    """The greedy answer to a text and that of beam search, each with its alignment.

    Args:
        run: an encoder-decoder.
        text: the source, one line.
        beam: hypotheses kept at once; with 1 there is the greedy answer alone.

    Raises:
        InputError: a beam below 1, or a run of another task.
    """
    if run.config.task != "seq2seq":
        raise InputError(f"alignment: a run of the task {run.config.task} does not translate; give a seq2seq run")
    if beam < 1:
        raise InputError(f"--beam must be at least 1, got {beam}")
    return [_aligned(run, text, size) for size in sorted({1, beam})]


def _aligned(run: "Run", text: str, beam: int) -> Aligned:
    (found,) = run.details([text], beam=beam, alignments=True)
    how = "greedy" if beam == 1 else f"beam of {beam}"
    log_probability = found["n_best"][0]["log_probability"]
    if "alignment" in found:
        names = (found["source_tokens"], found["target_tokens"])
        return Aligned(how, found["text"], log_probability, *names, found["alignment"])
    if not hasattr(run.model, "encode") or not text.strip():
        return Aligned(how, found["text"], log_probability)
    maps = attention_maps(run, (text, found["text"]), most=LARGEST)
    crossing = [one for one in maps.maps if one.crosses and one.looking and one.looked_at]
    if not crossing:
        return Aligned(how, found["text"], log_probability)
    top = crossing[-1]
    weights = top.weights.mean(0).tolist()
    # what is written where the token before it is read; of a long answer the last is not its end
    targets = (*top.looking[1:], "</s>" if maps.shown == maps.of else "…")
    heads = len(top.weights)
    return Aligned(how, found["text"], log_probability, top.looked_at, targets, weights, heads, maps.limits)


def mass(found: Aligned, places: Sequence[Sequence[int]]) -> float:
    """The mean share of attention that falls on given places of the source.

    Args:
        found: with weights.
        places: for each of the first tokens of the answer, which tokens of the source count, from 0.
    """
    shares = [sum(row[place] for place in own) for row, own in zip(found.weights, places, strict=False)]
    return sum(shares) / len(shares)


def aligned_figure(found: Aligned) -> "Figure":
    """Draws an alignment: source across, answer down, bright where a token looked.

    Raises:
        InputError: there is none, because the decoder has no attention.
    """
    from .attention import alignment_figure

    if not found.weights:
        raise InputError("alignment: the decoder has no attention; train with --model.options.attention dot")
    return alignment_figure(found.source_tokens, found.target_tokens, found.weights, found.how)

"""Alignment of a translation: the attention of each token of the answer to the source.

D. Bahdanau, K. Cho and Y. Bengio, "Neural machine translation by jointly learning to align and translate", ICLR 2015.
The weights of a single attention head are an alignment. For several heads, the mean over the heads of the topmost layer
that attends to the source is used; `attention_maps` shows each head.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure

from ..core.errors import InputError
from ..report.page import Part, Plot, Plots, Prose, Sample, Samples
from ..runs.run import Run
from .attention_maps import MAX_MAP, alignment_figure, attention_maps
from .subject import Content, Subject, view_of

BEAM = 5


@dataclass(frozen=True)
class Aligned:
    """An answer and its alignment.

    Attributes:
        search: how the answer was searched for, in words.
        text: the answer.
        log_probability: log P of the answer with its end, in nats.
        source_tokens: names of the tokens of the source.
        target_tokens: names of the tokens of the answer, its end included.
        weights: attention of each token of the answer to each token of the source; empty without attention.
        heads: number of heads over which the weights are means.
        limits: the part of the tokens that is covered, in words; empty if all are.
    """

    search: str
    text: str
    log_probability: float
    source_tokens: Sequence[str] = ()
    target_tokens: Sequence[str] = ()
    weights: Sequence[Sequence[float]] = ()
    heads: int = 1
    limits: str = ""


def align(run: Run, text: str, *, beam: int = BEAM) -> list[Aligned]:
    """Return the answers of greedy search and of beam search to a text, with their alignments.

    Args:
        run: a run that translates.
        text: the source, one line.
        beam: width of the beam; for 1, only the greedy answer is returned.

    Raises:
        InputError: the beam is below 1, or the run does not translate.
    """
    if beam < 1:
        raise InputError(f"--beam must be at least 1, got {beam}")
    return [_aligned(run, text, width) for width in sorted({1, beam})]


def _aligned(run: Run, text: str, beam: int) -> Aligned:
    answer = view_of(run).search(text, beam)
    search = "greedy" if beam == 1 else f"beam of {beam}"
    unaligned = Aligned(search, answer.text, answer.log_probability)
    if len(answer.weights):
        names = answer.source_tokens, answer.target_tokens
        return Aligned(search, answer.text, answer.log_probability, *names, answer.weights)
    if not text.strip():
        return unaligned
    result = attention_maps(run, (text, answer.text), max_tokens=MAX_MAP)
    crossing = [each for each in result.maps if each.crosses and each.queries and each.keys]
    if not crossing:
        return unaligned
    top = crossing[-1]
    # a token is written at the step that reads the token before it; if the answer is cut, its end is missing
    targets = (*top.queries[1:], "</s>" if result.shown == result.total else "…")
    weights = top.weights.mean(0).tolist()
    return Aligned(
        search, answer.text, answer.log_probability, top.keys, targets, weights, len(top.weights), result.limits
    )


def mass(aligned: Aligned, places: Sequence[Sequence[int]]) -> float:
    """Return the mean share of attention on some places of the source.

    Args:
        aligned: an answer with weights.
        places: for each of the first tokens of the answer, the places of the source that count, from 0.
    """
    shares = [sum(row[place] for place in chosen) for row, chosen in zip(aligned.weights, places, strict=False)]
    return sum(shares) / len(shares)


def aligned_figure(aligned: Aligned) -> Figure:
    """Draw an alignment: the source across, the answer down, bright for large weights.

    Raises:
        InputError: there are no weights, since the decoder has no attention.
    """
    if not aligned.weights:
        raise InputError("alignment: the decoder has no attention; train with --model.options.attention dot")
    return alignment_figure(aligned.source_tokens, aligned.target_tokens, aligned.weights, aligned.search)


def alignment_section(subject: Subject) -> Content:
    """Write the section on alignment, for greedy search and for beam search."""
    answers = align(subject.run, subject.text, beam=subject.beam)
    samples = [
        Sample(f"{each.search}, P = {math.exp(each.log_probability):.2g}", each.text or "(nothing)") for each in answers
    ]
    parts: list[Part] = [Samples(samples, f"Answers to: {subject.text[:300]}")]
    if answers[-1].log_probability < answers[0].log_probability:
        parts.append(Prose("Here beam search has dropped an answer that is more likely as a whole: the greedy one."))
    lines = [f"answer: {answers[-1].text[:100] or '(nothing)'}"]
    aligned = [each for each in answers if each.weights]
    if not aligned:
        return Content([*parts, Prose(f"No alignment is shown: {subject.view.no_alignment}.")], lines)
    return Content([*parts, Plots([_plot(each) for each in aligned])], lines)


def _plot(aligned: Aligned) -> Plot:
    heads = f" The weights are means over {aligned.heads} heads of the top layer." if aligned.heads > 1 else ""
    limits = f" {aligned.limits}" if aligned.limits else ""
    rows, columns = len(aligned.target_tokens), len(aligned.source_tokens)
    return Plot(
        aligned_figure(aligned),
        f"Alignment, {aligned.search}",
        "Attention of each token of the answer (rows) to the tokens of the source (columns); a row sums to one."
        f"{heads}{limits}",
        f"Attention from {rows} tokens of the answer to {columns} of the source.",
    )

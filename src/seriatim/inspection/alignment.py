"""Alignment of a translation: the attention of each token of the answer to the source.

D. Bahdanau, K. Cho and Y. Bengio, "Neural machine translation by jointly learning to align and translate", ICLR 2015.
The weights of a single attention head are an alignment. For several heads, the mean over the heads of the topmost layer
that attends to the source is used; `attention_maps` shows each head.
"""

import math
from collections.abc import Collection, Sequence
from typing import NamedTuple

from ..core.errors import NotSupportedError, RangeError
from ..evaluation.token_scores import visible
from ..pages.chart import HeatMap
from ..pages.page import PageBlock, Prose, Samples
from ..runs.run import Run
from ..tasks.explainer import Refusal
from .attention_maps import MAX_MAP, attention_maps
from .inspected_run import InspectedRun, SectionBody, explainer_of

BEAM = 5
GREEDY_IS_LIKELIER = (
    "The greedy answer is more probable as a whole than that of beam search, which keeps few hypotheses and ranks them "
    "with a length penalty."
)


class Aligned(NamedTuple):
    """An answer and its alignment: a `SearchResult` with the way it was searched for, in words.

    The weights are means over ``heads`` heads. ``limits`` says which part of the tokens is covered, if not all are.
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
    """Return the answers of greedy search and, if ``beam`` is above 1, of beam search, with their alignments.

    Raises:
        InputError: the beam is below 1, or the run does not translate.
    """
    if beam < 1:
        raise RangeError(f"--beam: {beam} is too small; give 1 or more")
    return [_aligned(run, text, width) for width in sorted({1, beam})]


def _aligned(run: Run, text: str, beam: int) -> Aligned:
    explainer = explainer_of(run)
    search = explainer.require(explainer.search or Refusal("no translations"))
    answer = Aligned("greedy" if beam == 1 else f"beam of {beam}", *search(text, beam))
    if len(answer.weights) or not text.strip():
        return answer

    # The weights of several heads are no part of an answer, and are recorded while the model reads it again.
    result = attention_maps(run, (text, answer.text), max_tokens=MAX_MAP)
    crossing = [each for each in result.maps if each.crosses and each.queries and each.keys]
    if not crossing:
        return answer
    top = crossing[-1]
    # a token is written at the step that reads the token before it; if the answer is cut, its end is missing
    targets = (*top.queries[1:], "</s>" if result.shown == result.total else "…")
    return answer._replace(
        source_tokens=top.keys,
        target_tokens=targets,
        weights=top.weights.mean(0).tolist(),
        heads=len(top.weights),
        limits=result.limits,
    )


def mass(aligned: Aligned, positions: Sequence[Sequence[int]]) -> float:
    """Return the mean attention on ``positions`` of the source, given for each of the first target tokens."""
    masses = [sum(row[i] for i in chosen) for row, chosen in zip(aligned.weights, positions, strict=False)]
    return sum(masses) / len(masses)


def aligned_map(aligned: Aligned, *, noise: Collection[int] = ()) -> HeatMap:
    """Return an alignment, from 0 to 1: the source across, the answer down; without weights, an InputError is raised.

    Tokens of the source at the positions of ``noise`` stand in brackets.
    """
    if not aligned.weights:
        raise NotSupportedError("alignment: the decoder has no attention; train with --model.options.attention dot")
    source = [visible(token) for token in aligned.source_tokens]
    notes = [
        f"Means over the {aligned.heads} heads of the top layer." if aligned.heads > 1 else "",
        "The noise between the letters stands in brackets." if noise else "",
        aligned.limits,
    ]
    return HeatMap(
        f"Alignment, {aligned.search}",
        [("", [list(row) for row in aligned.weights])],
        [visible(token) for token in aligned.target_tokens],
        [f"({name})" if i in noise else name for i, name in enumerate(source)],
        "weight, from 0 to 1",
        " ".join(filter(None, notes)),
        row_name="answer",
        column_name="source",
    )


def noise_positions(run: Run, source: Sequence[str]) -> range:
    """Return the positions of noise in a source of `builtin:reversal`, which follows every letter; else none."""
    is_noisy = str(run.config.data.train).startswith("builtin:reversal") and all(len(token) == 1 for token in source)
    return range(1, len(source), 2) if is_noisy else range(0)


def alignment_section(inspected: InspectedRun) -> SectionBody:
    """Write the section on alignment, for greedy search and for beam search."""
    answers = align(inspected.run, inspected.text, beam=inspected.beam)
    headings = [f"{each.search}, P = {math.exp(each.log_probability):.2g}" for each in answers]
    samples = [(heading, each.text or "(nothing)") for heading, each in zip(headings, answers, strict=True)]
    reference = inspected.reference_answer()
    if reference is not None:
        samples.append((f"gold answer in {reference.data}", " or ".join(reference.answers)))
    blocks: list[PageBlock] = [Samples(samples, f"Answers to: {inspected.text[:300]}")]
    first, last = answers[0], answers[-1]
    if last.text != first.text and last.log_probability < first.log_probability:
        blocks.append(Prose(GREEDY_IS_LIKELIER))
    lines = [f"answer: {answers[-1].text[:100] or '(nothing)'}"]
    if first.text == last.text and len(answers) > 1:
        answers = [last._replace(search=f"{first.search} and {last.search}")]
    maps = [
        aligned_map(each, noise=noise_positions(inspected.run, each.source_tokens)) for each in answers if each.weights
    ]
    blocks += maps or [Prose(f"No alignment is shown: {inspected.explainer.wording.no_alignment}.")]
    return SectionBody(blocks, lines)

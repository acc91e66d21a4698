"""Alignment of a translation: the attention of each token of the answer to the source.

D. Bahdanau, K. Cho and Y. Bengio, "Neural machine translation by jointly learning to align and translate", ICLR 2015.
The weights of a single attention head are an alignment. For several heads, the mean over the heads of the topmost layer
that attends to the source is used; `attention_maps` shows each head.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from ..core.errors import NotSupportedError
from ..evaluation.token_scores import visible
from ..pages.chart import HeatMap, Switch
from ..pages.statements import Statement, told
from ..runs.run import Run
from .attention_maps import MAX_MAP, attention_maps
from .inspected_run import InspectedRun, SectionBody, explainer_of

BEAM = 5


class Aligned(NamedTuple):
    """An answer and its alignment: a `SearchResult` with the way it was searched for, in words.

    The weights are means over ``heads`` heads. ``limits`` says which part of the tokens is covered, if not all are.
    ``has_noise`` says that every second token of the source is noise, as in ``builtin:reversal``.
    """

    search: str
    text: str
    log_probability: float
    source_tokens: Sequence[str] = ()
    target_tokens: Sequence[str] = ()
    weights: Sequence[Sequence[float]] = ()
    heads: int = 1
    limits: str = ""
    has_noise: bool = False

    @property
    def odds(self) -> str:
        """The way of the search with the probability of its answer."""
        return f"{self.search}, P = {math.exp(self.log_probability):.2g}"


def align(run: Run, text: str, *, beam: int = BEAM) -> list[Aligned]:
    """Return the answers of greedy search and, if ``beam`` is above 1, of beam search, with their alignments.

    Raises:
        InputError: the run does not translate.
    """
    return [_aligned(run, text, width) for width in sorted({1, beam})]


def _aligned(run: Run, text: str, beam: int) -> Aligned:
    """Return an answer with the attention that is recorded while the model reads it again."""
    explainer = explainer_of(run)
    found = explainer.require(explainer.search)(text, beam)
    answer = Aligned("greedy" if beam == 1 else f"beam of {beam}", *found)
    if not text.strip():
        return answer
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
        has_noise=str(run.config.data.train).startswith("builtin:reversal") and max(map(len, top.keys)) == 1,
    )


def aligned_map(aligned: Aligned) -> HeatMap:
    """Return an alignment as a map: the source across, the answer down."""
    source = [f"({name})" if aligned.has_noise and i % 2 else name for i, name in enumerate(aligned.source_tokens)]
    return HeatMap(
        f"Alignment, {aligned.search}",
        [("", aligned.weights)],
        list(map(visible, aligned.target_tokens)),
        list(map(visible, source)),
        "attention, square-root scale",
        " ".join(told(CAPTIONS, aligned)),
        "answer",
        "source",
        power=0.5,
    )


CAPTIONS: tuple[Statement[Aligned], ...] = (
    Statement(lambda aligned: True, "{odds}: {text}."),
    Statement(lambda aligned: aligned.heads > 1, "The weights are means over {heads} heads of the top layer."),
    Statement(lambda aligned: aligned.has_noise, "The letters in brackets are noise."),
    Statement(lambda aligned: bool(aligned.limits), "{limits}"),
)
"""What stands below the map of an alignment."""


def alignment_section(inspected: InspectedRun) -> SectionBody:
    """Write the section on alignment, for greedy search and for beam search."""
    if not inspected.explainer.searches:
        return SectionBody([])
    answers = align(inspected.run, inspected.text, beam=inspected.beam)
    first, last = answers[0], answers[-1]
    if first.text == last.text and len(answers) > 1:
        answers = [last._replace(search=f"{first.search} and {last.search}")]
    # The answer that the first screen shows comes first.
    maps = [(each.search, aligned_map(each)) for each in reversed(answers) if each.weights]
    if not maps:
        raise NotSupportedError("the decoder has no attention; train with --model.options.attention dot")
    return SectionBody([Switch("Alignment", maps, "by") if len(maps) > 1 else maps[0][1]])

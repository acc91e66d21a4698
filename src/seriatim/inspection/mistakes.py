"""The section of a page on mistakes: every answer beside the right one, what is confused, and calibration."""

import math
from collections.abc import Sequence

from ..core.errors import InputError
from ..core.json_object import JsonObject
from ..evaluation.error_analysis import Mistakes
from ..evaluation.token_scores import counted
from ..pages.chart import Axis, Chart, Series
from ..pages.confusion import Confusion
from ..pages.items import Items, for_page
from ..pages.page import Folded, PageBlock, Prose
from ..pages.theme import layer_style
from ..pages.wording import percent
from ..tasks.explainer import NotOfferedError
from .inspected_run import InspectedRun, SectionBody


def mistakes_section(inspected: InspectedRun) -> SectionBody:
    """Write the section on mistakes on labelled data.

    Raises:
        InputError: data that the user named cannot be read.
        NotOfferedError: there are no data, or the run's own cannot be read, or the task lists no mistakes.
    """
    source, explainer = inspected.held_out(), inspected.explainer
    if source is None:
        raise NotOfferedError("the run names no test or held-out data; give some with --data")
    try:
        inspected.check_held_out(source)
        mistakes = explainer.require(explainer.labelled).mistakes(source, inspected.file_format)
    except InputError as error:
        if inspected.data or isinstance(error, NotOfferedError):
            raise
        raise NotOfferedError(f"data: those of the run cannot be read ({error}); give some with --data") from error

    # Data that selected the weights give a result that is too good; the reader must know.
    name = inspected.held_out_name
    fraction = mistakes.correct / max(1, mistakes.total)
    result = f"{mistakes.correct:,} of {mistakes.total:,} {explainer.wording.correct} ({percent(fraction)})"
    result += "" if mistakes.chrf is None else f", chrF {mistakes.chrf:.1f}"
    is_valid = source == inspected.run.config.data.valid and not name.endswith(", part test")
    selected = is_valid and inspected.run.task.objective is not None
    caveat = " These data also selected the weights of the run." if selected else ""
    blocks: list[PageBlock] = [Prose(f"{name}, {mistakes.evaluated}: {result}.{caveat}")]
    blocks.append(items_of(mistakes, inspected.layer))
    if mistakes.calibration:
        blocks.append(calibration_chart(mistakes.calibration, inspected.layer))
    if mistakes.confusions is not None:
        blocks.append(Folded("Confusions", [Confusion("Confusions", mistakes.confusions)]))
    return SectionBody(blocks)


def items_of(mistakes: Mistakes, model: str) -> Items:
    """Return the answers of a model for a page, the worst first."""
    items = for_page(mistakes.items)
    sign = 1 if mistakes.more_is_better else -1
    items.sort(key=lambda item: -math.inf if item.figures[0] is None else sign * item.figures[0])
    left_out = len(mistakes.items) - len(items)
    caption = f"{left_out:,} of {len(mistakes.items):,} items are left out." if left_out else ""
    return Items("Item by item", [model], items, mistakes.figure, mistakes.more_is_better, caption)


def calibration_chart(bins: Sequence[JsonObject], layer: str) -> Chart:
    """Return accuracy against confidence, in the bins of `label_metrics.reliability`, with 95 % intervals."""
    x, y = ([each[name] for each in bins] for name in ("confidence", "accuracy"))
    intervals = [(each["low"], each["high"]) for each in bins]
    names = [counted(each["count"], "predictions") for each in bins]
    confidence, accuracy = (Axis(name, "{:.0%}".format, limits=(0, 1.02)) for name in ("confidence", "accuracy"))
    series = Series(layer, x, y, intervals=intervals, names=names, look=layer_style(layer))
    total = sum(each["count"] for each in bins)
    error = sum(each["count"] * abs(each["accuracy"] - each["confidence"]) for each in bins) / total
    caption = f"Below the diagonal, the model is overconfident. Mean distance from the diagonal: {error:.3f}."
    return Chart("Calibration", confidence, accuracy, [series], caption, has_diagonal=True)

"""Unseen n-grams: what the training text of an n-gram model holds of all n-grams, and what other texts lack."""

import math
from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from ..core.json_object import JsonObject
from ..pages.page import PageBlock, Plot, Plots, Prose, Table
from ..pages.theme import new_figure, plain, style
from ..pages.wording import percent
from ..tasks.explainer import Refusal
from .inspected_run import InspectedRun, SectionBody

Rows = Sequence[JsonObject]
"""The ``ngrams`` of a text, one for each order; see `seriatim.counting.ngrams.unseen`."""
UNKNOWN = "not known"


def ngrams_section(inspected: InspectedRun) -> SectionBody:
    """Write the section on an n-gram model's counts."""
    explainer = inspected.explainer
    counts = explainer.require(explainer.ngram_counts or Refusal("no counts of n-grams"))
    texts = {"this text": counts(inspected.text)}
    held_out = inspected.run.summary.get("valid") or {}
    if held_out.get("ngrams"):
        texts = {"the held-out text": held_out, **texts}
    name = next(iter(texts))
    sentence = in_words(texts[name], name)
    return SectionBody(sparsity_blocks(texts), [f"sparsity: {sentence}"] if sentence else [])


def sparsity_blocks(texts: Mapping[str, JsonObject]) -> list[PageBlock]:
    """Return a sentence, a table and a plot of figures of `counting.ngrams.unseen`, by the name of the text."""
    sentences = [in_words(figures, name) for name, figures in texts.items()]
    lead = [Prose(f"{sentence[:1].upper()}{sentence[1:]}.") for sentence in sentences[:1] if sentence]
    rows: dict[str, Rows] = {name: figures["ngrams"] for name, figures in texts.items()}
    plot = Plot(
        unseen_figure(rows),
        "Unseen n-grams",
        "The share of a text's n-grams that are not in the model. N-grams that pruning left out count as unseen.",
        "; ".join(f"{name}: {_fractions(orders)}" for name, orders in rows.items()),
    )
    return [*lead, sparsity_table(rows), Plots([plot])]


def in_words(figures: JsonObject, name: str) -> str:
    """Return phrases on the unseen n-grams of the longest order, and those seen once."""
    last = figures["ngrams"][-1]
    phrases = []
    if last.get("unseen_share") is not None:
        phrases.append(
            f"of the {last['predicted']:,} {last['order']}-grams of {name}, {percent(last['unseen_share'])} are unseen"
        )
    if last.get("types") and last.get("once") is not None:
        once = percent(last["once"] / last["types"])
        phrases.append(f"{once} of the {last['order']}-grams in the training text occur there once")
    return "; ".join(phrases)


def sparsity_table(texts: Mapping[str, Rows]) -> Table:
    """Return the numbers of possible, seen and unseen n-grams, with a row for each order and columns for each text."""
    headings = ["n", "possible", "in the training text", "seen once"]
    headings += [heading for name in texts for heading in (f"in {name}", "unseen of these")]
    cells = []
    for orders in zip(*texts.values(), strict=True):
        row = orders[0]
        once = _portion(row.get("once"), row.get("types"))
        line = [str(row["order"]), _number(row.get("possible")), _number(row.get("types")), once]
        for each in orders:
            line += [_number(each.get("predicted")), _portion(each.get("unseen"), each.get("predicted"))]
        cells.append(line)
    caption = (
        "N-grams of each order. Possible are Vⁿ of a vocabulary of V tokens; unseen are those of a text that the model "
        "does not have."
    )
    return Table(headings, cells, caption, range(1, len(headings)))


def unseen_figure(texts: Mapping[str, Rows]) -> Figure:
    """Draw the fraction of unseen n-grams against n, with a line for each text."""
    figure, [[plot]] = new_figure(height=2.6)
    for i, (name, rows) in enumerate(texts.items()):
        points = [(row["order"], row["unseen_share"]) for row in rows if row.get("unseen_share") is not None]
        if points:
            plot.plot(*zip(*points, strict=True), **style(i), label=plain(name))
    plot.set(ylim=(-0.02, 1.02), xlabel="n", ylabel="unseen n-grams")
    plot.xaxis.set_major_locator(MaxNLocator(integer=True))
    plot.yaxis.set_major_formatter(FuncFormatter(lambda fraction, _: percent(fraction)))
    if len(texts) > 1:
        plot.legend()
    return figure


def _fractions(rows: Rows) -> str:
    known = [row for row in rows if row.get("unseen_share") is not None]
    return ", ".join(f"{percent(row['unseen_share'])} at n = {row['order']}" for row in known) or UNKNOWN


def _number(value: float | None) -> str:
    if value is None:
        return UNKNOWN
    if not math.isfinite(value):
        return "beyond 1e+308"
    return f"{value:,}" if isinstance(value, int) else f"{value:.2g}"


def _portion(count: int | None, total: int | None) -> str:
    if count is None or not total:
        return UNKNOWN if count is None else f"{count:,}"
    return f"{count:,} ({percent(count / total)})"

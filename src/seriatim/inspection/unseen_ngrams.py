"""Unseen n-grams: what the training text of an n-gram model holds of all n-grams, and what other texts lack."""

import math
from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from ..evaluation.intervals import Metrics
from ..report.page import Part, Plot, Plots, Prose, Table
from ..report.theme import new_figure, plain, style
from .subject import Content, Subject

Rows = Sequence[Metrics]
"""The ``ngrams`` of a text, one for each order; see `seriatim.models.ngrams.unseen`."""
UNKNOWN = "not known"


def ngrams_section(subject: Subject) -> Content:
    """Write the section on an n-gram model's counts."""
    texts = {"this text": subject.view.ngram_counts(subject.text)}
    held_out = subject.run.summary.get("valid") or {}
    if held_out.get("ngrams"):
        texts = {"the held-out text": held_out, **texts}
    name = next(iter(texts))
    sentence = in_words(texts[name], name)
    return Content(sparsity_parts(texts), [f"sparsity: {sentence}"] if sentence else [])


def sparsity_parts(texts: Mapping[str, Metrics]) -> list[Part]:
    """Return a sentence, tables and a plot of figures of `seriatim.models.ngrams.unseen`, by the name of the text."""
    sentences = [in_words(figures, name) for name, figures in texts.items()]
    lead = [Prose(f"{sentence[:1].upper()}{sentence[1:]}.") for sentence in sentences[:1] if sentence]
    rows: dict[str, Rows] = {name: figures["ngrams"] for name, figures in texts.items()}
    plot = Plot(
        unseen_figure(rows),
        "Unseen n-grams",
        "The share of a text's n-grams that are not in the model. N-grams that pruning left out count as unseen.",
        "; ".join(f"{name}: {_shares(orders)}" for name, orders in rows.items()),
    )
    return [*lead, *(sparsity_table(name, orders) for name, orders in rows.items()), Plots([plot])]


def in_words(figures: Metrics, name: str) -> str:
    """Return phrases on the unseen n-grams of the longest order, those seen once, and tokens of probability zero."""
    last = figures["ngrams"][-1]
    phrases = []
    if last.get("unseen_share") is not None:
        phrases.append(
            f"of the {last['predicted']:,} {last['order']}-grams of {name}, {last['unseen_share']:.1%} are unseen"
        )
    if last.get("types") and last.get("once") is not None:
        phrases.append(
            f"{last['once'] / last['types']:.1%} of the {last['order']}-grams in the training text occur there once"
        )
    impossible, share = (figures.get(f"maximum_likelihood_impossible_{key}") for key in ("tokens", "share"))
    if impossible is not None and share is not None:
        phrases.append(f"maximum likelihood gives probability zero to {impossible:,} tokens ({share:.1%}) of {name}")
    return "; ".join(phrases)


def sparsity_table(name: str, rows: Rows) -> Table:
    """Return the numbers of possible, seen and unseen n-grams, with a row for each order."""
    cells = []
    for row in rows:
        possible, types, predicted = (_number(row.get(key)) for key in ("possible", "types", "predicted"))
        once, unseen = _portion(row.get("once"), row.get("types")), _portion(row.get("unseen"), row.get("predicted"))
        cells.append([str(row["order"]), possible, types, once, predicted, unseen])
    headings = ["n", "possible", "in the training text", "seen once", f"in {name}", "unseen of these"]
    caption = (
        f"N-grams of each order. Possible are V^n of a vocabulary of V tokens; unseen are those of {name} that are not "
        "in the model."
    )
    return Table(headings, cells, caption, range(1, len(headings)))


def unseen_figure(texts: Mapping[str, Rows]) -> Figure:
    """Draw the share of unseen n-grams against n, with a line for each text."""
    figure, [[plot]] = new_figure(height=2.6)
    for i, (name, rows) in enumerate(texts.items()):
        points = [(row["order"], row["unseen_share"]) for row in rows if row.get("unseen_share") is not None]
        if points:
            plot.plot(*zip(*points, strict=True), **style(i), label=plain(name))
    plot.set(ylim=(-0.02, 1.02), xlabel="n", ylabel="unseen n-grams")
    plot.xaxis.set_major_locator(MaxNLocator(integer=True))
    plot.yaxis.set_major_formatter(PercentFormatter(1.0))
    if len(texts) > 1:
        plot.legend()
    return figure


def _shares(rows: Rows) -> str:
    known = [row for row in rows if row.get("unseen_share") is not None]
    return ", ".join(f"{row['unseen_share']:.1%} at n = {row['order']}" for row in known) or UNKNOWN


def _number(value: float | None) -> str:
    if value is None:
        return UNKNOWN
    if not math.isfinite(value):
        return "beyond 1e+308"
    return f"{value:,}" if isinstance(value, int) else f"{value:.2g}"


def _portion(count: int | None, whole: int | None) -> str:
    if count is None or not whole:
        return UNKNOWN if count is None else f"{count:,}"
    return f"{count:,} ({count / whole:.1%})"

"""How sparse the counts of an n-gram model are: what its training text holds of all n-grams, and what others lack."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from ..core.errors import InputError
from ..models.ngrams.unseen import sparsity as figures_of
from ..report.page import Part, Plot, Plots, Prose, Table
from ..report.theme import new_figure, plain, style
from ..tasks.counting import counts_of
from .sections import Found
from .subject import Subject

Rows = Sequence[Mapping[str, Any]]
"""The ``ngrams`` of a text, an order each; see `seriatim.models.ngrams.unseen`."""
Figures = Mapping[str, Any]
"""All figures of `seriatim.models.ngrams.unseen` for a text."""
UNKNOWN = "not known"


def sparse(subject: Subject) -> Found:
    """The section on an n-gram model's counts.

    Raises:
        InputError: the run does not count n-grams.
    """
    counts = counts_of(subject.run.model)
    if counts is None:
        raise InputError("the run does not count n-grams")
    lookups = counts.look_up(subject.corpus.ids)
    found = figures_of(lookups, counts.seen, counts.vocabulary_size, impossible=0)
    texts: dict[str, Figures] = {"this text": found}
    held_out = subject.run.summary.get("valid") or {}
    if held_out.get("ngrams"):
        texts = {"the held-out text": held_out, **texts}
    name, figures = next(iter(texts.items()))
    sentence = in_words(figures, name)
    return sparsity_parts(texts), [f"sparsity: {sentence}"] if sentence else []


def sparsity_parts(texts: Mapping[str, Figures]) -> list[Part]:
    """A sentence, a table and a plot of what the training text holds and what some texts lack.

    Args:
        texts: the name of each text, or of each model that was counted, to its figures.
    """
    sentences = [in_words(figures, name) for name, figures in texts.items()]
    lead = [Prose(f"{sentence[:1].upper()}{sentence[1:]}.") for sentence in sentences[:1] if sentence]
    every: dict[str, Rows] = {name: figures["ngrams"] for name, figures in texts.items()}
    figure = unseen_figure(every)
    plot = Plot(
        figure,
        "Unseen n-grams",
        "The share of a text's n-grams that are not in the model. N-grams that pruning left out count as unseen.",
        "; ".join(f"{name}: {_shares(rows)}" for name, rows in every.items()),
    )
    return [*lead, *(sparsity_table(name, rows) for name, rows in every.items()), Plots([plot])]


def in_words(figures: Figures, name: str) -> str:
    """What is known of the unseen n-grams of the longest order, those seen once, and tokens of probability zero."""
    last = figures["ngrams"][-1]
    said = []
    if last.get("unseen_share") is not None:
        said.append(
            f"of the {last['predicted']:,} {last['order']}-grams of {name}, {last['unseen_share']:.1%} are unseen"
        )
    if last.get("types") and last.get("once") is not None:
        said.append(
            f"{last['once'] / last['types']:.1%} of the {last['order']}-grams in the training text occur there once"
        )
    impossible, share = (figures.get(f"maximum_likelihood_impossible_{key}") for key in ("tokens", "share"))
    if impossible is not None and share is not None:
        said.append(f"maximum likelihood gives probability zero to {impossible:,} tokens ({share:.1%}) of {name}")
    return "; ".join(said)


def sparsity_table(name: str, rows: Rows) -> Table:
    """Possible n-grams, those in the training text, those seen once, and what a text lacks, an order a row."""
    cells = [
        [
            str(row["order"]),
            _number(row.get("possible")),
            _number(row.get("types")),
            _portion(row.get("once"), row.get("types")),
            _number(row.get("predicted")),
            _portion(row.get("unseen"), row.get("predicted")),
        ]
        for row in rows
    ]
    headings = ["n", "possible", "in the training text", "seen once", f"in {name}", "unseen of these"]
    caption = (
        f"N-grams of each order. Possible are V^n of a vocabulary of V tokens; unseen are those of {name} that are "
    )
    return Table(headings, cells, f"{caption}not in the model.", range(1, len(headings)))


def unseen_figure(texts: Mapping[str, Rows]) -> Figure:
    """The share of unseen n-grams against n, a line a text."""
    figure, axes = new_figure(height=2.6)
    plotted = axes[0, 0]
    for i, (name, rows) in enumerate(texts.items()):
        points = [(row["order"], row["unseen_share"]) for row in rows if row.get("unseen_share") is not None]
        if points:
            plotted.plot(*zip(*points, strict=True), **style(i), label=plain(name))
    plotted.set_ylim(-0.02, 1.02)
    plotted.xaxis.set_major_locator(MaxNLocator(integer=True))
    plotted.yaxis.set_major_formatter(PercentFormatter(1.0))
    plotted.set_xlabel("n")
    plotted.set_ylabel("unseen n-grams")
    if len(texts) > 1:
        plotted.legend(frameon=False)
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

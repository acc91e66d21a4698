"""``seriatim evaluate --minimal-pairs``: accuracy on pairs of sentences, by phenomenon, of one run or of two."""

import argparse
from typing import TYPE_CHECKING

from ..core.errors import InputError
from ..storage.files import to_json
from .shared_options import SEARCH, open_run

if TYPE_CHECKING:
    from ..runs.run import Run


def evaluate_pairs(options: argparse.Namespace) -> None:
    """Print how often each run finds the good sentence of a pair more probable, and the difference between two runs."""
    from ..data.sources import find_sources
    from ..evaluation.intervals import paired, written
    from ..evaluation.minimal_pairs import PairScores, read_pairs, score_pairs
    from ..runs.ensembles import ensemble
    from .console import show, table_of

    for name in ("interpolate", *SEARCH):
        if getattr(options, name) is not None:
            raise InputError(f"--minimal-pairs: cannot be combined with --{name.replace('_', '-')}; leave one out")

    def opened(paths: str) -> "Run":
        return ensemble([open_run(path, options) for path in paths.split(",")])

    run = opened(options.run)
    repairs = run.task.files.new_repairs(run.vocabulary)
    repairs.markers = run.task.files.markers_in([])
    pairs = read_pairs(find_sources(options.data, file_format=options.format or "auto", split="test"), repairs)
    repairs.warn()

    def scored(run: "Run") -> PairScores:
        run.check_lengths((pair.place, sentence) for pair in pairs for sentence in pair[:2])
        return score_pairs(pairs, lambda sentences: [score.log_probability for score in run.score(sentences)])

    first, second = scored(run), None if options.other is None else scored(opened(options.other))
    if second is None:
        metrics = first.metrics()
        if options.json:
            print(to_json(metrics))
            return
        table = table_of("phenomenon", "pairs", "accuracy", "95 % interval")
        rows = {**metrics["phenomena"], "all": metrics} if metrics["phenomena"] else {"all": metrics}
        for name, row in rows.items():
            low, high = (written(row[f"accuracy_{end}"], 3) for end in ("low", "high"))
            interval = "" if row["accuracy_low"] is None else f"{low} to {high}"
            table.add_row(name, f"{row['pairs']:,}", written(row["accuracy"], 3), interval)
        show(table)
        if metrics["ties"]:
            print(f"equal probability, which counts as wrong: {metrics['ties']:,} of {metrics['pairs']:,} pairs")
        return
    measures, others = first.measures(), second.measures()
    differences = {
        name: paired(part.statistics, others[name].statistics, part.compute) for name, part in measures.items()
    }
    if options.json:
        parts = {name: difference._asdict() for name, difference in differences.items()}
        print(to_json({"first": first.metrics(), "second": second.metrics(), "differences": parts}))
        return
    table = table_of("phenomenon", "first", "second", "difference", "95 % interval", "p")
    for name in [*list(measures)[1:], "accuracy"]:
        values = [float(part[name].compute(part[name].statistics.sum(0))) for part in (measures, others)]
        change = differences[name]
        interval = "" if change.low is None else " to ".join(written(end, 3, signed=True) for end in change[1:3])
        cells = [*(written(value, 3) for value in values), written(change.difference, 3, signed=True), interval]
        p_value = "" if change.p_value is None else f"{change.p_value:.3f}"
        table.add_row("all" if name == "accuracy" else name, *cells, p_value)
    show(table)

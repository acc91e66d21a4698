"""The verb ``evaluate``: the metrics of a run, of a mixture, or of two runs; and accuracy on minimal pairs."""

import argparse
from typing import TYPE_CHECKING

from ..core.errors import ConflictError, RequiredError, printable
from ..storage.files import to_json
from .options import (
    COLUMNS_HELP,
    FORMATS,
    RUNS_HELP,
    SEARCH,
    Parser,
    add_code,
    add_search,
    add_strict,
    add_weights,
    answer_settings,
    open_answering,
    open_run,
)

if TYPE_CHECKING:
    from ..runs.run import Run


def add_evaluate(parser: Parser) -> None:
    """Add ``seriatim evaluate RUN [OTHER] --data F [--json]``."""
    parser.set_defaults(run_verb=evaluate)
    parser.epilog = COLUMNS_HELP
    add = parser.add_argument
    add("run", metavar="RUN", help=RUNS_HELP)
    add("other", metavar="OTHER", nargs="?", help="another run, to test whether the two differ significantly")
    add("--data", required=True, metavar="F", help="a file, a folder, a glob, - or builtin:NAME")
    add(
        "--interpolate",
        nargs="?",
        const="",
        metavar="FILE",
        help="mix RUN and OTHER into one language model, with weights fitted on FILE (default: RUN's validation data)",
    )
    add(
        "--minimal-pairs",
        action="store_true",
        help="read pairs of sentences, JSONL with sentence_good and sentence_bad (as BLiMP), and print the accuracy",
    )
    add("--format", choices=FORMATS, help="the format of the data (default: that of the run's configuration)")
    add_search(parser)
    add_weights(parser)
    add_strict(parser)
    add("--json", action="store_true", help="print one JSON object")
    add_code(parser)


def evaluate(options: argparse.Namespace) -> None:
    """Print the metrics of a run, of a mixture of runs, or of two runs and their differences."""
    from ..runs.ensembles import compare, cost_of_rounding, evaluate_beside_baseline, interpolate
    from .console import print_cost_of_rounding, print_metric_differences, print_metrics

    if options.minimal_pairs:
        evaluate_pairs(options)
        return

    # One model answers: a run, an ensemble of several, or a mixture whose weights are fitted on held-out text.
    paths, other, mixture = options.run.split(","), options.other, {}
    if options.interpolate is None:
        run = open_answering(options.run, options)
    else:
        paths, other = [*paths, *([other] if other else [])], None
        if len(paths) < 2:
            raise RequiredError("--interpolate: needs at least two runs; name another: evaluate RUN OTHER")
        runs = [open_run(path, options) for path in paths]
        run, weights = interpolate(runs, options.interpolate or None, file_format=options.format)
        mixture = dict(zip(paths, weights, strict=True))
    settings = {"file_format": options.format, **answer_settings(options, run)}

    # What rounding costs and what the baseline adds can be told of a single run only.
    alone = len(paths) == 1 and other is None and options.interpolate is None
    if options.weights != "float32" and not alone:
        raise ConflictError("--weights: it measures what rounding costs one run; leave out --weights, or give one run")
    beside = evaluate_beside_baseline(run, options.data, **settings) if alone else None
    metrics = run.evaluate(options.data, **settings) if beside is None else beside.metrics
    cost = cost_of_rounding(run, metrics, options.data, **settings) if options.weights != "float32" else None

    if other is not None:
        # Differences are tested item by item, since both runs answer the same items.
        second = open_run(other, options)
        differences = compare(run, second, options.data, **settings)
        other_metrics = second.evaluate(options.data, **settings)
        if options.json:
            rows = {name: difference._asdict() for name, difference in differences.items()}
            print(to_json({"first": metrics, "second": other_metrics, "differences": rows}))
        else:
            names = column_names(options)
            print_metric_differences(names, metrics, other_metrics, differences, run.task, run.vocabulary)
    elif options.json:
        figures = metrics if beside is None else beside.as_json(run.config.training.baseline_weight)
        beside_figures: dict[str, object] = {"weights": mixture} if mixture else {}
        beside_figures |= {} if cost is None else {"rounding": cost.as_json()}
        print(to_json({**figures, **beside_figures}))
    else:
        print_metrics(metrics, run.task, *(beside[1:] if beside else ()))
        if cost is not None:
            print_cost_of_rounding(metrics, cost, run.task, run.vocabulary)
        if mixture:
            print(printable("weights: " + ", ".join(f"{path} {weight:.4f}" for path, weight in mixture.items())))


def column_names(options: argparse.Namespace) -> tuple[str, str]:
    """Return short names of the two runs, which head the columns; the first may be an ensemble of several."""
    from ..runs.ensembles import distinct_names

    *first, second = distinct_names([*options.run.split(","), options.other])
    return ",".join(first), second


def evaluate_pairs(options: argparse.Namespace) -> None:
    """Print how often each run finds the good sentence of a pair more probable, and the difference between two runs."""
    from ..data.sources import find_sources
    from ..evaluation.intervals import Metric, written
    from ..evaluation.minimal_pairs import PairScores, read_pairs, score_pairs
    from .conclusions import Difference
    from .console import print_differences, show, table_of

    for name in ("interpolate", *SEARCH):
        if getattr(options, name) is not None:
            raise ConflictError(f"--minimal-pairs: cannot be combined with --{name.replace('_', '-')}; leave one out")

    # Sentences are read as the first run reads texts, and both runs score the same ones.
    run = open_answering(options.run, options)
    repairs = run.task.files.new_repairs(run.vocabulary)
    repairs.markers = run.task.files.markers_in([])
    pairs = read_pairs(find_sources(options.data, file_format=options.format or "auto", split="test"), repairs)
    repairs.warn()

    def scored(run: "Run") -> PairScores:
        run.check_lengths((pair.location, sentence) for pair in pairs for sentence in pair[:2])
        return score_pairs(pairs, lambda sentences: [score.log_probability for score in run.score(sentences)])

    # One run: its accuracy by phenomenon, and how often it is undecided.
    first, second = scored(run), None if options.other is None else scored(open_answering(options.other, options))
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

    # Two runs: the differences are paired, as both judge the same sentences.
    measures, others = first.measures(), second.measures()
    differences = {name: each.paired_with(others[name]) for name, each in measures.items()}
    if options.json:
        rows = {name: difference._asdict() for name, difference in differences.items()}
        print(to_json({"first": first.metrics(), "second": second.metrics(), "differences": rows}))
        return
    names, accuracy = column_names(options), Metric("accuracy", "accuracy", 3, more_is_better=True)
    lines = []
    for name in [*list(measures)[1:], "accuracy"]:
        values = [written(each[name].value, 3) for each in (measures, others)]
        difference = Difference(*names, accuracy, differences[name])
        lines.append(("all" if name == "accuracy" else name, values[0], values[1], difference))
    print_differences("phenomenon", lines, lines[-1][-1])

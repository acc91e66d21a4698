"""The verbs that use a trained run: ``evaluate``, ``predict``, ``generate`` and ``inspect``."""

import argparse
import functools
from typing import TYPE_CHECKING

from ..core.errors import InputError, printable
from ..storage.atomic_files import json_line, to_json
from .minimal_pairs_console import evaluate_pairs
from .shared_options import (
    COLUMNS_HELP,
    FORMATS,
    SAMPLING,
    SEARCH,
    Verbs,
    add_code,
    add_sampling,
    add_search,
    add_strict,
    add_verb,
    add_weights,
    allowed,
    named,
    open_run,
    whole_number,
    write_out,
)

if TYPE_CHECKING:
    from ..runs.run import Run

RUNS_HELP = "a run, or several separated by commas, whose probabilities are averaged"


def add_evaluate(verbs: Verbs) -> None:
    """Add ``seriatim evaluate RUN [OTHER] --data F [--json]``."""
    parser = add_verb(verbs, "evaluate", evaluate, "measure a run on a text", epilog=COLUMNS_HELP)
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
    from ..runs.ensembles import compare, cost_of_rounding, ensemble, evaluate_beside_baseline, interpolate
    from .console import print_cost_of_rounding, print_differences, print_metrics

    if options.minimal_pairs:
        evaluate_pairs(options)
        return
    paths, other, shares = options.run.split(","), options.other, {}
    if options.interpolate is None:
        run = ensemble([open_run(path, options) for path in paths])
    else:
        paths, other = [*paths, *([other] if other else [])], None
        if len(paths) < 2:
            raise InputError("--interpolate: needs at least two runs; name another: evaluate RUN OTHER")
        runs = [open_run(path, options) for path in paths]
        run, weights = interpolate(runs, options.interpolate or None, file_format=options.format)
        shares = dict(zip(paths, weights, strict=True))
    settings = {"file_format": options.format, **_answer_settings(options, run)}
    alone = len(paths) == 1 and other is None and options.interpolate is None
    if options.weights != "float32" and not alone:
        raise InputError("--weights: measures what rounding costs one run; leave out --weights, or the other runs")
    beside = evaluate_beside_baseline(run, options.data, **settings) if alone else None
    metrics = run.evaluate(options.data, **settings) if beside is None else beside.metrics
    cost = cost_of_rounding(run, metrics, options.data, **settings) if options.weights != "float32" else None
    if other is not None:
        second = open_run(other, options)
        differences = compare(run, second, options.data, **settings)
        other_metrics = second.evaluate(options.data, **settings)
        if options.json:
            rows = {name: difference._asdict() for name, difference in differences.items()}
            print(to_json({"first": metrics, "second": other_metrics, "differences": rows}))
        else:
            print_differences(metrics, other_metrics, differences, run.task)
    elif options.json:
        figures = metrics if beside is None else beside.as_json(run.config.training.baseline_weight)
        parts: dict[str, object] = {"weights": shares} if shares else {}
        parts |= {} if cost is None else {"rounding": cost.as_json()}
        print(to_json({**figures, **parts}))
    else:
        print_metrics(metrics, run.task, *(beside[1:] if beside else ()))
        if cost is not None:
            print_cost_of_rounding(metrics, cost, run.task)
        if shares:
            print(printable("weights: " + ", ".join(f"{path} {weight:.4f}" for path, weight in shares.items())))


def add_predict(verbs: Verbs) -> None:
    """Add ``seriatim predict RUN [F]``."""
    text = "predict labels, tags or translations: one line in, one line out"
    parser = add_verb(verbs, "predict", predict, text, epilog=COLUMNS_HELP)
    add = parser.add_argument
    add("run", metavar="RUN", help=RUNS_HELP)
    add("data", nargs="?", metavar="F", help="a file (default: standard input, answered line by line)")
    add("--format", choices=FORMATS, help="the format of the file")
    add_search(parser)
    add_weights(parser)
    add_strict(parser)
    add_sampling(parser.add_argument_group("sampling", "with any of these, answers are sampled (seq2seq)"))
    add("--json", action="store_true", help="print one JSON object for each line, with scores and timings")
    add_code(parser)


def predict(options: argparse.Namespace) -> None:
    """Print one answer for each line of a file, or of standard input while it arrives."""
    from ..data.pipes import chunks, ready
    from ..data.readers import TEXT_SUFFIXES, find_sources, standard_input
    from ..runs.ensembles import ensemble

    run = ensemble([open_run(path, options) for path in options.run.split(",")])
    settings = _answer_settings(options, run)
    if options.json and "alignments" in run.predictor.settings.model_fields:
        settings["alignments"] = True
    if options.data in (None, "-"):
        source = standard_input("jsonl" if options.format == "jsonl" else "text")
        batches = ready(run.task.reader.inputs(run.vocabulary, [source], options.format), run.predictor.batch_size)
    else:
        suffixes = list(dict.fromkeys([*TEXT_SUFFIXES, *run.task.files.suffixes]))
        sources = find_sources(options.data, file_format=options.format or "auto", split="test", suffixes=suffixes)
        batches = chunks(run.task.reader.inputs(run.vocabulary, sources, options.format), run.predictor.batch_size)
    for answer in run.predict_batches(batches, details=options.json, **settings):
        write_out([json_line(answer) if options.json else answer["text"], "\n"])


def _answer_settings(options: argparse.Namespace, run: "Run") -> dict[str, object]:
    """Return the settings of beam search and sampling that were given; the task of the run must have them."""
    settings = named(options, *SEARCH, *SAMPLING)
    for name in settings:
        if name not in run.predictor.settings.model_fields:
            raise InputError(f"--{name.replace('_', '-')}: not an option of the task {run.config.task}; leave it out")
    return settings


def add_inspect(verbs: Verbs) -> None:
    """Add ``seriatim inspect RUN --text S``."""
    text = "write a page that shows what a model does with a text: surprisal, attention, gates, memory"
    parser = add_verb(verbs, "inspect", inspect, text, epilog=COLUMNS_HELP)
    add = parser.add_argument
    add("run", metavar="RUN", help="the run to inspect; or a comparison, whose layers all read the text")
    add("--text", metavar="S", help="the text to read")
    add("--text-file", metavar="FILE", help="a file with the text; - for standard input")
    add(
        "--permute",
        type=whole_number,
        nargs="?",
        const=20,
        default=0,
        metavar="N",
        help="also show what changes when the words come in N other orders (20 if N is left out)",
    )
    add("--data", metavar="F", help="labelled data to find errors in (default: the run's test data)")
    add("--format", choices=FORMATS, help="the format of the data (default: that of the run)")
    add("--out", metavar="FILE", help="the page to write (default: inspect.html in the run's folder)")
    add("--beam", type=whole_number, default=5, metavar="N", help="the width of beam search (seq2seq; default: 5)")
    add_strict(parser)
    add_code(parser)


def inspect(options: argparse.Namespace) -> None:
    """Write a page on a model and a text, and print its main findings."""
    from ..comparison.inspected_rows import inspect_rows, is_comparison, links_of_run
    from ..inspection.inspection import inspect as write_page
    from ..inspection.inspection import read_whole
    from ..training.run_files import PAGE, check_file

    if (options.text is None) == (options.text_file is None):
        raise InputError("inspect: needs one text; give either --text S or --text-file FILE")
    if options.out is not None:
        check_file(options.out, PAGE, (options.text_file,))
    text = options.text if options.text is not None else read_whole(options.text_file, strict=options.strict)
    page = functools.partial(
        write_page,
        text=text,
        data=options.data,
        file_format=options.format,
        fields=options.fields,
        beam=options.beam,
        permute=options.permute,
        allow_code=allowed(options),
    )
    if is_comparison(options.run):
        if options.out is not None:
            raise InputError("--out: the pages of a comparison lie in the folders of its runs; leave it out")
        lines: list[object] = [result.path for result in inspect_rows(options.run, page)]
    else:
        links = links_of_run(options.run) if options.out is None else []  # these are relative to the run's folder
        result = page(options.run, out=options.out, links=links)
        lines = [*result.summary, result.path]
    write_out([f"{printable(str(line))}\n" for line in lines])

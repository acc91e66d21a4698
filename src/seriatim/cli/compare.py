"""The verb ``compare``: several layers under one budget."""

import argparse
import shlex
from typing import TYPE_CHECKING

from ..core.errors import FixedError, RequiredError, TrainingError
from .options import Parser, add_code, add_task, allowed, number, require_task, whole_number, whole_numbers

if TYPE_CHECKING:
    from ..comparison.comparing import Comparison, ComparisonReporter


def add_compare(parser: Parser) -> None:
    """Add ``seriatim compare TASK --data F --layers A,B,C``."""
    parser.set_defaults(run_verb=compare)
    add_task(parser)
    parser.hidden_fields = ("model.layer",)
    add = parser.add_argument
    add("--layers", metavar="A,B,C", help="the layers; A+B is a stack that mixes two; see seriatim layers")
    budget = parser.add_argument_group("budget of each layer", "give one of these; the default is 2 minutes")
    budget.add_argument("--minutes", type=number, metavar="M", help="minutes of training")
    budget.add_argument("--tokens", type=whole_number, metavar="N", help="tokens to train on, counted in every epoch")
    budget.add_argument("--steps", type=whole_number, metavar="N", help="steps of the optimizer")
    add("--parameters", metavar="N", help="parameters of each layer, such as 500k (default: as the first layer)")
    add(
        "--widths",
        type=whole_numbers,
        metavar="W,W",
        help="train every layer at each of these widths, such as 16,32,64",
    )
    add("--seeds", type=whole_number, metavar="N", help="runs of each layer")
    add("--tune", type=whole_number, metavar="K", help="try K learning rates for each layer, in half of its budget")
    add("--workers", type=whole_number, metavar="N", help="train N rows at a time, each with its share of the threads")
    add("--cluster", metavar="URL", help="train on the workers of a Dask cluster, such as tcp://host:8786")
    add("--metric", metavar="NAME", help="the metric to rank by (default: the first metric of the task)")
    add("--out", metavar="DIR", help="the folder to write (default: comparisons/TASK-DATA)")
    add("--overwrite", action="store_true", help="replace an existing comparison")
    add("--resume", metavar="DIR", help="continue a comparison; --layers, --widths and --seeds may be extended")
    add("--no-report", action="store_true", help="do not write report.html")
    add("--quiet", action="store_true", help="print only errors")
    add("--json", action="store_true", help="print one JSON object")
    add_code(parser, "the resumed comparison")


def compare(options: argparse.Namespace) -> None:
    """Compare layers, or resume a comparison."""
    from .comparison_console import ComparisonConsole, finish, may_draw

    reporter = ComparisonConsole(quiet=options.quiet, bar_width=20)
    report = not options.no_report and may_draw(reporter)
    try:
        comparison = _resume_comparison(options, reporter) if options.resume else _start_comparison(options, reporter)
    finally:
        reporter.close()
    finish(comparison, reporter, report=report, as_json=options.json)
    if comparison.failures:
        reasons = {failure["layer"]: failure["reason"] for failure in comparison.failures}
        told = not (options.quiet or options.json)  # when it failed
        listed = ", ".join(layer if told else f"{layer} ({reason})" for layer, reason in reasons.items())
        retry = f"to retry: {shlex.join(['seriatim', 'compare', '--resume', str(comparison.folder)])}"
        if all(reason.startswith("--") for reason in reasons.values()):  # an option that --resume cannot change
            retry = "start again with --overwrite"
        raise TrainingError(f"compare: {len(reasons)} of {len(comparison.rows)} layers failed: {listed}; {retry}")


def _start_comparison(options: argparse.Namespace, reporter: "ComparisonReporter") -> "Comparison":
    from ..comparison.comparing import compare as start

    overrides = require_task(options, "compare lm --data FILE --layers rnn,lstm")
    if options.layers is None:
        raise RequiredError("compare: no layers; name some, for instance --layers ngram,rnn,lstm,transformer,mamba")
    return start(
        options.config or {},
        layers=options.layers.split(","),
        minutes=options.minutes,
        tokens=options.tokens,
        steps=options.steps,
        parameters=options.parameters,
        seeds=1 if options.seeds is None else options.seeds,
        tune=options.tune,
        metric=options.metric,
        widths=options.widths,
        overrides=overrides,
        overwrite=options.overwrite,
        workers=options.workers,
        cluster=options.cluster,
        reporter=reporter,
        command=shlex.join(["seriatim", *options.arguments]),
    )


def _resume_comparison(options: argparse.Namespace, reporter: "ComparisonReporter") -> "Comparison":
    from ..comparison.comparing import resume

    fixed = ("task", "config", "minutes", "tokens", "steps", "parameters", "tune", "metric", "out", "overwrite")
    changed = next((name for name in fixed if getattr(options, name)), next(iter(options.fields), None))
    if changed is not None:
        raise FixedError(f"--resume: {changed} cannot change; give only --layers, --widths and --seeds")
    return resume(
        options.resume,
        layers=None if options.layers is None else options.layers.split(","),
        seeds=options.seeds,
        widths=options.widths,
        workers=options.workers,
        cluster=options.cluster,
        reporter=reporter,
        allow_code=allowed(options),
    )

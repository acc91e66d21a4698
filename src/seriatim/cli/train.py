"""The verbs ``train`` and ``check``."""

import argparse
import os
import shlex
import warnings

from ..core.errors import ConflictError
from ..storage.files import to_json
from .options import Parser, add_code, add_task, allowed, named, require_task


def add_train(parser: Parser) -> None:
    """Add ``seriatim train TASK --data F --layer NAME --out RUN``."""
    parser.set_defaults(run_verb=train)
    add_task(parser)
    add = parser.add_argument
    add("--out", metavar="RUN", help="the folder to write")
    add("--overwrite", action="store_true", help="replace an existing run once the new one has weights")
    add("--resume", metavar="RUN", help="continue an interrupted training")
    add("--quiet", action="store_true", help="print only errors")
    add_code(parser)


def train(options: argparse.Namespace) -> None:
    """Train a model, or resume a training."""
    if os.environ.get("WORLD_SIZE", "1") != "1":
        # PyTorch, which is not imported yet, advises against a setting.
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    is_leader = os.environ.get("RANK", "0") == "0"
    if not is_leader:
        warnings.simplefilter("ignore")  # the leader gives the same warnings
    from ..runs.train import resume
    from ..runs.train import train as start
    from ..tasks.beside_baseline import ADVICE
    from ..training.reporting import Reporter
    from .console import ConsoleReporter

    reporter = ConsoleReporter() if is_leader and not options.quiet else Reporter()
    try:
        if options.resume is not None:
            if options.out or options.config or options.overwrite:
                raise ConflictError(
                    "--resume: a run continues in its own folder with its own configuration; leave out --out, --config "
                    "and --overwrite"
                )
            overrides = {**options.fields, **named(options, "task")}
            run = resume(options.resume, overrides=overrides, reporter=reporter, allow_code=allowed(options))
        else:
            run = start(
                options.config or {},
                overrides=require_task(options, "train lm --data FILE --out RUN"),
                overwrite=options.overwrite,
                reporter=reporter,
                allow_code=allowed(options),
            )
        if isinstance(reporter, ConsoleReporter):
            reporter.say(f"next: {run.task.kind.usage.format(run=shlex.quote(str(run.path)))}")
            if ADVICE in run.summary.get("baseline", {}).get("simple", {}).get("verdict", ""):
                config, other = (shlex.quote(f"{run.path}{end}") for end in ("/config.yaml", "-with-baseline"))
                reporter.say(f"both: seriatim train --config {config} --training.baseline_weight auto --out {other}")
    finally:
        reporter.close()


def add_check(parser: Parser) -> None:
    """Add ``seriatim check TASK --data F``."""
    parser.set_defaults(run_verb=check)
    add_task(parser)
    parser.add_argument("--out", metavar="RUN", help="also check that a run can be written to this folder")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def check(options: argparse.Namespace) -> None:
    """Make all checks of a training, and print statistics of its data."""
    from ..runs.checking import check_training
    from .console import print_statistics

    report = check_training(options.config or {}, overrides=require_task(options, "check lm --data FILE"))
    if options.json:
        print(to_json(report))
    else:
        print_statistics(report)

"""What each verb of the command does."""

import argparse
import json
import random
import shlex
import sys
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..config import set_fields
from ..core.errors import InputError, TrainingError, printable
from ..storage.atomic_files import to_json

if TYPE_CHECKING:
    from ..comparison.comparing import Comparison
    from ..comparison.comparison_progress import ComparisonReporter
    from ..layers.origins import AllowCode
    from ..runs.run import Run
    from ..training.reporting import Reporter

SEARCH = ("beam", "length_penalty", "n_best", "min_length")
MOST_TOKENS = 1 << 31
LONGEST_PROMPT = 1 << 24
"""Characters of a prompt from standard input."""
DRAWING = ("temperature", "top_k", "top_p", "min_p", "seed")


def train(options: argparse.Namespace) -> None:
    """``seriatim train TASK --data F --layer NAME --out RUN``, or ``--resume RUN``."""
    from ..training.reporting import Reporter
    from .console import ConsoleReporter

    reporter = Reporter() if options.quiet else ConsoleReporter()
    try:
        if options.resume is not None:
            _resume(options, reporter)
        else:
            _start(options, reporter)
    finally:
        reporter.close()


def _resume(options: argparse.Namespace, reporter: "Reporter") -> None:
    from ..runs.launch import resume

    if options.out or options.config or options.overwrite:
        raise InputError("--resume: goes on in the run's own folder with its own configuration; leave out the rest")
    task = {"task": options.task} if options.task else {}
    resume(options.resume, overrides={**options.fields, **task}, reporter=reporter, allow_code=allowed(options))


def _start(options: argparse.Namespace, reporter: "Reporter") -> None:
    from ..runs.launch import train as start

    if options.task is None and options.config is None:
        raise InputError("train: no task; give one, for instance: seriatim train lm --data FILE --out RUN")
    given = {name: getattr(options, name) for name in ("task", "out") if getattr(options, name) is not None}
    start(
        options.config or {},
        overrides={**options.fields, **given},
        overwrite=options.overwrite,
        reporter=reporter,
        allow_code=allowed(options),
    )


def compare(options: argparse.Namespace) -> None:
    """``seriatim compare TASK --data F --layers A,B,C``, or ``--resume DIR``."""
    from .comparison_console import ComparisonConsole, finish, may_draw

    reporter = ComparisonConsole(quiet=options.quiet)
    report = not options.no_report and may_draw(reporter)
    try:
        found = _resume_comparison(options, reporter) if options.resume else _start_comparison(options, reporter)
    finally:
        reporter.close()
    finish(found, report=report, quiet=options.quiet, as_json=options.json)
    if found.failures:
        reasons = {failure["layer"]: failure["reason"] for failure in found.failures}
        listed = ", ".join(f"{layer} ({reason})" for layer, reason in reasons.items())
        again = shlex.join(["seriatim", "compare", "--resume", str(found.folder)])
        raise TrainingError(f"compare: {len(reasons)} of {len(found.rows)} layers failed: {listed}; to retry: {again}")


def _start_comparison(options: argparse.Namespace, reporter: "ComparisonReporter") -> "Comparison":
    from ..comparison.comparing import compare as start

    if options.task is None and options.config is None:
        raise InputError("compare: no task; give one, for instance: seriatim compare lm --data FILE --layers rnn,lstm")
    if options.layers is None:
        raise InputError("compare: no layers; name some, for instance --layers ngram,rnn,lstm,transformer,mamba")
    given = {name: getattr(options, name) for name in ("task", "out") if getattr(options, name) is not None}
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
        widths=_widths(options.widths),
        overrides={**options.fields, **given},
        overwrite=options.overwrite,
        reporter=reporter,
        command=shlex.join(["seriatim", *options.arguments]),
    )


def _resume_comparison(options: argparse.Namespace, reporter: "ComparisonReporter") -> "Comparison":
    from ..comparison.comparing import resume

    fixed = ("task", "config", "minutes", "tokens", "steps", "parameters", "tune", "metric", "out", "overwrite")
    named = next((name for name in fixed if getattr(options, name)), next(iter(options.fields), None))
    if named is not None:
        raise InputError(f"--resume: {named} stays as it is; only more --layers, --widths and --seeds may be given")
    layers = None if options.layers is None else options.layers.split(",")
    return resume(
        options.resume,
        layers=layers,
        seeds=options.seeds,
        widths=_widths(options.widths),
        reporter=reporter,
        allow_code=allowed(options),
    )


def _widths(text: str | None) -> list[int] | None:
    """The numbers of ``--widths 16,32,64``.

    Raises:
        InputError: something else.
    """
    if text is None:
        return None
    numbers = [part.strip() for part in text.split(",") if part.strip()]
    wrong = next((part for part in numbers if not (part.isascii() and part.isdigit() and len(part) <= 10)), None)
    if wrong is not None:
        raise InputError(f"--widths: {wrong!r} is not a width; give whole numbers, for instance --widths 16,32,64")
    return [int(part) for part in numbers]


def allowed(options: argparse.Namespace) -> "AllowCode":
    """Return what code outside the library the user lets a verb import."""
    return "changed" if options.allow_changed_code else bool(options.allow_code)


def _open(path: str, options: argparse.Namespace) -> "Run":
    """Opens a run, which then reads data as the command line says."""
    from ..runs.run import load

    run = load(path, allow_code=allowed(options))
    set_fields(run.config, options.fields)
    return run


def evaluate(options: argparse.Namespace) -> None:
    """``seriatim evaluate RUN [OTHER] --data F [--json]``."""
    from ..runs.ensembles import compare, ensemble
    from .console import print_differences, print_metrics

    if options.interpolate is not None:
        _evaluate_interpolated(options)
        return
    run = ensemble([_open(path, options) for path in options.run.split(",")])
    settings = {"file_format": options.format, **_search(options, run)}
    metrics = run.evaluate(options.data, **settings)
    if options.other is None:
        if options.json:
            print(to_json(metrics))
        else:
            print_metrics(metrics, run.task)
        return
    other = _open(options.other, options)
    differences = compare(run, other, options.data, **settings)
    others = other.evaluate(options.data, **settings)
    if options.json:
        found = {name: difference._asdict() for name, difference in differences.items()}
        print(to_json({"first": metrics, "second": others, "differences": found}))
    else:
        print_differences(metrics, others, differences, run.task)


def _evaluate_interpolated(options: argparse.Namespace) -> None:
    """``seriatim evaluate RUN OTHER --interpolate [FILE] --data F``."""
    from ..runs.ensembles import interpolate
    from .console import print_metrics, print_weights

    paths = [*options.run.split(","), *([options.other] if options.other else [])]
    if len(paths) < 2:
        raise InputError("--interpolate: one run has nothing to be mixed with; name another: evaluate RUN OTHER")
    run, weights = interpolate(
        [_open(path, options) for path in paths], options.interpolate or None, file_format=options.format
    )
    metrics = run.evaluate(options.data, file_format=options.format, **_search(options, run))
    shares = dict(zip(paths, weights, strict=True))
    if options.json:
        print(to_json({**metrics, "weights": shares}))
    else:
        print_metrics(metrics, run.task)
        print_weights(shares)


def predict(options: argparse.Namespace) -> None:
    """``seriatim predict RUN [F]``: one line in, one line out, from a file or as standard input comes."""
    from ..data.pipes import ready
    from ..data.readers import TEXT_SUFFIXES, find_sources, standard_input
    from ..runs.ensembles import ensemble
    from ..runs.run import chunks

    run = ensemble([_open(path, options) for path in options.run.split(",")])
    settings = _search(options, run)
    if options.json and "alignments" in run.task.answer_settings.model_fields:
        settings["alignments"] = True
    if options.data in (None, "-"):
        source = standard_input("jsonl" if options.format == "jsonl" else "text")
        together = ready(run.task.items([source], options.format), run.task.together)
    else:
        suffixes = dict.fromkeys([*TEXT_SUFFIXES, *run.task.suffixes])
        wanted = options.format or "auto"
        sources = find_sources(options.data, file_format=wanted, split="test", suffixes=list(suffixes))
        together = chunks(run.task.items(sources, options.format), run.task.together)
    for answer in run.predict_batches(together, **settings):
        _write([json.dumps(answer, ensure_ascii=False) if options.json else answer["text"], "\n"])


def _search(options: argparse.Namespace, run: "Run") -> dict[str, Any]:
    """How answers are searched for, as far as the command line says.

    Raises:
        InputError: a setting that the run's task does not know.
    """
    given = {name: getattr(options, name) for name in SEARCH if getattr(options, name) is not None}
    given |= {name: getattr(options, name) for name in DRAWING if getattr(options, name, None) is not None}
    for name in given:
        if name not in run.task.answer_settings.model_fields:
            raise InputError(f"--{name.replace('_', '-')}: means nothing to a run trained to {run.config.task}")
    return given


def generate(options: argparse.Namespace) -> None:
    """``seriatim generate RUN [--prompt S] ...``; the prompt is repeated before what follows it."""
    from ..runs.run import load

    if not 1 <= options.max_tokens < MOST_TOKENS:
        raise InputError(f"--max-tokens: must be between 1 and {MOST_TOKENS - 1:,}, got {options.max_tokens}")
    if options.samples < 1:
        raise InputError(f"--samples: must be at least 1, got {options.samples}")
    if options.seed is not None and not 0 <= options.seed < 2**63:
        raise InputError(f"--seed: {options.seed} is not between 0 and 2^63 - 1")
    settings: dict[str, Any] = {name: getattr(options, name) for name in ("max_tokens", *DRAWING)}
    run = load(options.run, allow_code=allowed(options))
    prompt = _standard_input() if options.prompt == "-" else options.prompt
    if options.samples == 1 and not options.json:
        pieces = run.generate(prompt, **settings)
        _write([prompt])
        _write(pieces)
        _write(["\n"])
        return
    first = random.SystemRandom().randrange(2**31) if options.seed is None else options.seed
    texts = run.iter_samples(options.samples, prompt, **{**settings, "seed": first})
    for number, text in enumerate(texts):
        if options.json:
            sample = {"seed": first + number, "prompt": prompt, "text": text}
            _write([json.dumps(sample, ensure_ascii=False), "\n"])
        else:
            title = f"--- sample {number + 1} of {options.samples}, seed {first + number} ---"
            _write(["\n" if number else "", title, "\n", prompt, text, "\n"])


def _standard_input() -> str:
    """The text of standard input, without the line end after its last line."""
    from ..data.readers import read_lines, standard_input

    lines, size = [], 0
    for line in read_lines([standard_input()]):
        lines.append(line)
        size += len(line) + 1
        if size > LONGEST_PROMPT:
            raise InputError(f"--prompt -: more than {LONGEST_PROMPT:,} characters; give a shorter prompt")
    return "\n".join(lines)


def export(options: argparse.Namespace) -> None:
    """``seriatim export RUN --format NAME --out FILE``."""
    from ..interchange.runs import export_run, sizes
    from ..runs.run import load

    run = load(options.run, allow_code=allowed(options))
    export_run(run, options.format, options.out)
    _write([f"wrote {options.out}: {options.format}, {sizes(run)}, {Path(options.out).stat().st_size:,} bytes\n"])


def import_(options: argparse.Namespace) -> None:
    """``seriatim import FILE --out RUN``."""
    from ..interchange.runs import import_run, sizes

    run = import_run(options.source, options.out, overwrite=options.overwrite)
    _write([f"wrote the run {options.out}: {sizes(run)}, {run.tokenizer.vocabulary_size:,} tokens in the vocabulary\n"])


def inspect(options: argparse.Namespace) -> None:
    """``seriatim inspect RUN --text S [--permute] [--data F] [--out FILE]``: a page on a model and a text."""
    from ..inspection.inspection import inspect as look
    from ..inspection.inspection import read_whole
    from ..training.run_files import PAGE, check_file

    if (options.text is None) == (options.text_file is None):
        raise InputError("inspect: needs one text; give either --text S or --text-file FILE")
    if options.out is not None:
        check_file(options.out, PAGE, (options.text_file,))
    text = options.text if options.text is not None else read_whole(options.text_file)
    result = look(
        options.run,
        text,
        out=options.out,
        data=options.data,
        file_format=options.format,
        fields=options.fields,
        beam=options.beam,
        permute=options.permute,
        allow_code=allowed(options),
    )
    _write([f"{printable(str(line))}\n" for line in (*result.summary, result.path)])


def check(options: argparse.Namespace) -> None:
    """``seriatim check TASK --data F``: makes the checks of a training, and prints statistics of its data."""
    from ..runs.checking import check_training
    from .console import print_statistics

    if options.task is None and options.config is None:
        raise InputError("check: no task; give one, for instance: seriatim check lm --data FILE")
    given = {name: getattr(options, name) for name in ("task", "out") if getattr(options, name) is not None}
    report = check_training(options.config or {}, overrides={**options.fields, **given})
    if options.json:
        print(json.dumps(report))
    else:
        print_statistics(report)


def layers(options: argparse.Namespace) -> None:
    """``seriatim layers``: what each architecture keeps, what that takes, whether it trains in parallel, its paper."""
    from ..layers import describe, find, names
    from ..layers.origins import import_references
    from ..tasks import STANDALONE
    from .console import print_layers, print_options

    rows: list[dict[str, object]] = []
    if options.layer is not None:
        rows = [describe(name) for name in import_references(options.layer).split(",")]
    else:
        for name in names():
            try:
                find(name)
            except InputError as error:  # the package of one layer must not hide the others
                warnings.warn(str(error), stacklevel=1)
            else:
                rows.append(describe(name))
        rows += [model.describe_model() for model in STANDALONE.values()]
    if options.json:
        print(json.dumps(rows))
    else:
        print_layers(rows)
        if options.layer is not None:
            print_options(rows)


def docs(options: argparse.Namespace) -> None:
    """``seriatim docs [PAGE]``: a page of the documentation, or the list of all pages."""
    from .guide import FOLDER, page, pages

    if options.page is not None:
        _write([page(options.page)])
        return
    width = max(map(len, pages()), default=0)
    _write([*(f"{name:{width}}  {title}\n" for name, title in pages().items()), f"\nThe pages are in {FOLDER}\n"])


def _write(pieces: Iterable[str]) -> None:
    for piece in pieces:
        sys.stdout.write(piece)
        sys.stdout.flush()

"""The verb ``predict``: one answer for each line of a file or of standard input."""

import argparse

from ..storage.files import json_line
from .options import (
    COLUMNS_HELP,
    FORMATS,
    RUNS_HELP,
    Parser,
    add_code,
    add_sampling,
    add_search,
    add_strict,
    add_weights,
    answer_settings,
    open_answering,
    write_out,
)


def add_predict(parser: Parser) -> None:
    """Add ``seriatim predict RUN [F]``."""
    parser.set_defaults(run_verb=predict)
    parser.epilog = COLUMNS_HELP
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
    from ..data.sources import TEXT_SUFFIXES, find_sources, standard_input

    run = open_answering(options.run, options)
    settings = answer_settings(options, run)
    if options.json and "alignments" in run.predictor.settings.model_fields:
        settings["alignments"] = True

    # From a pipe each line is answered when it comes; a file is answered in batches.
    if options.data in (None, "-"):
        source = standard_input("jsonl" if options.format == "jsonl" else "text")
        batches = ready(run.task.reader.inputs(run.vocabulary, [source], options.format), run.predictor.batch_size)
    else:
        suffixes = list(dict.fromkeys([*TEXT_SUFFIXES, *run.task.files.suffixes]))
        sources = find_sources(options.data, file_format=options.format or "auto", split="test", suffixes=suffixes)
        batches = chunks(run.task.reader.inputs(run.vocabulary, sources, options.format), run.predictor.batch_size)
    for answer in run.predict_batches(batches, details=options.json, **settings):
        write_out([json_line(answer) if options.json else answer["text"], "\n"])

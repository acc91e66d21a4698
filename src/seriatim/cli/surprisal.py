"""The verb ``surprisal``: bits per word, token or character, as CSV."""

import argparse
import csv
import functools
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TextIO

from .options import Parser, add_code, add_strict, add_weights, open_run

EPILOG = """\
Each line of the text is a text of its own. The columns of a run are bits (the surprisal), entropy (in bits, before the
unit), rank (1 if no token was more likely than its first one), tokens, and unknown (how many of these are the unknown
token). A unit that the model finds impossible has inf bits; entropy and rank are empty where every token is impossible.
A masked language model has pseudo_bits instead of bits: given the text on both sides of a unit, its tokens from left to
right with those that follow in it masked (of words: PLL-word-l2r). seriatim docs surprisal explains both."""


def add_surprisal(parser: Parser) -> None:
    """Add ``seriatim surprisal RUN [RUN ...] [F]``."""
    parser.set_defaults(run_verb=surprisal)
    parser.epilog = EPILOG
    add = parser.add_argument
    add("inputs", nargs="+", metavar="RUN", help="language models, and after them a text (default: standard input)")
    add("--by", choices=("word", "token", "character"), default="word", help="the unit (default: word)")
    add(
        "--context",
        choices=("line", "text"),
        default="line",
        help="what a unit depends on: its line, or all of the text before it (default: line)",
    )
    add("--format", choices=("auto", "text", "jsonl"), default="auto", help="the format of the text (default: by name)")
    add("--out", metavar="F.csv", help="write a file instead of standard output")
    add_weights(parser)
    add_strict(parser)
    add_code(parser)


def surprisal(options: argparse.Namespace) -> None:
    """Write the table."""
    from ..data.repairs import with_warnings
    from ..data.sources import find_sources, standard_input
    from ..data.text import located_items, read_items
    from ..layers.positions import learned_positions
    from ..runs.ensembles import surprisal_table
    from ..storage.files import atomic
    from ..storage.written_folders import is_run
    from ..training.run_files import Kind, check_file

    # The last name is that of the text, unless it is a run, too.
    paths, source, path = options.inputs, None, None
    if len(paths) > 1 and not is_run(Path(paths[-1])):
        *paths, source = paths
    if options.out is not None:
        kind = Kind("a table that seriatim surprisal wrote", f"line,index,{options.by},".encode())
        path = check_file(options.out, kind, options.inputs)
    runs = [open_run(path, options) for path in paths]

    # A pipe is answered line by line, unless a line may be too long for a model, which must be known before.
    if source in (None, "-") and all(learned_positions(run.answering) is None for run in runs):
        sources = [standard_input("jsonl" if options.format == "jsonl" else "text")]
    else:
        sources = find_sources(source or "-", file_format=options.format, split="test")
    read = functools.partial(read_items, sources, one_line=True)
    repairs = runs[0].task.reader.input_repairs(runs[0].vocabulary, sources, read)
    for run in runs:
        run.check_lengths(located_items(sources, repairs.reread()))
    lines = with_warnings(read, repairs)
    rows = surprisal_table(runs, lines, by=options.by, carry_context=options.context == "text")
    if path is None:
        _write(rows, sys.stdout)
        return
    with atomic(path) as aside, aside.open("w", encoding="utf-8", newline="") as file:
        _write(rows, file)


def _write(rows: Iterable[list[object]], file: TextIO) -> None:
    """Write rows as CSV, with six digits after the point, each line at once."""
    writer = csv.writer(file, lineterminator="\n")
    for row in rows:
        writer.writerow([f"{value:.6f}" if isinstance(value, float) else value for value in row])

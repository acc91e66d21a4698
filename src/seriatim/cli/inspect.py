"""The verb ``inspect``: a page that shows what a model does with a text."""

import argparse
import functools

from ..core.errors import ConflictError, RequiredError, printable
from .options import COLUMNS_HELP, FORMATS, Parser, add_code, add_strict, allowed, whole_number, write_out


def add_inspect(parser: Parser) -> None:
    """Add ``seriatim inspect RUN [RUN ...] --text S``."""
    parser.set_defaults(run_verb=inspect)
    parser.epilog = COLUMNS_HELP
    add = parser.add_argument
    add(
        "runs",
        metavar="RUN",
        nargs="+",
        help="the run to inspect; several for one page with a row for each; or a comparison, whose layers all read the "
        "text",
    )
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
    add(
        "--out",
        metavar="FILE",
        help="the page to write (default: inspect.html in the run's folder; of several: inspect-A-B.html here)",
    )
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
        raise RequiredError("inspect: needs one text; give either --text S or --text-file FILE")
    if options.out is not None:
        check_file(options.out, PAGE, (options.text_file,))
    # The same page is written for one run, or for every row of a comparison.
    page = functools.partial(
        write_page,
        text=options.text if options.text is not None else read_whole(options.text_file, strict=options.strict),
        data=options.data,
        file_format=options.format,
        fields=options.fields,
        beam=options.beam,
        permute=options.permute,
        allow_code=allowed(options),
    )
    comparison = next((run for run in options.runs if is_comparison(run)), None)
    if comparison is not None:
        if len(options.runs) > 1:
            raise ConflictError(f"inspect: {comparison} is a comparison; give it alone, or name runs in its folder")
        if options.out is not None:
            raise ConflictError("--out: the pages of a comparison lie in the folders of its runs; leave it out")
        lines: list[object] = list(inspect_rows(comparison, page))
    else:
        run, *others = options.runs
        links = [] if others or options.out is not None else links_of_run(run)  # relative to the run's folder
        result = page(options.runs if others else run, out=options.out, links=links)
        lines = [*result.summary, result.path]
    write_out([f"{printable(str(line))}\n" for line in lines])

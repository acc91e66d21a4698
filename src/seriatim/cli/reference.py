"""The verbs ``layers`` and ``docs``, which tell what there is."""

import argparse
import warnings
from importlib import metadata
from pathlib import Path

from ..core.errors import InputError, MissingError, nearest
from ..storage.files import to_json
from .options import Parser, write_out

DOCS = Path(__file__).parent.with_name("docs")
README = "readme"


def add_layers(parser: Parser) -> None:
    """Add ``seriatim layers``."""
    parser.set_defaults(run_verb=layers)
    parser.add_argument(
        "--layer", metavar="A,B", help="list only these layers, with their options; also takes cells.py:FastSlow"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def layers(options: argparse.Namespace) -> None:
    """Print what each architecture keeps, its state size, whether it trains in parallel, and its paper."""
    from ..layers import describe, find, names
    from ..layers.outside_code import import_references
    from ..tasks import FITTED
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
        rows += [kind.describe_model() for kind in FITTED.values() if kind.describe_model is not None]
    if options.json:
        print(to_json(rows))
    else:
        print_layers(rows)
        if options.layer is not None:
            print_options(rows)


def add_docs(parser: Parser) -> None:
    """Add ``seriatim docs [PAGE]``."""
    parser.set_defaults(run_verb=docs)
    parser.add_argument("page", nargs="?", metavar="PAGE", help="the name of the page (default: list all pages)")


def docs(options: argparse.Namespace) -> None:
    """Print a page of the documentation, or the list of all pages."""
    pages = {README: _readme()}
    pages |= {path.stem: path.read_text(encoding="utf-8") for path in sorted(DOCS.glob("*.md"))}
    if options.page is not None:
        name = options.page.removesuffix(".md").removeprefix("docs/")
        name = README if name.lower() == README else name
        if name not in pages:
            raise MissingError(f"{options.page}: no such page of the documentation; {nearest(name, list(pages))}")
        write_out([pages[name]])
        return
    width = max(map(len, pages))
    write_out([*(f"{name:{width}}  {_title(text)}\n" for name, text in pages.items()), f"\nThe pages are in {DOCS}\n"])


def _title(text: str) -> str:
    return next((line.lstrip("# ") for line in text.splitlines() if line.startswith("#")), "")


def _readme() -> str:
    """Return the README: the file of a checkout, or else the text in the metadata of the installed package."""
    file = DOCS.resolve().parent / "README.md"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    try:
        return str(metadata.metadata("seriatim").get_payload())  # type: ignore[attr-defined]
    except metadata.PackageNotFoundError:
        return "# Seriatim\n\nThe README is part of the installed package, and this copy is not installed.\n"

"""The verbs ``export``, ``import``, ``layers`` and ``docs``."""

import argparse
import warnings
from importlib import metadata
from pathlib import Path

from ..core.errors import InputError, nearest
from ..storage.atomic_files import to_json
from .shared_options import Verbs, add_code, add_verb, allowed, write_out

DOCS = Path(__file__).parent.with_name("docs")
README = "readme"


def add_export(verbs: Verbs) -> None:
    """Add ``seriatim export RUN --format NAME --out FILE``."""
    parser = add_verb(verbs, "export", export, "write a model in a format of other programs")
    parser.add_argument("run", metavar="RUN", help="the run to export")
    parser.add_argument(
        "--format",
        required=True,
        metavar="NAME",
        help="arpa (n-grams), onnx (a folder), torch (safetensors) or transformers (a folder)",
    )
    parser.add_argument(
        "--out", required=True, metavar="FILE", help="the file or folder to write; .gz compresses an ARPA file"
    )
    add_code(parser)


def export(options: argparse.Namespace) -> None:
    """Export a run."""
    from ..interchange.runs import export_run, sizes
    from ..runs.run import load

    run = load(options.run, allow_code=allowed(options))
    export_run(run, options.format, options.out)
    path = Path(options.out)
    size = sum(file.stat().st_size for file in (path.iterdir() if path.is_dir() else (path,)))
    write_out([f"wrote {options.out}: {options.format}, {sizes(run)}, {size:,} bytes\n"])


def add_import(verbs: Verbs) -> None:
    """Add ``seriatim import DIR --out RUN``."""
    parser = add_verb(verbs, "import", import_run, "make a run from a model of another program")
    text = (
        "a checkpoint folder of transformers, hf:NAME on the hub, a safetensors file of an RNN, LSTM or GRU of "
        "torch.nn (or the folder that holds it), or an ARPA file; several ARPA files are mixed"
    )
    parser.add_argument("sources", nargs="+", metavar="DIR", help=text)
    text = "for torch.nn: tokenizer.json, or a list of tokens in the order of their ids (default: beside the weights)"
    parser.add_argument("--vocabulary", metavar="FILE", help=text)
    text = "for torch.nn: the token that ends a text (default: <eos>, </s> and similar names)"
    parser.add_argument("--end", metavar="TOKEN", help=text)
    parser.add_argument("--nonlinearity", metavar="NAME", help="for torch.nn.RNN: tanh (the default) or relu")
    text = "for torch.nn: stream (one running text) or line (every line is a text); the default is usually stream"
    parser.add_argument("--unit", metavar="NAME", help=text)
    parser.add_argument("--mixture-weights", metavar="W,W", help="the weights of several ARPA files (default: equal)")
    parser.add_argument("--out", required=True, metavar="RUN", help="the folder to write")
    parser.add_argument("--overwrite", action="store_true", help="replace an existing run")
    parser.add_argument("--strict", action="store_true", help="refuse an ARPA file that needs a repair")


def import_run(options: argparse.Namespace) -> None:
    """Import a model."""
    from ..interchange import runs
    from ..interchange.torch_import import TorchOptions

    weights = None
    if options.mixture_weights is not None:
        try:
            weights = [float(weight) for weight in options.mixture_weights.split(",")]
        except ValueError:
            raise InputError("--mixture-weights: must be positive numbers, such as 0.7,0.3") from None
    torch_options = TorchOptions(options.vocabulary, options.end, options.nonlinearity, options.unit)
    run = runs.import_run(
        options.sources,
        options.out,
        weights=weights,
        torch_options=torch_options,
        overwrite=options.overwrite,
        strict=options.strict,
    )
    write_out([f"wrote the run {options.out}: {runs.sizes(run)}\n"])


def add_layers(verbs: Verbs) -> None:
    """Add ``seriatim layers``."""
    parser = add_verb(verbs, "layers", layers, "list every architecture")
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


def add_docs(verbs: Verbs) -> None:
    """Add ``seriatim docs [PAGE]``."""
    parser = add_verb(verbs, "docs", docs, "print a page of the documentation")
    parser.add_argument("page", nargs="?", metavar="PAGE", help="the name of the page (default: list all pages)")


def docs(options: argparse.Namespace) -> None:
    """Print a page of the documentation, or the list of all pages."""
    pages = {README: _readme()}
    pages |= {path.stem: path.read_text(encoding="utf-8") for path in sorted(DOCS.glob("*.md"))}
    if options.page is not None:
        name = options.page.removesuffix(".md").removeprefix("docs/")
        name = README if name.lower() == README else name
        if name not in pages:
            raise InputError(f"{options.page}: no such page of the documentation; {nearest(name, list(pages))}")
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

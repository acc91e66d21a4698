"""The verbs ``export`` and ``import``: models of other programs."""

import argparse
from pathlib import Path

from .options import Parser, add_code, allowed, numbers, write_out


def add_export(parser: Parser) -> None:
    """Add ``seriatim export RUN --format NAME --out FILE``."""
    parser.set_defaults(run_verb=export)
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
    from ..interchange.formats import export_run, sizes
    from ..runs.run import load

    run = load(options.run, allow_code=allowed(options))
    export_run(run, options.format, options.out)
    path = Path(options.out)
    size = sum(file.stat().st_size for file in (path.iterdir() if path.is_dir() else (path,)))
    write_out([f"wrote {options.out}: {options.format}, {sizes(run)}, {size:,} bytes\n"])


def add_import(parser: Parser) -> None:
    """Add ``seriatim import DIR --out RUN``."""
    parser.set_defaults(run_verb=import_run)
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
    text = "the weights of several ARPA files (default: equal)"
    parser.add_argument("--mixture-weights", type=numbers, metavar="W,W", help=text)
    parser.add_argument("--out", required=True, metavar="RUN", help="the folder to write")
    parser.add_argument("--overwrite", action="store_true", help="replace an existing run")
    parser.add_argument("--strict", action="store_true", help="refuse an ARPA file that needs a repair")


def import_run(options: argparse.Namespace) -> None:
    """Import a model."""
    from ..interchange import formats as runs
    from ..interchange.torch_states import TorchOptions

    torch_options = TorchOptions(options.vocabulary, options.end, options.nonlinearity, options.unit)
    run = runs.import_run(
        options.sources,
        options.out,
        weights=options.mixture_weights,
        torch_options=torch_options,
        overwrite=options.overwrite,
        strict=options.strict,
    )
    write_out([f"wrote the run {options.out}: {runs.sizes(run)}\n"])

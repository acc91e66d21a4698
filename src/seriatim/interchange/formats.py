"""Runs to files of other programs, and back."""

from collections.abc import Sequence
from pathlib import Path

from ..config import resolve
from ..core.errors import ConflictError, NotSupportedError, UnknownNameError, nearest
from ..counting.ngram import NGram
from ..counting.ngrams.table import named_arrays
from ..data.repairs import Repairs
from ..data.tokenizers import Spelling, WordTokenizer
from ..data.vocabulary import Vocabulary
from ..runs.run import Run
from ..tasks import new_task
from ..training.run_files import ARPA, check_file, check_out, refuse_overwriting
from .arpa import check_weights, mix, read_arpa, write_arpa
from .checkpoints import HUB, export_checkpoint, import_checkpoint
from .new_folders import write_run
from .onnx_export import export_onnx
from .torch_states import TorchOptions, export_torch, import_torch, state_file

FORMATS = ("arpa", "onnx", "torch", "transformers")


def export_run(run: Run, file_format: str, out: str) -> None:
    """Write the model of a run to the file ``out`` in one of `FORMATS`; raise InputError if it cannot hold the model.

    ARPA is for n-grams, and compressed if the name of the file ends in ``.gz``. For ``transformers`` and
    ``onnx``, ``out`` is a folder that does not exist yet; for ``torch``, a safetensors file.
    """
    if file_format not in FORMATS:
        raise UnknownNameError(f"--format {file_format}: no such format; {nearest(file_format, list(FORMATS))}")
    if file_format != "arpa":
        {"onnx": export_onnx, "torch": export_torch, "transformers": export_checkpoint}[file_format](run, out)
        return
    if not isinstance(run.model, NGram):
        what = "a cache beside its n-grams" if run.config.model.layer == "ngram" else f"layer {run.config.model.layer}"
        raise NotSupportedError(f"{run.path}: has {what}, which an ARPA file cannot hold; give a run of n-grams alone")
    data = run.config.data
    write_arpa(run.model.table.orders, run.tokenizer, check_file(out, ARPA, (data.train, data.valid, data.test)))


def sizes(run: Run) -> str:
    """Describe the n-grams or the parameters of a run in one line."""
    if not isinstance(run.model, NGram):
        count = sum(parameter.numel() for parameter in run.model.parameters())
        return f"layer {run.config.model.layer}, {count:,} parameters, {run.tokenizer.vocabulary_size:,} tokens"
    counts = [len(order.probability) for order in run.model.table.orders]
    listed = ", ".join(f"{count:,} {n}-grams" for n, count in enumerate(counts, 1))
    return f"order {len(counts)}, {sum(counts):,} n-grams ({listed}), {run.tokenizer.vocabulary_size:,} tokens"


def import_run(
    source: str | Sequence[str],
    out: str | None,
    *,
    weights: Sequence[float] | None = None,
    torch_options: TorchOptions | None = None,
    overwrite: bool = False,
    strict: bool = False,
) -> Run:
    """Make a run of an ARPA file, a checkpoint folder of ``transformers``, or a state dictionary of `torch.nn`.

    An ARPA file becomes a language model of lines whose tokens are words; several are mixed into one, with ``weights``,
    by default equal; ``strict`` refuses a file that needs a repair. See `read_arpa`, `mix`, `import_checkpoint` and
    `import_torch` for errors.
    """
    sources = [source] if isinstance(source, str) else list(source)
    if out:
        refuse_overwriting(out, (*sources, *(torch_options or ())))

    # What a source is decides which options mean anything; one that means nothing is refused, not ignored.
    folders = [name for name in sources if name.startswith(HUB) or Path(name).is_dir()]
    if len(sources) == 1 and weights is not None:
        raise ConflictError("--mixture-weights: cannot be used with one file; leave it out")
    states = {name: file for name in sources if (file := state_file(Path(name))) is not None}
    if (folders or states) and len(sources) > 1:
        raise NotSupportedError(f"{[*folders, *states][0]}: only ARPA files can be mixed; import it on its own")
    if states:
        return import_torch(states[sources[0]], out, torch_options or TorchOptions(), overwrite=overwrite)
    for name, value in (torch_options or TorchOptions())._asdict().items():
        if value is not None:
            raise ConflictError(f"--{name}: cannot be used for {sources[0]}, only for a safetensors file; leave it out")
    if folders:
        return import_checkpoint(sources[0], out, overwrite=overwrite)
    check_out(out, overwrite=overwrite)
    mixture_weights = check_weights(weights, len(sources))

    # Only ARPA files are left. All are read before the folder changes, since any of them may be damaged.
    repairs = Repairs(strict=strict)
    models = [read_arpa(Path(name), repairs) for name in sources]
    repairs.warn()
    arpa = models[0] if len(models) == 1 else mix(models, mixture_weights)
    model = {"layer": "ngram", "options": {"order": len(arpa.orders)}}
    settings = {"task": "lm", "data": {"unit": "line"}, "tokenizer": {"kind": "word"}, "model": model}
    task = new_task(resolve(settings))
    vocabulary = Vocabulary({"tokenizer": WordTokenizer(arpa.words, Spelling())})
    return write_run(out, task, vocabulary, named_arrays(arpa.orders), overwrite=overwrite)

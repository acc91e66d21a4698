"""Writes a run as a checkpoint that the ``transformers`` library opens."""

import json
from pathlib import Path

from torch import Tensor

from ..config import Fields
from ..core.errors import InputError
from ..data.pretrained_tokenizer import PretrainedTokenizer
from ..models.language_model import LanguageModel
from ..models.masked_language_model import MaskedLanguageModel
from ..runs.run import Run
from ..storage.atomic_files import write_whole
from ..storage.weights import write_safetensors
from .checkpoint_import import token_rows
from .checkpoint_reader import CONFIG, TOKENIZER, TOKENIZER_CONFIG, WEIGHTS
from .families.known_families import FAMILIES, family_for
from .new_folder import check_new, new_folder
from .tokenizer_export import library_fields, special_tokens

MAX_LENGTH = 1 << 20
"""What `tokenizer_config.json` says of the length of a text where the positions of a model do not end."""


def export_checkpoint(run: Run, out: str) -> None:
    """Write the folder ``out``, which must not exist: `config.json`, `model.safetensors` and the tokenizer.

    Raises:
        InputError: the model has a part that no architecture of the library has; or the folder exists.
    """
    folder = check_new(out)
    if not isinstance(run.model, LanguageModel | MaskedLanguageModel) or run.answering is not run.model:
        raise InputError(f"{run.path}: only a single neural language model can be a checkpoint of transformers")
    tokenizer = run.tokenizer
    begin, end = tokenizer.begin, 0
    if isinstance(tokenizer, PretrainedTokenizer):
        begin, end = (int(tokenizer.exchanged([token])[0]) for token in (begin, end))
    fields = family_for(run.config, run.model, str(run.path))
    kind = FAMILIES[fields["model_type"]]
    if "mask" in kind.special_tokens and not tokenizer.frames:
        raise InputError(
            f"{run.path}: its tokenizer has no token that stands for a gap, as [MASK] does there; start the training "
            "from an imported model, with --init"
        )
    fields |= {"vocab_size": tokenizer.vocabulary_size, **kind.token_ids(begin, end)}
    fields |= {"dtype": "float32", "tie_word_embeddings": run.config.model.tie_weights}
    family = kind(fields, str(run.path))
    parameters, tensors = dict(run.model.named_parameters()), dict[str, Tensor]()
    tokens = token_rows(tokenizer)
    for rule in family.rules():
        parameter = parameters.pop(rule.ours).detach().cpu()
        sizes = family.rows(len(rule.theirs)) if rule.kind == "joined" else []
        for name, tensor in zip(rule.theirs, rule.to_theirs(parameter, sizes, tokens), strict=True):
            tensors[name] = tensor.contiguous().clone()
    assert not parameters, parameters
    with new_folder(folder) as aside:
        _write(aside, fields, tensors, run)


def _write(folder: Path, fields: Fields, tensors: dict[str, Tensor], run: Run) -> None:
    write_safetensors(tensors, folder / WEIGHTS, {"format": "pt"})
    names = special_tokens(run.tokenizer)
    length = fields.get("n_positions", fields.get("max_position_embeddings", MAX_LENGTH))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    settings |= {"model_max_length": length, **names}
    for name, content in ((CONFIG, fields), (TOKENIZER_CONFIG, settings), (TOKENIZER, library_fields(run.tokenizer))):
        write_whole(folder / name, json.dumps(content, ensure_ascii=False, indent=1) + "\n")

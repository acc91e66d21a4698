"""Writes tokenizers as files of the ``tokenizers`` library, with the same ids."""

import json
from collections.abc import Mapping

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

from ..config import Fields
from ..core.errors import InputError
from ..data.library_tokenizers import PretrainedTokenizer, bytes_by_symbol
from ..data.tokenizers import END_TEXT, UNKNOWN_TEXT, Tokenizer

CHARACTER = r"[\s\S]"


def library_fields(tokenizer: Tokenizer) -> Fields:
    """Return the content of a `tokenizer.json` of the ``tokenizers`` library for a tokenizer.

    The ids are those of the library for a tokenizer that came from there, else those here: 0 is ``</s>``.
    """
    if isinstance(tokenizer, PretrainedTokenizer):
        return tokenizer.fields
    if tokenizer.kind in ("bpe", "unigram"):
        inner = tokenizers.Tokenizer.from_str(json.dumps(_shifted(tokenizer.payload()["model"])))
    elif tokenizer.kind == "byte":
        inner = _byte_level(models.BPE({END_TEXT: 0, **_symbols()}, []))
    elif tokenizer.kind in ("char", "word"):
        ids = {tokenizer.token_bytes(token).decode(): token for token in range(2, tokenizer.vocabulary_size)}
        inner = tokenizers.Tokenizer(models.WordLevel({END_TEXT: 0, UNKNOWN_TEXT: 1, **ids}, unk_token=UNKNOWN_TEXT))
        if tokenizer.kind == "char":
            inner.pre_tokenizer = pre_tokenizers.Split(tokenizers.Regex(CHARACTER), "isolated")
            inner.decoder = decoders.Fuse()
        else:
            inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    else:
        raise InputError(f"tokenizer.kind: {tokenizer.kind} has no equivalent in the tokenizers library")
    if tokenizer.lowercase:
        inner.normalizer = normalizers.Lowercase()
    inner.add_special_tokens([END_TEXT])
    fields: Fields = json.loads(inner.to_str())
    return fields


def special_tokens(tokenizer: Tokenizer) -> dict[str, str]:
    """Return what `tokenizer_config.json` calls the special tokens."""
    if isinstance(tokenizer, PretrainedTokenizer):
        end, begin = tokenizer.library_token(0), tokenizer.library_token(tokenizer.begin)
        names = {"eos_token": end, "bos_token": begin}
        if tokenizer.mask is not None:
            unknown, padding = tokenizer.fields["model"].get("unk_token"), "[PAD]"
            names = {"sep_token": end, "cls_token": begin, "mask_token": tokenizer.inner.id_to_token(tokenizer.mask)}
            names |= {"unk_token": unknown, "pad_token": padding if padding in tokenizer.special else None}
        return {key: name for key, name in names.items() if name is not None}
    special = {"eos_token": END_TEXT, "bos_token": tokenizer.describe(tokenizer.begin)}
    return special | ({} if tokenizer.unknown_id is None else {"unk_token": UNKNOWN_TEXT})


def _symbols() -> dict[str, int]:
    return {symbol: byte + 1 for symbol, byte in bytes_by_symbol().items()}


def _byte_level(model: models.Model) -> tokenizers.Tokenizer:
    inner = tokenizers.Tokenizer(model)
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.decoder = decoders.ByteLevel()
    return inner


def _shifted(fields: object) -> Fields:
    """Return a subword tokenizer in which every id is one more, and ``</s>`` has the id 0."""
    assert isinstance(fields, Mapping)
    model = dict(fields["model"])
    if isinstance(model["vocab"], Mapping):
        model["vocab"] = {END_TEXT: 0, **{piece: i + 1 for piece, i in model["vocab"].items()}}
    else:
        model["vocab"] = [[END_TEXT, 0.0], *model["vocab"]]
    return {**fields, "model": model}

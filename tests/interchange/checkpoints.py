"""Small checkpoints with random weights, as the transformers library writes them."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

TEXT = ["the cat sat on the mat and the dog barked", "héllo wörld €uro 你好", "a b c d e f g , she likes it ."] * 30
LINES = ["the cat sat", " leading", "two  spaces", "héllo 你好", "tab\t!", "", "😀 ok", "x" * 50, "trailing ", "ÀÉ ß ё"]
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
GATED = {**SIZES, "num_key_value_heads": 2, "intermediate_size": 48}
IDS = {"bos_token_id": 1, "eos_token_id": 2}
GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}


def byte_level(*special: str) -> Tokenizer:
    """Return a tokenizer as that of GPT-2 and Qwen2."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=320, special_tokens=list(special), initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(TEXT, trainer)
    return tokenizer


def sentence_pieces() -> Tokenizer:
    """Return a tokenizer as that of Llama: a space is put before the text, and bytes spell what is unknown."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Prepend("▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(parts)
    special = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    tokenizer.train_from_iterator(
        TEXT, trainers.BpeTrainer(vocab_size=400, special_tokens=special, show_progress=False)
    )
    return tokenizer


def word_pieces(*first: str, lowercase: bool = True) -> Tokenizer:
    """Return a tokenizer as that of BERT, in whose vocabulary some tokens come before the usual ones."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    special = ["[PAD]", *first, "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer.train_from_iterator(
        TEXT, trainers.WordPieceTrainer(vocab_size=120, special_tokens=special, show_progress=False)
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(name, tokenizer.token_to_id(name)) for name in ("[CLS]", "[SEP]")],
    )
    return tokenizer


def gpt2_like() -> Tokenizer:
    return byte_level("<|endoftext|>")


QWEN3_NEXT = {
    **GATED,
    "num_hidden_layers": 4,
    "head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 6,
    "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 3,
    "eos_token_id": 2,
}
CHECKPOINTS: dict[str, tuple[str, dict[str, Any], Callable[[], Tokenizer]]] = {
    "gpt2": ("GPT2", {**GPT2, "bos_token_id": 0, "eos_token_id": 0}, gpt2_like),
    "gpt2-small": (
        "GPT2",
        {"n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": 64, "bos_token_id": 0, "eos_token_id": 0},
        gpt2_like,
    ),
    "gpt2-end": (
        "GPT2",
        {**GPT2, "bos_token_id": 3, "eos_token_id": 3, "activation_function": "gelu", "n_inner": 40},
        lambda: byte_level("a", "b", "c", "<|endoftext|>"),
    ),
    "llama": ("Llama", {**GATED, **IDS}, sentence_pieces),
    "llama-tied": (
        "Llama",
        {**GATED, **IDS, "tie_word_embeddings": True, "rope_parameters": {"rope_type": "default", "rope_theta": 5e5}},
        sentence_pieces,
    ),
    "mistral": ("Mistral", {**GATED, **IDS, "sliding_window": 4}, sentence_pieces),
    "qwen2": ("Qwen2", {**GATED, "eos_token_id": 2}, lambda: byte_level("x", "y", "<|im_end|>")),
    "qwen3": ("Qwen3", {**GATED, "head_dim": 16, "eos_token_id": 2}, lambda: byte_level("x", "y", "<|im_end|>")),
    "mixtral": ("Mixtral", {**GATED, **IDS, "num_local_experts": 4}, sentence_pieces),
    "recurrent_gemma": (
        "RecurrentGemma",
        {
            **GATED,
            "num_hidden_layers": 4,
            "num_key_value_heads": 1,
            "lru_width": 40,
            "attention_window_size": 4,
            "logits_soft_cap": 2.0,
            "w_init_variance_scale": 0.1,
            **IDS,
        },
        sentence_pieces,
    ),
    "lfm2": (
        "Lfm2",
        {**GATED, **IDS, "num_hidden_layers": 3, "layer_types": ["conv", "full_attention", "conv"]},
        lambda: byte_level("x", "y", "<|im_end|>"),
    ),
    "qwen3_next": (
        "Qwen3Next",
        {
            **QWEN3_NEXT,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 16,
            "shared_expert_intermediate_size": 24,
        },
        lambda: byte_level("x", "y", "<|im_end|>"),
    ),
    "qwen3_next-dense": (
        "Qwen3Next",
        {**QWEN3_NEXT, "num_experts": 0, "tie_word_embeddings": True},
        lambda: byte_level("x", "y", "<|im_end|>"),
    ),
    "mamba2": (
        "Mamba2",
        {
            "hidden_size": 32,
            "num_heads": 8,
            "head_dim": 8,
            "n_groups": 2,
            "state_size": 5,
            "num_hidden_layers": 2,
            "conv_kernel": 3,
            "layer_norm_epsilon": 1e-6,
            "bos_token_id": 0,
            "eos_token_id": 0,
        },
        gpt2_like,
    ),
    "mamba": (
        "Mamba",
        {"hidden_size": 32, "num_hidden_layers": 2, "layer_norm_epsilon": 1e-6, "bos_token_id": 0, "eos_token_id": 0},
        gpt2_like,
    ),
}
GAPPED: dict[str, tuple[str, dict[str, Any], Callable[[], Tokenizer]]] = {
    "bert": ("Bert", {**SIZES, "intermediate_size": 48, "max_position_embeddings": 40}, word_pieces),
    "bert-cased": (
        "Bert",
        {
            "hidden_size": 16,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "intermediate_size": 24,
            "max_position_embeddings": 40,
            "hidden_act": "gelu_new",
            "layer_norm_eps": 1e-6,
        },
        lambda: word_pieces("[unused0]", lowercase=False),
    ),
}
"""Checkpoints of masked language models."""


def write(name: str, folder: Path, *, more_rows: int = 0, **save: Any) -> Any:
    """Write a checkpoint with its tokenizer, and return the model of the transformers library."""
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    kind, settings, make = {**CHECKPOINTS, **GAPPED}[name]
    tokenizer = make()
    config = getattr(transformers, f"{kind}Config")(vocab_size=tokenizer.get_vocab_size() + more_rows, **settings)
    suffix = {"GPT2": "LMHeadModel", "Bert": "ForMaskedLM"}.get(kind, "ForCausalLM")
    torch.manual_seed(0)
    model = getattr(transformers, kind + suffix)(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # norms and biases, too, which are 1 and 0 at the start
            if parameter.dim() == 1:
                parameter.normal_(1, 0.2)
            elif kind == "Bert":
                parameter.mul_(8)  # or all attention would be nearly uniform
    model.save_pretrained(folder, **save)
    names = {f"{name}_token": f"[{name.upper()}]" for name in ("cls", "sep", "mask", "pad", "unk") if kind == "Bert"}
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names).save_pretrained(folder)
    return model

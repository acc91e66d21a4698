"""GPT-2 of `transformers` in llama.cpp, for `decoding.py`; not a benchmark of its own."""

import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

FORMATS = {"int8": "Q8_0", "int4": "Q4_0"}
NAMES = {
    "wte": "token_embd",
    "wpe": "position_embd",
    "ln_f": "output_norm",
    "ln_1": "attn_norm",
    "ln_2": "ffn_norm",
    "attn.c_attn": "attn_qkv",
    "attn.c_proj": "attn_output",
    "mlp.c_fc": "ffn_up",
    "mlp.c_proj": "ffn_down",
}


def decoder(model: torch.nn.Module, words: int, weights: str) -> Callable[[int], None] | None:
    """Return greedy decoding of one row with a GPT-2 model of `transformers`, converted; None where llama.cpp is
    missing or has no such format.
    """
    try:
        import gguf
        import llama_cpp
    except ImportError:
        return None
    if weights not in FORMATS:
        return None
    kind = gguf.GGMLQuantizationType[FORMATS[weights]]
    config = model.config
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "model.gguf")
        writer = gguf.GGUFWriter(file, "gpt2")
        writer.add_context_length(config.n_positions)
        writer.add_embedding_length(config.n_embd)
        writer.add_block_count(config.n_layer)
        writer.add_feed_forward_length(4 * config.n_embd)
        writer.add_head_count(config.n_head)
        writer.add_layer_norm_eps(config.layer_norm_epsilon)
        writer.add_vocab_size(words)
        writer.add_tokenizer_model("no_vocab")
        for name, value in model.transformer.state_dict().items():
            place, _, part = name.rpartition(".")
            head, _, rest = place.partition(".")
            block, _, inner = rest.partition(".")
            target = f"blk.{block}.{NAMES[inner]}" if head == "h" else NAMES[place]
            is_matrix = value.dim() > 1
            data = (value.T if head == "h" and is_matrix else value).float().contiguous().numpy()
            if is_matrix and target != "position_embd":
                writer.add_tensor(f"{target}.{part}", gguf.quants.quantize(data, kind), raw_dtype=kind)
            else:
                writer.add_tensor(f"{target}.{part}", data)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        threads = torch.get_num_threads()
        llama = llama_cpp.Llama(str(file), n_ctx=512, n_threads=threads, use_mmap=False, verbose=False)

    def decode(tokens: int) -> None:
        llama.reset()
        token = 0
        for _ in range(tokens):
            llama.eval([token])
            logits = np.ctypeslib.as_array(llama_cpp.llama_get_logits(llama.ctx), shape=(words,))
            token = int(logits.argmax())

    return decode

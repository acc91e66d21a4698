"""GPT-2 of `transformers` in CTranslate2, for `decoding.py`; not a benchmark of its own."""

import tempfile
from collections.abc import Callable
from pathlib import Path

import torch


def decoder(model: torch.nn.Module, words: int, batch: int, compute_type: str) -> Callable[[int], None] | None:
    """Return greedy decoding with a GPT-2 model of `transformers`, converted; None where CTranslate2
    is missing or lacks the type on this processor.
    """
    try:
        import ctranslate2
    except ImportError:
        return None
    from ctranslate2.converters import TransformersConverter
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast
    from transformers.utils import logging

    logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as temporary:
        source, target = Path(temporary, "source"), Path(temporary, "target")
        names = {f"w{i}": i for i in range(words - 1)} | {"<|endoftext|>": words - 1}
        tokenizer = PreTrainedTokenizerFast(
            tokenizer_object=Tokenizer(WordLevel(names, unk_token="w0")),
            unk_token="w0", bos_token="<|endoftext|>", eos_token="<|endoftext|>",
        )  # fmt: skip
        tokenizer.save_pretrained(source)
        model.save_pretrained(source)
        TransformersConverter(str(source)).convert(str(target))
        threads = torch.get_num_threads()
        try:
            generator = ctranslate2.Generator(
                str(target), device="cpu", compute_type=compute_type, inter_threads=1, intra_threads=threads
            )
        except ValueError:  # the type is not supported on this processor
            return None

    def decode(tokens: int) -> None:
        generator.generate_batch(
            [["<|endoftext|>"]] * batch, max_length=tokens, min_length=tokens, sampling_topk=1, end_token="w1",
            include_prompt_in_result=False, suppress_sequences=[["w1"]],
        )  # fmt: skip

    return decode

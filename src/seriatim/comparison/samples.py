"""What each layer writes or answers, side by side: for the same prompt and seed, or for the same items."""

from typing import Any

import numpy as np

from ..data.corpus import Corpus
from ..data.tokenizers import END
from ..evaluation.intervals import Metrics
from ..runs.run import Run
from .items import items

PROMPT, CHARACTERS, TEMPERATURE, SEED = 4, 200, 0.8, 1
"""Words of a prompt; characters of what follows it, about; how that is drawn."""
LOOKED_AT = 400
"""Tokens among which those of the prompt stand."""
ANSWERS = 5


def samples(run: Run, data: Any, measured: tuple[str, str]) -> list[Metrics]:
    """One text of a language model, five answers of another.

    Args:
        run: a trained model.
        data: what it was measured on, as its task reads it.
        measured: the name of that, and which part of it.
    """
    if isinstance(data, Corpus):
        return [_written(run, data)]
    chosen = items(run.task, *measured, most=ANSWERS)
    answers = run.task.answer(run.model, run.vocabulary, [text for text, _ in chosen]) if chosen else []
    return [
        {"input": text, "truth": truth, "text": answer["text"]}
        for (text, truth), answer in zip(chosen, answers, strict=True)
    ]


def prompt_of(run: Run, data: Corpus) -> str:
    """The first words of a text that the vocabulary knows; not rules of dashes, where there are others."""
    ids = np.asarray(data.ids[:LOOKED_AT])
    bad = {END, run.tokenizer.unknown_id}
    known = [int(token) for token in ids if int(token) not in bad] if not run.tokenizer.ends_lines else ids[ids != END]
    words = run.tokenizer.decode(known).split()
    lettered = [word for word in words if any(map(str.isalpha, word))]
    return " ".join((lettered or words)[:PROMPT])


def _written(run: Run, data: Corpus) -> Metrics:
    """A text of about `CHARACTERS`: as many tokens as take so many of the measured text."""
    characters = max(1, data.statistics.bytes) / max(1, data.statistics.tokens)
    prompt = prompt_of(run, data)
    most = max(1, round(CHARACTERS / characters))
    return {
        "prompt": prompt,
        "text": "".join(run.generate(prompt, max_tokens=most, temperature=TEMPERATURE, seed=SEED)),
    }

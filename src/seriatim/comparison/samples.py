"""Samples of what each layer writes or answers, for the same prompt and seed, or for the same inputs."""

import functools
from itertools import islice

import numpy as np

from ..data.corpus import Corpus
from ..data.tokenizers import END
from ..evaluation.intervals import Metrics
from ..runs.run import Run
from ..training.task import AnyTask
from ..training.task_data import TaskData
from .plan import DataPart

PROMPT_WORDS, CHARACTERS, TEMPERATURE, SEED = 4, 200, 0.8, 1
"""Words of a prompt, approximate characters of the text that follows, and how the text is drawn."""
PROMPT_TOKENS = 400
"""Tokens at the beginning of a text that the words of the prompt are taken from."""
ANSWERS = 5
MAX_ITEMS = 100_000


def samples(run: Run, data: TaskData, measured: DataPart) -> list[Metrics]:
    """Return one text of a language model as ``prompt`` and ``text``, or five answers of another model.

    Args:
        run: a trained model.
        data: the data that it is measured on, as its task reads them.
        measured: the name of the data.

    Returns:
        Answers as ``input``, ``truth`` and ``text``.
    """
    if run.task.continues_text and isinstance(data, Corpus):
        characters_per_token = max(1, data.statistics.bytes) / max(1, data.statistics.tokens)
        prompt, max_tokens = prompt_of(run, data), max(1, round(CHARACTERS / characters_per_token))
        text = "".join(run.generate(prompt, max_tokens=max_tokens, temperature=TEMPERATURE, seed=SEED))
        return [{"prompt": prompt, "text": text}]
    items = labelled_items(run.task, measured, count=ANSWERS)
    answers = run.task.answer(run.model, run.vocabulary, [text for text, _ in items]) if items else []
    return [
        {"input": text, "truth": truth, "text": answer["text"]}
        for (text, truth), answer in zip(items, answers, strict=True)
    ]


def prompt_of(run: Run, data: Corpus) -> str:
    """Return the first words of a text that the vocabulary knows, without rules of dashes and the like."""
    ids = np.asarray(data.ids[:PROMPT_TOKENS])
    skipped = [END] if run.tokenizer.ends_lines else [END, run.tokenizer.unknown_id]
    words = run.tokenizer.decode([int(token) for token in ids if int(token) not in skipped]).split()
    with_letters = [word for word in words if any(map(str.isalpha, word))]
    return " ".join((with_letters or words)[:PROMPT_WORDS])


def labelled_items(task: AnyTask, data: DataPart, *, count: int) -> list[tuple[str, str]]:
    """Return up to ``count`` inputs with the right answers, spread evenly over the data."""
    items = _all_items(task, data)
    return [items[i * len(items) // count] for i in range(count)] if len(items) > count else items


@functools.lru_cache(maxsize=1)
def _all_items(task: AnyTask, data: DataPart) -> list[tuple[str, str]]:
    return list(islice(task.labelled_items(*data), MAX_ITEMS))

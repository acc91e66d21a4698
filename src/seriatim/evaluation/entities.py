"""Chunks (named entities, phrases) of a tag sequence, by the rules of the CoNLL-2000 evaluation script.

Published F1 scores come from that script, conlleval (E. Tjong Kim Sang and S. Buchholz, *Introduction to the
CoNLL-2000 shared task: chunking*), which accepts any sequence of tags, well-formed or not. A tag is a prefix, a hyphen
and a type; a tag without a hyphen has an empty type. Between two neighbouring tokens

- a chunk *ends* after ``E``, ``S``, ``[`` or ``]``; after ``B`` or ``I`` if ``B``, ``S`` or ``O`` follows; and after
  any prefix except ``O`` and ``.`` if a tag of another type follows;
- a chunk *starts* with ``B``, ``S``, ``[`` or ``]``; with ``I`` or ``E`` after ``O``, ``E`` or ``S``; and with any
  prefix except ``O`` and ``.`` after a tag of another type.

Therefore ``I-PER`` after ``O`` starts a chunk, and so does ``I-LOC`` after ``I-PER``. The last token counts as followed
by ``O``. ``S`` (a chunk of one token), and a new chunk at ``B`` after ``E``, a bracket or ``.``, are not in its first
version; they follow later ones. ``L`` and ``U`` (BILOU) are read as ``E`` and ``S``, and ``M`` (BMES) as ``I``.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ..core.errors import InputError

OTHER_SCHEMES = {"L": "E", "U": "S", "M": "I"}


class Counts(NamedTuple):
    """Numbers of correct chunks, of predicted chunks (``guessed``) and of true chunks (``gold``)."""

    correct: int
    guessed: int
    gold: int


class Boundary(NamedTuple):
    """Whether a chunk ends and whether one starts just before a token, and the type of the token."""

    ends: bool
    starts: bool
    type: str


def counts(truth: Sequence[str], predicted: Sequence[str]) -> Counts:
    """Count the chunks of a sentence over all types: precision is correct / guessed, recall is correct / gold."""
    by_type = counts_by_type(truth, predicted).values()
    return Counts(*map(sum, zip(Counts(0, 0, 0), *by_type, strict=True)))


def counts_by_type(truth: Sequence[str], predicted: Sequence[str]) -> dict[str, Counts]:
    """Count the chunks of a sentence for each type that occurs; sequences of different length are an InputError.

    Both sequences are scanned together, as conlleval does. For well-formed tags this equals comparing the two lists of
    chunks. If a chunk starts before another one has ended, the results differ, and conlleval's result is returned.
    """
    if len(truth) != len(predicted):
        raise InputError(f"got {len(predicted)} tags for {len(truth)} tokens; give one tag per token")
    correct, guessed, gold = Counter[str](), Counter[str](), Counter[str]()
    agree, last = False, ""
    for true, guess in zip(_boundaries(truth), _boundaries(predicted), strict=True):
        if agree and true.ends and guess.ends:
            correct[last] += 1
            agree = False
        elif true.ends != guess.ends or true.type != guess.type:
            agree = False
        gold[true.type] += true.starts
        guessed[guess.type] += guess.starts
        if true.starts and guess.starts and true.type == guess.type:
            agree = True
        last = true.type
    types = sorted(kind for kind in gold.keys() | guessed.keys() if gold[kind] or guessed[kind])
    return {kind: Counts(correct[kind], guessed[kind], gold[kind]) for kind in types}


def _boundaries(tags: Sequence[str]) -> Iterator[Boundary]:
    """Yield the boundary before each token, and the one after the last token."""
    last, last_type = "O", ""
    for tag in (*tags, "O"):
        prefix, _, kind = tag.partition("-")
        prefix = OTHER_SCHEMES.get(prefix, prefix)
        other = kind != last_type
        yield Boundary(
            ends=last in ("E", "S", "[", "]")
            or (last in ("B", "I") and prefix in ("B", "S", "O"))
            or (last not in ("O", ".") and other),
            starts=prefix in ("B", "S", "[", "]")
            or (prefix in ("I", "E") and last in ("O", "E", "S"))
            or (prefix not in ("O", ".") and other),
            type=kind,
        )
        last, last_type = prefix, kind

"""Chunks (named entities, phrases) of a tag sequence, by the rules of the CoNLL-2000 evaluation script.

Published F1 scores come from that script, conlleval (E. Tjong Kim Sang and S. Buchholz, *Introduction to the
CoNLL-2000 shared task: chunking*), which has an answer for any sequence of tags, well-formed or not. A tag is a
prefix, a hyphen and a type; without a hyphen the type is empty. Between two neighbouring tokens

- a chunk *ends* after ``E``, ``S``, ``[`` or ``]``; after ``B`` or ``I`` where ``B``, ``S`` or ``O`` follows; and after
  whatever is neither ``O`` nor ``.`` where another type follows;
- a chunk *starts* with ``B``, ``S``, ``[`` or ``]``; with ``I`` or ``E`` after ``O``, ``E`` or ``S``; and with
  whatever is neither ``O`` nor ``.`` after another type.

So ``I-PER`` after ``O`` starts a chunk, as ``I-LOC`` after ``I-PER`` does. A sentence is followed by an ``O``. ``S`` (a
chunk of one token), and a new chunk at ``B`` after ``E``, a bracket or ``.``, are not in the original script; they are
as in its later versions. ``L`` and ``U`` (BILOU) are read as ``E`` and ``S``.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ..core.errors import InputError

BILOU = {"L": "E", "U": "S"}


class Chunk(NamedTuple):
    """Tokens ``start`` to ``stop``, without ``stop``, and their type."""

    start: int
    stop: int
    type: str


class Counts(NamedTuple):
    """How many chunks are right, were found, and are in the truth."""

    correct: int
    guessed: int
    gold: int


class Boundary(NamedTuple):
    """What happens just before a token, and the type of the token."""

    ends: bool
    starts: bool
    type: str


def chunks(tags: Sequence[str]) -> list[Chunk]:
    """The chunks of a sentence, in order.

    A chunk goes on until it ends or, where the rules let another start before that (``[`` after ``B`` of the same
    type), until then.
    """
    found: list[Chunk] = []
    opened: int | None = None
    kind = ""
    for i, boundary in enumerate(_boundaries(tags)):
        if opened is not None and (boundary.ends or boundary.starts):
            found.append(Chunk(opened, i, kind))
            opened = None
        if boundary.starts:
            opened, kind = i, boundary.type
    return found


def counts(truth: Sequence[str], found: Sequence[str]) -> Counts:
    """The counts of a sentence, over all types: precision is correct / guessed, recall correct / gold.

    Raises:
        InputError: the sequences differ in length.
    """
    by_type = counts_by_type(truth, found).values()
    return Counts(*(sum(column) for column in zip(*by_type, strict=True))) if by_type else Counts(0, 0, 0)


def counts_by_type(truth: Sequence[str], found: Sequence[str]) -> dict[str, Counts]:
    """The counts of a sentence for every type that occurs.

    Both sequences are walked together, as the script does. On well-formed tags that is the same as comparing the two
    lists of chunks; where a chunk starts before another has ended it is not, and the script's answer is given.

    Raises:
        InputError: the sequences differ in length.
    """
    if len(truth) != len(found):
        raise InputError(f"{len(found)} tags found for {len(truth)} tokens; give one tag a token")
    correct: Counter[str] = Counter()
    guessed: Counter[str] = Counter()
    gold: Counter[str] = Counter()
    agree, last = False, ""
    for true, own in zip(_boundaries(truth), _boundaries(found), strict=True):
        if agree and true.ends and own.ends:
            correct[last] += 1
            agree = False
        elif true.ends != own.ends or true.type != own.type:
            agree = False
        gold[true.type] += true.starts
        guessed[own.type] += own.starts
        if true.starts and own.starts and true.type == own.type:
            agree = True
        last = true.type
    types = sorted(kind for kind in gold.keys() | guessed.keys() if gold[kind] or guessed[kind])
    return {kind: Counts(correct[kind], guessed[kind], gold[kind]) for kind in types}


def _boundaries(tags: Sequence[str]) -> Iterator[Boundary]:
    """One boundary before every token, and one after the last."""
    last, last_type = "O", ""
    for tag in (*tags, "O"):
        prefix, _, kind = tag.partition("-")
        prefix = BILOU.get(prefix, prefix)
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

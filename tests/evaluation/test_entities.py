"""Chunks as conlleval reads them: examples by hand, and a second implementation of its rules."""

import random
from typing import NamedTuple

import pytest

from seriatim.evaluation.label_metrics import _boundaries, chunk_counts, chunk_counts_by_type

from ..refusals import refused


class Chunk(NamedTuple):
    """Tokens from ``start`` up to but not including ``stop``, and their type."""

    start: int
    stop: int
    type: str


def chunks(tags: list[str]) -> list[Chunk]:
    """The chunks between the boundaries; where one starts before another has ended, the rules end that one as well."""
    found, start, kind = [], None, ""
    for i, boundary in enumerate(_boundaries(tags)):
        if start is not None and (boundary.ends or boundary.starts):
            found.append(Chunk(start, i, kind))
            start = None
        if boundary.starts:
            start, kind = i, boundary.type
    return found


def spans(tags: str) -> list[tuple[int, int, str]]:
    return [tuple(chunk) for chunk in chunks(tags.split())]


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        ("", []),
        ("O O", []),
        ("B-X I-X O B-Y", [(0, 2, "X"), (3, 4, "Y")]),
        ("O I-X I-X O", [(1, 3, "X")]),  # a chunk needs no B
        ("I-X I-Y I-Y", [(0, 1, "X"), (1, 3, "Y")]),  # another type is another chunk
        ("B-X I-Y", [(0, 1, "X"), (1, 2, "Y")]),
        ("B-X B-X", [(0, 1, "X"), (1, 2, "X")]),
        ("B-X I-X B-X I-X", [(0, 2, "X"), (2, 4, "X")]),
        ("B I O I", [(0, 2, ""), (3, 4, "")]),  # no type is a type, too
        ("I- I O", [(0, 2, "")]),
        ("B-X I", [(0, 1, "X"), (1, 2, "")]),
        ("B-A-B I-A-B", [(0, 2, "A-B")]),  # the first hyphen parts prefix and type
        ("I-X E-X I-X E-X", [(0, 2, "X"), (2, 4, "X")]),  # IOE
        ("E-X E-X", [(0, 1, "X"), (1, 2, "X")]),
        ("B-X E-X B-X E-X S-X S-X", [(0, 2, "X"), (2, 4, "X"), (4, 5, "X"), (5, 6, "X")]),  # IOBES
        ("B-X L-X U-X O U-X", [(0, 2, "X"), (2, 3, "X"), (4, 5, "X")]),  # BILOU
        ("I-X S-X I-X", [(0, 1, "X"), (1, 2, "X"), (2, 3, "X")]),
        ("[-X [-X ]-X O", [(0, 1, "X"), (1, 2, "X"), (2, 3, "X")]),
        ("[-X I-X", [(0, 1, "X")]),  # a bracket is a chunk of one token, and I after it continues nothing
        ("NN VB", []),
    ],
)
def test_by_hand(tags: str, expected: list[tuple[int, int, str]]) -> None:
    assert spans(tags) == expected


def second_implementation(tags: list[str]) -> list[Chunk]:
    """Return the chunks by a state machine for B, I, O, E, S, where no chunk starts before another has ended."""
    found, start, kind, closed = [], None, None, True
    for i, tag in enumerate(tags):
        prefix, own = tag.split("-", 1) if "-" in tag else (tag, "")
        inside = prefix != "O"
        fresh = start is None or closed or prefix in "BS" or own != kind
        if start is not None and (fresh or not inside):
            found.append(Chunk(start, i, kind))
            start = None
        if inside and fresh:
            start, kind = i, own
        closed = prefix in "ES"
    if start is not None:
        found.append(Chunk(start, len(tags), kind))
    return found


def random_tags(source: random.Random, prefixes: str = "BIOESO", length: int = 8) -> list[str]:
    def tag() -> str:
        prefix = source.choice(prefixes)
        return prefix if prefix == "O" else prefix + source.choice(["-X", "-X", "-Y", "", "-", "-X-Y"])

    return [tag() for _ in range(source.randrange(length + 1))]


def test_chunks_agree_with_a_second_implementation_of_the_rules() -> None:
    source = random.Random(0)
    for _ in range(2000):
        tags = random_tags(source)
        assert chunks(tags) == second_implementation(tags), tags


def test_counts_are_those_of_the_common_chunks() -> None:
    source = random.Random(1)
    for _ in range(2000):
        truth = random_tags(source)
        found = [tag if source.random() < 0.7 else source.choice(("O", "B-X", "I-X", "I-Y")) for tag in truth]
        gold, guessed = second_implementation(truth), second_implementation(found)
        assert chunk_counts(truth, found) == (len(set(gold) & set(guessed)), len(guessed), len(gold))
        for kind, own in chunk_counts_by_type(truth, found).items():
            of_kind = [{chunk for chunk in side if chunk.type == kind} for side in (gold, guessed)]
            assert own == (len(of_kind[0] & of_kind[1]), len(of_kind[1]), len(of_kind[0]))


def test_a_chunk_started_before_another_ended_is_counted_as_the_script_does() -> None:
    # B, then [ of the same type: two starts and one end, so that even the truth itself is half right
    assert chunk_counts(["B-X", "[-X"], ["B-X", "[-X"]) == (1, 2, 2)
    assert chunks(["B-X", "[-X"]) == [(0, 1, "X"), (1, 2, "X")]


def test_every_chunk_lies_in_its_sentence_and_after_the_one_before() -> None:
    source = random.Random(2)
    for _ in range(1000):
        tags = random_tags(source, "BIOES[].LUx")
        last = 0
        for start, stop, _ in chunks(tags):
            assert last <= start < stop <= len(tags)
            last = stop


def test_sequences_of_different_length_are_refused() -> None:
    with refused("mismatch"):
        chunk_counts(["O", "O"], ["O"])

"""Tasks made on the spot: their labels are right, their parts apart, and what is near does not give them away."""

import functools
import hashlib
import itertools
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable

import pytest

from seriatim.config import Config, Data, Tokenizer
from seriatim.core.errors import InputError
from seriatim.data.pairs import read_pairs
from seriatim.data.sources import SPLITS, builtin_text, find_sources
from seriatim.data.synthetic import COUNTS, LONGEST, NOUNS, PREPOSITIONS, SYNTHETIC_TASKS, generate, noisy_reversal
from seriatim.data.tables import read_labelled
from seriatim.tasks import TASKS as LEARNED

CLASSIFICATION = ("copy", "adding", "agreement", "recall")


@functools.cache
def rows(spec: str) -> list[tuple[str, str]]:
    """Label and text, or source and target, through the readers that training uses."""
    if "reversal" in spec:
        return [(pair.source, pair.target) for pair in read_pairs(spec)]
    return [(row.label, row.text) for row in read_labelled(find_sources(spec))]


def number(word: str) -> str:
    return "are" if word.endswith("s") else "is"


def solve_copy(text: str) -> tuple[str, int]:
    symbol, rest = re.fullmatch(r"(\d)([a-z]*)\?", text).groups()
    return symbol, len(rest)


def solve_adding(text: str) -> tuple[str, int]:
    digits = text.replace("*", "")
    first, second = re.findall(r"\*(\d)", text)
    assert text.index("*") < len(digits) // 2 <= text.rindex("*") - 1
    return str((int(first) + int(second)) % 10), len(digits)


def solve_agreement(text: str) -> tuple[str, int]:
    the, subject, *between = text.split()
    assert the == "the"
    assert between[0] in PREPOSITIONS
    assert subject.removesuffix("s") in NOUNS
    assert between[-1].removesuffix("s") in NOUNS
    return number(subject), len(between)


def solve_recall(text: str) -> tuple[str, int]:
    *pairs, question = text.split()
    assert all(re.fullmatch("[a-z][0-9]", pair) for pair in pairs)
    assert re.fullmatch(r"[a-z]\?", question)
    return dict(pairs)[question[0]], len(pairs)  # what is set last stays


SOLVE: dict[str, Callable[[str], tuple[str, int]]] = {
    "copy": solve_copy,
    "adding": solve_adding,
    "agreement": solve_agreement,
    "recall": solve_recall,
}


@pytest.mark.parametrize("name", SYNTHETIC_TASKS)
def test_a_distance_is_counted_in_the_tokens_of_the_default(name: str) -> None:
    """As words, a text of letters would be a single token, and nothing could be learned from it."""
    task = LEARNED["seq2seq" if name == "reversal" else "classify"]
    default = task.defaults(Config(data=Data(train=f"builtin:{name}")))
    given = Config(data=Data(train=f"builtin:{name}"), tokenizer=Tokenizer(kind="byte"))
    assert default.tokenizer.kind == SYNTHETIC_TASKS[name].tokens
    assert task.defaults(given).tokenizer.kind == "byte"
    for fields in itertools.islice(generate(name, "test", 20, distance=9), 20):
        text = fields[0] if name == "reversal" else fields[1]
        assert len(text if default.tokenizer.kind == "char" else text.split()) >= 9


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", CLASSIFICATION)
def test_labels_are_right_balanced_and_far_away(name: str) -> None:
    task = SYNTHETIC_TASKS[name]
    for split in SPLITS:
        found = rows(f"builtin:{name}:{split}")
        assert len(found) == COUNTS[split]
        solved = [SOLVE[name](text) for _, text in found]
        assert [label for label, _ in solved] == [label for label, _ in found]
        assert len(set(Counter(label for label, _ in found).values())) == 1  # the majority is right by chance
        distances = [distance for _, distance in solved]
        assert min(distances) == task.shortest
        assert task.longest * 0.9 < max(distances) <= task.longest
        middle = (task.shortest * task.longest) ** 0.5
        assert 0.3 < sum(distance > middle for distance in distances) / len(distances) < 0.7


@pytest.mark.parametrize("name", CLASSIFICATION)
@pytest.mark.parametrize(
    ("split", "distance"),
    [("test", 4), pytest.param("train", 17, marks=pytest.mark.exhaustive), ("valid", 17), ("test", 150)],
)
def test_a_part_of_one_distance(name: str, split: str, distance: int) -> None:
    solved = [SOLVE[name](text) for _, text in rows(f"builtin:{name}:{split}-{distance}")]
    assert len(solved) == COUNTS[split]
    assert {far for _, far in solved} == {distance}


@pytest.mark.parametrize("part", ["test", "test-3", "test-20"])
def test_reversal(part: str) -> None:
    found = rows(f"builtin:reversal:{part}")
    assert all(source[::2][::-1] == target and len(source) == 2 * len(target) for source, target in found)
    assert all(re.fullmatch("[a-z]+", source) for source, _ in found)
    lengths = Counter(len(target) for _, target in found)
    assert set(lengths) == (set(range(2, 11)) if part == "test" else {int(part[5:])})
    assert max(lengths.values()) < 2 * min(lengths.values())


@pytest.mark.parametrize("name", SYNTHETIC_TASKS)
def test_no_two_parts_share_a_text(name: str) -> None:
    shortest = f"test-{SYNTHETIC_TASKS[name].shortest}"
    parts = {part: set(rows(f"builtin:{name}:{part}")) for part in (*SPLITS, shortest)}
    if name == "reversal":  # nor a word under other noise
        parts = {part: {target for _, target in found} for part, found in parts.items()}
    for one, other in itertools.combinations(SPLITS, 2):
        assert not parts[one] & parts[other]
    assert not parts[shortest] & (parts["train"] | parts["valid"])


def accuracy(found: list[tuple[str, str]], guess: Callable[[str], str]) -> float:
    return sum(guess(text) == label for label, text in found) / len(found)


def test_nothing_near_the_verb_gives_its_number_away() -> None:
    found = rows("builtin:agreement:train")
    assert abs(accuracy(found, lambda text: number(text.split()[-1])) - 0.5) < 0.02

    def commonest(text: str) -> str:
        votes = Counter(number(word) for word in text.split()[2:] if word.removesuffix("s") in NOUNS)
        return max(votes, key=lambda verb: votes[verb])

    assert abs(accuracy(found, commonest) - 0.5) < 0.02


def test_one_digit_says_nothing_of_the_sum() -> None:
    found = rows("builtin:adding:train")
    for which in (0, 1):
        seen = Counter((re.findall(r"\*(\d)", text)[which], label) for label, text in found)
        best = sum(max(seen[str(digit), str(total)] for total in range(10)) for digit in range(10))
        assert best / len(found) < 0.13  # of the best guess for every digit; chance is 0.1


def test_every_process_makes_the_same() -> None:
    code = (
        "import hashlib; from seriatim.data.synthetic import SYNTHETIC_TASKS as tasks, generate\n"
        "for name in tasks: print(hashlib.sha256(repr(list(generate(name, 'train', 200))).encode()).hexdigest())"
    )
    here = [hashlib.sha256(repr(list(generate(name, "train", 200))).encode()).hexdigest() for name in SYNTHETIC_TASKS]
    for hash_seed in ("1", "2"):
        environment = os.environ | {"PYTHONHASHSEED": hash_seed}
        found = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
        )
        assert found.stdout.split() == here


@pytest.mark.parametrize("name", SYNTHETIC_TASKS)
def test_arguments_tell_rows_apart(name: str) -> None:
    def made(**changed: int) -> list[tuple[str, str]]:
        return list(generate(name, "test", 20, **changed))

    assert made() == made(seed=0) != made(seed=1)
    assert made(distance=9) != made(distance=10)
    assert {row[1] for row in made()}.isdisjoint(row[1] for row in generate(name, "train", 2000, seed=1))


def test_words_of_ones_own_are_reversed() -> None:
    words = ["anna", "", "Ærø", "a b"]
    found = noisy_reversal(words, seed=3)
    assert [source[::2] for source, _ in found] == words
    assert [target for _, target in found] == ["anna", "", "ørÆ", "b a"]
    assert all(re.fullmatch("[a-z]*", source[1::2]) for source, _ in found)
    assert found == noisy_reversal(words, seed=3) != noisy_reversal(words, seed=4)


def test_a_part_is_made_once() -> None:
    made = builtin_text("builtin:copy:test-5", "train")
    before = made.stat().st_mtime_ns
    assert builtin_text("builtin:copy", "test-5") == made
    assert made.stat().st_mtime_ns == before


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("builtin:coppy", "did you mean 'copy'"),
        ("builtin:", "choose from python-docs, reversal, copy, adding, agreement"),
        ("builtin:copy:dev", "choose from train, valid, test, or add -N"),
        ("builtin:copy:test-", "-N for distance N"),
        ("builtin:copy:dev-5", "-N for distance N"),
        ("builtin:copy:test-0", "-N for distance N"),
        ("builtin:copy:test-1:2", "choose from train, valid, test"),
        ("builtin:adding:test-3", f"no such distance; choose from 4 to {LONGEST}"),
        (f"builtin:copy:test-{LONGEST + 1}", "no such distance"),
        ("builtin:python-docs:test-5", "choose from train, valid, test$"),
    ],
)
def test_what_is_not_built_in_is_named(spec: str, message: str) -> None:
    with pytest.raises(InputError, match=f"^{spec}: .*{message}"):
        rows(spec)

"""Synthetic tasks that measure how far back a model remembers: accuracy is measured against a distance.

- ``reversal`` (sequence to sequence): a word with a random letter after every letter; the target is the word
  backwards without the noise. The distance is the word's length.
- ``copy`` (classification): a digit, N random letters, and a cue; the label is the digit. One symbol must be
  remembered over distractors, as in task 2c of Hochreiter & Schmidhuber, "Long Short-Term Memory" (1997).
- ``adding`` (classification): N digits, with a star before one of the first half and before one of the second; the
  label is the sum of the two modulo 10. Their original (1997) adds real numbers that a second input marks.
- ``agreement`` (classification): the beginning of a sentence, whose verb follows N words after the noun of its subject;
  the label is ``is`` or ``are``. After Linzen et al., "Assessing the Ability of LSTMs to Learn Syntax-Sensitive
  Dependencies" (2016). The nouns in between are singular or plural at random, so that counting them does not help.
- ``recall`` (classification): N pairs of a letter and a digit, then a letter and a question mark; the label is the
  last digit that occurred with this letter. All pairs must be remembered, so that the size of the state bounds the
  accuracy. After Arora et al., "Zoology: Measuring and Improving Recall in Efficient Language Models" (2023).

The hash of a text (in ``reversal``, of a word) decides to which split it belongs, so that no two splits share a text.
At the shortest distances there are only hundreds of different texts, and some occur in a split more than once.
"""

import hashlib
import math
import string
from collections.abc import Callable, Iterable, Iterator
from random import Random
from typing import NamedTuple

COUNTS = {"train": 20_000, "valid": 1_000, "test": 2_000}
LONGEST = 10_000

NOUNS = (
    *("key", "cabinet", "letter", "friend", "dog", "cat", "teacher", "painting", "car", "house"),
    *("river", "road", "window", "garden", "boat", "table", "lamp", "book", "song", "tree"),
)
PREPOSITIONS = ("near", "behind", "above", "below", "beside", "with", "from", "by")
ADJECTIVES = ("old", "small", "red", "new", "tall", "quiet", "bright", "heavy", "strange", "green")
VERBS = ("is", "are")


class Item(NamedTuple):
    """A row of two fields, and the key that decides to which split it belongs."""

    fields: tuple[str, str]
    key: str


class SyntheticTask(NamedTuple):
    """A synthetic task."""

    draw: Callable[[Random, int, int], Item]  # from a distance and a turn, which decides the label
    shortest: int  # the shortest distance in training
    longest: int  # the longest distance in training
    choose: Callable[[Random, int, int], int]  # returns a random distance between two bounds
    header: str  # the first line of the TSV file
    tokens: str  # the kind of token in which distances are counted; models read it by default


def generate(
    name: str, split: str, count: int, *, distance: int | None = None, seed: int = 0
) -> Iterator[tuple[str, str]]:
    """Generate the rows of a split of a task: ``(label, text)``, or ``(source, target)`` for ``reversal``.

    The same arguments give the same rows on every machine; another ``seed`` gives other rows of the same split. Labels
    are equally frequent if ``count`` is a multiple of their number. Every row has the given ``distance``, at least the
    task's ``shortest``; if it is None, distances are mixed from ``shortest`` to ``longest``.
    """
    task = SYNTHETIC_TASKS[name]
    assert split in COUNTS
    assert distance is None or distance >= task.shortest
    random = Random(f"{name} {split} {distance} {seed}")
    turns = list(range(count))
    random.shuffle(turns)
    for turn in turns:
        row_distance = distance or task.choose(random, task.shortest, task.longest)
        item = task.draw(random, row_distance, turn)
        while row_distance <= task.longest and _split_of(item.key) != split:  # longer texts are practically never equal
            item = task.draw(random, row_distance, turn)
        yield item.fields


def noisy_reversal(words: Iterable[str], seed: int) -> list[tuple[str, str]]:
    """Return each word with a random letter after every letter, and reversed: ``key`` → ``kxeqya, yek``."""
    random = Random(seed)
    return [(_noisy(random, word), word[::-1]) for word in words]


def _split_of(key: str) -> str:
    digest = hashlib.blake2b(key.encode(), digest_size=8).digest()
    return {0: "test", 1: "valid"}.get(int.from_bytes(digest) % 10, "train")


def _log_uniform(random: Random, shortest: int, longest: int) -> int:
    """Return a distance; every octave is equally frequent, so that training begins with short examples."""
    return min(longest, int(math.exp(random.uniform(math.log(shortest), math.log(longest + 1)))))


def _letters(random: Random, count: int) -> str:
    return "".join(random.choices(string.ascii_lowercase, k=count))


def _noisy(random: Random, word: str) -> str:
    return "".join(letter + noise for letter, noise in zip(word, _letters(random, len(word)), strict=True))


def _reversal(random: Random, distance: int, turn: int) -> Item:
    word = _letters(random, distance)
    return Item((_noisy(random, word), word[::-1]), word)


def _copy(random: Random, distance: int, turn: int) -> Item:
    label = str(turn % 10)
    text = f"{label}{_letters(random, distance)}?"
    return Item((label, text), text)


def _adding(random: Random, distance: int, turn: int) -> Item:
    total, half = turn % 10, distance // 2
    digits = [int(random.random() * 10) for _ in range(distance)]
    first, second = random.randrange(half), random.randrange(half, distance)
    digits[second] = (total - digits[first]) % 10
    text = "".join(f"*{digit}" if i in (first, second) else str(digit) for i, digit in enumerate(digits))
    return Item((str(total), text), text)


def _agreement(random: Random, distance: int, turn: int) -> Item:
    plural = turn % 2
    words = ["the", _noun(random, plural)]
    while rest := distance + 2 - len(words):
        length = random.choice([n for n in (3, 4, 5) if rest == n or rest - n >= 3])
        adjectives = random.sample(ADJECTIVES, length - 3)
        words += [random.choice(PREPOSITIONS), "the", *adjectives, _noun(random, random.randrange(2))]
    text = " ".join(words)
    return Item((VERBS[plural], text), text)


def _recall(random: Random, distance: int, turn: int) -> Item:
    pairs = [[letter, str(int(random.random() * 10))] for letter in _letters(random, distance)]
    asked = random.choice(pairs)[0]
    last = max(i for i, (letter, _) in enumerate(pairs) if letter == asked)
    pairs[last][1] = str(turn % 10)
    text = " ".join(["".join(pair) for pair in pairs] + [f"{asked}?"])
    return Item((pairs[last][1], text), text)


def _noun(random: Random, plural: int) -> str:
    return random.choice(NOUNS) + "s" * plural


SYNTHETIC_TASKS = {
    "reversal": SyntheticTask(_reversal, 2, 10, Random.randint, "", "char"),
    "copy": SyntheticTask(_copy, 2, 100, _log_uniform, "label\ttext\n", "char"),
    "adding": SyntheticTask(_adding, 4, 100, _log_uniform, "label\ttext\n", "char"),
    "agreement": SyntheticTask(_agreement, 3, 30, _log_uniform, "label\ttext\n", "word"),
    "recall": SyntheticTask(_recall, 2, 16, _log_uniform, "label\ttext\n", "word"),
}

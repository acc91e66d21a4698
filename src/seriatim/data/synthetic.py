"""Tasks made on the spot, each a question of how far back a model remembers, and so measured against distance.

- ``reversal`` (sequence to sequence): a word with a random letter after every letter; the target is the word
  backwards without the noise. The distance is the word's length.
- ``copy`` (classification): a digit, N random letters, and a cue; the label is the digit. One symbol is kept over
  distractors, as in task 2c of Hochreiter & Schmidhuber, "Long Short-Term Memory" (1997). The copying memory of
  Arjovsky et al., "Unitary Evolution Recurrent Neural Networks" (2016), has ten symbols and one constant filler,
  which would leave too few different texts to keep training and test apart.
- ``adding`` (classification): N digits, with a star before one of the first half and before one of the second; the
  label is the sum of the two modulo 10. In the original (Hochreiter & Schmidhuber 1997) real numbers are added, a
  second input marks them, and the sum is regressed on.
- ``agreement`` (classification): the beginning of a sentence up to its verb, N words after the subject's noun; the
  label is ``is`` or ``are``. After Linzen et al., "Assessing the Ability of LSTMs to Learn Syntax-Sensitive
  Dependencies" (2016). The nouns between are singular or plural by the toss of a coin: were most of them of the other
  number than the subject, counting them would answer, without any memory of the subject.
- ``recall`` (classification): N pairs of a letter and a digit, then a letter and a question mark; the label is the
  digit that stood last with this letter. All pairs must be kept until the question comes, so that the size of the
  state bounds the accuracy. After the associative recall of Arora et al., "Zoology: Measuring and Improving Recall in
  Efficient Language Models" (2023); there a text asks for several letters.

A text (of ``reversal``, a word) belongs to one part by its hash, so that no two parts share one. At the few shortest
distances there are only hundreds of different texts, and some stand in a part more than once.
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
    """A row of two fields, and what decides to which part it belongs."""

    fields: tuple[str, str]
    key: str


class Task(NamedTuple):
    """A task: one item of a distance, whose label goes round by its turn; the distances of training; a header.

    ``tokens`` is the kind of token that a distance is counted in, and that a model reads unless told otherwise.
    """

    draw: Callable[[Random, int, int], Item]
    shortest: int
    longest: int
    choose: Callable[[Random, int, int], int]
    header: str
    tokens: str


def generate(
    name: str, split: str, count: int, *, distance: int | None = None, seed: int = 0
) -> Iterator[tuple[str, str]]:
    """The rows of a part of a task: ``(label, text)``, or ``(source, target)`` of ``reversal``.

    The same arguments give the same rows everywhere. Labels are equally frequent where their number divides ``count``.

    Args:
        name: one of `TASKS`.
        split: ``train``, ``valid`` or ``test``.
        count: how many rows.
        distance: the distance of every row, from the task's ``shortest`` up; without it, distances are mixed from the
            task's ``shortest`` to its ``longest``.
        seed: another seed gives other rows of the same part.
    """
    task = TASKS[name]
    assert split in COUNTS
    assert distance is None or distance >= task.shortest
    random = Random(f"{name} {split} {distance} {seed}")
    turns = list(range(count))
    random.shuffle(turns)
    for turn in turns:
        far = distance or task.choose(random, task.shortest, task.longest)
        item = task.draw(random, far, turn)
        while far <= task.longest and _part(item.key) != split:  # no two longer texts are ever the same
            item = task.draw(random, far, turn)
        yield item.fields


def noisy_reversal(words: Iterable[str], seed: int) -> list[tuple[str, str]]:
    """Each word with a random lower-case letter after every letter, and backwards: ``key`` → ``kxeqya, yek``."""
    random = Random(seed)
    return [(_noisy(random, word), word[::-1]) for word in words]


def _part(key: str) -> str:
    digest = hashlib.blake2b(key.encode(), digest_size=8).digest()
    return {0: "test", 1: "valid"}.get(int.from_bytes(digest) % 10, "train")


def _log_uniform(random: Random, shortest: int, longest: int) -> int:
    """Every octave of distances equally often, so that training has short examples to begin with."""
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


TASKS = {
    "reversal": Task(_reversal, 2, 10, Random.randint, "", "char"),
    "copy": Task(_copy, 2, 100, _log_uniform, "label\ttext\n", "char"),
    "adding": Task(_adding, 4, 100, _log_uniform, "label\ttext\n", "char"),
    "agreement": Task(_agreement, 3, 30, _log_uniform, "label\ttext\n", "word"),
    "recall": Task(_recall, 2, 16, _log_uniform, "label\ttext\n", "word"),
}

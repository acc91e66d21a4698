"""What a model makes of the text: its tokens on the strip with their surprisal, and the answer beside the gold one."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from ..data.tokenizers import Tokenizer, whole_characters
from ..evaluation.intervals import interval, supported_digits, written
from ..evaluation.intervals import mean as mean_of
from ..evaluation.token_scores import TokenSurprisals, counted, is_symbol, spaced
from ..pages.page import Sample, Tile
from ..pages.strip import StripRow, StripToken, Values
from ..pages.wording import percent, quoted
from ..tasks.explainer import LabelEffect, Refusal
from .inspected_run import ALONE, InspectedRun, ReferenceAnswer

MAX_TOKENS = 1_000
"""Tokens of the text that are shown."""
MIN_TOKENS = 20
"""Tokens from which on a mean has an interval."""
MAX_LABELS = 5
"""Labels that are listed."""
FULL_EFFECT = 2.0
"""Bits by which a token must raise the probability of a label to have the full shade."""


class Layout(NamedTuple):
    """Where the tokens that a model reads and answers stand on the strip.

    ``first_answer`` is the token of the first answer, and ``source`` the number of tokens before those that a decoder
    reads.
    """

    rows: list[StripRow]
    first_answer: int = 0
    source: int = 0

    @property
    def size(self) -> int:
        """Number of tokens."""
        return sum(len(row.tokens) for row in self.rows)


@dataclass(frozen=True)
class TextBits:
    """The surprisals of a text, or of an answer to it: ``values`` in bits, ``size`` in bytes, None for an answer."""

    values: np.ndarray
    unit: str
    size: int | None = None

    @property
    def is_finite(self) -> bool:
        """Whether no token has probability zero."""
        return bool(np.isfinite(self.values).all())

    @property
    def total(self) -> str:
        """The sum."""
        return written(float(self.values.sum()), 1) if self.is_finite else "∞"

    @property
    def per_byte(self) -> str:
        """The mean over bytes; empty if it is not known."""
        return written(float(self.values.sum()) / self.size, 2) if self.size and self.is_finite else ""

    @property
    def mean(self) -> tuple[str, str]:
        """The mean over tokens with its 95 % interval, if there are enough, with the digits that this supports."""
        if not self.is_finite:
            return "∞", ""
        mean, low, high = interval(np.stack([self.values, np.ones(len(self.values))], 1), mean_of)
        if len(self.values) < MIN_TOKENS or low is None or high is None or low == high:
            return written(mean, 2), ""
        digits = max(0, supported_digits(low, high, 2))
        return written(mean, digits), f"{written(low, digits)} to {written(high, digits)}"

    @property
    def count(self) -> str:
        """The number of tokens with their name."""
        return counted(len(self.values), self.unit)

    @property
    def tile(self) -> Tile:
        """The mean with its notes."""
        mean, ends = self.mean
        by_byte = f"{self.per_byte} bits a byte; " if self.per_byte else ""
        note = f"{by_byte}{self.total} bits for {self.count}"
        if not self.is_finite:
            note = f"probability zero for {np.isinf(self.values).sum():,} of {self.count}"
        return Tile("Bits of this text" if self.size else "Bits of the answer", f"{mean} bits a token", ends, note)


@dataclass(frozen=True)
class Reading:
    """What a model makes of a text: its strip, the answer and the gold one, and the numbers of this text."""

    layout: Layout
    lenses: list[Values] = field(default_factory=list)
    answers: list[Sample] = field(default_factory=list)
    tiles: list[Tile] = field(default_factory=list)
    bits: TextBits | None = None


def read_text(inspected: InspectedRun) -> Reading:
    """Return what the model makes of the text."""
    explainer = inspected.explainer
    if not isinstance(explainer.label_effect, Refusal):
        return _labelled(inspected, explainer.label_effect(inspected.text))
    scores = None if isinstance(explainer.token_scores, Refusal) else explainer.token_scores(inspected.item)
    if explainer.searches:
        return _translated(inspected, scores)
    if scores is not None:
        return _tagged(inspected, scores) if scores.answers else _scored(inspected, scores)

    # A task of one's own without probabilities of tokens still reads some, under the lenses of its network.
    inputs = explainer.inputs
    if isinstance(inputs, Refusal):
        return Reading(Layout([]))
    return Reading(Layout([StripRow("", strip_tokens(inputs.fitting(inspected.item)[0].tokens, inputs.tokenizer))]))


def _scored(inspected: InspectedRun, scores: TokenSurprisals) -> Reading:
    """Return the tokens of a text; what stands before the first one is what the model reads before it."""
    shown = scores.scores[:MAX_TOKENS]
    inputs, before = inspected.inputs, list[StripToken]()
    if inputs.predicts == "next token" or getattr(inputs.model, "frame", None) is not None:
        before = strip_tokens(inputs.fitting(inspected.item)[0].tokens[:1], inputs.tokenizer)
    tokens = [*before, *map(StripToken, whole_characters(score.text for score in shown))]
    size = len(inspected.text.encode())
    if scores.scores[-1].text == "\n" and not inspected.text.endswith("\n"):
        size += 1  # the end of the last line is predicted, too
    bits = TextBits(np.array([score.bits for score in scores.scores]), scores.unit, size)
    first_answer = 1 if inputs.predicts == "next token" else 0
    return Reading(Layout([StripRow("", tokens)], first_answer), [_surprisal(scores, len(before))], bits=bits)


def _surprisal(scores: TokenSurprisals, first: int, notes: Sequence[str] = ()) -> Values:
    """Return the lens of surprisals; the full shade is what one of the outcomes costs if all are equally likely."""
    cut = f" Only the first {MAX_TOKENS:,} of {len(scores.scores):,} are shown."
    return Values(
        "surprisal",
        [score.bits for score in scores.scores[:MAX_TOKENS]],
        math.log2(max(2, scores.outcomes)),
        "bits",
        scores.caption + (cut if len(scores.scores) > MAX_TOKENS else ""),
        first=first,
        ends=scores.scale,
        notes=notes,
        details=[score.alternatives for score in scores.scores[:MAX_TOKENS]],
    )


def _tagged(inspected: InspectedRun, scores: TokenSurprisals) -> Reading:
    """Return the words below their tags, with the gold ones where these differ."""
    reference, answers = inspected.reference_answer(), scores.answers
    gold = reference.answers if reference and len(reference.answers) >= len(answers) else answers
    alone = answers
    if inspected.is_blended:
        alone = inspected.inputs.target_names(inspected.inputs.fitting(inspected.item)[0])
    tokens, notes = list[StripToken](), list[str]()
    for score, tag, right, other in zip(scores.scores, answers, gold, alone, strict=False):
        word = score.text.removesuffix(f"/{tag} ")
        tokens.append(StripToken(f"{word} ", above=tag, gold="" if tag == right else right))
        note = f"{tag} {percent(2**-score.bits)}"
        notes.append(note if other == tag else f"{note}; {ALONE} answers {other}")
    tiles = []
    if reference and gold is not answers:
        right = f"{sum(not token.gold for token in tokens):,} of {len(tokens):,}"
        tiles.append(Tile("Tags right in this text", right, note=f"gold tags of {reference.data}"))
    lens = _surprisal(scores, 0, notes)
    return Reading(Layout([StripRow("", tokens)]), [lens], tiles=tiles)


def _translated(inspected: InspectedRun, scores: TokenSurprisals | None) -> Reading:
    """Return the source and the answer; a model may give no probabilities of single tokens of the answer."""
    answer, reference = inspected.answer, inspected.reference_answer()
    answers = [Sample("Answer", answer or "(nothing)", mark=_mark([answer], reference)), *_gold(reference)]
    if isinstance(inspected.explainer.inputs, Refusal):
        return Reading(Layout([]), answers=answers)
    (example, *_), inputs = inspected.inputs.fitting(inspected.item), inspected.inputs
    source = strip_tokens(example.tokens[:: example.copies], inputs.tokenizer)
    if scores is None:
        return Reading(Layout([StripRow("Source", source)]), answers=answers)
    names = (*example.decoded[:1], *(score.text for score in scores.scores))
    rows = [StripRow("Source", source), StripRow("Answer", strip_tokens(names, inputs.target_tokenizer))]
    first = len(source) + 1
    layout = Layout(rows, first, len(source))
    bits = TextBits(np.array([score.bits for score in scores.scores]), scores.unit)
    return Reading(layout, [_surprisal(scores, first)], answers, [bits.tile], bits)


def _labelled(inspected: InspectedRun, effect: LabelEffect) -> Reading:
    """Return the text, shaded by how much each token raises the probability of the label."""
    answer, label = effect.labels[int(effect.answer.argmax())], effect.labels[effect.predicted]
    tokens = list(map(StripToken, whole_characters(effect.tokens)))
    before, without = float(effect.full.max()), effect.without[:, effect.predicted]
    lens = Values(
        "effect on the label",
        effect.bits().tolist(),
        FULL_EFFECT,
        "bits",
        "How much log₂ of the probability of the label falls when that token alone is removed.",
        ends=("no effect", "large effect"),
        notes=[f"Without it, P({label}) is {percent(after)}." for after in without.tolist()],
        details=[_most_likely(effect, row) for row in effect.without],
        details_name="Labels then:",
    )

    # The label of the run, its probabilities, and what the network says if that differs.
    reference = inspected.reference_answer()
    listed = ", then ".join(f"{name} {percent(value)}" for name, value in _most_likely(effect, effect.answer)[:2])
    answers = [Sample("Label", listed, mark=_mark([answer], reference)), *_gold(reference)]
    if answer != label:
        answers.append(Sample(f"{ALONE.capitalize()}, which the lenses show", f"{label} {percent(effect.full.max())}"))
    strongest, after = quoted(effect.tokens[int(without.argmin())].strip()), float(without.min())
    tile = Tile("Strongest token", strongest, note=f"without it, P({label}) is {percent(after)}, not {percent(before)}")
    falls = after < before and percent(after) != percent(before)
    return Reading(Layout([StripRow("", tokens)]), [lens], answers, [tile] if falls else [])


def _most_likely(effect: LabelEffect, probabilities: np.ndarray) -> list[tuple[str, float]]:
    pairs = zip(effect.labels, probabilities.tolist(), strict=True)
    return sorted(pairs, key=lambda pair: -pair[1])[:MAX_LABELS]


def _mark(answers: Iterable[str], reference: ReferenceAnswer | None) -> str:
    """Return whether an answer is ``right`` or ``wrong``; empty if the gold one is not known."""
    if reference is None:
        return ""
    return "right" if any(answer in reference.answers for answer in answers) else "wrong"


def _gold(reference: ReferenceAnswer | None) -> list[Sample]:
    return [] if reference is None else [Sample(f"Gold, in {reference.data}", " or ".join(reference.answers))]


def strip_tokens(names: Sequence[str], tokenizer: Tokenizer) -> list[StripToken]:
    """Return tokens as they stand in a text: words are followed by spaces."""
    return [
        StripToken(text, is_symbol(name, tokenizer))
        for name, text in zip(names, whole_characters(spaced(names, tokenizer)), strict=True)
    ]

"""The answer of the run beside others: the gold answer, if the held-out data contain the text, and the network's."""

from collections.abc import Sequence
from typing import NamedTuple

from ..report.page import Cell, Part, Prose, Table
from .subject import ALONE, Subject


class Gold(NamedTuple):
    """The gold answers of a text: its label, the tags of its words, or its right translations; the name of the data."""

    answers: Sequence[str]
    data: str


def gold_answer(subject: Subject) -> Gold | None:
    """Return the gold answer of the inspected text, or None if there is none or the data cannot be read."""
    answers = subject.from_held_out(lambda *data: subject.labelled.reference_answer(subject.text, *data))
    return None if answers is None else Gold(answers, subject.held_out_name)


def gold_parts(subject: Subject, predicted: Sequence[str]) -> list[Part]:
    """Return the comparison of predictions for the text, or for each of its words, with the gold answers."""
    gold = gold_answer(subject)
    if gold is None or len(gold.answers) < len(predicted):
        return []
    if len(predicted) == 1:
        verdict, answers = "correct" if predicted[0] in gold.answers else "wrong", " or ".join(gold.answers)
        return [Prose(f"The text is in {gold.data}, where its gold answer is {answers}; the prediction is {verdict}.")]
    pairs = list(zip(predicted, gold.answers, strict=False))
    rows: list[list[str | Cell]] = [
        [word, Cell(guess, "wrong"), Cell(truth, "right")]
        for word, (guess, truth) in zip(subject.text.split(), pairs, strict=False)
        if guess != truth
    ]
    right = len(pairs) - len(rows)
    sentence = f"The text is in {gold.data}: {right:,} of {len(pairs):,} predictions equal the gold answers."
    return [Prose(sentence), *([Table(["word", "predicted", "gold"], rows, "Wrong predictions.")] if rows else [])]


def network_parts(subject: Subject, answers: Sequence[str]) -> list[Part]:
    """Return the words of the text that the network alone tags otherwise than the run, which has these ``answers``."""
    if not subject.is_blended:
        return []
    explainer = subject.explainer
    alone = explainer.require(explainer.answers).target_names(explainer.examples(subject.item)[0])
    rows = [
        [word, answer, other]
        for word, answer, other in zip(subject.text.split(), answers, alone, strict=False)
        if answer != other
    ]
    if not rows:
        return [Prose(f"{ALONE.capitalize()} gives the same answers.")]
    return [Table(["word", "the run", ALONE], rows, f"Words for which {ALONE} gives another answer.")]

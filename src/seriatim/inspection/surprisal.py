"""The first section of a page: the surprisal of each token, or the effect of each token on a label."""

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from ..core.errors import NotSupportedError
from ..evaluation.intervals import interval, supported_digits, wilson
from ..evaluation.intervals import mean as mean_of
from ..evaluation.token_scores import TokenScore, TokenSurprisals, visible
from ..pages.charts import name_tokens, width_for
from ..pages.drawing import show
from ..pages.page import Cell, PageBlock, Plot, Prose, Table, Token, Tokens
from ..pages.palette import SOFT
from ..pages.theme import model_style, new_figure, plain, style
from ..pages.wording import percent, percent_and_interval, quoted
from ..tasks.explainer import LabelEffect, Refusal
from .inspected_run import ALONE, InspectedRun, SectionBody

MAX_TOKENS = 1_000
"""Tokens that are shown one by one."""
MIN_BARS, MAX_BARS = 2, 60
"""Numbers of tokens with which the surprisal of each is drawn as a bar."""
MIN_TOKENS = 20
"""Tokens from which on a mean has an interval and is stated in the summary, or its distribution is drawn."""
LONGEST = 20
"""Characters of the name of a token below its bar; a tag is written after its word."""
MAX_LABELS = 5
"""Labels that are listed, or whose curves are drawn."""
MIN_FULL = 1.0
"""Bits that have the full shade, at least, so that a small effect does not look like a large one."""


def surprisal_section(inspected: InspectedRun) -> SectionBody:
    """Write the section on surprisal, or on the certainty of tags."""
    explainer = inspected.explainer
    result = explainer.require(explainer.token_scores)(inspected.item)
    count, max_bits = len(result.scores), math.log2(result.outcomes)
    cut = f" Only the first {MAX_TOKENS:,} of {count:,} are shown." if count > MAX_TOKENS else ""
    full = f" Full shade is {max_bits:.1f} bits, the cost if all were equally likely."
    tokens = [
        Token.of_surprisal(score.text, score.bits, result.outcomes, score.alternatives)
        for score in result.scores[:MAX_TOKENS]
    ]
    sentence = _mean_sentence(result)
    capital = sentence[:1].upper() + sentence[1:]
    blocks: list[PageBlock] = [Tokens(tokens, result.caption + full + cut, result.scale)]

    # Bars show single tokens; of many, only the distribution can be read.
    finite = [score for score in result.scores if math.isfinite(score.bits)]
    if MIN_BARS <= len(result.scores) <= MAX_BARS and finite:
        caption = f"{capital}."
        if len(finite) < count:
            caption += " A missing bar is a token of probability zero."
        blocks.append(
            Plot(
                bars_figure(result.scores, inspected.layer),
                f"Surprisal of each {'tag' if result.answers else 'token'}",
                caption,
                "Bits against the tokens.",
            )
        )
    elif len(finite) >= MIN_TOKENS:
        half = most_surprising(finite)
        tail = f"The {half:,} most surprising {result.unit} carry half of the bits."
        description = f"Share of {result.unit} against surprisal in bits."
        figure = surprisal_figure(finite, inspected.layer)
        blocks.append(Plot(figure, "Distribution of surprisal", f"{capital}. {tail}", description))
    if result.answers:
        blocks += [*reference_blocks(inspected, result.answers), *network_blocks(inspected, result.answers)]
    return SectionBody(blocks, [f"surprisal: {sentence}"] if count >= MIN_TOKENS else [])


def most_surprising(scores: Sequence[TokenScore]) -> int:
    """Return the number of the most surprising tokens that together have half of all bits."""
    totals = np.cumsum(sorted((score.bits for score in scores), reverse=True))
    return int(np.searchsorted(totals, totals[-1] / 2)) + 1


def _mean_sentence(result: TokenSurprisals) -> str:
    """Return the mean over tokens of positive probability, the number of others, and the accuracy of the top guess."""
    finite = [score for score in result.scores if math.isfinite(score.bits)]
    count, impossible = len(result.scores), len(result.scores) - len(finite)
    if not finite:
        return f"all {count:,} {result.unit} have probability zero"
    sentence = f"{_mean_with_interval([score.bits for score in finite])} over {len(finite):,} {result.unit}"
    if impossible:
        sentence += f"; the other {impossible:,} have probability zero, which makes the loss of the text infinite"
    if result.counts_correct:
        correct = sum(score.rank == 1 and math.isfinite(score.bits) for score in result.scores)
        percentage, bounds = percent_and_interval(correct / count, *wilson(correct, count))
        sentence += f"; the top guess was correct for {percentage} of all tokens ({bounds})"
    return sentence


def _mean_with_interval(bits: Sequence[float]) -> str:
    """Return a mean in bits, with its 95 % interval if there are enough tokens for one."""
    values = np.array(bits)
    mean, low, high = interval(np.stack([values, np.ones(len(values))], 1), mean_of)
    if len(values) < MIN_TOKENS or low is None or high is None or low == high:
        return f"{mean:.2f} bits on average"
    digits = max(0, supported_digits(low, high, 2))
    return f"{mean:.{digits}f} bits on average (95 % interval {low:.{digits}f} to {high:.{digits}f})"


def label_effect_section(inspected: InspectedRun) -> SectionBody:
    """Write the section on the answer, and on the effect of each token on the label that the network predicts."""
    explainer = inspected.explainer
    effect = explainer.require(explainer.label_effect or Refusal("no labels of whole texts"))(inspected.text)
    answer, label = effect.labels[int(effect.answer.argmax())], effect.labels[effect.predicted]
    prose = f"Predicted label: {_listed(effect, effect.answer)}."
    if inspected.is_blended:
        prose += f" {ALONE.capitalize()}: {_listed(effect, effect.full)}."
    blocks: list[PageBlock] = [Prose(prose), *reference_blocks(inspected, [answer])]
    blocks += [Prose(f"The rest of this section is about {ALONE}.")] if inspected.is_blended else []
    blocks.append(_shaded(effect))
    if effect.prefixes is not None and len(effect.tokens) > 1:
        caption = "Probabilities of the labels if the text ended after each token."
        description = f"Probability of labels against tokens read; at the end {_listed(effect, effect.full)}."
        blocks.append(Plot(label_figure(effect), "The label as the text is read", caption, description))

    # The summary names a token only if the probability that is shown changes without it.
    full, without = float(effect.full.max()), effect.without[:, effect.predicted]
    line = f"answer: {answer} ({percent(effect.answer.max())})"
    if answer != label:
        line += f"; {ALONE} answers {label} ({percent(full)})"
    if percent(without.min()) != percent(full) and without.min() < full:
        strongest = quoted(effect.tokens[int(without.argmin())].strip())
        of = f" of {ALONE}" if inspected.is_blended else ""
        line += f"; without {strongest}, {_change(label, full, float(without.min()), of)}"
    return SectionBody(blocks, [line])


def _shaded(effect: LabelEffect) -> Tokens:
    """Return the text, shaded by how much each token raises the probability of the label."""
    label, gains, probability = effect.labels[effect.predicted], effect.bits(), float(effect.full.max())
    full = max(float(gains.max()), MIN_FULL)
    notes = [f"Without this token, {_change(label, probability, p)}." for p in effect.without[:, effect.predicted]]
    tokens = [
        Token(text, float(gain), max(0.0, float(gain) / full), _most_likely(effect, row), note)
        for text, gain, row, note in zip(effect.tokens, gains, effect.without, notes, strict=True)
    ]
    caption = (
        f"Each token is shaded by how much log₂ P({label}) falls when that token alone is removed. Full shade is "
        f"{full:.2f} bits. Tokens that do not make the label more likely are not shaded. "
        "Select a token to see the probabilities of the labels without it."
    )
    return Tokens(tokens, caption, ("no effect", "large effect"), "Without this token:")


def _change(label: str, before: float, after: float, of: str = "") -> str:
    first, second = percent(before), percent(after)
    if first == second:
        return f"P({label}){of} stays at {first}"
    return f"P({label}){of} {'falls' if after < before else 'rises'} from {first} to {second}"


def _listed(effect: LabelEffect, probabilities: np.ndarray) -> str:
    """Return the most likely labels with their probabilities: ``yes (95 %), no (4.9 %)``."""
    return ", ".join(f"{name} ({percent(value)})" for name, value in _most_likely(effect, probabilities))


def _most_likely(effect: LabelEffect, probabilities: np.ndarray) -> list[tuple[str, float]]:
    pairs = zip(effect.labels, probabilities.tolist(), strict=True)
    return sorted(pairs, key=lambda pair: -pair[1])[:MAX_LABELS]


def reference_blocks(inspected: InspectedRun, predicted: Sequence[str]) -> list[PageBlock]:
    """Return the comparison of predictions for the text, or for each of its words, with the gold answers."""
    reference = inspected.reference_answer()
    if reference is None or len(reference.answers) < len(predicted):
        return []
    if len(predicted) == 1:
        verdict, answers = "correct" if predicted[0] in reference.answers else "wrong", " or ".join(reference.answers)
        return [
            Prose(f"The text is in {reference.data}, where its gold answer is {answers}; the prediction is {verdict}.")
        ]
    pairs = list(zip(predicted, reference.answers, strict=False))
    rows: list[list[str | Cell]] = [
        [word, Cell(guess, "wrong"), Cell(truth, "right")]
        for word, (guess, truth) in zip(inspected.text.split(), pairs, strict=False)
        if guess != truth
    ]
    right = len(pairs) - len(rows)
    sentence = f"The text is in {reference.data}: {right:,} of {len(pairs):,} predictions equal the gold answers."
    return [Prose(sentence), *([Table(["word", "predicted", "gold"], rows, "Wrong predictions.")] if rows else [])]


def network_blocks(inspected: InspectedRun, answers: Sequence[str]) -> list[PageBlock]:
    """Return the words of the text that the network alone tags otherwise than the run, which has these ``answers``."""
    if not inspected.is_blended:
        return []
    alone = inspected.inputs.target_names(inspected.inputs.fitting(inspected.item)[0])
    rows = [
        [word, answer, other]
        for word, answer, other in zip(inspected.text.split(), answers, alone, strict=False)
        if answer != other
    ]
    if not rows:
        return [Prose(f"{ALONE.capitalize()} gives the same answers.")]
    return [Table(["word", "the run", ALONE], rows, f"Words for which {ALONE} gives another answer.")]


def bars_figure(scores: Sequence[TokenScore], layer: str = "") -> Figure:
    """Draw the surprisal of each token as a bar above its name, in the colour of ``layer``, if one is named."""
    width = width_for(len(scores))
    texts = [score.text.removesuffix(" ") or score.text for score in scores]  # words without the space after them
    figure, [[plot]] = new_figure(width=width)
    bits = [score.bits if math.isfinite(score.bits) else 0.0 for score in scores]
    bars = plot.bar(range(len(scores)), bits, width=0.8, color=model_style(layer)["color"])
    show(bars.patches, "tokens", names=[visible(text) for text in texts])
    plot.set_axisbelow(True)
    plot.set(ylabel="surprisal (bits)", xlim=(-0.6, len(scores) - 0.4))
    name_tokens(plot.xaxis, texts, width - 0.8, longest=LONGEST)
    return figure


def surprisal_figure(scores: Sequence[TokenScore], layer: str = "") -> Figure:
    """Draw the fraction of tokens whose surprisal is at most so many bits; tokens of probability zero are left out.

    The curve has the style of ``layer``, if one is named.
    """
    figure, [[plot]] = new_figure()
    values = sorted(score.bits for score in scores if math.isfinite(score.bits))
    cumulative = [(i + 1) / len(values) for i in range(len(values))]
    curve = plot.step([0.0, *values], [0.0, *cumulative], where="post", **model_style(layer) | {"marker": ""})
    show(curve, "tokens")
    mean = math.fsum(values) / len(values)
    plot.axvline(mean, label=f"mean, {mean:.2f} bits", color=SOFT, linestyle="--", linewidth=1.2)
    plot.set(xlabel="surprisal (bits)", ylabel="share of tokens, cumulative", ylim=(0, 1.02), xlim=(0, None))
    plot.legend(loc="lower right")
    return figure


def label_figure(effect: LabelEffect) -> Figure:
    """Draw P(label) after each token of a text, for the predicted label and the labels with the highest peaks."""
    if effect.prefixes is None:
        raise NotSupportedError("the model reads the whole text at once, so that there is no label after each token")
    peaks = effect.prefixes.max(0)
    order = sorted(range(len(effect.labels)), key=lambda label: -float(peaks[label]))
    labels = [effect.predicted, *(label for label in order if label != effect.predicted)][:MAX_LABELS]
    figure, [[plot]] = new_figure(width=6.4)
    positions = np.arange(1, len(effect.tokens) + 1)
    for i, label in enumerate(labels):
        plot.plot(positions, effect.prefixes[:, label], label=plain(effect.labels[label]), markevery=0.1, **style(i))
    plot.set(xlabel="tokens read", ylabel="P(label)", ylim=(-0.02, 1.02))
    plot.legend()
    return figure

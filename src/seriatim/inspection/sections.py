"""The sections of a page on one text: surprisal, alignment, attention and gates.

Each function takes a `Subject` and returns the parts of its section, and lines for the summary. Where a section has no
meaning for a run, one sentence says why it is not shown.
"""

import math
from collections.abc import Callable, Sequence

from ..core.errors import InputError
from ..report.page import Part, Plot, Plots, Prose, Sample, Samples, Section, Table, Token, Tokens
from .alignment import Aligned, align, aligned_figure
from .answers import own_answer
from .attention import attention_figure, attention_maps
from .gates import experts_figure, gate_figure, gate_means_figure, gates
from .influence import Labelling, label_figure, labelling, tag_surprisals
from .subject import Subject
from .surprisal import Surprise, answer_surprisals, bits, surprisal_figure, surprisals

SHOWN = 1_000
"""Tokens that are shown one by one."""
CURVE = 20
"""Tokens from which on a curve says more than they do."""
MAPS = 12
"""Layers whose maps are drawn."""

Found = tuple[list[Part], list[str]]


def section(name: str, title: str, make: Callable[[Subject], Found], subject: Subject) -> tuple[Section, list[str]]:
    """A section, or in its place the sentence that says why it is not shown; and its lines of the summary."""
    try:
        parts, lines = make(subject)
    except InputError as error:
        sentence = str(error).rstrip(".")
        parts, lines = [Prose(f"Not shown: {sentence}.")], []
    return Section(name, title, parts), lines


def surprise(subject: Subject) -> Found:
    """The surprisal of each token; for a classifier, the effect of each token on the label."""
    task = subject.run.config.task
    if task == "classify":
        return _labelled(labelling(subject.run, subject.text))
    if task == "tag":
        return _spelled(
            tag_surprisals(subject.run, subject.text),
            math.log2(max(2, len(subject.run.vocabulary.labels))),
            "Each word with its predicted tag, shaded by −log₂ P(tag): the darker, the less certain. Select a word to "
            "see "
            "the most likely tags.",
            "words",
            ("certain", "uncertain"),
        )
    if task == "seq2seq":
        answer = own_answer(subject.run, subject.text)
        return _spelled(
            answer_surprisals(subject.run, answer),
            math.log2(subject.run.vocabulary.target.vocabulary_size),
            "The greedy answer. Each token is shaded by −log₂ of its probability, given the source and the answer so "
            "far; "
            "the last one is the end symbol.",
            "tokens of the answer",
        )
    given = "the tokens before it"
    if task == "mlm":
        length = subject.run.config.training.sequence_length
        among = f" in its window of {length:,} tokens" if len(subject.corpus.ids) > length else ""
        given = f"all other tokens{among}; each token is masked by itself"
    result = surprisals(subject.run, subject.corpus)
    return _spelled(
        result,
        math.log2(subject.run.tokenizer.vocabulary_size),
        f"Each token is shaded by −log₂ of its probability, given {given}. Select a token to see the most likely ones.",
        "tokens",
    )


def _spelled(
    surprises: Sequence[Surprise],
    full_shade: float,
    caption: str,
    name: str,
    scale: tuple[str, str] = ("expected", "surprising"),
) -> Found:
    count = len(surprises)
    cut = f" Only the first {SHOWN:,} of {count:,} are shown." if count > SHOWN else ""
    full = f" Full shade is {full_shade:.1f} bits, the cost if all were equally likely."
    tokens = [Token(one.text, one.bits, min(1.0, one.bits / full_shade), one.alternatives) for one in surprises[:SHOWN]]
    sentence = _mean_sentence(surprises, name)
    parts: list[Part] = [Tokens(tokens, caption + full + cut, scale)]
    finite = [one for one in surprises if math.isfinite(one.bits)]
    if len(finite) >= CURVE:
        curve = Plot(
            surprisal_figure(finite),
            "Distribution of surprisal",
            f"{sentence}. Where the curve rises early and then flattens, a few {name} carry most of the bits.",
            f"Share of {name} against surprisal in bits.",
        )
        parts.append(curve)
    return parts, [f"surprisal: {sentence}"]


def _mean_sentence(surprises: Sequence[Surprise], name: str) -> str:
    """The mean over what has a probability above zero, how many have not, and how often the top guess was correct."""
    finite = [one for one in surprises if math.isfinite(one.bits)]
    count, impossible = len(surprises), len(surprises) - len(finite)
    if not finite:
        return f"all {count:,} {name} have probability zero"
    sentence = f"{bits(finite) / len(finite):.2f} bits on average over {len(finite):,} {name}"
    if impossible:
        sentence += f"; the other {impossible:,} have probability zero, which makes the loss of the text infinite"
    if name == "tokens":
        correct = sum(one.rank == 1 and math.isfinite(one.bits) for one in surprises)
        sentence += f"; the top guess was correct for {correct / count:.0%} of all tokens"
    return sentence


def _labelled(found: Labelling) -> Found:
    label, gains = found.labels[found.answer], found.bits()
    share = float(found.whole[found.answer])
    largest = max(float(gains.max()), 1e-9)
    order = sorted(zip(found.labels, found.whole.tolist(), strict=True), key=lambda row: -row[1])[:5]
    tokens = [
        Token(text, float(gain), max(0.0, float(gain) / largest), _without(found, i))
        for i, (text, gain) in enumerate(zip(found.tokens, gains, strict=True))
    ]
    said = ", ".join(f"{name} {value:.1%}" for name, value in order)
    parts: list[Part] = [
        Prose(f"The predicted label is {label}: {said}."),
        Tokens(
            tokens,
            f"Each token is shaded by how much log₂ P({label}) falls when that token alone is removed. Full shade is "
            f"{largest:.2f} bits. Tokens that make the label less likely are not shaded; their bits are negative. "
            "Select "
            "a token to see the probabilities of the labels without it.",
            ("no effect", "large effect"),
        ),
    ]
    if found.after is not None and len(found.tokens) > 1:
        parts.append(
            Plot(
                label_figure(found),
                "The label as the text is read",
                "Probabilities of the labels if the text ended after each token.",
                f"Probability of labels against tokens read; at the end {said}.",
            )
        )
    strongest = found.tokens[int(gains.argmax())].strip()
    adds = f"; {strongest!r} contributes most" if gains.max() > 0 else ""
    return parts, [f"answer: {label} ({share:.0%}){adds}"]


def _without(found: Labelling, place: int) -> list[tuple[str, float]]:
    shares = zip(found.labels, found.without[place].tolist(), strict=True)
    return sorted(shares, key=lambda row: -row[1])[:5]


def alignments(subject: Subject) -> Found:
    """The alignment of a translation, by greedy search and by beam search."""
    found = align(subject.run, subject.text, beam=subject.beam)
    samples = [Sample(f"{one.how}, P = {math.exp(one.log_probability):.2g}", one.text or "(nothing)") for one in found]
    parts: list[Part] = [Samples(samples, f"Answers to: {subject.text[:300]}")]
    if found[-1].log_probability < found[0].log_probability:
        parts.append(Prose("Here beam search has dropped an answer that is more likely as a whole: the greedy one."))
    lines = [f"answer: {found[-1].text[:100] or '(nothing)'}"]
    drawn = [one for one in found if one.weights]
    if not drawn:
        why = "the decoder has no attention" if hasattr(subject.run.model, "encode") else "the model has no decoder"
        return [*parts, Prose(f"No alignment is shown: {why}.")], lines
    return [*parts, Plots([_alignment(one) for one in drawn])], lines


def _alignment(found: Aligned) -> Plot:
    heads = f" The weights are means over {found.heads} heads of the top layer." if found.heads > 1 else ""
    return Plot(
        aligned_figure(found),
        f"Alignment, {found.how}",
        f"Attention of each token of the answer (rows) to the tokens of the source (columns); a row sums to one.{heads}"
        + (f" {found.limits}" if found.limits else ""),
        f"Attention from {len(found.target_tokens)} tokens of the answer to {len(found.source_tokens)} of the source.",
    )


def looks(subject: Subject) -> Found:
    """Attention, layer by layer and head by head."""
    found = attention_maps(subject.run, subject.text)
    if not found.maps:
        return [Prose("Not shown: no layer of this model has attention.")], []
    more = f" Only the first {MAPS} of {len(found.maps)} layers are drawn." if len(found.maps) > MAPS else ""
    intro = "Rows are the tokens that attend, columns the tokens they attend to; a row sums to one. On the diagonal a "
    intro += (
        "token attends to itself, on a line beside it to a neighbour; a bright column is a token that all attend to. "
    )
    intro += f"{found.limits}{more}"
    plots = [
        Plot(
            attention_figure(one),
            f"Attention of {one.layer}",
            f"{len(one.weights)} heads." if len(one.weights) > 1 else "One head.",
            f"Weights of {one.layer} from {one.weights.shape[1]} to {one.weights.shape[2]} tokens.",
        )
        for one in found.maps[:MAPS]
    ]
    return [Prose(intro.strip()), Plots(plots)], []


def opened(subject: Subject) -> Found:
    """Gates, step sizes and experts."""
    found = gates(subject.run, subject.text)
    if not found.gates and not found.choices:
        return [Prose("Not shown: this model has no gates, step sizes or experts.")], []
    parts: list[Part] = []
    if found.shown < found.of:
        parts.append(Prose(f"Only the first {found.shown:,} of {found.of:,} tokens are shown."))
    sigmoid = [gate for gate in found.gates if not gate.is_rate]
    if sigmoid:
        rows = [[gate.layer, gate.name, f"{gate.open:.0%}", f"{gate.closed:.0%}"] for gate in sigmoid]
        caption = "Share of gate values that are open (above 0.9) and closed (below 0.1), over units and tokens."
        parts.append(Table(["layer", "gate", "open", "closed"], rows, caption, {2, 3}))
    means = [
        [gate for gate in found.gates if gate.layer == name] for name in dict.fromkeys(g.layer for g in found.gates)
    ]
    plots = [
        Plot(
            gate_means_figure(own),
            f"Means of the gates of {own[0].layer}",
            "Mean over the units at every token.",
            f"Means over units of {', '.join(gate.name for gate in own)} at every token.",
        )
        for own in means
    ]
    for gate in found.gates:
        what = (
            "Step sizes Δ: with a large one the layer takes the token in and forgets, with a small one it skips the "
            "token."
            if gate.is_rate
            else ""
        )
        plots.append(
            Plot(
                gate_figure(gate),
                f"{gate.layer}, {gate.name}",
                what or "Every unit at every token; units are sorted by their means.",
                f"Heat map of {gate.values.shape[1]} units over {gate.values.shape[0]} tokens.",
            )
        )
    plots += [
        Plot(
            experts_figure(choice),
            f"Experts of {choice.layer}",
            "The experts chosen for each token, and the weights of their outputs.",
            f"Weights of {choice.count} experts over {len(choice.experts)} tokens.",
        )
        for choice in found.choices
    ]
    return [*parts, Plots(plots)], []

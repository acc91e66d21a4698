"""The sections of a page on one text: what surprises a model in it, and where it looks.

Each takes a `Subject` and gives parts, and what is to be said of them in a line, if anything. What has no meaning for a
run is left out, and a sentence says why.
"""

import math
from collections.abc import Callable, Sequence

from ..errors import InputError
from .alignment import Aligned, align, aligned_figure
from .answers import own_answer
from .attention import attention_figure, attention_maps
from .gates import experts_figure, gate_figure, gate_means_figure, gates
from .influence import Labelling, label_figure, labelling, tag_surprisals
from .page import Part, Plot, Plots, Prose, Sample, Samples, Section, Table, Token, Tokens
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
    """A section, or in its place the sentence that says why there is none; and lines of a summary."""
    try:
        parts, lines = make(subject)
    except InputError as error:
        sentence = str(error)
        parts, lines = [Prose(f"Left out. {sentence[:1].upper()}{sentence[1:]}.")], []
    return Section(name, title, parts), lines


def surprise(subject: Subject) -> Found:
    """What each token costs; of a classifier, what each does to the label."""
    task = subject.run.config.task
    if task == "classify":
        return _labelled(labelling(subject.run, subject.text))
    if task == "tag":
        return _spelled(
            tag_surprisals(subject.run, subject.text),
            math.log2(max(2, len(subject.run.vocabulary.labels))),
            "Each word with the tag it is given, shaded by how unsure the model is of it: −log₂ P(tag). In hand a word "
            "shows the likeliest tags.",
            "words",
            ("sure", "unsure"),
        )
    if task == "seq2seq":
        answer = own_answer(subject.run, subject.text)
        return _spelled(
            answer_surprisals(subject.run, answer),
            math.log2(subject.run.vocabulary.target.vocabulary_size),
            "The greedy answer, each token shaded by −log₂ of its probability after the source and the answer so far. "
            "The last is the end.",
            "tokens of the answer",
        )
    before = "the true tokens before it"
    if task == "mlm":
        length = subject.run.config.training.sequence_length
        among = f" of its stretch of {length:,} tokens" if len(subject.corpus.ids) > length else ""
        before = f"all others{among}: it is masked alone"
    found = surprisals(subject.run, subject.corpus)
    return _spelled(
        found,
        math.log2(subject.run.tokenizer.vocabulary_size),
        f"Each token shaded by −log₂ of its probability after {before}. In hand a token shows what was held likeliest.",
        "tokens",
    )


def _spelled(
    found: Sequence[Surprise],
    most: float,
    caption: str,
    name: str,
    scale: tuple[str, str] = ("expected", "surprising"),
) -> Found:
    mean = bits(found) / len(found)
    cut = f" The first {SHOWN:,} of {len(found):,} are shown." if len(found) > SHOWN else ""
    full = f" Full shade is {most:.1f} bits, what each would cost if all were equally likely."
    first = sum(one.rank == 1 for one in found)
    tokens = [Token(one.text, one.bits, min(1.0, one.bits / most), one.alternatives) for one in found[:SHOWN]]
    said = f"{mean:.2f} bits on average over {len(found):,} {name}"
    said += f"; {first / len(found):.0%} of them were held likeliest" if name == "tokens" else ""
    parts: list[Part] = [Tokens(tokens, caption + full + cut, scale)]
    if len(found) >= CURVE:
        curve = Plot(
            surprisal_figure(found),
            "How many cost how much",
            f"{said}. A curve that rises at once and then creeps says that a few {name} cost most of the bits.",
            f"Share of {name} against surprisal in bits; the mean is {mean:.2f}.",
        )
        parts.append(curve)
    return parts, [f"surprisal: {said}"]


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
        Prose(f"The answer is {label}: {said}."),
        Tokens(
            tokens,
            f"Each token shaded by how many bits it adds to log₂ P({label}): what is lost when it alone is left out. "
            f"Full shade is {largest:.2f} bits; tokens that speak against the label are not shaded, and their bits are "
            "negative. In hand a token shows the labels' probabilities without it.",
            ("adds nothing", "adds much"),
        ),
    ]
    if found.after is not None and len(found.tokens) > 1:
        parts.append(
            Plot(
                label_figure(found),
                "The label as words are read",
                "What the model would answer if the text ended after each token.",
                f"Probability of labels against tokens read; at the end {said}.",
            )
        )
    strongest = found.tokens[int(gains.argmax())].strip()
    adds = f", to which {strongest!r} adds most" if gains.max() > 0 else ""
    return parts, [f"answer: {label} ({share:.0%}){adds}"]


def _without(found: Labelling, place: int) -> list[tuple[str, float]]:
    shares = zip(found.labels, found.without[place].tolist(), strict=True)
    return sorted(shares, key=lambda row: -row[1])[:5]


def alignments(subject: Subject) -> Found:
    """Of a translation, greedy and by beam."""
    found = align(subject.run, subject.text, beam=subject.beam)
    samples = [Sample(f"{one.how}, P = {math.exp(one.log_probability):.2g}", one.text or "(nothing)") for one in found]
    parts: list[Part] = [Samples(samples, f"Answers to: {subject.text[:300]}")]
    if found[-1].log_probability < found[0].log_probability:
        parts.append(Prose("A beam keeps the likeliest beginnings, and has lost here what is likelier as a whole."))
    lines = [f"answer: {found[-1].text[:100] or '(nothing)'}"]
    drawn = [one for one in found if one.weights]
    if not drawn:
        why = "The decoder looks at nothing" if hasattr(subject.run.model, "encode") else "There is no decoder"
        return [
            *parts,
            Prose(f"{why}: it knows the source by one vector or by places alone, and there is no map."),
        ], lines
    return [*parts, Plots([_alignment(one) for one in drawn])], lines


def _alignment(found: Aligned) -> Plot:
    heads = f" The mean over {found.heads} heads of the topmost layer." if found.heads > 1 else ""
    return Plot(
        aligned_figure(found),
        f"Alignment, {found.how}",
        f"Where each token of the answer (down) looked in the source (across); a row sums to one.{heads}"
        + (f" {found.limits}" if found.limits else ""),
        f"Attention from {len(found.target_tokens)} tokens of the answer to {len(found.source_tokens)} of the source.",
    )


def looks(subject: Subject) -> Found:
    """Attention, layer by layer and head by head."""
    found = attention_maps(subject.run, subject.text)
    if not found.maps:
        return [Prose("Left out: no layer of this model has attention; what it keeps is a state.")], []
    more = f" Of {len(found.maps)} layers the first {MAPS} are drawn." if len(found.maps) > MAPS else ""
    intro = "Each row is a token that looks, each column a token it looks at; a row sums to one. A diagonal looks at "
    intro += f"itself, a line beside it at its neighbour, a column at one token for all. {found.limits}{more}"
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
        return [Prose("Left out: this model has no gates, no step sizes and no experts to choose from.")], []
    parts: list[Part] = []
    if found.shown < found.of:
        parts.append(Prose(f"The first {found.shown:,} of {found.of:,} tokens are shown."))
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
            "The mean over units at every token.",
            f"Means over units of {', '.join(gate.name for gate in own)} at every token.",
        )
        for own in means
    ]
    for gate in found.gates:
        what = (
            "Step sizes Δ: a large one takes the token in and forgets, a small one passes it over."
            if gate.is_rate
            else ""
        )
        plots.append(
            Plot(
                gate_figure(gate),
                f"{gate.layer}, {gate.name}",
                what or "Every unit at every token, units sorted by their means.",
                f"Heat map of {gate.values.shape[1]} units over {gate.values.shape[0]} tokens.",
            )
        )
    plots += [
        Plot(
            experts_figure(choice),
            f"Experts of {choice.layer}",
            "Which experts saw each token, and how much their answers weigh.",
            f"Weights of {choice.count} experts over {len(choice.experts)} tokens.",
        )
        for choice in found.choices
    ]
    return [*parts, Plots(plots)], []

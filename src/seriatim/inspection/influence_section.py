"""The section of a page on which a reader points at a token and sees its attention and what influenced it."""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from torch import Tensor

from ..core.errors import InputError
from ..data.tokenizers import Tokenizer
from ..evaluation.intervals import interval
from ..evaluation.intervals import mean as mean_of
from ..evaluation.token_scores import is_symbol, spaced
from ..report.number_formats import percent_and_interval
from ..report.page import Part, Prose
from ..report.token_links import DIGITS, LinkedToken, LinkView, TokenLinks
from ..tasks.explainer import Example, Examples
from .attention_maps import MAX_LAYERS, AttentionMap, attention_maps
from .influence import MAX_TOKENS, Influence, influence
from .leaves import roots
from .subject import Content, Subject

MAX_BYTES = 1_000_000
"""Largest size of the weights of all views; fewer tokens are shown if there are many heads."""
MIN_ANSWERS = 20
"""Answers from which on a mean over them is stated."""
CAPTION = (
    "Point at a token, tap it, or reach it with the arrow keys. The shade grows with the square root of the share, so "
    "that small shares can be seen; the full shade is the largest share of the selected token. Grey tokens have no "
    "part in the shares, such as tokens that come later."
)
MEANING = (
    "A share is the norm of the gradient of the log-probability with respect to the vector that the model reads for a "
    "token, divided by the sum of these norms. It does not say whether a token makes the answer more or less probable."
)
WORDS = {
    "next token": (
        "the probability of the selected token depends on each token before it",
        "Influence on the probability of the selected token, divided between the tokens before it.",
    ),
    "each token": (
        "the probability of the selected word's tag depends on each word",
        "Influence on the probability of the selected word's tag, divided between the words.",
    ),
    "sequence": (
        "the probability of the answer depends on each token",
        "Influence on the probability of the answer, divided between the tokens of the text.",
    ),
    "masked": (
        "the probability of the selected token, which is masked, depends on each other token",
        "Influence on the probability of the selected token when it is masked, divided between the others.",
    ),
    "decoded": (
        "the probability of a token of the answer depends on the source and on the answer before it",
        "Influence on the probability of the selected token of the answer, divided between the source and the tokens "
        "before it.",
    ),
}
"""What influence is, and the sentence above the shares, by what the model predicts; see `Examples.predicts`."""


class Layout(NamedTuple):
    """Where the tokens of an example stand on the page: the texts, and the tokens that answers and inputs are at."""

    texts: list[tuple[str, list[LinkedToken]]]
    first_answer: int
    source: int
    """Number of tokens before those that a decoder reads."""


def influence_section(subject: Subject) -> Content:
    """Write the section on attention and influence, drawn on the words themselves."""
    if not any(True for _ in roots(subject.run.model)):
        raise InputError("this model has no layers, so that it has neither attention nor gradients")
    item, inputs = subject.item, subject.inputs
    tokens = _tokens_to_show(attention_maps(subject.run, item, max_tokens=1).maps)
    result = influence(subject.run, item, max_tokens=tokens)
    maps = attention_maps(subject.run, item, max_tokens=tokens).maps[:MAX_LAYERS]
    place = layout(inputs, result.example, result.answers)
    views = [influence_view(inputs, result, place), *(each for one in maps for each in attention_views(one, place))]
    limits = [] if len(views) == 1 else [_choice(len(maps))]
    if result.example.length < result.total:
        left = result.total - result.example.length
        limits.append(f"The last {left:,} of {result.total:,} tokens are left out here.")
    parts: list[Part] = [Prose(" ".join([_intro(inputs, result.example), *limits]))]
    parts.append(TokenLinks(place.texts, views, CAPTION))
    sentence = nearest_sentence(inputs, result)
    if sentence:
        parts.append(Prose(sentence))
    return Content(parts, [f"influence: {sentence[0].lower()}{sentence[1:-1]}"] if sentence else [])


def _kind(inputs: Examples, example: Example) -> str:
    """Return the key of `WORDS` for what the model predicts."""
    return "decoded" if example.decoded else "masked" if inputs.masks_targets else inputs.predicts


def _intro(inputs: Examples, example: Example) -> str:
    what, _ = WORDS[_kind(inputs, example)]
    return f"Influence is how strongly {what} (the connectivity of Madsen 2019). {MEANING}"


def _choice(layers: int) -> str:
    what = "the attention layer" if layers == 1 else f"{layers} attention layers"
    return f"The weights of {what} can be chosen above the text."


def _tokens_to_show(maps: Sequence[AttentionMap]) -> int:
    """Return the number of tokens for which all views stay below `MAX_BYTES`, with `DIGITS` bytes for each weight."""
    views = 1 + sum(_view_count(one) for one in maps[:MAX_LAYERS])
    return max(1, min(MAX_TOKENS, math.isqrt(MAX_BYTES // (DIGITS * views))))


def _view_count(attention: AttentionMap) -> int:
    heads = len(attention.weights)
    return heads + (heads > 1)


def layout(inputs: Examples, example: Example, answers: Sequence[str]) -> Layout:
    """Place the inputs of an example, and the answers that are no inputs, on the page."""
    read = linked(example.tokens[:: example.copies], inputs.tokenizer)
    if example.decoded:
        target = inputs.target_tokenizer
        written = linked([*example.decoded, *answers[-1:]], target)
        return Layout([("Source", read), ("Answer", written)], len(read) + 1, len(read))
    if inputs.predicts == "next token":
        return Layout([("", [*read, *linked(answers[-1:], inputs.tokenizer)])], 1, 0)
    if inputs.predicts == "each token":
        return Layout([("", read)], 0, 0)
    return Layout([("Text", read), ("Answer", [LinkedToken(answer) for answer in answers])], len(read), len(read))


def linked(names: Sequence[str], tokenizer: Tokenizer) -> list[LinkedToken]:
    """Return tokens as they stand in a text: words are followed by spaces."""
    return [
        LinkedToken(text, is_symbol(name, tokenizer))
        for name, text in zip(names, spaced(names, tokenizer), strict=True)
    ]


def influence_view(inputs: Examples, result: Influence, place: Layout) -> LinkView:
    """Return the shares of influence on each answer."""
    _, sentence = WORDS[_kind(inputs, result.example)]
    rows = [_trimmed(row) for row in result.shares]
    return LinkView("Influence", "influence on the selected token", sentence, rows, place.first_answer)


def attention_views(attention: AttentionMap, place: Layout) -> Iterator[LinkView]:
    """Yield the mean of all heads of a layer, if there are several, and each head."""
    if not attention.queries or not attention.keys:
        return
    weights = attention.weights
    causal = not attention.crosses and not weights.triu(1).any()
    if attention.crosses:
        first_row, first_column = place.source + 1, 0
        sentence = (
            "Attention to the source in the step that writes the selected token of the answer; a row sums to one."
        )
    else:
        first_row = first_column = place.source if attention.decodes else 0
        to = "itself and earlier tokens" if causal else "all tokens"
        sentence = f"Attention of the selected token, when it is read, to {to}; a row sums to one."
    heads = [(f"head {head + 1}", weights[head]) for head in range(len(weights))]
    means = [(f"mean of {len(weights)} heads", weights.mean(0))] if len(weights) > 1 else []
    for name, one in (*means, *heads):
        rows = [row[: i + 1].tolist() if causal else row.tolist() for i, row in enumerate(one)]
        yield LinkView(f"Attention, {attention.layer}", name, sentence, rows, first_row, first_column)


def _trimmed(row: Tensor) -> list[float]:
    """Return a row without the blanks at its end."""
    known = (~row.isnan()).nonzero().flatten()
    return row[: int(known[-1]) + 1].tolist() if len(known) else []


def nearest_sentence(inputs: Examples, result: Influence) -> str:
    """Return the mean share of the token before each answer, with its interval; empty for few answers."""
    if inputs.predicts != "next token" or result.example.decoded:
        return ""
    rows = [(i, row) for i, row in enumerate(result.shares) if i and not row.isnan().all()]
    if len(rows) < MIN_ANSWERS:
        return ""
    nearest = np.array([[float(row[i]), 1.0] for i, row in rows])
    value, low, high = interval(nearest, mean_of)
    if low is None or high is None or low == high:
        return ""
    share, bounds = percent_and_interval(value, low, high)
    return (
        f"On average, {share} of the influence on a token comes from the token directly before it "
        f"({bounds}, over {len(rows):,} tokens of this text)."
    )

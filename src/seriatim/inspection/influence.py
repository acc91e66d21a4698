"""Influence: how strongly each token that a model reads changes the probability of each of its answers.

    influence of token i on answer t:  ‖∂ log P(y_t) / ∂e_i‖,  divided by its sum over i

e_i is the vector that the model reads for token i. A. Madsen, "Visualizing memorization in RNNs", Distill, 2019, calls
this norm connectivity; for language models see also J. Li, X. Chen, E. Hovy and D. Jurafsky, "Visualizing and
understanding neural models in NLP", NAACL 2016. It is measured by differentiating `forward`, for any layer. Answers are
the next tokens, tags, masked tokens or the label; see `Losses.place_losses`.

A gradient is local: a token without which the answer would be another may have none, for example because the answer is
almost certain or a unit is saturated. Its norm does not say whether the token makes the answer more or less probable.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from ..core.errors import NotSupportedError
from ..data.tokenizers import Tokenizer
from ..evaluation.intervals import interval
from ..evaluation.intervals import mean as mean_of
from ..evaluation.token_scores import is_symbol, spaced
from ..models.probabilities import checked_losses
from ..pages.page import DIGITS, LinkedToken, LinkView, PageBlock, Prose, TokenLinks
from ..pages.wording import percent_and_interval
from ..runs.run import Run
from ..tasks.explainer import Example, Examples, Losses
from .attention_maps import MAX_LAYERS, AttentionMap, attention_maps
from .inspected_run import InspectedRun, SectionBody, explainer_of
from .recording import top_layers

MAX_TOKENS = 200
"""Tokens of a text that are shown."""
TOGETHER = 4096
"""Tokens read at once, in copies of a text that are differentiated at one answer each."""
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


@dataclass(frozen=True)
class Influence:
    """Influence on the answers about the first tokens of a text.

    Attributes:
        example: what the model reads, cut to the tokens that are shown.
        answers: names of the answers, in order.
        shares: of each input, for each answer ``(answers, inputs)``; first those of ``example.inputs``, then those
            of ``example.decoded``. A row sums to one. NaN is an input that the answer must not depend on: a later
            token, or the answer itself. A row of NaN has no gradient.
        probabilities: P of each answer ``(answers,)``.
        total: number of tokens of the whole text.
    """

    example: Example
    answers: tuple[str, ...]
    shares: Tensor
    probabilities: Tensor
    total: int


def influence(run: Run, text: object, *, max_tokens: int = MAX_TOKENS) -> Influence:
    """Measure the influence of each of the first tokens of a text on each answer.

    ``text`` is a text, or another item that `Explainer.examples` reads; only its first sequence is used.

    Raises:
        InputError: there is nothing to read in the text, or the model has no layers and therefore no gradient.
    """
    if not top_layers(run.model):
        raise NotSupportedError("this model has no layers, so that there is no gradient")
    explainer = explainer_of(run)
    inputs = explainer.require(explainer.inputs)
    full = inputs.fitting(text)[0]
    example = full.beginning(max_tokens)
    if inputs.predicts == "sequence":  # no decoder reads the target
        example = replace(example, decoded=())
    answers = inputs.target_names(example)
    fractions, probabilities = influence_fractions(inputs, explainer.require(explainer.losses), example, len(answers))
    return Influence(example, answers, fractions, probabilities, full.length)


def influence_fractions(inputs: Examples, losses: Losses, example: Example, answers: int) -> tuple[Tensor, Tensor]:
    """Return the fractions ``(answers, inputs)`` and probabilities ``(answers,)`` of `Influence`, in float64."""
    size = len(example.inputs) + len(example.decoded)
    norms, nats = torch.zeros(answers, size, dtype=torch.float64), torch.zeros(answers, dtype=torch.float64)
    together = max(1, TOGETHER // max(1, size))
    for start in range(0, answers, together):
        positions = list(range(start, min(answers, start + together)))
        found, loss = _norms(inputs, losses, example, positions)
        norms[positions, : found.shape[1]], nats[positions] = found, loss
    unread = ~_readable(inputs, example, answers)
    sums = norms.masked_fill(unread, 0.0).sum(1, keepdim=True)  # NaN or infinite if any norm is
    fractions = (norms / sums).masked_fill(unread | (sums <= 0) | ~sums.isfinite(), torch.nan)
    return fractions, (-checked_losses(nats)).exp()


def _norms(inputs: Examples, losses: Losses, example: Example, positions: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Return the norms ``(positions, inputs)`` of the gradients of the losses ``(positions,)``, and these losses.

    One copy of the example is read for each position, since one backward pass gives one gradient for each copy.
    """
    if inputs.predicts == "next token" and not example.decoded:  # what follows the last position cannot change it
        example = example.beginning(positions[-1] + 1)
    copies = [example] * len(positions)
    # cuDNN differentiates recurrences in training mode only
    with torch.enable_grad(), torch.backends.cudnn.flags(enabled=False), separate_inputs(inputs.model) as vectors:
        nats = losses.place_losses(copies, positions)
        gradients = torch.autograd.grad(nats.sum(), vectors, allow_unused=True, materialize_grads=True)
    norms = [
        _by_token(gradient, len(names)).double().norm(dim=2).cpu()
        for gradient, names in zip(gradients, (example.inputs, example.decoded), strict=False)
    ]
    return torch.cat(norms, dim=1), nats.detach().double().cpu()


def _by_token(gradient: Tensor, tokens: int) -> Tensor:
    """Return gradients ``(batch, tokens, size)``, summed over the copies of a token if a model repeats its inputs."""
    batch, time, size = gradient.shape
    if time % max(1, tokens):
        raise NotSupportedError("the model reads other inputs than the tokens of the text")
    return gradient.reshape(batch, tokens, -1, size).sum(2)


@contextmanager
def separate_inputs(model: nn.Module) -> Iterator[list[Tensor]]:
    """Collect the vectors ``(batch, time, size)`` that a model reads, which can be differentiated, in their order.

    These are the inputs of its layer; for a model with an encoder and a decoder, the embeddings of both.
    """
    inputs: list[Tensor] = []

    def separate(tensor: Tensor) -> Tensor:
        inputs.append(tensor.detach().requires_grad_())
        return inputs[-1]

    def before(_layer: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        return (separate(args[0]), *args[1:])

    def after(_embedding: nn.Module, _args: object, result: Tensor) -> Tensor:
        return separate(result)

    # Of an encoder and a decoder, the embeddings are taken, since each belongs to one of the two texts.
    layers = [layer for _, layer in top_layers(model)]
    embeddings = [child for child in model.children() if isinstance(child, nn.Embedding)]
    with ExitStack() as hooks:
        if len(layers) == 1:
            hooks.enter_context(layers[0].register_forward_pre_hook(before))
        else:
            for embedding in embeddings:
                hooks.enter_context(embedding.register_forward_hook(after))
        yield inputs


def _readable(inputs: Examples, example: Example, answers: int) -> Tensor:
    """Return which inputs each answer may depend on ``(answers, inputs)``."""
    read, written = len(example.inputs), len(example.decoded)
    if inputs.predicts == "sequence":
        return torch.ones(answers, read, dtype=torch.bool)
    if written:
        return torch.cat([torch.ones(answers, read), torch.ones(answers, written).tril()], dim=1).bool()
    if inputs.predicts == "next token":
        return torch.ones(answers, read).tril().bool()
    causal = all(layer.causal for _, layer in top_layers(inputs.model))
    seen = torch.ones(answers, read).tril() if causal else torch.ones(answers, read)
    return (seen - torch.eye(answers, read) if inputs.masks_targets else seen).bool()


# What the page draws and says


class Layout(NamedTuple):
    """Where the tokens of an example stand on the page: the texts, and the tokens that answers and inputs are at."""

    texts: list[tuple[str, list[LinkedToken]]]
    first_answer: int
    source: int
    """Number of tokens before those that a decoder reads."""


def influence_section(inspected: InspectedRun) -> SectionBody:
    """Write the section on attention and influence, drawn on the words themselves."""
    if not top_layers(inspected.run.model):
        raise NotSupportedError("this model has no layers, so that it has neither attention nor gradients")

    # The number of heads, which one token shows, decides how many tokens the page can hold.
    item, inputs = inspected.item, inspected.inputs
    tokens = _tokens_to_show(attention_maps(inspected.run, item, max_tokens=1).maps)
    result = influence(inspected.run, item, max_tokens=tokens)
    maps = attention_maps(inspected.run, item, max_tokens=tokens).maps[:MAX_LAYERS]

    # Influence and attention share one text, so that the views differ in nothing but their shades.
    page = layout(inputs, result.example, result.answers)
    views = [influence_view(inputs, result, page), *(each for one in maps for each in attention_views(one, page))]
    what = "the attention layer" if len(maps) == 1 else f"{len(maps)} attention layers"
    limits = [] if len(views) == 1 else [f"The weights of {what} can be chosen above the text."]
    if result.example.length < result.total:
        left = result.total - result.example.length
        limits.append(f"The last {left:,} of {result.total:,} tokens are left out here.")
    blocks: list[PageBlock] = [Prose(" ".join([_intro(inputs, result.example), *limits]))]
    blocks.append(TokenLinks(page.texts, views, CAPTION))
    sentence = nearest_sentence(inputs, result)
    if sentence:
        blocks.append(Prose(sentence))
    return SectionBody(blocks, [f"influence: {sentence[0].lower()}{sentence[1:-1]}"] if sentence else [])


def _kind(inputs: Examples, example: Example) -> str:
    """Return the key of `WORDS` for what the model predicts."""
    return "decoded" if example.decoded else "masked" if inputs.masks_targets else inputs.predicts


def _intro(inputs: Examples, example: Example) -> str:
    what, _ = WORDS[_kind(inputs, example)]
    return f"Influence is how strongly {what} (the connectivity of Madsen 2019). {MEANING}"


def _tokens_to_show(maps: Sequence[AttentionMap]) -> int:
    """Return the number of tokens for which all views stay below `MAX_BYTES`, with `DIGITS` bytes for each weight."""
    heads = [len(one.weights) for one in maps[:MAX_LAYERS]]
    views = 1 + sum(heads) + sum(count > 1 for count in heads)  # several heads have a mean as well
    return max(1, min(MAX_TOKENS, math.isqrt(MAX_BYTES // (DIGITS * views))))


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


def influence_view(inputs: Examples, result: Influence, page: Layout) -> LinkView:
    """Return the fractions of influence on each answer."""
    _, sentence = WORDS[_kind(inputs, result.example)]
    rows = [_trimmed(row) for row in result.shares]
    return LinkView("Influence", "influence on the selected token", sentence, rows, page.first_answer)


def attention_views(attention: AttentionMap, page: Layout) -> Iterator[LinkView]:
    """Yield the mean of all heads of a layer, if there are several, and each head."""
    if not attention.queries or not attention.keys:
        return
    weights = attention.weights
    causal = not attention.crosses and not weights.triu(1).any()
    if attention.crosses:
        first_row, first_column = page.source + 1, 0
        sentence = (
            "Attention to the source in the step that writes the selected token of the answer; a row sums to one."
        )
    else:
        first_row = first_column = page.source if attention.decodes else 0
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
    """Return the mean fraction of the token before each answer, with its interval; empty for few answers."""
    if inputs.predicts != "next token" or result.example.decoded:
        return ""
    rows = [(i, row) for i, row in enumerate(result.shares) if i and not row.isnan().all()]
    if len(rows) < MIN_ANSWERS:
        return ""
    nearest = np.array([[float(row[i]), 1.0] for i, row in rows])
    value, low, high = interval(nearest, mean_of)
    if low is None or high is None or low == high:
        return ""
    percentage, bounds = percent_and_interval(value, low, high)
    return (
        f"On average, {percentage} of the influence on a token comes from the token directly before it "
        f"({bounds}, over {len(rows):,} tokens of this text)."
    )

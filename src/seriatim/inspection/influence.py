"""Influence: how strongly each token that a model reads changes the probability of each of its answers.

    influence of token i on answer t:  ‖∂ log P(y_t) / ∂e_i‖,  divided by its sum over i

e_i is the vector that the model reads for token i. A. Madsen, "Visualizing memorization in RNNs", Distill, 2019, calls
this norm connectivity; for language models see also J. Li, X. Chen, E. Hovy and D. Jurafsky, "Visualizing and
understanding neural models in NLP", NAACL 2016. It is measured by differentiating `forward`, for any layer. Answers are
the next tokens, tags, masked tokens or the label; see `Examples.place_losses`.

A gradient is local: a token without which the answer would be another may have none, for example because the answer is
almost certain or a unit is saturated. Its norm does not say whether the token makes the answer more or less probable.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from ..core.errors import NotSupportedError
from ..models.probabilities import checked_losses
from ..pages.strip import DIGITS, Lens, Links, Values, Weights
from ..runs.run import Run
from ..tasks.explainer import Example, Examples
from .attention_maps import MAX_LAYERS, AttentionMap, attention_maps
from .inspected_run import ALONE, InspectedRun, explainer_of
from .recording import top_layers
from .surprisal import Layout

MAX_TOKENS = 200
"""Tokens of a text that are shown."""
TOGETHER = 4096
"""Tokens read at once, in copies of a text that are differentiated at one answer each."""
MAX_BYTES = 1_000_000
"""Largest size of the weights of all lenses; fewer tokens are shown if there are many heads."""
MEANING = (
    "Influence on the probability of the selected token, of its tag, or of the only answer, divided between the tokens "
    "that the model reads for it. It is the norm of a gradient (Madsen 2019), which has no sign."
)


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
    fractions, probabilities = influence_fractions(inputs, example, len(answers))
    return Influence(example, answers, fractions, probabilities, full.length)


def influence_fractions(inputs: Examples, example: Example, answers: int) -> tuple[Tensor, Tensor]:
    """Return the fractions ``(answers, inputs)`` and probabilities ``(answers,)`` of `Influence`, in float64."""
    size = len(example.inputs) + len(example.decoded)
    norms, nats = torch.zeros(answers, size, dtype=torch.float64), torch.zeros(answers, dtype=torch.float64)
    together = max(1, TOGETHER // max(1, size))
    for start in range(0, answers, together):
        positions = list(range(start, min(answers, start + together)))
        found, loss = _norms(inputs, example, positions)
        norms[positions, : found.shape[1]], nats[positions] = found, loss
    unread = ~_readable(inputs, example, answers)
    sums = norms.masked_fill(unread, 0.0).sum(1, keepdim=True)  # NaN or infinite if any norm is
    fractions = (norms / sums).masked_fill(unread | (sums <= 0) | ~sums.isfinite(), torch.nan)
    return fractions, (-checked_losses(nats)).exp()


def _norms(inputs: Examples, example: Example, positions: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Return the norms ``(positions, inputs)`` of the gradients of the losses ``(positions,)``, and these losses.

    One copy of the example is read for each position, since one backward pass gives one gradient for each copy.
    """
    if inputs.predicts == "next token" and not example.decoded:  # what follows the last position cannot change it
        example = example.beginning(positions[-1] + 1)
    copies = [example] * len(positions)
    # cuDNN differentiates recurrences in training mode only
    with torch.enable_grad(), torch.backends.cudnn.flags(enabled=False), separate_inputs(inputs.model) as vectors:
        nats = inputs.place_losses(copies, positions)
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


# The lenses of the strip


def link_lenses(inspected: InspectedRun, layout: Layout) -> list[Lens]:
    """Return the influence on each answer and the weights of every attention layer, as lenses of the strip."""
    # The number of heads, which one token shows, decides for how many tokens the page has weights.
    tokens = _tokens_to_show(attention_maps(inspected.run, inspected.item, max_tokens=1).maps)
    result = influence(inspected.run, inspected.item, max_tokens=tokens)
    maps = attention_maps(inspected.run, inspected.item, max_tokens=tokens).maps[:MAX_LAYERS]
    left_out = f" The tokens after the first {result.example.length:,} have no weights."
    limits = left_out if result.example.length < result.total else ""
    limits += f" Of {ALONE}." if inspected.is_blended else ""
    lenses: list[Lens] = [_influence_lens(inspected.inputs, result, layout)]
    lenses += [lens for one in maps for lens in _attention_lenses(one, layout)]
    return [replace(lens, sentence=lens.sentence + limits) for lens in lenses]


def _tokens_to_show(maps: Sequence[AttentionMap]) -> int:
    """Return the number of tokens for which all lenses stay below `MAX_BYTES`, with `DIGITS` bytes for each weight."""
    heads = [len(one.weights) for one in maps[:MAX_LAYERS]]
    lenses = 1 + sum(heads) + sum(count > 1 for count in heads)  # several heads have a mean as well
    return max(1, min(MAX_TOKENS, math.isqrt(MAX_BYTES // (DIGITS * lenses))))


def _influence_lens(inputs: Examples, result: Influence, layout: Layout) -> Lens:
    """Return the fractions of influence on each answer, or in percent on the only one."""
    example = result.example
    if inputs.predicts == "sequence":
        return Values("influence", (100 * result.shares[0]).tolist(), 100.0, "%", MEANING)
    read = len(example.inputs)
    blocks = [Weights(_trimmed(result.shares[:, :read]), layout.first_answer)]
    if example.decoded:
        blocks.append(Weights(_trimmed(result.shares[:, read:]), layout.first_answer, layout.source))
    return Links("influence", blocks, MEANING)


def _attention_lenses(attention: AttentionMap, layout: Layout) -> Iterator[Links]:
    """Yield the mean of all heads of a layer, if there are several, and each head."""
    if not attention.queries or not attention.keys or max(attention.weights.shape[1:]) > layout.size:
        return
    weights = attention.weights
    causal = not attention.crosses and not weights.triu(1).any()
    if attention.crosses:
        first_row, first_column = layout.source + 1, 0
        sentence = "Attention to the source in the step that writes the selected token of the answer."
    else:
        first_row = first_column = layout.source if attention.decodes else 0
        to = "itself and earlier tokens" if causal else "all tokens"
        sentence = f"Attention of the selected token, when it is read, to {to}."
    heads = [(f"head {head + 1}", weights[head]) for head in range(len(weights))]
    means = [(f"mean of {len(weights)} heads", weights.mean(0))] if len(weights) > 1 else []
    for name, one in (*means, *heads):
        rows = [row[: i + 1].tolist() if causal else row.tolist() for i, row in enumerate(one)]
        blocks = [Weights(rows, first_row, first_column)]
        yield Links(f"{attention.layer}, {name}", blocks, f"{sentence} A row sums to 100 %.", "Attention")


def _trimmed(rows: Tensor) -> list[list[float]]:
    """Return rows without the blanks at their ends."""
    ends = [int((~row.isnan()).nonzero().max()) + 1 if (~row.isnan()).any() else 0 for row in rows]
    return [row[:end].tolist() for row, end in zip(rows, ends, strict=True)]

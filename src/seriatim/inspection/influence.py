"""Influence: how strongly each token that a model reads changes the probability of each of its answers.

    influence of token i on answer t:  ‖∂ log P(y_t) / ∂e_i‖,  divided by its sum over i

e_i is the vector that the model reads for token i. A. Madsen, "Visualizing memorization in RNNs", Distill, 2019, calls
this norm connectivity; for language models see also J. Li, X. Chen, E. Hovy and D. Jurafsky, "Visualizing and
understanding neural models in NLP", NAACL 2016. It is measured by differentiating `forward`, for any layer. Answers are
the next tokens, tags, masked tokens or the label; see `AnswerLosses.place_losses`.

A gradient is local: a token without which the answer would be another may have none, for example because the answer is
almost certain or a unit is saturated. Its norm does not say whether the token makes the answer more or less probable.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from ..core.errors import InputError
from ..models.probabilities import checked_losses
from ..runs.run import Run
from ..tasks.explainer import Example, Explainer
from .leaves import roots
from .subject import explainer_of

MAX_TOKENS = 200
"""Tokens of a text that are shown."""
TOGETHER = 4096
"""Tokens read at once, in copies of a text that are differentiated at one answer each."""


@dataclass(frozen=True)
class Influence:
    """Influence on the answers about the first tokens of a text.

    Attributes:
        example: what the model reads, cut to the tokens that are shown.
        answers: names of the answers, in order.
        shares: of each input, for each answer ``(answers, inputs)``; first those of ``example.inputs``, then those of
            ``example.decoded``. A row sums to one. NaN is an input that the answer must not depend on: a later token,
            or the answer itself. A row of NaN has no gradient.
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
    explainer = explainer_of(run)
    if not any(True for _ in roots(explainer.model)):
        raise InputError("this model has no layers, so that there is no gradient")
    whole = explainer.examples(text)[0]
    example = whole.beginning(max_tokens)
    if explainer.require(explainer.inputs).predicts == "sequence":  # no decoder reads the target
        example = replace(example, decoded=())
    answers = explainer.require(explainer.answers).target_names(example)
    shares, probabilities = influence_shares(explainer, example, len(answers))
    return Influence(example, answers, shares, probabilities, whole.length)


def influence_shares(explainer: Explainer, example: Example, answers: int) -> tuple[Tensor, Tensor]:
    """Return the shares ``(answers, inputs)`` and probabilities ``(answers,)`` of `Influence`, in float64."""
    size = len(example.inputs) + len(example.decoded)
    norms, losses = torch.zeros(answers, size, dtype=torch.float64), torch.zeros(answers, dtype=torch.float64)
    together = max(1, TOGETHER // max(1, size))
    for start in range(0, answers, together):
        places = list(range(start, min(answers, start + together)))
        found, loss = _norms(explainer, example, places)
        norms[places, : found.shape[1]], losses[places] = found, loss
    unread = ~_readable(explainer, example, answers)
    sums = norms.masked_fill(unread, 0.0).sum(1, keepdim=True)  # NaN or infinite if any norm is
    shares = (norms / sums).masked_fill(unread | (sums <= 0) | ~sums.isfinite(), torch.nan)
    return shares, (-checked_losses(losses)).exp()


def _norms(explainer: Explainer, example: Example, places: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Return the norms ``(places, inputs)`` of the gradients of the losses ``(places,)``, and these losses.

    One copy of the example is read for each place, since one backward pass gives one gradient for each copy.
    """
    inputs = explainer.require(explainer.inputs)
    if inputs.predicts == "next token" and not example.decoded:  # what follows the last place cannot change it
        example = example.beginning(places[-1] + 1)
    copies = [example] * len(places)
    # cuDNN differentiates recurrences in training mode only
    with torch.enable_grad(), torch.backends.cudnn.flags(enabled=False), separate_inputs(explainer.model) as vectors:
        losses = explainer.require(explainer.answers).place_losses(copies, places)
        gradients = torch.autograd.grad(losses.sum(), vectors, allow_unused=True, materialize_grads=True)
    norms = [
        _by_token(gradient, len(names)).double().norm(dim=2).cpu()
        for gradient, names in zip(gradients, (example.inputs, example.decoded), strict=False)
    ]
    return torch.cat(norms, dim=1), losses.detach().double().cpu()


def _by_token(gradient: Tensor, tokens: int) -> Tensor:
    """Return gradients ``(batch, tokens, size)``, summed over the copies of a token if a model repeats its inputs."""
    batch, time, size = gradient.shape
    if time % max(1, tokens):
        raise InputError("the model reads other inputs than the tokens of the text")
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

    layers = [layer for _, layer in roots(model)]
    embeddings = [part for part in model.children() if isinstance(part, nn.Embedding)]
    with ExitStack() as hooks:
        if len(layers) == 1:
            hooks.enter_context(layers[0].register_forward_pre_hook(before))
        else:
            for embedding in embeddings:
                hooks.enter_context(embedding.register_forward_hook(after))
        yield inputs


def _readable(explainer: Explainer, example: Example, answers: int) -> Tensor:
    """Return which inputs each answer may depend on ``(answers, inputs)``."""
    inputs = explainer.require(explainer.inputs)
    read, written = len(example.inputs), len(example.decoded)
    if inputs.predicts == "sequence":
        return torch.ones(answers, read, dtype=torch.bool)
    if written:
        return torch.cat([torch.ones(answers, read), torch.ones(answers, written).tril()], dim=1).bool()
    if inputs.predicts == "next token":
        return torch.ones(answers, read).tril().bool()
    causal = all(layer.causal for _, layer in roots(explainer.model))
    seen = torch.ones(answers, read).tril() if causal else torch.ones(answers, read)
    return (seen - torch.eye(answers, read) if inputs.masks_targets else seen).bool()

"""Attention maps: the weights of every layer and head over a text.

All attention layers call torch's fused attention function or a softmax of scores. These functions are intercepted while
a model reads. The fused function does not return weights, so they are computed again from its arguments.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..core.contract import MemoryLayer
from ..core.errors import NotSupportedError, RangeError
from ..evaluation.token_scores import visible
from ..layers.scoring import Dot, attention_weights
from ..pages.chart import HeatMap
from ..pages.page import Folded, PageBlock, Prose
from ..recurrence import uncompiled
from ..runs.run import Run
from ..tasks.explainer import Example
from .inspected_run import InspectedRun, SectionBody, explainer_of
from .recording import Arguments, CallRecorder, Keywords, PrimitiveLayer, inside, primitive_layers, run_once, top_layers

MAX_TOKENS, SHOWN_TOKENS = 128, 32
"""Tokens of a map, and those of a page, where the maps of two heads stand side by side."""
MAX_MAP = 256
"""Largest number of tokens of a map; for more, attention splits its queries into blocks."""
MAX_LAYERS, OPEN_LAYERS = 12, 2
"""Layers whose maps are drawn, and those that are not folded."""
SOFTMAXES = {torch.softmax, torch.Tensor.softmax, F.softmax}


@dataclass(frozen=True)
class AttentionMap:
    """The weights ``(heads, queries, keys)`` of one layer, named as a `PrimitiveLayer`; each row sums to one.

    The tokens are empty where queries or keys are not tokens of the text. A map ``crosses`` from a decoder to a source;
    a layer ``decodes`` if it reads what a decoder writes.
    """

    layer: str
    queries: tuple[str, ...]
    keys: tuple[str, ...]
    weights: Tensor
    crosses: bool = False
    decodes: bool = False


@dataclass(frozen=True)
class AttentionMaps:
    """Maps of the first ``shown`` of ``total`` tokens."""

    maps: list[AttentionMap]
    shown: int
    total: int

    @property
    def limits(self) -> str:
        """The part of the tokens that is shown, in words; empty if all are."""
        if self.shown == self.total:
            return ""
        return f"The first {self.shown:,} of {self.total:,} tokens."


def attention_maps(run: Run, text: object, *, max_tokens: int = MAX_TOKENS) -> AttentionMaps:
    """Read the beginning of a text and record the weights of every attention layer, if the model has any.

    ``text`` is a text, or another item that `Explainer.examples` reads; only its first sequence is used.

    Raises:
        InputError: there is nothing to read in the text, or ``max_tokens`` is above `MAX_MAP`.
    """
    if not 1 <= max_tokens <= MAX_MAP:
        raise RangeError(f"max_tokens: {max_tokens} is out of range for a map; give a number from 1 to {MAX_MAP}")
    explainer = explainer_of(run)
    full = explainer.examples(text)[0]
    example = full.beginning(max_tokens)
    with torch.no_grad(), recorded_attention(run.model) as recorded:
        run_once(explainer, example)
    maps = [_map(primitive, weights, example) for primitive, weights in recorded.items()]
    return AttentionMaps(maps, example.length, full.length)


@contextmanager
def recorded_attention(model: nn.Module) -> Iterator[dict[PrimitiveLayer, Tensor]]:
    """Record the weights ``(batch, heads, queries, keys)`` of attention layers, complete when the context ends."""
    decoder = next((each for each in _sequence_layers(model) if each.decodes), None)
    recorder, weights = _WeightRecorder(decoder), dict[PrimitiveLayer, Tensor]()
    with ExitStack() as hooks:
        for each in _sequence_layers(model):
            hooks.enter_context(each.layer.register_forward_pre_hook(recorder.enter(each)))
            hooks.enter_context(each.layer.register_forward_hook(recorder.leave))
        with uncompiled(), recorder:
            yield weights
    for each, chunks in recorder.weights.items():  # of successive queries, the last of which have the most keys
        keys = max(chunk.shape[3] for chunk in chunks)
        weights[each] = torch.cat([F.pad(chunk, (0, keys - chunk.shape[3])) for chunk in chunks], dim=2)


def _sequence_layers(model: nn.Module) -> Iterator[PrimitiveLayer]:
    """Yield every sequence layer: the primitive layers, and the layers that have attention beside a recurrence."""
    names = {primitive.path: primitive.name for primitive in primitive_layers(model)}
    for role, top in top_layers(model):
        for path, layer in inside(role, top):
            yield PrimitiveLayer(names.get(path, f"{role or 'layer'}: attention"), path, layer)


class _WeightRecorder(CallRecorder):
    """Records weights for the innermost layer that is running; for the decoder, if any, if the model attends itself."""

    def __init__(self, decoder: PrimitiveLayer | None) -> None:
        super().__init__()
        self.running: list[PrimitiveLayer] = [] if decoder is None else [decoder]
        self.weights: dict[PrimitiveLayer, list[Tensor]] = defaultdict(list)

    def enter(self, layer: PrimitiveLayer) -> Callable[..., None]:
        """Return the hook that is called before a layer."""
        return lambda *_: self.running.append(layer)

    def leave(self, *_: object) -> None:
        """Forget the layer that has ended; this is the hook that is called after it."""
        self.running.pop()

    def observe(self, func: Callable[..., Any], args: Arguments, kwargs: Keywords, result: Tensor) -> None:
        """Record weights ``(batch, queries, keys)`` or ``(batch, heads, queries, keys)``; ignore other shapes."""
        if func is F.scaled_dot_product_attention:
            result = weights_of_fused(*args, **kwargs)
        elif func not in SOFTMAXES:
            return
        if self.running and result.dim() in (3, 4):
            heads = result.unsqueeze(1) if result.dim() == 3 else result
            self.weights[self.running[-1]].append(heads.detach().float().cpu())


def weights_of_fused(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Return the weights ``(..., queries, keys)`` of `torch.nn.functional.scaled_dot_product_attention`."""
    if enable_gqa and key.shape[-3] != query.shape[-3]:
        key = key.repeat_interleave(query.shape[-3] // key.shape[-3], dim=-3)
    score = Dot(query.shape[-1] ** -0.5 if scale is None else scale)
    return attention_weights(score, query, key, mask=attn_mask, causal=is_causal)


def _map(primitive: PrimitiveLayer, weights: Tensor, example: Example) -> AttentionMap:
    """Return the weights ``(1, heads, queries, keys)`` of one layer as a map in the order of the text."""
    heads, crosses = weights[0], isinstance(primitive.layer, MemoryLayer)
    queries = example.decoded if primitive.decodes else example.tokens
    keys = example.tokens if crosses else queries
    if primitive.backwards:
        heads = heads.flip(1) if crosses else heads.flip(1, 2)
    heads = heads[:, :, 1:] if crosses and heads.shape[2] == len(keys) + 1 else heads  # a position before the source
    queries = queries if len(queries) == heads.shape[1] else ()
    keys = keys if len(keys) == heads.shape[2] else ()
    return AttentionMap(primitive.name, queries, keys, heads, crosses, primitive.decodes)


def attention_map(attention: AttentionMap, *, caption: str = "") -> HeatMap:
    """Return a heat map of every head, from 0 to 1: queries down, keys across; later tokens are blank."""
    heads, queries, keys = attention.weights.shape
    role, _, kind = attention.layer.partition(": ")
    return HeatMap(
        f"Attention of the {role}" if kind == "attention" else f"Attention of {attention.layer}",
        [(f"head {i + 1}" if heads > 1 else "", rows) for i, rows in enumerate(blank_future(attention).tolist())],
        [visible(token) for token in attention.queries] or [""] * queries,
        [visible(token) for token in attention.keys] or [""] * keys,
        "weight, from 0 to 1",
        caption,
        row_name="attends",
        column_name="attended to",
    )


def blank_future(attention: AttentionMap) -> Tensor:
    """Return the weights with NaN in place of later tokens, if no token attends to a later one."""
    queries, keys = attention.weights.shape[1:]
    if attention.crosses or queries != keys or attention.weights.triu(1).any():
        return attention.weights
    return attention.weights.masked_fill(torch.ones(queries, keys, dtype=torch.bool).triu(1), torch.nan)


MEANING = (
    "A row is the token that attends, and sums to 1; every map has the same scale, from 0 to 1. Later tokens are blank "
    "where no token attends to them. In attention to a source, a row is the token that the decoder reads before it "
    "writes the next one."
)


def attention_section(inspected: InspectedRun) -> SectionBody:
    """Write the section on attention: all heads of the first layers, with the other layers folded."""
    result = attention_maps(inspected.run, inspected.item, max_tokens=SHOWN_TOKENS)
    if not result.maps:
        raise NotSupportedError("no layer of this model has attention")
    maps = [attention_map(each, caption=result.limits) for each in result.maps[:MAX_LAYERS]]
    blocks: list[PageBlock] = [*maps[:OPEN_LAYERS]]
    if maps[OPEN_LAYERS:]:
        blocks.append(Folded("The other layers", maps[OPEN_LAYERS:]))
    return SectionBody([*blocks, Folded("What this shows", [Prose(MEANING)])])

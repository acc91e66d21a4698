"""Attention maps: the weights of every layer and head over a text.

All attention layers call torch's fused attention function or a softmax of scores. These functions are intercepted while
a model reads. The fused function does not return weights, so they are computed again from its arguments.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from torch import Tensor, nn
from torch.nn import functional as F

from ..core.contract import MemoryLayer
from ..core.errors import NotSupportedError, RangeError
from ..evaluation.token_scores import visible
from ..pages.charts import SPACED, WIDE, name_tokens, width_for
from ..pages.drawing import name_cells
from ..pages.page import Folded, PageBlock, Plot, Plots, Prose
from ..pages.palette import HEAT
from ..pages.theme import new_figure, plain
from ..recurrence import uncompiled
from ..runs.run import Run
from ..tasks.explainer import Example
from .inspected_run import InspectedRun, SectionBody, explainer_of
from .recording import Arguments, CallRecorder, Keywords, PrimitiveLayer, inside, primitive_layers, run_once, top_layers

MAX_TOKENS = 128
"""Tokens of a map; its size grows with their square."""
MAX_MAP = 256
"""Largest number of tokens of a map; for more, attention splits its queries into blocks."""
MAX_LAYERS = 12
"""Layers whose maps are drawn."""
COLUMNS = 4
"""Heads side by side, at most."""
TALLEST_CELL = 0.35
"""Inches of a row of a map, at most."""
COLUMN_MARGIN = 0.5
"""Inches beside the map of one head, for the names of tokens."""
MARGINS = 1.2
"""Inches of a figure's width beside its plot."""
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
        return f"Only the first {self.shown:,} of {self.total:,} tokens are shown."


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
    recorder, weights = _WeightRecorder(), dict[PrimitiveLayer, Tensor]()
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
        for path, layer in inside(top):
            dotted = ".".join(name for name in (role, path) if name)
            yield PrimitiveLayer(names.get(dotted, f"{role or 'layer'}: attention"), dotted, layer)


class _WeightRecorder(CallRecorder):
    """Records weights for the innermost layer that is running."""

    def __init__(self) -> None:
        super().__init__()
        self.running: list[PrimitiveLayer] = []
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
            result = attention_weights(*args, **kwargs)
        elif func not in SOFTMAXES:
            return
        if self.running and result.dim() in (3, 4):
            heads = result.unsqueeze(1) if result.dim() == 3 else result
            self.weights[self.running[-1]].append(heads.detach().float().cpu())


def attention_weights(
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
    scores = query @ key.mT * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    if is_causal:
        attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    if attn_mask is not None:
        scores = scores.masked_fill(~attn_mask, -torch.inf) if attn_mask.dtype == torch.bool else scores + attn_mask
    return torch.softmax(scores, dim=-1)


def _map(primitive: PrimitiveLayer, weights: Tensor, example: Example) -> AttentionMap:
    """Return the weights ``(1, heads, queries, keys)`` of one layer as a map in the order of the text."""
    heads, crosses = weights[0], isinstance(primitive.layer, MemoryLayer)
    queries = example.decoded if primitive.decodes else example.tokens
    keys = example.tokens if crosses else queries
    if primitive.backwards:
        heads = heads.flip(1) if crosses else heads.flip(1, 2)
    queries = queries if len(queries) == heads.shape[1] else ()
    keys = keys if len(keys) == heads.shape[2] else ()
    return AttentionMap(primitive.name, queries, keys, heads, crosses, primitive.decodes)


def attention_figure(attention: AttentionMap) -> Figure:
    """Draw a small map for every head: queries down, keys across."""
    heads, queries, keys = attention.weights.shape
    visible_weights = blank_future(attention).numpy()

    # Names of tokens are read before weights are, so the size of a map follows the room that the names need.
    columns = _columns(heads, keys)
    rows, wide = -(-heads // columns), width_for(keys) if heads == 1 else WIDE
    width = (wide - 1) / columns - (COLUMN_MARGIN if heads > 1 else 0)
    height = min(max(1.2, width * queries / keys), 1.5 * width, max(1.2, TALLEST_CELL * queries))
    figure, grid = new_figure(rows, columns, width=wide, height=rows * (height + 0.3) + 0.8, sharex=True, sharey=True)

    # All heads share one scale; otherwise the weights of two heads could not be compared by their colours.
    for head, axes in enumerate(grid.flat):
        axes.set_visible(head < heads)
        if head < heads:
            image = _draw(axes, visible_weights[head], attention.weights.max().item(), power=0.5)
            axes.set_title(f"head {head + 1}" if heads > 1 else "", fontsize=9.5)
            name_tokens(axes.xaxis, attention.keys, width)
            name_tokens(axes.yaxis, attention.queries, height)
            name_cells(image, *([visible(token) for token in tokens] for tokens in (attention.queries, attention.keys)))
    figure.suptitle(plain(attention.layer), fontsize=10)
    figure.colorbar(image, ax=grid, label="weight, square-root scale")
    return figure


def blank_future(attention: AttentionMap) -> Tensor:
    """Return the weights with NaN in place of later tokens, if no token attends to a later one."""
    queries, keys = attention.weights.shape[1:]
    if attention.crosses or queries != keys or attention.weights.triu(1).any():
        return attention.weights
    return attention.weights.masked_fill(torch.ones(queries, keys, dtype=torch.bool).triu(1), torch.nan)


def _columns(heads: int, keys: int) -> int:
    """Return how many heads stand side by side: as many as leave room for the names of the tokens, if two do."""
    fitting = [n for n in range(2, COLUMNS + 1) if keys * SPACED <= (WIDE - 1) / n - COLUMN_MARGIN]
    return min(heads, max(fitting, default=COLUMNS))


def token_map(
    values: np.ndarray,
    tokens: Sequence[str],
    title: str,
    label: str,
    *,
    largest: float | None,
    height: float = 3.0,
    power: float = 1.0,
) -> Figure:
    """Draw values ``(rows, tokens)`` as a heat map with a colour bar, from 0 to ``largest``, or over their range.

    Colours stand for a ``power`` of the values.
    """
    width = width_for(values.shape[1])
    figure, [[axes]] = new_figure(width=width, height=height)
    image = _draw(axes, values, largest, power=power)
    name_cells(image, (), [visible(token) for token in tokens])
    axes.set_title(plain(title))
    name_tokens(axes.xaxis, tokens, width - MARGINS)
    figure.colorbar(image, ax=axes, label=label)
    return figure


def _draw(axes: Axes, values: np.ndarray, largest: float | None, *, power: float = 1.0) -> AxesImage:
    """Draw values; colours stand for a ``power`` of them."""
    axes.grid(visible=False)
    norm = PowerNorm(power, None if largest is None else 0.0, largest)
    return axes.imshow(values, cmap=HEAT, norm=norm, interpolation="none", aspect="auto")


def attention_section(inspected: InspectedRun) -> SectionBody:
    """Write the section on attention, layer by layer and head by head."""
    result = attention_maps(inspected.run, inspected.item)
    if not result.maps:
        raise NotSupportedError("no layer of this model has attention")
    count = len(result.maps)
    cut = f" Only the first {MAX_LAYERS} of {count} layers are drawn." if count > MAX_LAYERS else ""
    intro = "Rows are the tokens that attend, columns the tokens they attend to; a row sums to one. "
    if not all(each.crosses for each in result.maps):
        intro += "In self-attention, the diagonal is the attention of a token to itself. "
    if any(each.crosses for each in result.maps):
        intro += (
            "In attention to the source, a row is the token that the decoder reads; the section on alignment names the "
            "same row by the token that it writes next. "
        )
    intro += (
        "A bright column is a token to which most others attend. Brightness grows with the square root of the weight. "
    )
    if any(blank_future(each).isnan().any() for each in result.maps):
        intro += "Later tokens are blank. "
    intro += f"{result.limits}{cut}"

    # The mean over the heads is what most readers want; the heads themselves are folded.
    drawn = result.maps[:MAX_LAYERS]
    means = [(replace(each, weights=each.weights.mean(0, keepdim=True)), len(each.weights)) for each in drawn]
    blocks: list[PageBlock] = [Prose(intro.strip()), Plots([_plot(mean, heads) for mean, heads in means])]
    several = [each for each in drawn if len(each.weights) > 1]
    if several:
        blocks.append(Folded("All heads of all layers", [Plots([_plot(each, 1) for each in several])]))
    return SectionBody(blocks)


def _plot(attention: AttentionMap, mean_of: int) -> Plot:
    """Return the plot of a map, which is the mean of a number of heads."""
    heads, queries, keys = attention.weights.shape
    caption = f"Mean of {mean_of} heads." if mean_of > 1 else f"{heads} heads." if heads > 1 else "One head."
    description = f"Weights of {attention.layer} from {queries} to {keys} tokens."
    role, _, kind = attention.layer.partition(": ")
    title = f"Attention of the {role}" if kind == "attention" else f"Attention of {attention.layer}"
    return Plot(attention_figure(attention), title, caption, description)

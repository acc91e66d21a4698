"""Attention maps: the weights of every layer and head over a text.

All attention layers call torch's fused attention function or a softmax of scores. These functions are intercepted while
a model reads. The fused function does not return weights, so they are computed again from its arguments. Hooks on the
layers tell which layer a call belongs to.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from ..core.contract import MemoryLayer, SequenceLayer
from ..core.errors import InputError
from ..recurrence.obstacles import uncompiled
from ..report.page import Plot, Plots, Prose
from ..report.theme import HEAT, new_figure, plain
from ..report.token_axis import NARROW, SPACED, name_tokens, width_for
from ..runs.run import Run
from ..training.task_view import Example
from .leaves import BACKWARDS, DECODER, inside, leaves, roots, run_once
from .subject import Content, Subject, view_of

MAX_TOKENS = 128
"""Tokens of a map; its size grows with their square."""
MAX_MAP = 256
"""Largest number of tokens of a map; for more, attention splits its queries into blocks."""
MAX_LAYERS = 12
"""Layers whose maps are drawn."""
COLUMNS = 4
"""Heads side by side."""
SOFTMAXES = {torch.softmax, torch.Tensor.softmax, F.softmax}


@dataclass(frozen=True)
class AttentionMap:
    """The weights of one layer.

    Attributes:
        layer: name of the layer, as in `leaves.Leaf`.
        queries: tokens that attend; empty if the queries are not tokens of the text.
        keys: tokens that they attend to; empty if the keys are not tokens of the text.
        weights: ``(heads, queries, keys)``; each row sums to one.
        crosses: whether a decoder attends to its source.
    """

    layer: str
    queries: tuple[str, ...]
    keys: tuple[str, ...]
    weights: Tensor
    crosses: bool = False


@dataclass(frozen=True)
class AttentionMaps:
    """Maps of the first ``shown`` of ``total`` tokens; ``bytes`` is the size of maps of all tokens."""

    maps: list[AttentionMap]
    shown: int
    total: int
    bytes: int

    @property
    def limits(self) -> str:
        """The part of the tokens that is shown, in words; empty if all are."""
        if self.shown == self.total:
            return ""
        size = f"{self.bytes / 2**20:,.1f} MiB"
        return f"Only the first {self.shown:,} of {self.total:,} tokens are shown; maps of all would take {size}."


def attention_maps(run: Run, text: object, *, max_tokens: int = MAX_TOKENS) -> AttentionMaps:
    """Read a text and record the weights of every attention layer.

    Args:
        run: a run of any task; a model without attention has no maps.
        text: a text, or another item that `TaskView.examples` reads; only its first sequence is used.
        max_tokens: number of tokens that are read, from the first on.

    Raises:
        InputError: there is nothing to read in the text, or ``max_tokens`` is above `MAX_MAP`.
    """
    if not 1 <= max_tokens <= MAX_MAP:
        raise InputError(f"max_tokens must be from 1 to {MAX_MAP} for a map of attention, got {max_tokens}")
    view = view_of(run)
    whole = view.examples(text)[0]
    example = whole.beginning(max_tokens)
    with torch.no_grad(), recorded_attention(run.model) as recorded:
        run_once(view, example)
    maps = [_map(place, weights, example) for place, weights in recorded.items()]
    growth = (whole.length / example.length) ** 2
    size = sum(each.weights.numel() * each.weights.element_size() for each in maps)
    return AttentionMaps(maps, example.length, whole.length, round(size * growth))


class Place(NamedTuple):
    """A layer with attention.

    Attributes:
        name: name of the layer.
        decodes: whether it is part of a decoder.
        crosses: whether it attends to a memory.
        backwards: whether it reads from the last input to the first.
    """

    name: str
    decodes: bool
    crosses: bool
    backwards: bool


@contextmanager
def recorded_attention(model: nn.Module) -> Iterator[dict[Place, Tensor]]:
    """Record the weights of every attention layer while the context is active.

    Returns:
        Weights ``(batch, heads, queries, keys)`` for each layer, complete when the context ends.
    """
    recorder = _Recorder()
    hooks, weights = [], dict[Place, Tensor]()
    for place, layer in _places(model):
        hooks.append(layer.register_forward_pre_hook(recorder.enter(place)))
        hooks.append(layer.register_forward_hook(recorder.leave))
    try:
        with uncompiled(), recorder:
            yield weights
    finally:
        for hook in hooks:
            hook.remove()
        weights.update({place: _joined(parts) for place, parts in recorder.weights.items()})


def _joined(parts: list[Tensor]) -> Tensor:
    """Concatenate weights of successive queries, over as many keys as the last of them had."""
    keys = max(part.shape[3] for part in parts)
    return torch.cat([F.pad(part, (0, keys - part.shape[3])) for part in parts], dim=2)


def _places(model: nn.Module) -> Iterator[tuple[Place, SequenceLayer]]:
    """Yield every sequence layer: the leaves, and the layers that have attention beside a recurrence."""
    names = {leaf.path: leaf.name for leaf in leaves(model)}
    for role, top in roots(model):
        for path, layer in inside(top):
            whole = ".".join(part for part in (role, path) if part)
            name = names.get(whole, f"{role or 'layer'}: attention")
            yield Place(name, role == DECODER, isinstance(layer, MemoryLayer), BACKWARDS in whole.split(".")), layer


class _Recorder(TorchFunctionMode):
    """Records weights, while it is active, for the innermost layer that is running."""

    def __init__(self) -> None:
        super().__init__()
        self.running: list[Place] = []
        self.weights: dict[Place, list[Tensor]] = defaultdict(list)

    def enter(self, place: Place) -> Callable[..., None]:
        """Return the hook that is called before a layer."""
        return lambda *_: self.running.append(place)

    def leave(self, *_: object) -> None:
        """Forget the layer that has ended; this is the hook that is called after it."""
        self.running.pop()

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is F.scaled_dot_product_attention:
            self.record(attention_weights(*args, **(kwargs or {})))
        elif func in SOFTMAXES:
            self.record(result)
        return result

    def record(self, weights: Tensor) -> None:
        """Record weights ``(batch, queries, keys)`` or ``(batch, heads, queries, keys)``; ignore other shapes."""
        if self.running and weights.dim() in (3, 4):
            heads = weights.unsqueeze(1) if weights.dim() == 3 else weights
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


def _map(place: Place, weights: Tensor, example: Example) -> AttentionMap:
    """Return the weights ``(1, heads, queries, keys)`` of one layer as a map in the order of the text."""
    heads = weights[0]
    queries = example.decoded if place.decodes else example.tokens
    keys = example.tokens if place.crosses else queries
    if place.backwards:
        heads = heads.flip(1) if place.crosses else heads.flip(1, 2)
    return AttentionMap(
        place.name,
        queries if len(queries) == heads.shape[1] else (),
        keys if len(keys) == heads.shape[2] else (),
        heads,
        place.crosses,
    )


def attention_figure(attention: AttentionMap) -> Figure:
    """Draw a small map for every head: queries down, keys across."""
    heads, queries, keys = attention.weights.shape
    columns = min(heads, COLUMNS)
    rows, wide = -(-heads // columns), width_for(keys) if heads == 1 else min(columns, 2) * NARROW
    width = (wide - 1) / columns
    height = min(max(1.2, width * queries / keys), 1.5 * width)
    figure, grid = new_figure(rows, columns, width=wide, height=rows * (height + 0.3) + 0.8, sharex=True, sharey=True)
    for head, axes in enumerate(grid.flat):
        axes.set_visible(head < heads)
        if head < heads:
            image = _draw(axes, attention.weights[head].numpy(), attention.weights.max().item())
            axes.set_title(f"head {head + 1}" if heads > 1 else "", fontsize=9.5)
            name_tokens(axes.xaxis, attention.keys, width)
            name_tokens(axes.yaxis, attention.queries, height)
    figure.suptitle(plain(attention.layer), fontsize=10)
    figure.colorbar(image, ax=grid, label="weight")
    return figure


def alignment_figure(
    source_tokens: Sequence[str], target_tokens: Sequence[str], weights: Sequence[Sequence[float]], title: str = ""
) -> Figure:
    """Draw the attention of each token of an answer to its source: the source across, the answer down.

    Args:
        source_tokens: names of the tokens of the source.
        target_tokens: names of the tokens of the answer, its end included.
        weights: a row for every token of the answer, with a weight for every token of the source.
        title: title of the figure.
    """
    values = np.asarray(weights, dtype=np.float32).reshape(len(target_tokens), len(source_tokens))
    width, height = width_for(len(source_tokens)), max(2.4, 0.8 + SPACED * min(len(target_tokens), 60) * 1.2)
    figure, grid = new_figure(width=width, height=height)
    axes = grid.flat[0]
    image = _draw(axes, values, float(values.max()))
    axes.set_title(plain(title))
    name_tokens(axes.xaxis, source_tokens, width - 1.2)
    name_tokens(axes.yaxis, target_tokens, height - 0.8)
    figure.colorbar(image, ax=axes, label="weight")
    return figure


def _draw(axes: Axes, weights: np.ndarray, largest: float) -> AxesImage:
    axes.grid(visible=False)
    return axes.imshow(weights, cmap=HEAT, vmin=0, vmax=largest, interpolation="none", aspect="auto")


def attention_section(subject: Subject) -> Content:
    """Write the section on attention, layer by layer and head by head."""
    result = attention_maps(subject.run, subject.text)
    if not result.maps:
        return Content([Prose("Not shown: no layer of this model has attention.")])
    count = len(result.maps)
    cut = f" Only the first {MAX_LAYERS} of {count} layers are drawn." if count > MAX_LAYERS else ""
    intro = (
        "Rows are the tokens that attend, columns the tokens they attend to; a row sums to one. On the diagonal a "
        "token attends to itself, on a line beside it to a neighbour; a bright column is a token that all attend to. "
        f"{result.limits}{cut}"
    )
    plots = [
        Plot(
            attention_figure(each),
            f"Attention of {each.layer}",
            f"{len(each.weights)} heads." if len(each.weights) > 1 else "One head.",
            f"Weights of {each.layer} from {each.weights.shape[1]} to {each.weights.shape[2]} tokens.",
        )
        for each in result.maps[:MAX_LAYERS]
    ]
    return Content([Prose(intro.strip()), Plots(plots)])

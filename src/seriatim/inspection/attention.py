"""Where attention looks: the weights of every layer and head over a text.

The functions that every attention calls, torch's fused one and the softmax of scores, are watched while a model reads;
the fused one gives no weights, so these are computed again from what it was given. Which layer a call belongs to, hooks
around the layers tell.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from ..core.contract import MemoryLayer, SequenceLayer
from ..core.errors import InputError
from ..recurrence.obstacles import uncompiled
from ..report.token_axis import NARROW, SPACED, name_tokens, width_for
from ..runs.run import Run
from .leaves import BACKWARDS, DECODER, inside, leaves, roots
from .reading import Example, read, read_examples

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST = 128
"""Tokens of which maps are made: a map grows with their square."""
LARGEST = 256
"""Above it attention takes its queries in blocks."""
COLUMNS = 4
"""Heads side by side."""
SOFTMAXES = {torch.softmax, torch.Tensor.softmax, F.softmax}


@dataclass(frozen=True)
class AttentionMap:
    """The weights of one layer.

    Attributes:
        layer: its name, as in `leaves.Leaf`.
        looking: the tokens that look ``queries``; empty where what looks is no token of the text.
        looked_at: those they look at ``keys``; as above.
        weights: ``(heads, queries, keys)``; each row sums to one.
        crosses: whether a decoder looks at its source, and no text at itself.
    """

    layer: str
    looking: tuple[str, ...]
    looked_at: tuple[str, ...]
    weights: Tensor
    crosses: bool = False


@dataclass(frozen=True)
class AttentionMaps:
    """What `attention_maps` found in the first ``shown`` of ``of`` tokens; ``bytes`` is what maps of all would take."""

    maps: list[AttentionMap]
    shown: int
    of: int
    bytes: int

    @property
    def limits(self) -> str:
        """What is shown, in words; empty where it is everything."""
        if self.shown == self.of:
            return ""
        size = f"{self.bytes / 2**20:,.1f} MiB"
        return f"Only the first {self.shown:,} of {self.of:,} tokens are shown; maps of all would take {size}."


def attention_maps(run: Run, text: Any, *, most: int = MOST) -> AttentionMaps:
    """Reads a text and keeps where every attention looked.

    Args:
        run: of any task; of models without attention nothing is found.
        text: as in `reading.read_examples`; of several lines the first.
        most: tokens read, from the first on.

    Raises:
        InputError: nothing to read in the text, or more than `LARGEST` tokens asked for.
    """
    if not 1 <= most <= LARGEST:
        raise InputError(f"most: {most} tokens in a map of attention; give 1 to {LARGEST}")
    whole = read_examples(run, text)[0]
    example = whole.beginning(most)
    with torch.no_grad(), watched_attention(run.model) as found:
        read(run, example)
    maps = [_map(place, weights, example) for place, weights in found.items()]
    growth = (whole.longest / example.longest) ** 2
    size = sum(one.weights.numel() * one.weights.element_size() for one in maps)
    return AttentionMaps(maps, example.longest, whole.longest, round(size * growth))


class Place(NamedTuple):
    """Whose attention it is: its name, whether it is a decoder's, looks at a memory, reads from the end on."""

    name: str
    decodes: bool
    crosses: bool
    backwards: bool


@contextmanager
def watched_attention(model: nn.Module) -> Iterator[dict[Place, Tensor]]:
    """Within it the weights of every attention are kept, by the place of its layer.

    Returns:
        Weights ``(batch, heads, queries, keys)``; complete when the block is left.
    """
    watching = _Watching()
    hooks, found = [], dict[Place, Tensor]()
    for place, layer in _places(model):
        hooks.append(layer.register_forward_pre_hook(watching.entering(place)))
        hooks.append(layer.register_forward_hook(watching.leaving))
    try:
        with uncompiled(), watching:
            yield found
    finally:
        for hook in hooks:
            hook.remove()
        found.update({place: _joined(parts) for place, parts in watching.noted.items()})


def _joined(parts: list[Tensor]) -> Tensor:
    """Weights of one query after another, over as many keys as the last of them had."""
    keys = max(part.shape[3] for part in parts)
    return torch.cat([F.pad(part, (0, keys - part.shape[3])) for part in parts], dim=2)


def _places(model: nn.Module) -> Iterator[tuple["Place", SequenceLayer]]:
    """Every sequence layer: the leaves, and what has an attention of its own beside a recurrence."""
    names = {leaf.path: leaf.name for leaf in leaves(model)}
    for role, top in roots(model):
        for path, layer in inside(top):
            whole = ".".join(part for part in (role, path) if part)
            name = names.get(whole, f"{role or 'layer'}: attention")
            yield Place(name, role == DECODER, isinstance(layer, MemoryLayer), BACKWARDS in whole.split(".")), layer


class _Watching(TorchFunctionMode):
    """Within it weights are noted, of the innermost layer that is running."""

    def __init__(self) -> None:
        super().__init__()
        self.running: list[Place] = []
        self.noted: dict[Place, list[Tensor]] = defaultdict(list)

    def entering(self, place: Place) -> Callable[..., None]:
        """What is called before a layer."""
        return lambda *_: self.running.append(place)

    def leaving(self, *_: object) -> None:
        """What is called after one."""
        self.running.pop()

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is F.scaled_dot_product_attention:
            self.note(attention_weights(*args, **(kwargs or {})))
        elif func in SOFTMAXES:
            self.note(result)
        return result

    def note(self, weights: Tensor) -> None:
        """Weights ``(batch, queries, keys)``, or with heads before the queries; others are of something else."""
        if self.running and weights.dim() in (3, 4):
            heads = weights.unsqueeze(1) if weights.dim() == 3 else weights
            self.noted[self.running[-1]].append(heads.detach().float().cpu())


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
    """What `torch.nn.functional.scaled_dot_product_attention` multiplies its values by: ``(..., queries, keys)``."""
    if enable_gqa and key.shape[-3] != query.shape[-3]:
        key = key.repeat_interleave(query.shape[-3] // key.shape[-3], dim=-3)
    scores = query @ key.mT * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    if is_causal:
        attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    if attn_mask is not None:
        scores = scores.masked_fill(~attn_mask, -torch.inf) if attn_mask.dtype == torch.bool else scores + attn_mask
    return torch.softmax(scores, dim=-1)


def _map(place: Place, weights: Tensor, example: Example) -> AttentionMap:
    """Of the one row of the batch, in the order of the text."""
    own = weights[0]
    looking = example.written if place.decodes else example.tokens
    looked_at = example.tokens if place.crosses else looking
    if place.backwards:
        own = own.flip(1) if place.crosses else own.flip(1, 2)
    return AttentionMap(
        place.name,
        looking if len(looking) == own.shape[1] else (),
        looked_at if len(looked_at) == own.shape[2] else (),
        own,
        place.crosses,
    )


def attention_figure(found: AttentionMap) -> "Figure":
    """Draws a map for every head, small, side by side: what looks down, what is looked at across."""
    from ..report.theme import new_figure, plain

    heads, queries, keys = found.weights.shape
    columns = min(heads, COLUMNS)
    rows, wide = -(-heads // columns), width_for(keys) if heads == 1 else min(columns, 2) * NARROW
    each = (wide - 1) / columns
    tall = min(max(1.2, each * queries / keys), 1.5 * each)
    figure, grid = new_figure(rows, columns, width=wide, height=rows * (tall + 0.3) + 0.8, sharex=True, sharey=True)
    for head, axes in enumerate(grid.flat):
        axes.set_visible(head < heads)
        if head < heads:
            image = _draw(axes, found.weights[head], found.weights.max().item())
            axes.set_title(f"head {head + 1}" if heads > 1 else "", fontsize=9.5)
            name_tokens(axes.xaxis, found.looked_at, each)
            name_tokens(axes.yaxis, found.looking, tall)
    figure.suptitle(plain(found.layer), fontsize=10)
    figure.colorbar(image, ax=grid, label="weight")
    return figure


def alignment_figure(
    source_tokens: Sequence[str], target_tokens: Sequence[str], weights: Any, title: str = ""
) -> "Figure":
    """Draws where each token of an answer looked in its source: source across, answer down.

    Args:
        source_tokens: as `Run.details` gives them.
        target_tokens: the answer's, its end included.
        weights: a row for every token of the answer, of a weight for every token of the source.
        title: above.
    """
    from ..report.theme import new_figure, plain

    found = torch.as_tensor(weights).float().view(len(target_tokens), len(source_tokens))
    wide, tall = width_for(len(source_tokens)), max(2.4, 0.8 + SPACED * min(len(target_tokens), 60) * 1.2)
    figure, grid = new_figure(width=wide, height=tall)
    axes = grid.flat[0]
    image = _draw(axes, found, found.max().item())
    axes.set_title(plain(title))
    name_tokens(axes.xaxis, source_tokens, wide - 1.2)
    name_tokens(axes.yaxis, target_tokens, tall - 0.8)
    figure.colorbar(image, ax=axes, label="weight")
    return figure


def _draw(axes: Any, weights: Tensor, most: float) -> Any:
    """A map, dark for nothing."""
    from ..report.theme import HEAT

    axes.grid(visible=False)
    return axes.imshow(weights.numpy(), cmap=HEAT, vmin=0, vmax=most, interpolation="none", aspect="auto")

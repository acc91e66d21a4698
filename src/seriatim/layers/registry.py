"""Every architecture by name: the registry, how a layer is built from a name and options, and what describes it.

A new one is a file and a line here; `register` adds a user's own.

Installed packages add layers with the entry-point group ``seriatim.layers``::

    [project.entry-points."seriatim.layers"]
    fast-slow = "their_package.cells:FastSlow"

A package is imported when one of its layers is first used by name.
"""

import functools
import inspect
import math
import re
from collections.abc import Sequence
from difflib import get_close_matches
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from operator import attrgetter
from typing import Any, TypeGuard, TypeVar, cast

import torch
from pydantic import ValidationError
from torch import nn
from torch.nn import Module

from ..config import Section, explain
from ..core import errors
from ..core.contract import Architecture, RecurrentCell, SequenceLayer, Wrap
from ..core.errors import check_integer, enough_memory, first_line, nearest, require_known, shown
from ..core.state import state_bytes
from ..recurrence import Recurrent, uncompiled
from .attention import Attention
from .containers import Residual, with_residual
from .containers import bidirectional as both_directions
from .containers import stack as stack_of
from .convolution import Convolution
from .cross_attention import CrossAttention
from .deltanet import DeltaNet
from .deltaproduct import DeltaProduct
from .feed_forward import feed_forward
from .gated_deltanet import GatedDeltaNet
from .gated_deltanet_2 import GatedDeltaNet2
from .gated_short_convolution import GatedShortConvolution
from .gla import GLA
from .gru import GRU
from .gru_original import OriginalGRU
from .hgrn2 import HGRN2
from .kda import KDA
from .latent_attention import LatentAttention
from .linear_attention import LinearAttention
from .lstm import LSTM
from .lstm_coupled import CoupledLSTM
from .lstm_layernorm import LayerNormLSTM
from .lstm_peephole import PeepholeLSTM
from .m2rnn import M2RNN
from .mamba import Mamba
from .mamba2 import Mamba2
from .mgu import MGU
from .mingru import MinGRU
from .minlstm import MinLSTM
from .mlstm import MLSTM
from .option_types import Option, Options, Rate, Size, accepted, check_value, declared
from .pointwise import EPSILON, Pointwise, norm_named
from .positions import ABSOLUTE, Positions
from .prior import Prior
from .residual_rnn import ResidualRNN
from .retnet import RetNet
from .rg_lru import RGLRU
from .rnn import RNN
from .rwkv7 import RWKV7
from .s4 import S4
from .s4d import S4D
from .self_attention import SelfAttention
from .slstm import SLSTM
from .transformer import Transformer
from .window import Window

REGISTRY: dict[str, Architecture] = {
    "rnn": RNN,
    "lstm": LSTM,
    "gru": GRU,
    "residual-rnn": ResidualRNN,
    "mgu": MGU,
    "gru-original": OriginalGRU,
    "lstm-peephole": PeepholeLSTM,
    "lstm-coupled": CoupledLSTM,
    "lstm-layernorm": LayerNormLSTM,
    "mingru": MinGRU,
    "minlstm": MinLSTM,
    "rg-lru": RGLRU,
    "slstm": SLSTM,
    "m2rnn": M2RNN,
    "mamba": Mamba,
    "mamba2": Mamba2,
    "linear-attention": LinearAttention,
    "retnet": RetNet,
    "gla": GLA,
    "hgrn2": HGRN2,
    "deltanet": DeltaNet,
    "gated-deltanet": GatedDeltaNet,
    "gated-deltanet-2": GatedDeltaNet2,
    "kda": KDA,
    "deltaproduct": DeltaProduct,
    "mlstm": MLSTM,
    "rwkv7": RWKV7,
    "prior": Prior,
    "window": Window,
    "convolution": Convolution,
    "short-convolution": GatedShortConvolution,
    "s4": S4,
    "s4d": S4D,
    "self-attention": SelfAttention,
    "attention": Attention,
    "latent-attention": LatentAttention,
    "transformer": Transformer,
}

BUILT_IN = dict(REGISTRY)
"""The layers of the library; `REGISTRY` also holds those that users register."""
RESERVED = frozenset({"ngram", "bag", "features", "rules"})
"""Names that mean something else on the command line: n-gram models are counted, not built of layers."""
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
GROUP = "seriatim.layers"
"""The entry-point group of packages that add layers."""
full_name = attrgetter("__module__", "__qualname__")


def register(name: str, architecture: Architecture) -> None:
    """Register a layer or a cell of your own under a name, which then works wherever a layer is named.

    The constructor takes ``(input_size, hidden_size)`` and keyword-only arguments, which become ``model.options``. The
    registration holds for this process; `seriatim.compare` trains in others, which import the file of the class.

    Args:
        name: letters, digits, ``-`` and ``_``, beginning with a letter. A class may be registered again after it was
            defined again, as in a notebook.
        architecture: a subclass of `SequenceLayer` or `RecurrentCell`.

    Raises:
        InputError: the name does not fit or is taken, or the class is neither a layer nor a cell.
    """
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise errors.MalformedError(
            f"register: {name!r} cannot be the name of a layer; use letters, digits, - and _, and begin with a letter"
        )
    if not is_architecture(architecture):
        given = f"a {type(architecture).__name__} object" if isinstance(architecture, Module) else shown(architecture)
        raise errors.ContractError(
            f"register: {given} is not the class of a layer; give a subclass of seriatim.RecurrentCell or "
            "seriatim.SequenceLayer itself"
        )

    # a class that is defined again, as in a notebook, has the same full name and may take the name of the one before
    registered, owner = REGISTRY.get(name, architecture), None
    if name in BUILT_IN or name in RESERVED:
        owner = "the library"
    elif full_name(registered) != full_name(architecture):
        owner = registered.__qualname__
    if owner:
        raise errors.ExistsError(f"register: the name {name!r} is taken by {owner}; choose another name")
    check_constructor(architecture)
    REGISTRY[name] = architecture


def is_architecture(value: object) -> TypeGuard[Architecture]:
    """Return whether a value is the class of a layer or of a cell."""
    return isinstance(value, type) and issubclass(value, SequenceLayer | RecurrentCell)


def check_constructor(architecture: Architecture) -> None:
    """Raise InputError, which names the line first, unless the constructor takes ``(input_size, hidden_size)``."""
    signature = inspect.signature(architecture)
    try:
        signature.bind(1, 1)
    except TypeError:
        location = f"{line}: " if (line := location_of(architecture, "__init__")) else ""
        raise errors.ContractError(
            f"{location}{architecture.__qualname__}{signature} does not take (input_size, hidden_size); make all other "
            "arguments keyword-only, with defaults"
        ) from None


def location_of(owner: object, method: str | None = None) -> str:
    """Return where a class defines a method, or else the class itself, as ``FILE:LINE``; "" if it has no source."""
    for defined in (getattr(owner, "__dict__", {}).get(method), owner):
        try:
            return f"{inspect.getsourcefile(defined)}:{inspect.getsourcelines(defined)[1]}"  # type: ignore[arg-type]
        except (TypeError, OSError):
            continue
    return ""


def split_names(name: str) -> list[str]:
    """Split the name of a mixed stack, ``"mamba,mamba,transformer"``."""
    return list(map(str.strip, name.split(",")))


def _check_name(name: object) -> None:
    if not isinstance(name, str):
        raise errors.RangeError(f"layer: {shown(name)} is not text; give the name of a layer, such as 'lstm'")


def names() -> list[str]:
    """Return the name of every layer: the library's, registered ones, and those of installed packages."""
    return [*REGISTRY, *(name for name in entry_points_by_name() if name not in REGISTRY)]


def find(name: str) -> Architecture:
    """Return the class of a layer by its name; a layer of an installed package is imported.

    Raises:
        InputError: there is no such layer, or its package cannot be imported.
    """
    _check_name(name)
    if name not in REGISTRY and name in entry_points_by_name():
        _import_entry_point(name, entry_points_by_name()[name])
    if ":" in name and name not in REGISTRY:
        example = f'seriatim.register("my-layer", {name.rpartition(":")[2]})'
        raise errors.UnknownNameError(
            f"layer {name!r}: its code has not been imported; import the class and call {example}"
        )
    if name in RESERVED:
        raise errors.ConflictError(f"layer {name!r}: a whole model that is not built of layers; use it alone")
    require_known("layer", name, names())
    return REGISTRY[name]


@functools.cache
def entry_points_by_name() -> dict[str, EntryPoint]:
    """Return the layers that installed packages offer; no package is imported."""
    return {
        point.name: point
        for point in entry_points(group=GROUP)
        if NAME.fullmatch(point.name) and point.name not in BUILT_IN and point.name not in RESERVED
    }


def _import_entry_point(name: str, point: EntryPoint) -> None:
    try:
        architecture = point.load()
    except Exception as error:
        raise errors.UnavailableError(
            f"layer {name!r}: {point.value} of an installed package cannot be imported ({type(error).__name__}: "
            f"{first_line(error)}); repair or remove the package"
        ) from None
    if not is_architecture(architecture):
        raise errors.ContractError(
            f"layer {name!r}: {point.value} of an installed package is neither a layer nor a cell; remove the package"
        )
    check_constructor(architecture)
    REGISTRY[name] = architecture


# ---- building a layer, or a stack of layers


TaskOptions = TypeVar("TaskOptions", bound=Section)
BLOCK_HELP = "Put the layer into a block with norms and a feed-forward network (true), or not (false)."
BLOCK = Option("block", bool | None, help=BLOCK_HELP)
POSITION_NORM_HELP = "Normalize the sums of inputs and absolute positions, below all blocks, as BERT does."
POSITION_NORM = Option("position_norm", bool, default=False, help=POSITION_NORM_HELP)
FINAL_NORM_HELP = "Normalize the outputs of the top block, where norms come first."
FINAL_NORM = Option("final_norm", bool, default=True, help=FINAL_NORM_HELP)
WEIGHT_DROPOUT = "weight_dropout"
MIXTURE = ("experts_per_token", "balance", "shared_expert_size")
"""Options that only work together with ``num_experts``."""
WIDTH = 256
TOKENS = (1, 1_000, 100_000)
DISTANCES = (10, 100, 1_000)


def layer(
    name: str,
    input_size: int,
    hidden_size: int,
    *,
    num_layers: int = 1,
    bidirectional: bool = False,
    dropout: float = 0.0,
    variational_dropout: bool = False,
    residual: bool = False,
    **options: object,
) -> SequenceLayer:
    """Build a layer, or a stack of layers, by name.

    Args:
        name: one of `names`, or several with commas between them for a stack that mixes them, the bottom layer first.
        input_size: width of the inputs.
        hidden_size: width of each layer.
        num_layers: number of layers on top of each other; with several names, how often these are repeated.
        bidirectional: read in both directions; the outputs are twice as wide.
        dropout: rate between layers, or on each residual branch where layers have residual connections of their own.
        variational_dropout: draw one dropout mask per sequence instead of one per step.
        residual: add the inputs of each layer to its outputs wherever the widths are equal; for layers that have no
            residual connections of their own.
        options: options of the architecture (see `options_of`); with several names, each layer takes those that it
            has, and those that begin with its name, such as ``attention.num_heads``. `block` puts the layer into a
            block with a feed-forward network (true), or not (false).

    Returns:
        The layer, or a `Stack` if there are several layers.

    Raises:
        InputError: an unknown name or option, or a size that does not fit.
    """
    _check_name(name)
    check_options(name, options)
    for argument, size in (("input_size", input_size), ("hidden_size", hidden_size), ("num_layers", num_layers)):
        check_integer(argument, size, minimum=1)  # of NumPy, too
        check_value(argument, int(size), Size)
    input_size, hidden_size, num_layers = int(input_size), int(hidden_size), int(num_layers)
    check_value("dropout", dropout, Rate)
    flags = {"bidirectional": bidirectional, "variational_dropout": variational_dropout, "residual": residual}
    for argument, value in flags.items():
        check_value(argument, value, bool)
    names = split_names(name)
    own = {layer_name: options_for(layer_name, options) for layer_name in names}
    wrapped_names = [layer_name for layer_name in names if wrap_of(layer_name, own[layer_name]) != "none"]
    if residual and wrapped_names:
        raise errors.ConflictError(
            f"model.residual: {wrapped_names[0]} has residual connections of its own; leave it out"
        )

    rates = {"dropout": dropout, "variational": variational_dropout}
    layers: list[SequenceLayer] = []
    with enough_memory(f"layer: {name} of input_size {input_size:,} and hidden_size {hidden_size:,}"):
        for layer_name in names * num_layers:
            width = layers[-1].output_size if layers else input_size
            arguments = (layer_name, width, hidden_size, own[layer_name], rates)
            directions = [_build_one(*arguments) for _ in range(1 + bidirectional)]
            layers.append(both_directions(*directions) if bidirectional else directions[0])

    # where norms come first, the sum at the top of all blocks has not been normalized by any of them
    epsilon = float(cast(float, options.get("norm_epsilon", EPSILON)))
    make_norm = partial(norm_named, str(options.get("norm", "rms")), epsilon=epsilon)
    has_final_norm = wrapped_names and options.get("norm_first", True) and options.get(FINAL_NORM.name, True)
    norm = make_norm(layers[-1].output_size) if has_final_norm else None
    between = 0.0 if len(wrapped_names) == len(names) else dropout  # blocks have dropout on their residual branches
    if len(layers) > 1 or residual or norm is not None:
        layers = [stack_of(layers, dropout=between, variational=variational_dropout, residual=residual, norm=norm)]

    # absolute positions are added once, to the inputs of the bottom layer
    bottom: list[SequenceLayer] = []
    if options.get("position") in ABSOLUTE:
        bottom = [Positions(input_size, learned=options["position"] == "learned", **accepted(Positions, options))]
        if options.get("position_norm"):
            bottom.append(Pointwise(input_size, input_size, module=make_norm(input_size)))
    return stack_of([*bottom, *layers]) if bottom else layers[0]


def _build_one(name: str, width: int, hidden_size: int, options: Options, rates: dict[str, Any]) -> SequenceLayer:
    """Build one layer with what is put around it, and a linear map before it if it cannot change the width."""
    architecture, wrap = find(name), wrap_of(name, options)
    arguments = accepted(architecture, options)
    if arguments.get("position") in ABSOLUTE:
        arguments["position"] = "none"  # absolute positions are added below all layers

    # a residual connection adds inputs to outputs, so that a narrower or wider input is mapped to the width first
    square = wrap != "none" or (issubclass(architecture, SequenceLayer) and architecture.square)
    inner = hidden_size if square else width
    plain: SequenceLayer | RecurrentCell = architecture(inner, hidden_size, **arguments)
    if isinstance(plain, RecurrentCell):
        rates_of_loop: dict[str, Any] = {key: options[key] for key in recurrent_options(type(plain)) if key in options}
        built: SequenceLayer = Recurrent(plain, **rates_of_loop)
    else:
        built = plain

    # each layer of a block has its own norm and residual connection: the named one, attention to a memory, the network
    if wrap != "none":
        layers = [built]
        if options.get("memory_size") is not None:
            layers.append(CrossAttention(hidden_size, hidden_size, **accepted(CrossAttention, options)))
        network = feed_forward(hidden_size, **accepted(feed_forward, options)) if wrap == "block" else None
        if network is not None:
            layers.append(Pointwise(hidden_size, hidden_size, module=network))
        layers = [with_residual(inside, **rates, **accepted(Residual, options)) for inside in layers]
        built = layers[0] if len(layers) == 1 else stack_of(layers)
    if inner == width:
        return built
    return stack_of([Pointwise(width, inner, module=nn.Linear(width, inner)), built])


# ---- the options of an architecture and of what is put around it


def wrap_of(name: str, options: Options) -> Wrap:
    """Return what is put around a layer: its own choice, unless the option ``block`` says otherwise."""
    block = options.get("block")
    if block is not None:
        return "block" if block else "none"
    architecture = find(name)
    return "none" if issubclass(architecture, RecurrentCell) else architecture.wrap


def options_of(name: str, options: Options | None = None) -> dict[str, Option]:
    """Return the options of one architecture, given others: what is put around it has options, too."""
    options = options or {}
    architecture, wrap = find(name), wrap_of(name, options)
    known = declared(architecture)
    # what only has an effect together with another option is no option without it, so that it cannot be given in vain
    if issubclass(architecture, RecurrentCell):
        known |= recurrent_options(architecture)
    if options.get("position") == "learned":
        known |= {"max_length": declared(Positions)["max_length"]}
    if wrap != "none":
        known |= {POSITION_NORM.name: POSITION_NORM} if options.get("position") in ABSOLUTE else {}
        known |= {FINAL_NORM.name: FINAL_NORM} if options.get("norm_first", True) else {}
        known |= {
            key: value for key, value in declared(Residual).items() if key in ("norm", "norm_first", "norm_epsilon")
        }
        memory = declared(CrossAttention)
        known |= memory if options.get("memory_size") is not None else {"memory_size": memory["memory_size"]}
    if wrap == "block":
        mixture = MIXTURE if options.get("num_experts") is None else ()
        known |= {key: value for key, value in declared(feed_forward).items() if key not in mixture}
    return known | {BLOCK.name: BLOCK}


def recurrent_options(cell: type[RecurrentCell]) -> dict[str, Option]:
    """Return the options of a recurrent cell's loop; weights are dropped only if the cell names them."""
    options = declared(Recurrent)
    return options if cell.recurrent_weights else {key: options[key] for key in options if key != WEIGHT_DROPOUT}


def options_for(name: str, options: Options) -> dict[str, Any]:
    """Return the options of one layer of a stack: those of all layers, and those that begin with its name."""
    shared = {key: value for key, value in options.items() if "." not in key}
    own = {key: value for key, value in options.items() if key.rpartition(".")[0] == name}
    return shared | {key.rpartition(".")[2]: value for key, value in own.items()}


def check_options(name: str, options: Options) -> None:
    """Raise InputError where no layer of a stack has an option, or its value does not fit."""
    known: dict[str, Option] = {}
    for layer in split_names(name):
        of_layer = options_of(layer, options_for(layer, options))
        known |= of_layer | {f"{layer}.{key}": option for key, option in of_layer.items()}
    for key, value in options.items():
        if key not in known:
            raise errors.UnknownNameError(
                f"layer {name!r} has no option {key!r}; {_condition(key) or nearest(key, list(known))}"
            )
        check_value(f"model.options.{key}", value, known[key].annotation)


def resolve_options(
    section: type[TaskOptions], stacks: Sequence[str], given: Options
) -> tuple[TaskOptions, dict[str, Any]]:
    """Share out ``model.options`` between a task and the layers of its model.

    Returns:
        The options of the task, and what is left for the layers; `check_options` checks their values.

    Raises:
        InputError: a value that does not fit the task, or a name that is nearly one of the task's.
    """
    rest = {name: value for name, value in given.items() if name not in section.model_fields}
    try:
        options = section.model_validate({name: given[name] for name in given if name not in rest})
    except ValidationError as error:
        raise errors.RangeError(f"model.options.{explain(error, given)}") from None
    known = {key for stack in stacks for layer in split_names(stack) for key in options_of(layer, rest)}
    for key in rest:
        if key not in known and get_close_matches(key, section.model_fields, cutoff=0.8):
            raise errors.UnknownNameError(
                f"model.options.{key}: no such option; {nearest(key, list(section.model_fields))}"
            )
    return options, rest


def _condition(key: str) -> str:
    """Return what an option needs, if it is one that only works together with another."""
    conditions = {
        **dict.fromkeys([*declared(Residual), *declared(feed_forward), "memory_size"], "model.options.block true"),
        **dict.fromkeys(declared(Positions), "model.options.position learned"),
        FINAL_NORM.name: "model.options.norm_first true, and a layer in a block",
        POSITION_NORM.name: "model.options.position learned or sinusoidal, and a layer in a block",
        **dict.fromkeys(MIXTURE, "model.options.num_experts"),
        WEIGHT_DROPOUT: "a recurrent cell that names weights in its class attribute recurrent_weights",
    }
    return f"it needs {conditions[key]}" if key in conditions else ""


# ---- the table of architectures


def describe(name: str) -> dict[str, object]:
    """Describe one architecture, with the defaults of its options, as one layer of width `WIDTH`.

    Returns:
        ``name``, ``keeps``, ``parallel``, ``paper``, ``hidden_size``, ``options`` (name to default), ``option_details``
        (name to ``type``, ``default``, ``range``, ``choices`` and ``help``),
        ``state_bytes`` (number of tokens to bytes) and ``path_lengths`` (steps back to operations along time, None
        where an input so far back does not reach the output).
    """
    architecture, options = find(name), options_of(name)
    return {
        "name": name,
        "keeps": architecture.keeps,
        "parallel": architecture.parallel,
        "paper": architecture.paper,
        "hidden_size": WIDTH,
        "state_bytes": state_sizes(name, TOKENS),
        "path_lengths": path_lengths(layer(name, WIDTH, WIDTH)),
        "options": {key: option.default for key, option in options.items()},
        "option_details": {key: option.describe() for key, option in options.items()},
    }


def path_lengths(built: SequenceLayer, distances: tuple[int, ...] = DISTANCES) -> dict[str, int | None]:
    """Return how many operations along time lead from inputs some steps back to the output; None for no path."""
    lengths = built.path_lengths(max(distances)).tolist()
    return {str(back): int(lengths[back]) if math.isfinite(lengths[back]) else None for back in distances}


@torch.inference_mode()
def state_sizes(name: str, tokens: tuple[int, ...]) -> dict[str, int]:
    """Return the bytes of one row's state after each number of tokens, extrapolated from states of three lengths."""
    built = layer(name, WIDTH, WIDTH).eval()
    with uncompiled():  # compiling takes longer than a thousand steps
        first, last, next_size = (state_bytes(built(torch.zeros(1, time, WIDTH))[1]) for time in (1, 500, 501))
    return {str(count): first if count == 1 else last + (count - 500) * (next_size - last) for count in tokens}

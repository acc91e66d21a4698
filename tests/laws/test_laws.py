"""The eight laws, for every registered layer: values and gradients, in float64."""

import copy
import itertools
import pickle
from collections import namedtuple
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import seriatim
from seriatim.core.contract import MemoryLayer, SequenceLayer
from seriatim.core.errors import InputError
from seriatim.core.state import detach_state, join_states, map_state, select_state, state_leaves
from seriatim.layers.registry import BUILT_IN
from seriatim.testing import check_law, check_quickly

from ..exhaustive import parameters
from ..refusals import refused
from .eight_laws import (
    BATCH,
    CAUSAL,
    DEAF,
    INPUT_SIZE,
    MEMORY_SIZE,
    WHOLE,
    assert_states_close,
    build,
    example,
    initial,
)

TIMES = parameters([1, 7, 33, 63], everyday=[33])
"""Lengths of sequences; a convolution reaches 31 steps back."""

AROUND = ("block-", "bare-", "bidirectional-")
EVERYDAY = [
    name
    for name in (*CAUSAL, *WHOLE)
    if not name.startswith(AROUND) or name.partition("-")[2] in ("gru", "mamba", "transformer")
]
CAUSAL_LAYERS, WHOLE_LAYERS = (parameters(names, everyday=EVERYDAY) for names in (CAUSAL, WHOLE))
ALL_LAYERS = [*CAUSAL_LAYERS, *WHOLE_LAYERS]


def check(name: str, law: int, time: int = 7) -> None:
    """Check a law as `seriatim.testing.check_layer` does for anybody's layer."""
    layer = build(name)
    memory = torch.randn(BATCH, 9, MEMORY_SIZE) if isinstance(layer, MemoryLayer) else None
    check_law(layer, law, time=time, memory=memory, memory_lengths=torch.tensor([9, 0, 4, 1]))


@pytest.mark.parametrize("time", TIMES)
@pytest.mark.parametrize("name", CAUSAL_LAYERS)
def test_law_1_splitting_anywhere_changes_nothing(name: str, time: int) -> None:
    check(name, 1, time)


@pytest.mark.parametrize("time", TIMES)
@pytest.mark.parametrize("name", CAUSAL_LAYERS)
def test_law_2_steps_equal_one_forward(name: str, time: int) -> None:
    check(name, 2, time)


@pytest.mark.parametrize("time", TIMES)
@pytest.mark.parametrize("name", ALL_LAYERS)
def test_law_3_padding_may_hold_nan(name: str, time: int) -> None:
    check(name, 3, time)


@pytest.mark.parametrize("name", ALL_LAYERS)
def test_law_4_an_empty_row_keeps_its_state(name: str) -> None:
    check(name, 4)


@pytest.mark.parametrize("time", TIMES)
@pytest.mark.parametrize("name", CAUSAL_LAYERS)
def test_law_5_no_output_depends_on_a_later_input(name: str, time: int) -> None:
    check(name, 5, time)


@pytest.mark.parametrize("name", CAUSAL_LAYERS)
def test_outputs_depend_on_inputs(name: str) -> None:
    """Without this, a layer that ignores its inputs would keep law 5."""
    layer = build(name)
    inputs, state = example(layer, 7)
    outputs, changed = layer(inputs, state)[0], layer(inputs + 1, state)[0]
    assert torch.equal(outputs, changed) == (name in DEAF)


@pytest.mark.parametrize("name", ALL_LAYERS)
def test_law_6_the_given_state_is_never_mutated(name: str) -> None:
    check(name, 6)


@pytest.mark.parametrize("name", CAUSAL_LAYERS)
def test_law_7_select_state_commutes_with_step(name: str) -> None:
    """Also where no gradient is recorded and a state may share memory with those before it."""
    check(name, 7)


@pytest.mark.parametrize("name", CAUSAL_LAYERS)
def test_law_8_a_saved_state_continues_identically(name: str) -> None:
    check(name, 8)


@pytest.mark.parametrize("name", ALL_LAYERS)
def test_the_quick_check_accepts_every_layer(name: str) -> None:
    layer = build(name)
    check_quickly(layer, memory=torch.randn(BATCH, 9, MEMORY_SIZE) if isinstance(layer, MemoryLayer) else None)


@pytest.mark.parametrize("name", ALL_LAYERS)
def test_a_batch_gives_what_its_rows_give_alone(name: str) -> None:
    """Over several calls, ragged ones first, each row from its own initial state."""
    layer = build(name)
    torch.manual_seed(2)
    start, calls = initial(layer), ((9, [9, 0, 4, 1]), (5, [2, 5, 0, 5]), (6, [6, 6, 6, 6]))
    pieces = [torch.randn(BATCH, time, INPUT_SIZE, dtype=torch.float64) for time, _ in calls]
    with torch.no_grad():
        alone = [select_state(start, torch.tensor([row])) for row in range(BATCH)]
        state = start
        for piece, (_, lengths) in zip(pieces, calls, strict=True):
            outputs, state = layer(piece, state, lengths=torch.tensor(lengths))
            for row, length in enumerate(lengths):
                output, alone[row] = layer(piece[row : row + 1, :length], alone[row])
                torch.testing.assert_close(outputs[row : row + 1, :length], output)
        assert_states_close(state, join_states(alone))
        if layer.causal:
            output, _ = layer.step(pieces[0][:, 0], state)
            for row in range(BATCH):
                expected, _ = layer.step(pieces[0][row : row + 1, 0], alone[row])
                torch.testing.assert_close(output[row : row + 1], expected)


@pytest.mark.parametrize("name", WHOLE_LAYERS)
def test_a_bidirectional_layer_cannot_step(name: str) -> None:
    layer = build(name)
    inputs, state = example(layer, 1)
    assert not layer.causal
    with refused("unsupported"):
        layer.step(inputs[:, 0], state)


@pytest.mark.parametrize("name", ALL_LAYERS)
def test_wrong_shapes_are_named(name: str) -> None:
    layer = build(name)
    inputs, _state = example(layer, 7)
    with refused("mismatch", "inputs"):
        layer(inputs[:, :, :-1], initial(layer))
    with refused("range", "lengths"):
        layer(inputs, initial(layer), lengths=torch.tensor([8, 1, 1, 1]))
    with refused("range", "lengths"):
        layer(inputs, initial(layer), lengths=torch.tensor([-1, 1, 1, 1]))
    for lengths in (torch.tensor([1, 1]), torch.tensor([True, True, False, True]), torch.ones(4)):
        with refused("mismatch", "lengths"):
            layer(inputs, initial(layer), lengths=lengths)
    if isinstance(layer, MemoryLayer):
        with pytest.raises(ValueError, match="needs a memory"):
            layer.initial_state(BATCH)


def calls(layer: SequenceLayer) -> list[Callable[[Any, Any], Any]]:
    """``forward`` and ``step`` as functions of inputs ``(batch, 1, width)`` and a state."""

    def step(inputs: Any, state: Any) -> Any:
        return layer.step(inputs[:, 0] if isinstance(inputs, Tensor | np.ndarray) else inputs, state)

    return [layer, step] if layer.causal else [layer]


@pytest.mark.parametrize("name", ALL_LAYERS)
def test_a_state_that_does_not_fit_is_refused(name: str) -> None:
    layer = build(name)
    inputs, state = example(layer, 7)
    for rows in ([0], [0, 1, 2, 3, 0, 1]):
        with refused("mismatch"):
            layer(inputs, select_state(state, torch.tensor(rows)))
    if layer.causal:
        with refused("mismatch"):
            layer.step(inputs[:, 0, :-1], state)
        with refused("mismatch"):
            layer.step(inputs[:, 0], select_state(state, torch.tensor([0])))


WRONG_INPUTS: dict[str, Callable[[Tensor], object]] = {
    **{kind: partial(Tensor.to, dtype=getattr(torch, kind)) for kind in ("float32", "float16", "int64", "complex128")},
    "bool": lambda inputs: inputs > 0,
    "meta": partial(Tensor.to, device="meta"),
    "NumPy": Tensor.numpy,
    "sparse": Tensor.to_sparse,
    "list": Tensor.tolist,
    "None": lambda inputs: None,
}


@pytest.mark.parametrize("name", ALL_LAYERS)
def test_inputs_of_another_type_are_refused_by_every_layer_alike(name: str) -> None:
    layer = build(name)
    inputs, state = example(layer, 1)
    for kind, change in WRONG_INPUTS.items():
        for call in calls(layer):
            with pytest.raises(
                InputError, match=r"inputs: (the type|the device|.* takes a torch.Tensor|a .* tensor)"
            ) as raised:
                call(change(inputs), state)
            assert "\n" not in str(raised.value), kind
    for batch_size in (-1, 10**30, 2.5, True, None, "4"):
        with refused("range", "initial_state"):
            initial(layer, batch_size)
    counts = torch.ones(BATCH, dtype=torch.long)
    for lengths in (counts.to("meta"), counts.to_sparse(), "text", [None] * BATCH, 3):
        with pytest.raises(InputError, match="lengths: "):
            layer(inputs, state, lengths=lengths)


@pytest.mark.parametrize("name", ALL_LAYERS)
def test_the_state_of_another_kind_is_refused(name: str) -> None:
    """Also where the shapes agree, because the numbers mean something else; and a state of another type of numbers."""
    layer = build(name)
    inputs, state = example(layer, 1)
    others: list[object] = [
        *([(state, state), (state,), namedtuple("Foreign", ["layer"])(state)]),
        *([namedtuple("Foreign", [f"part{i}" for i in range(len(state))])(*state)] if isinstance(state, tuple) else []),
    ]
    if state_leaves(state):
        changes: tuple[Callable[[Tensor], object], ...] = (
            Tensor.float,
            partial(Tensor.to, device="meta"),
            Tensor.to_sparse,
        )
        others += [map_state(change, state) for change in changes]
        others += [list(state_leaves(state)), state_leaves(state)[0].numpy()]
    for call in calls(layer):
        for other in others:
            with pytest.raises(InputError, match="state"):
                call(inputs, other)
    if layer.causal:
        with refused("range", "state"):
            layer.step(inputs[:, 0], None)


def composed(name: str) -> dict[str, SequenceLayer]:
    """Layers of an architecture that are made of others."""
    parts = {
        "two layers": {"num_layers": 2, "block": False},
        "two blocks": {"num_layers": 2, "block": True},
        "residual": {"num_layers": 2, "residual": True},
        "both directions": {"bidirectional": True, "block": False},
    }
    parts = {key: options for key, options in parts.items() if "residual" not in options or name in ("gru", "lstm")}
    return {key: seriatim.layer(name, 6, 6, **options) for key, options in parts.items()}


def test_no_layer_takes_the_state_of_another_architecture() -> None:
    """Where a state has several parts; a single tensor does not say what it is."""
    names = [name for name in BUILT_IN if name != "transformer"]
    alone = {name: {"alone": seriatim.layer(name, 6, 6, block=False)} for name in names}
    layers = {name: {**alone[name], **composed(name)} for name in names}
    states = {name: {key: layer.initial_state(2) for key, layer in made.items()} for name, made in layers.items()}
    for name, other in itertools.permutations(names, 2):
        for key, layer in layers[name].items():
            foreign = [states[other][key], tuple(states[other][key])] if key in states[other] else []
            for state in [*foreign, states[other]["two layers"]] if isinstance(states[name][key], tuple) else ():
                with refused("mismatch", "state"):
                    layer(torch.zeros(2, 1, 6), state)


@pytest.mark.parametrize("name", ["gru", "lstm", "mamba", "s4", "convolution", "attention"])
def test_states_of_layers_made_of_others_can_be_copied_and_pickled(name: str) -> None:
    for layer in composed(name).values():
        state = detach_state(layer(torch.ones(2, 3, 6))[1])
        for same in (copy.deepcopy(state), pickle.loads(pickle.dumps(state)), map_state(torch.clone, state)):
            assert type(same) is type(state)
            torch.testing.assert_close(layer(torch.ones(2, 1, 6), same), layer(torch.ones(2, 1, 6), state))


@pytest.mark.parametrize(
    ("name", "options", "other"),
    [
        ("prior", {}, torch.zeros(2, 6)),
        ("window", {"context": 1}, torch.zeros(2, 3, 6)),
        ("convolution", {"kernel_size": 1}, seriatim.layer("convolution", 6, 6).initial_state(2)),
        ("mamba", {"kernel_size": 1}, seriatim.layer("mamba", 6, 6).initial_state(2)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_empty_part_that_does_not_grow_stays_empty(name: str, options: dict[str, int], other: Any) -> None:
    for call in calls(seriatim.layer(name, 6, 6, **options)):
        with refused("mismatch", "state"):
            call(torch.zeros(2, 1, 6), other)


@pytest.mark.parametrize("name", ALL_LAYERS)
def test_autocast_accepts_what_it_converts(name: str) -> None:
    layer = build(name).float()
    inputs, state = torch.randn(BATCH, 1, INPUT_SIZE), initial(layer)
    with torch.autocast("cpu", torch.bfloat16):
        for call in calls(layer):
            for given in (inputs, inputs.bfloat16()):
                outputs, after = call(given, state)
                assert outputs.isfinite().all()
                call(given, after)
            with refused("mismatch", "inputs"):
                call(inputs.double(), state)


@pytest.mark.parametrize(
    "name", [None, 5, [], b"lstm", "", "lstm,", "LSTM", seriatim.RecurrentCell, torch.nn.LSTM], ids=str
)
def test_a_name_that_is_none_is_refused(name: object) -> None:
    with pytest.raises(InputError, match="layer"):
        seriatim.layer(name, 4, 5)
    if not isinstance(name, str):
        for use in (seriatim.layers.find, seriatim.layers.options_of):
            with refused("range", "layer"):
                use(name)


@pytest.mark.parametrize("size", [0, -1, True, 2.5, None, "4", [4], 2**40, float("nan"), np.float64(4)], ids=str)
def test_sizes_that_are_none_are_refused(size: object) -> None:
    for arguments in ({"input_size": size}, {"hidden_size": size}, {"num_layers": size}):
        with refused("range", next(iter(arguments))):
            seriatim.layer("lstm", **{"input_size": 4, "hidden_size": 5, **arguments})


@pytest.mark.parametrize("name", ["lstm", "s4", "mamba", "transformer"])
def test_sizes_beyond_the_memory_are_refused_in_one_line(name: str) -> None:
    with refused("size", "layer") as raised:
        seriatim.layer(name, 2**30, 2**30)
    assert "\n" not in str(raised.value)
    with refused("size"):
        seriatim.layer("lstm", 4, 4).initial_state(2**60)


def test_parts_of_a_layer_are_layers() -> None:
    for make in (
        lambda: seriatim.Stack(5),
        lambda: seriatim.Stack([seriatim.layer("gru", 4, 4), torch.nn.GRU(4, 4)]),
        lambda: seriatim.Bidirectional(None, seriatim.layer("gru", 4, 4)),
    ):
        with refused("range", "layers"):
            make()


def test_sizes_and_rows_may_be_integers_of_numpy() -> None:
    layer = seriatim.layer("lstm", np.int64(4), np.int32(5), num_layers=np.uint8(2))
    assert type(layer.output_size) is int
    assert layer(torch.zeros(2, 3, 4), layer.initial_state(np.int64(2)), lengths=np.array([3, 1]))[0].shape == (2, 3, 5)


@pytest.mark.parametrize(
    "option", [{"bidirectional": "yes"}, {"bidirectional": 2}, {"residual": None}, {"variational_dropout": 1}], ids=str
)
def test_switches_are_true_or_false(option: dict[str, object]) -> None:
    with refused("range", next(iter(option))):
        seriatim.layer("gru", 4, 4, **option)

"""Recording a model does not change its results, and leaves no hooks behind."""

import functools
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

import seriatim
from seriatim.compiler.module_cache import HOOKS
from seriatim.inspection.alignment import Aligned, aligned_map
from seriatim.inspection.attention_maps import attention_map, attention_maps
from seriatim.inspection.gates import experts_map, gate_chart, gates, unit_switch
from seriatim.inspection.gradient_flow import gradient_flow, gradient_flow_chart
from seriatim.inspection.recording import primitive_layers
from seriatim.inspection.recording import unrolled as unrolled_with
from seriatim.models.attention_decoder import bahdanau_decoder, luong_decoder
from seriatim.recurrence import uncompiled

from ..conftest import small_config
from ..exhaustive import parameters
from ..laws.eight_laws import VARIANTS, WHOLE, assert_states_close, build, example, initial
from ..refusals import refused

unrolled = functools.partial(unrolled_with, watch=nullcontext)
LENGTHS = (None, [7, 0, 4, 1], [0, 0, 0, 0])


def assert_bare(model: torch.nn.Module) -> None:
    """Check that no hook and no replaced method is left."""
    for part in model.modules():
        assert not any(getattr(part, name) for name in HOOKS)
        assert "step" not in vars(part)


NAMES = [
    *seriatim.layers.names(),
    *(name for name in (*VARIANTS, *WHOLE) if not name.startswith(("bare-", "block-", "bidirectional-"))),
    *(
        "block-lstm",
        "block-convolution",
        "bidirectional-gru",
        "bidirectional-mamba",
        "bidirectional-transformer",
        "cell",
    ),
]


@pytest.fixture(autouse=True)
def _uncompiled() -> Iterator[None]:
    """Disable compiled code, which has tests of its own."""
    with uncompiled():
        yield


EVERYDAY = (
    *("lstm", "gru", "mamba", "attention", "transformer", "convolution", "stack", "encoder", "cell"),
    *("block-lstm", "bidirectional-gru", "bidirectional-transformer"),
)


@pytest.mark.parametrize("name", parameters(NAMES, everyday=EVERYDAY))
def test_unrolled_gives_the_same(name: str) -> None:
    layer = build(name)
    inputs, state = example(layer, 7)
    before = layer(inputs, state)[0]
    for lengths in LENGTHS:
        given = None if lengths is None else torch.tensor(lengths)
        expected, end = layer(inputs, state, lengths=given)
        with unrolled(layer) as recorded:
            found, other_end = layer(inputs, state, lengths=given)
        torch.testing.assert_close(found, expected)
        assert_states_close(other_end, end)
        assert_bare(layer)
        if lengths is None:
            assert all(len(steps.states) == 7 for steps in recorded)
    assert torch.equal(layer(inputs, state)[0], before)


@pytest.mark.parametrize("kind", parameters(["gru", "lstm", "mgu", "transformer"], everyday=["lstm", "transformer"]))
@pytest.mark.parametrize("decoder", [luong_decoder, bahdanau_decoder])
def test_steps_that_a_decoder_calls_are_recorded(decoder: type, kind: str) -> None:
    torch.manual_seed(0)
    feeding = {"input_feeding": True} if decoder is luong_decoder else {}
    made = decoder(lambda width: seriatim.layer(kind, width, 8, num_layers=2), 5, 8, score="dot", **feeding)
    made = made.double().eval()
    state = made.initial_state(3, torch.randn(3, 4, 8, dtype=torch.float64))
    inputs = torch.randn(3, 6, 5, dtype=torch.float64)
    expected, _ = made(inputs, state)
    with unrolled(made) as recorded:
        found, _ = made(inputs, state)
    torch.testing.assert_close(found, expected)
    assert [len(steps.states) for steps in recorded] == [6, 6]
    assert_bare(made)


def test_an_error_leaves_nothing_behind() -> None:
    layer = build("stack")
    with refused("mismatch", "inputs"), unrolled(layer):
        layer(torch.ones(1, 2, 4, dtype=torch.float64))
    assert_bare(layer)


def test_names_of_leaves_say_where_they_are() -> None:
    names = [leaf.name for leaf in primitive_layers(seriatim.layer("gru", 3, 4, num_layers=2, bidirectional=True))]
    assert names == [f"layer {n}, {way}: gru" for n in (1, 2) for way in ("forwards", "backwards")]
    names = [leaf.name for leaf in primitive_layers(seriatim.layer("transformer,mgu", 8, 8, memory_size=3))]
    assert names == [
        "layer 1: transformer",
        "layer 1: cross attention",
        "layer 1: feed forward",
        "layer 2: mgu",
    ]


def test_initial_states_are_passed_to_the_first_step() -> None:
    layer = build("lstm")
    start = initial(layer)
    with unrolled(layer) as (steps,):
        layer(torch.ones(4, 3, 5, dtype=torch.float64), start)
    assert steps.before is start


TEXT = "the cat sees the moon .\na dog"


@pytest.mark.parametrize("inspect", [gradient_flow, gates, attention_maps])
def test_inspection_does_not_change_a_run(texts: dict[str, str], tmp_path: Path, inspect: Callable) -> None:
    model = {"layer": "mingru,transformer", "options": {"num_experts": 2}}
    run = seriatim.train(small_config(texts, tmp_path / "run", model=model, training={"steps": 1}))
    before = [score.log_probability for score in run.score(["the cat", "a dog"])]
    inspect(run, TEXT)
    assert [score.log_probability for score in run.score(["the cat", "a dog"])] == before
    assert_bare(run.model)
    assert not run.model.training
    assert all(parameter.grad is None and parameter.requires_grad for parameter in run.model.parameters())


@pytest.mark.exhaustive
def test_figures_are_drawn_from_the_results(texts: dict[str, str], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from seriatim.pages.chart_svg import draw

    model = {"layer": "mingru,transformer,mamba", "options": {"num_experts": 2, "num_heads": 2, "state_size": 2}}
    run = seriatim.train(small_config(texts, tmp_path / "run", model=model, training={"steps": 1}))
    flow, opened, maps = (inspect(run, TEXT) for inspect in (gradient_flow, gates, attention_maps))
    figures = [
        *map(gradient_flow_chart, flow.layers),
        *map(gate_chart, opened.gates),
        *(chart for units in opened.units for _, chart in unit_switch(units).choices),
        *map(experts_map, opened.choices),
        *map(attention_map, maps.maps),
        aligned_map(Aligned("greedy $", "", 0.0, "ab", "abc", [[0.5, 0.5], [0.0, 1.0], [1.0, 0.0]])),
    ]
    assert len(figures) == 11
    for i, figure in enumerate(figures):
        assert draw(figure, f"figure-{i}").svg.startswith("<svg")

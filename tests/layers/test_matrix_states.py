"""Matrix states: the kernels and all layers in chunks of time against their steps, and gates that close."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import seriatim
from seriatim.layers.delta_rule import delta_scan, delta_step
from seriatim.layers.matrix_layer import MatrixLayer
from seriatim.layers.matrix_states import matrix_scan, matrix_step
from seriatim.layers.registry import BUILT_IN

from ..refusals import refused

NAMES = [name for name, kind in BUILT_IN.items() if issubclass(kind, MatrixLayer)]
DECAYS = ["none", "scalar", "vector"]


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(1)


def leaf(*sizes: int) -> Tensor:
    return torch.randn(*sizes, dtype=torch.float64, requires_grad=True)


def keys(*sizes: int) -> Tensor:
    return F.normalize(leaf(*sizes), dim=-1).detach().requires_grad_()


def decays(kind: str, batch: int, time: int, heads: int, size: int, strength: float = 1.0) -> Tensor | None:
    """Of about one half, and in the middle one that deletes everything."""
    if kind == "none":
        return None
    made = -strength * torch.rand(batch, time, heads, size, dtype=torch.float64)
    made[:, time // 2] = -1e4
    return (made if kind == "vector" else made[..., 0]).requires_grad_()


def stepwise(step, sequences, state: Tensor, **named: Tensor | None) -> tuple[Tensor, Tensor]:
    """The obvious loop."""
    outputs = []
    for t in range(sequences[0].shape[1]):
        at_t = [None if x is None else x[:, t] for x in sequences]
        output, state = step(*at_t, state, **{key: None if x is None else x[:, t] for key, x in named.items()})
        outputs.append(output)
    return torch.stack(outputs, dim=1), state


def assert_same(found, expected, sources: list[Tensor]) -> None:
    """Values, and gradients of a fixed random function of them."""
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
    draw = torch.Generator().manual_seed(3)
    weights = [torch.randn(x.shape, generator=draw, dtype=x.dtype) for x in found]
    ours, theirs = (
        torch.autograd.grad(sum((x * w).sum() for x, w in zip(pair, weights, strict=True)), sources)
        for pair in (found, expected)
    )
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("groups", [4, 2])
@pytest.mark.parametrize("kind", DECAYS)
@pytest.mark.parametrize("time", [1, 5, 64, 150])
def test_matrix_states_in_chunks_are_their_steps(time: int, kind: str, groups: int) -> None:
    sequences = [leaf(2, time, groups, 6), leaf(2, time, groups, 6), leaf(2, time, 4, 3), decays(kind, 2, time, 4, 6)]
    state = leaf(2, 4, 6, 3)
    sources = [x for x in (*sequences, state) if x is not None]
    assert_same(matrix_scan(*sequences, state), stepwise(matrix_step, sequences, state), sources)


@pytest.mark.parametrize("erased", ["at the keys", "elsewhere"])
@pytest.mark.parametrize("kind", DECAYS)
@pytest.mark.parametrize("time", [1, 5, 64, 150])
def test_the_delta_rule_in_chunks_is_its_steps(time: int, kind: str, erased: str) -> None:
    q, k, v, read, state = leaf(2, time, 4, 6), keys(2, time, 4, 6), leaf(2, time, 4, 3), None, leaf(2, 4, 6, 3)
    read = (0.9 * k.detach()).requires_grad_()  # what it reads it erases, so that the state does not grow
    sequences = [q, k, v, read, decays(kind, 2, time, 4, 6)]
    named = {} if erased == "at the keys" else {"erase": k.detach().clone().requires_grad_()}
    sources = [x for x in (*sequences, state, *named.values()) if x is not None]
    assert_same(delta_scan(*sequences, state, **named), stepwise(delta_step, sequences, state, **named), sources)


@pytest.mark.parametrize("scan", ["matrix", "delta"])
@pytest.mark.parametrize("kind", DECAYS)
def test_chunks_take_views_and_leave_them_alone(kind: str, scan: str) -> None:
    q, k, v = (leaf(70, 4, 2, 6).detach().permute(2, 0, 1, 3) for _ in range(3))
    g = decays(kind, 2, 70, 4, 6)
    given = [q, k / 9, v, *([k / 9] if scan == "delta" else []), g, leaf(1, 4, 6, 6).detach().expand(2, 4, 6, 6)]
    before = [None if x is None else x.detach().clone() for x in given]
    run, step = (matrix_scan, matrix_step) if scan == "matrix" else (delta_scan, delta_step)
    torch.testing.assert_close(run(*given), stepwise(step, given[:-1], given[-1]))
    assert all(x is None or torch.equal(x, y) for x, y in zip(given, before, strict=True))


def stirred(name: str, **options: object) -> seriatim.SequenceLayer:
    """A layer with two heads, with random parameters, as after a training."""
    layer = seriatim.layer(name, 6, 8, block=False, num_heads=2, **options).double()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return layer


OPTIONS = [
    *((name, {}) for name in NAMES),
    ("mamba2", {"num_groups": 2, "bias": False, "kernel_size": 1}),
    ("gated-deltanet", {"num_key_heads": 1, "head_size": 5, "expansion": 2}),
    ("deltaproduct", {"num_products": 3, "negative_eigenvalues": True}),
    ("kda", {"negative_eigenvalues": True}),
]


@pytest.mark.parametrize(("name", "options"), OPTIONS)
def test_layers_in_chunks_are_their_steps(name: str, options: dict[str, object]) -> None:
    layer, inputs = stirred(name, **options), leaf(2, 70, 6)
    with torch.no_grad():
        _, start = layer(torch.randn(2, 3, 6, dtype=torch.float64))
    steps, state = [], start
    for x in inputs.unbind(1):
        y, state = layer.step(x, state)
        steps.append(y)
    outputs, end = layer(inputs, start)
    assert_same((outputs, end[-1]), (torch.stack(steps, dim=1), state[-1]), [inputs, *layer.parameters()])
    torch.testing.assert_close(end[:-1], state[:-1])


@pytest.mark.parametrize("name", NAMES)
def test_gates_of_any_size_cause_no_nan(name: str) -> None:
    """Pre-activations reach ±10⁴, in one call and in two."""
    layer = stirred(name).float()
    inputs = 1e4 * torch.randn(2, 80, 6)
    for split in (80, 33):
        x, state, total = inputs.clone().requires_grad_(), None, torch.zeros(())
        for piece in x.split(split, dim=1):
            outputs, state = layer(piece, state)
            assert outputs.isfinite().all()
            total = total + outputs.sum()
        found = torch.autograd.grad(total + state[-1].sum(), [x, *layer.parameters()])
        assert all(gradient.isfinite().all() for gradient in found)


@pytest.mark.parametrize("name", NAMES)
def test_heads_that_do_not_divide_the_width_are_refused(name: str) -> None:
    with refused("range", "model.options.num_heads"):
        seriatim.layer(name, 8, 8, num_heads=3)


def test_other_sizes_that_do_not_fit_are_refused() -> None:
    for name, option, value in [
        ("mamba2", "num_groups", 3),
        ("mamba2", "state_size", 0),
        ("gated-deltanet", "num_key_heads", 3),
        ("gated-deltanet", "head_size", 0),
        ("deltaproduct", "num_products", 0),
        ("kda", "kernel_size", 0),
        ("retnet", "expansion", 0),
    ]:
        with refused("range", option):
            seriatim.layer(name, 8, 8, num_heads=4, **{option: value})


@pytest.mark.parametrize("name", NAMES)
def test_the_matrix_of_a_narrow_model_is_float32(name: str) -> None:
    layer = seriatim.layer(name, 6, 8, block=False).bfloat16()
    inputs = torch.randn(2, 5, 6, dtype=torch.bfloat16)
    outputs, state = layer(inputs)
    step, after = layer.step(inputs[:, 0], state)
    assert (outputs.dtype, step.dtype) == (torch.bfloat16, torch.bfloat16)
    assert state[-1].dtype == after[-1].dtype == torch.float32


@pytest.mark.parametrize("name", NAMES)
def test_one_step_is_one_call_of_compiled_code(name: str) -> None:
    assert "one call of compiled code" in seriatim.recurrence.explain(seriatim.layer(name, 8, 8, num_heads=2))

"""The loop as Triton kernels against the plain loop: on a GPU where there is one, else by Triton's interpreter."""

from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seriatim.compiler.buffers import Buffer, BufferKind
from seriatim.compiler.triton import emit_triton
from seriatim.core.contract import RecurrentCell
from seriatim.core.state import State, map_state, state_leaves
from seriatim.recurrence import Zoneout, compiled_modules, conditions, explain, fast_path, triton_runner, unroll
from seriatim.recurrence.packing import pack
from seriatim.recurrence.recurrent import loop

from ..layers.recurrences import build

pytest.importorskip("triton")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
B, D, H = 3, 5, 6


@pytest.fixture(autouse=True)
def _triton(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every tensor takes Triton's path; what the interpreter computes behind a mask may be infinite."""
    for module in (conditions, fast_path, compiled_modules):
        monkeypatch.setattr(module, "on_gpu", lambda tensor: True)
    if DEVICE == "cpu":
        monkeypatch.setenv("TRITON_INTERPRET", "1")
    with np.errstate(all="ignore"):
        yield


class Written(RecurrentCell):
    """A cell that is one function of (cell, inputs, *state) to the new state, whose first part is the output."""

    def __init__(self, equations: Callable[..., tuple[Tensor, ...]], parts: int = 1) -> None:
        super().__init__()
        self.input_size, self.output_size, self.parts, self.equations = D, H, parts, equations
        self.w, self.u, self.v = nn.Linear(D, 2 * H), nn.Linear(H, 2 * H, bias=False), nn.Linear(D + H, H)
        self.gain = nn.Parameter(torch.rand(H) + 0.5)

    def initial_state(self, batch_size: int) -> State:
        return tuple(self.zeros(batch_size, H) for _ in range(self.parts))

    def forward(self, inputs: Tensor, state: State) -> tuple[Tensor, State]:
        new = self.equations(self, inputs, *state)
        return new[0], new


def joined(cell: Written, x: Tensor, h: Tensor) -> tuple[Tensor]:
    ramp = torch.linspace(0, 1, H, dtype=h.dtype, device=h.device)
    return (h + torch.tanh(cell.v(torch.cat([x, cell.gain * h], dim=1)) + ramp),)


def shifted(cell: Written, x: Tensor, h: Tensor) -> tuple[Tensor]:
    """What is stored lies across what is loaded."""
    a, b = (cell.w(x) + cell.u(h)).chunk(2, dim=1)
    return (torch.cat([a[:, 2:] * b[:, :4], torch.sigmoid(b[:, 4:])], dim=1) + torch.cat([h[:, 1:], h[:, :1]], dim=1),)


def attending(cell: Written, x: Tensor, h: Tensor, m: Tensor) -> tuple[Tensor, Tensor]:
    """Softmax over features, with a maximum and sums of a row and a product of its result."""
    scores, values = (cell.w(x) + cell.u(h)).chunk(2, dim=1)
    weights = torch.softmax(scores * cell.gain, dim=1)
    m = m + (weights * values).sum(1, keepdim=True) * weights
    return torch.tanh(cell.v(torch.cat([x, m], dim=1))), m


def everything(cell: Written, x: Tensor, h: Tensor) -> tuple[Tensor]:
    """Every function that kernels know."""
    a, b = (cell.w(x) + cell.u(h)).chunk(2, dim=1)
    steep, low = 8 * a, 0.01 * b
    total = torch.expm1(a) + torch.log1p(b * b) + F.softplus(steep) + torch.exp(low) + torch.log(2 + torch.cos(a))
    total = total + torch.sin(b) + F.gelu(a) + torch.sqrt(1 + h * h) + torch.abs(b) + torch.sign(a) * low
    total = total + torch.maximum(a, b) * torch.minimum(h, b) + (2 + a * a) ** -1.5 + b**3 + (a - 3) ** 5.0
    total = total + torch.where(a > b, a, low) + F.elu(a) + F.leaky_relu(b) + a.clamp(-0.5, 0.5) + (a.detach() * b)
    total = total + torch.expm1(0.001 * a) + torch.log1p(0.001 * b) + torch.tanh(0.001 * b) + F.logsigmoid(steep)
    return (cell.gain * torch.tanh(total / (1 + total.amax(1, keepdim=True).abs())),)


CELLS = {
    **{name: lambda name=name: build(name).cell for name in ("lstm-peephole", "gru-original", "lstm-layernorm")},
    "joined": lambda: Written(joined).double(),
    "shifted": lambda: Written(shifted).double(),
    "attending": lambda: Written(attending, parts=2).double(),
    "everything": lambda: Written(everything).double(),
}

Found = tuple[list[Tensor], tuple[Tensor, ...]]


def both(cell: RecurrentCell, time: int, lengths: Tensor | None, dtype: torch.dtype = torch.float64) -> list[Found]:
    """Values and gradients of the fast path and of the loop."""
    assert "runs in compiled code" in explain(cell)
    torch.manual_seed(2)
    x = torch.randn(B, time, D, device=DEVICE, dtype=dtype).requires_grad_()
    state = map_state(lambda leaf: torch.randn_like(leaf).requires_grad_(), cell.initial_state(B))
    sources = [x, *state_leaves(state), *cell.parameters()]
    found = []
    for outputs, end in (unroll(cell, x, state, lengths), loop(cell, x, state, lengths, output_size=cell.output_size)):
        values = [outputs, *state_leaves(end)]
        torch.manual_seed(3)
        total = sum((value * torch.randn(value.shape).to(value)).sum() for value in values)
        found.append((values, torch.autograd.grad(total, sources, allow_unused=True, materialize_grads=True)))
    return found


def agree(found: list[Found], tolerance: float) -> None:
    for mine, theirs in zip(*found, strict=True):
        for a, b in zip(mine, theirs, strict=True):
            torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    "lengths", [pytest.param(None, id="full", marks=pytest.mark.exhaustive), pytest.param([2, 0, 4], id="ragged")]
)
@pytest.mark.parametrize("name", CELLS)
def test_kernels_are_the_loop_in_values_and_gradients(name: str, lengths: list[int] | None) -> None:
    torch.manual_seed(1)
    cell = CELLS[name]().to(DEVICE)
    agree(both(cell, 4, None if lengths is None else torch.tensor(lengths)), 1e-10)


@pytest.mark.parametrize("name", ["lstm-peephole", "shifted", "attending"])
def test_programs_may_share_columns(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emit_triton, "COLUMNS", 4)
    torch.manual_seed(1)
    agree(both(CELLS[name]().to(DEVICE), 3, torch.tensor([3, 1, 2])), 1e-10)


@pytest.mark.parametrize("name", ["lstm-peephole", "everything"])
def test_single_precision(name: str) -> None:
    torch.manual_seed(1)
    agree(both(CELLS[name]().float().to(DEVICE), 3, None, torch.float32), 2e-4)


def test_small_values_keep_their_digits_in_single_precision() -> None:
    def small(cell: Written, x: Tensor, h: Tensor) -> tuple[Tensor]:
        a, b, c = (1e-4 * h).chunk(3, dim=1)
        return (torch.cat([torch.tanh(a), torch.expm1(b), torch.log1p(c)], dim=1) + 0 * x.sum(1, keepdim=True),)

    torch.manual_seed(1)
    cell = Written(small).to(DEVICE)
    h = torch.randn(B, H, device=DEVICE)
    (outputs, _), (expected, _) = (
        unroll(cell, torch.zeros(B, 2, D, device=DEVICE), (h,)),
        loop(cell, torch.zeros(B, 2, D, device=DEVICE), (h,), None, output_size=H),
    )
    torch.testing.assert_close(outputs, expected, rtol=1e-6, atol=0)


def test_under_autocast_products_are_reduced_and_states_are_not() -> None:
    torch.manual_seed(1)
    cell = CELLS["lstm-peephole"]().float().to(DEVICE)
    exact, _ = both(cell, 3, None, torch.float32)
    with torch.autocast(DEVICE, torch.bfloat16):
        reduced, _ = both(cell, 3, None, torch.float32)
    assert all(value.dtype == torch.float32 for value in reduced[0])
    assert not torch.equal(exact[0][0], reduced[0][0])
    agree([exact, reduced], 0.1)


def test_gradients_may_be_taken_twice_of_one_graph() -> None:
    cell = CELLS["gru-original"]().to(DEVICE)
    x = torch.randn(B, 3, D, device=DEVICE, dtype=torch.float64, requires_grad=True)
    outputs, _ = unroll(cell, x, cell.initial_state(B))
    first, second = (torch.autograd.grad(outputs.sum(), [x, *cell.parameters()], retain_graph=True) for _ in range(2))
    for a, b in zip(first, second, strict=True):
        assert torch.equal(a, b)


def test_noise_is_drawn_anew_for_every_row_and_step() -> None:
    cell = Zoneout(CELLS["joined"](), 0.5).to(DEVICE).train()
    x = torch.randn(B, 5, D, device=DEVICE, dtype=torch.float64)
    outputs, _ = unroll(cell, x, cell.initial_state(B))
    held = outputs[:, 1:] == outputs[:, :-1]
    assert held.any()
    assert not held.all()
    assert len({tuple(row.flatten().tolist()) for row in held}) == B


def test_without_triton_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conditions, "missing_triton", lambda device: "Triton is not installed")
    assert explain(CELLS["joined"]().to(DEVICE)).endswith(f"runs as a loop: on {DEVICE}, and Triton is not installed")


def test_a_loop_on_the_same_memory_is_captured_once_and_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is no GPU, what is captured is the work itself: all that it needs is in memory."""
    captures = []
    if DEVICE == "cpu":
        monkeypatch.setattr(triton_runner, "can_capture", lambda like: True)
        monkeypatch.setattr(triton_runner, "capture", lambda work: captures.append(work) or work)
    torch.manual_seed(1)
    cell = CELLS["lstm-peephole"]().to(DEVICE)
    step, weights = conditions.functional_step(cell)
    inputs = torch.zeros(B, D, device=DEVICE).double()
    runner = fast_path.compiled_loop(cell, step, weights, inputs, cell.initial_state(B))
    constants, reused = [value.to(runner.dtype) for value in runner.traced.constants(weights)], {}
    for lengths in (None, None, None, torch.tensor([3, 1, 2]), None):
        packing = pack(B, 3, lengths).to(torch.device(DEVICE))
        x = torch.randn(B, 3, D, device=DEVICE, dtype=torch.float64)
        expected, _ = loop(cell, x, cell.initial_state(B), lengths, output_size=H)
        groups = runner.hoisted(constants, packing.join(x), packing)
        storage = {Buffer(BufferKind.HOISTED, i): group for i, group in enumerate(groups)}
        for i, width in enumerate(runner.program.state_widths):
            storage[Buffer(BufferKind.STATES, i)] = x.new_zeros(B + B * 3, width)
        storage |= {Buffer(BufferKind.VECTOR, i): constants[i].reshape(-1).contiguous() for i in runner.vectors}
        storage |= {Buffer(BufferKind.MATRIX, i): constants[i] for i in runner.matrices}
        for buffer, tensor in storage.items():  # the same tensors every time
            whole = reused.setdefault(buffer, tensor.new_zeros(max(tensor.shape[0], B * 4), *tensor.shape[1:]))
            whole[: len(tensor)] = tensor
            storage[buffer] = whole if buffer.kind in (BufferKind.STATES, BufferKind.HOISTED) else tensor
        with torch.no_grad():
            runner.call(packing, storage, x, backward=False)
        outputs = storage[runner.program.output.buffer][B : B + packing.rows]
        torch.testing.assert_close(packing.split(outputs), expected, rtol=1e-10, atol=1e-10)
    replayed = [replay for replay in runner.replays.graphs.values() if replay]
    assert len(replayed) == 1
    assert DEVICE == "cuda" or len(captures) == 1


def test_what_cannot_be_captured_runs_step_by_step_and_says_so_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(work: Callable[[], None]) -> None:
        raise RuntimeError("operation not permitted when stream is capturing\nmore")

    monkeypatch.setattr(triton_runner, "capture", refuse)
    replays, done = triton_runner.Replays(), []
    replays.run("key", lambda: done.append(1))
    with pytest.warns(UserWarning, match="runs step by step: operation not permitted when stream is capturing$"):
        replays.run("key", lambda: done.append(2))
    replays.run("key", lambda: done.append(3))
    assert done == [1, 2, 3]


def test_what_was_replayed_longest_ago_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_runner, "capture", lambda work: work)
    monkeypatch.setattr(triton_runner, "MAX_GRAPHS", 3)
    replays, done = triton_runner.Replays(), []
    for key in (0, 0, 1, 2, 0, 3, 4, 0):
        replays.run(key, lambda key=key: done.append(key))
    assert done == [0, 0, 1, 2, 0, 3, 4, 0]
    assert list(replays.graphs) == [3, 4, 0]
    assert replays.graphs[0] is not None

"""Compare the compiled loop of a cell whose state holds matrices with the plain loop over the same cell.

    python benchmarks/matrix_states.py [--repeats 7]

The cells are the delta rule as `docs/own-cell.md` writes it, the same with decay, norm and output projection, and a
recurrence with a product of the state and a matrix. The training is forward and backward in float32, with gradients of
inputs and all parameters, for 8 sequences of 256 inputs of width 128 and two heads of 64 × 64. Before they are timed,
values and gradients of both are compared.
"""

import argparse

import machine
import record
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import seriatim
from seriatim.recurrence import uncompiled

BATCH, TIME, WIDTH, HEADS = 8, 256, 128, 2
SIZE = WIDTH // HEADS


class DeltaRule(seriatim.RecurrentCell):
    """The delta rule in ten lines."""

    def __init__(self) -> None:
        super().__init__()
        self.input_size = self.output_size = WIDTH
        self.projections, self.beta = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, HEADS)

    def initial_state(self, batch_size: int) -> Tensor:
        return self.zeros(batch_size, HEADS, SIZE, SIZE)

    def projected(self, inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = self.projections(inputs).view(-1, 3, HEADS, SIZE).unbind(1)
        return F.normalize(q, dim=-1), F.normalize(k, dim=-1), v

    def forward(self, inputs: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        q, k, v = self.projected(inputs)
        error = v - torch.einsum("bhkv,bhk->bhv", state, k)
        beta = torch.sigmoid(self.beta(inputs)).unsqueeze(-1)
        state = state + torch.einsum("bhk,bhv->bhkv", k, beta * error)
        return torch.einsum("bhkv,bhk->bhv", state, q).flatten(1), state


class GatedDeltaRule(DeltaRule):
    """A decay for each channel of a key, and a norm, a gate and a projection of the outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.decay, self.gate, self.o_proj = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.norm = nn.RMSNorm(SIZE)

    def forward(self, inputs: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        state = state * torch.exp(-F.softplus(self.decay(inputs))).view(-1, HEADS, SIZE, 1)
        outputs, state = super().forward(inputs, state)
        outputs = self.norm(outputs.view(-1, HEADS, SIZE)).flatten(1) * F.silu(self.gate(inputs))
        return self.o_proj(outputs), state


class MatrixRecurrent(DeltaRule):
    """A product of the state with a matrix for each head: S = f S + (1 − f) tanh(S W + k vᵀ)."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.eye(SIZE).repeat(HEADS, 1, 1))

    def forward(self, inputs: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        q, k, v = self.projected(inputs)
        f = torch.sigmoid(self.beta(inputs)).view(-1, HEADS, 1, 1)
        state = f * state + (1 - f) * torch.tanh(state @ self.w + k.unsqueeze(-1) * v.unsqueeze(-2))
        return torch.einsum("bhkv,bhk->bhv", state, q).flatten(1), state


CELLS = {"the delta rule": (DeltaRule, 10), "a gated delta rule": (GatedDeltaRule, 10), "M2RNN": (MatrixRecurrent, 1)}
"""The cells, and how many times as fast as its loop each must be."""


def training(cell: seriatim.RecurrentCell, inputs: Tensor, cotangent: Tensor) -> tuple[Tensor, ...]:
    """Return the outputs and all gradients."""
    outputs, _ = seriatim.Recurrent(cell)(inputs)
    return outputs.detach(), *torch.autograd.grad(outputs, [inputs, *cell.parameters()], cotangent)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7, help="how many times each side runs")
    repeats = parser.parse_args().repeats
    print(machine.describe())
    torch.manual_seed(0)
    inputs = torch.randn(BATCH, TIME, WIDTH, requires_grad=True)
    cotangent = torch.randn(BATCH, TIME, WIDTH)
    claims, figures = [], {}
    table: list[list[object]] = [["cell", "ours ms", "loop ms", "tokens/s", "loop's", "ratio"]]
    for name, (kind, least) in CELLS.items():
        cell = kind()

        def plain(cell: seriatim.RecurrentCell = cell) -> tuple[Tensor, ...]:
            with uncompiled():
                return training(cell, inputs, cotangent)

        def ours(cell: seriatim.RecurrentCell = cell) -> tuple[Tensor, ...]:
            return training(cell, inputs, cotangent)

        for found, expected in zip(ours(), plain(), strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3 * float(expected.abs().max()))
        times = machine.times_in_turn({"ours": ours, "loop": plain}, repeats)
        taken = {side: sorted(each)[repeats // 2] for side, each in times.items()}
        key = name.removeprefix("the ").removeprefix("a ").replace(" ", "_").lower()
        figures[f"{key}_ratio"] = record.ratios(times["ours"], times["loop"])
        figures[f"{key}_tokens_per_second"] = [BATCH * TIME / each for each in times["ours"]]
        row = [f"{1e3 * each:.1f}" for each in taken.values()] + [
            f"{BATCH * TIME / each:,.0f}" for each in taken.values()
        ]
        table.append([name, *row, f"{taken['loop'] / taken['ours']:.1f}"])
        milliseconds = ([1e3 * each for each in times[side]] for side in ("ours", "loop"))
        text = f"{name} as a cell, time of the loop over ours"
        claims.append(record.compared(text, *milliseconds, peer="the plain loop", unit="ms", least=least))
    record.save(
        "matrix_states",
        claims=claims,
        settings={"batch": BATCH, "time": TIME, "width": WIDTH, "heads": HEADS, "repeats": repeats},
        figures=figures,
        tables=[table],
        notes="Forward and backward in float32, in turn, after one run of each side that is not counted.",
    )


if __name__ == "__main__":
    main()

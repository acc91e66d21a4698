"""`explain` names the line and the function of every reason why a cell runs as a loop."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import seriatim
from seriatim.core.state import State
from seriatim.recurrence import explain

SIZE = 4


class Cell(seriatim.RecurrentCell):
    def __init__(self) -> None:
        super().__init__()
        self.input_size = self.output_size = SIZE
        self.w, self.u = nn.Linear(SIZE, SIZE), nn.Linear(SIZE, SIZE)
        self.scale = nn.Parameter(torch.ones(SIZE, SIZE, SIZE))

    def initial_state(self, batch_size: int) -> State:
        return self.zeros(batch_size, SIZE)

    def update(self, x: Tensor, h: Tensor) -> Tensor:
        return torch.tanh(self.w(x) + self.u(h))


class Einsum(Cell):
    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, State]:
        h = self.update(x, h) + torch.einsum("bi,ijk,bk->bj", x, self.scale, h)
        return h, h


class Permute(Cell):
    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, State]:
        h = self.update(x, h) + h.permute(1, 0).mean(1)
        return h, h


class Transpose(Cell):
    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, State]:
        h = self.update(x, h) + h.T.mean()
        return h, h


class Decision(Cell):
    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, State]:
        if h.sum() > 0:
            h = -h
        h = self.update(x, h)
        return h, h


class NoGradient(Cell):
    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, State]:
        with torch.no_grad():
            gate = torch.sigmoid(h)
        h = gate * self.update(x, h)
        return h, h


class InPlace(Cell):
    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, State]:
        h.mul_(0.5)
        return h, self.update(x, h)


class Helper(Cell):
    """The line is in a method that `forward` calls."""

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, State]:
        h = self.mixed(self.update(x, h))
        return h, h

    def mixed(self, h: Tensor) -> Tensor:
        return h.sort(-1).values


class NoPair(Cell):
    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, State]:
        return self.update(x, h)  # type: ignore[return-value]


class WrongShape(Cell):
    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, State]:
        h = torch.tanh(self.w(x) + self.u(h[:, 1:]))
        return h, h


class Several(Cell):
    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, State]:
        y = h.flip(0)
        z = torch.cumsum(y, 1)
        h = self.update(x, h) + z * torch.randn_like(h)
        return h, h * x.max().item()


REASONS = {
    Einsum: [("torch.einsum", 'torch.einsum("bi,ijk,bk->bj", x, self.scale, h)')],
    Permute: [("Tensor.permute", "h.permute(1, 0)")],
    Transpose: [("Tensor.T", "h.T.mean()")],
    Decision: [("a condition", "if h.sum() > 0:")],
    NoGradient: [("torch.no_grad", "with torch.no_grad():")],
    InPlace: [("Tensor.mul_", "h.mul_(0.5)")],
    Helper: [("Tensor.sort", "return h.sort(-1).values")],
    NoPair: [("must return a pair (outputs, state)", "def forward(self, x: Tensor, h: Tensor)")],
    WrongShape: [("shapes cannot be multiplied", "self.u(h[:, 1:])")],
    Several: [
        ("Tensor.flip", "y = h.flip(0)"),
        ("torch.randn_like", "torch.randn_like(h)"),
        ("Tensor.item", "return h, h * x.max().item()"),
    ],
}


@pytest.mark.parametrize("kind", REASONS)
def test_every_reason_names_its_line_and_the_function_that_is_called(kind: type[Cell]) -> None:
    lines = explain(kind()).splitlines()
    assert lines[0].startswith(f"{kind.__name__} runs as a loop: ")
    for function, source in REASONS[kind]:
        at = next(i for i, line in enumerate(lines) if function in line and ".py:" in line)
        path, number = lines[at].partition(".py:")[0].split()[-1] + ".py", lines[at].partition(".py:")[2].split(":")[0]
        text = Path(path).read_text().splitlines()[int(number) - 1].strip()
        assert source in text
        assert lines[at + 1].strip() == text


def test_results_of_a_refused_operation_give_no_further_reasons() -> None:
    explanation = explain(Several())
    assert "torch.cumsum" not in explanation
    assert len([line for line in explanation.splitlines() if ".py:" in line]) == explanation.count(".py:")


def test_all_circumstances_are_named() -> None:
    with seriatim.recurrence.uncompiled():
        explanation = explain(Einsum().half())
    assert "numbers of type torch.float16" in explanation
    assert "within uncompiled()" in explanation


@pytest.mark.parametrize(("name", "options"), [("mamba", {}), ("lstm", {"block": True}), ("transformer", {})])
def test_maps_of_single_positions_are_not_named(name: str, options: dict[str, bool]) -> None:
    explanation = explain(seriatim.layer(name, 6, 8, **options))
    assert "Pointwise" not in explanation
    assert explanation.lower().startswith(name)


@pytest.mark.parametrize("layer", [seriatim.Recurrent(Helper()), seriatim.Recurrent(Helper(), zoneout=0.2)])
def test_a_layer_is_explained_by_its_cell(layer: seriatim.Recurrent) -> None:
    explanation = explain(layer)
    assert explanation.startswith("Helper runs as a loop: ")
    assert "return h.sort(-1).values" in explanation

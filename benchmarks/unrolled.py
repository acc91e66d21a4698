"""Define what `unroll.py` measures: sizes, a cell as a user writes one, and its training.

`unroll.py` runs this file as a script to measure memory or start in a fresh process.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import machine
import torch
from torch import Tensor, nn

import seriatim
from seriatim.recurrence import explain
from seriatim.recurrence.recurrent import loop

Gradients = tuple[Tensor, ...]
STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
TRAINED = 3


class Size(NamedTuple):
    """A batch of sequences, and the widths of inputs and state."""

    batch: int
    time: int
    inputs: int
    hidden: int

    def __str__(self) -> str:
        return f"{self.batch} × {self.time}, {self.inputs} → {self.hidden}"

    def flops(self, gates: int = 4) -> float:
        """Return the operations of the matrix products of one training step, forward and backward."""
        return 3.0 * 2 * self.batch * self.time * (self.inputs + self.hidden) * gates * self.hidden

    def kept(self) -> float:
        """Return the bytes that any LSTM needs: gates and cells, outputs, and gradients of inputs and matrices."""
        weights = 4 * self.hidden * (self.inputs + self.hidden)
        return 4.0 * (self.batch * self.time * (self.inputs + 6 * self.hidden) + weights)


SIZES = [Size(*each) for each in ((32, 64, 512, 512), (64, 128, 128, 128), (20, 35, 650, 650), (16, 64, 256, 256))]
SIZES += [Size(16, 128, 1024, 1024)]


class Peephole(seriatim.RecurrentCell):
    """A cell as a user writes it; the package has no cell of this name."""

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__()
        self.input_size, self.output_size = input_size, hidden_size
        self.w = nn.Linear(input_size, 4 * hidden_size)
        self.u = nn.Linear(hidden_size, 4 * hidden_size, bias=False)
        self.p_i, self.p_f, self.p_o = (nn.Parameter(0.1 * torch.randn(hidden_size)) for _ in range(3))

    def initial_state(self, batch_size: int) -> tuple[Tensor, Tensor]:
        return self.zeros(batch_size, self.output_size), self.zeros(batch_size, self.output_size)

    def forward(self, inputs: Tensor, state: Any) -> tuple[Tensor, Any]:
        h, c = state
        i, f, g, o = (self.w(inputs) + self.u(h)).chunk(4, dim=1)
        i, f = torch.sigmoid(i + self.p_i * c), torch.sigmoid(f + self.p_f * c)
        c = f * c + i * torch.tanh(g)
        h = torch.sigmoid(o + self.p_o * c) * torch.tanh(c)
        return h, (h, c)


def peephole(size: Size) -> seriatim.Recurrent:
    """Return our layer and torch's layer, with our cell compiled."""
    layer = seriatim.Recurrent(Peephole(size.inputs, size.hidden))
    if "runs as a loop" in (how := explain(layer.cell)):
        sys.exit(f"nothing to measure: {how}")
    return layer


def training(module: nn.Module, size: Size, run: Callable[[Tensor], tuple[Tensor, Any]]) -> Callable[[], Gradients]:
    """Return a function that runs forward and backward, on the same inputs for all."""
    drawn = torch.Generator().manual_seed(1)
    like = next(module.parameters())
    inputs = torch.randn(size.batch, size.time, size.inputs, generator=drawn).to(like).requires_grad_()
    cotangent = torch.randn(size.batch, size.time, size.hidden, generator=drawn).to(like)
    wanted = [inputs, *module.parameters()]
    return lambda: torch.autograd.grad(run(inputs)[0], wanted, cotangent)


def looped(layer: seriatim.Recurrent, size: Size) -> Callable[[Tensor], tuple[Tensor, Any]]:
    state = layer.initial_state(size.batch)
    return lambda inputs: loop(layer.cell, inputs, state, None, output_size=size.hidden)


def theirs(kind: type[nn.RNNBase], size: Size, dtype: torch.dtype = torch.float32) -> Callable[[], Gradients]:
    twin = kind(size.inputs, size.hidden, batch_first=True, dtype=dtype)
    return training(twin, size, twin)


def apart(kind: str, which: int, **environment: str) -> dict[str, float]:
    """Run `alone` in a fresh process."""
    command = [sys.executable, __file__, kind, str(which), str(time.time())]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env={**os.environ, **environment})
    found: dict[str, float] = json.loads(done.stdout)
    return found


def alone(kind: str, which: int, started: float) -> dict[str, float]:
    """Measure one figure in this process: the start at some length, or the memory of one side at one size."""
    imported = time.time()
    if kind == "start":
        size = Size(8, which, 256, 256)
        layer = seriatim.Recurrent(Peephole(size.inputs, size.hidden))
        work = training(layer, size, layer)
        first = machine.seconds(work)
        whole = time.time() - started
        return {"first": first, "second": machine.seconds(work), "imports": imported - started, "whole": whole}
    size = SIZES[which]
    layer = seriatim.Recurrent(Peephole(size.inputs, size.hidden))
    work = training(layer, size, layer) if kind == "ours" else theirs(nn.LSTM, size)
    CLEAR.write_text("5")  # the peak starts anew; that of getrusage would start at the parent process's
    before = resident("VmRSS")
    for _ in range(TRAINED):
        work()
    return {"peak": (resident("VmHWM") - before) / 1e6}


def resident(field: str) -> int:
    """Return a memory figure of this process in bytes: `VmRSS` (now) or `VmHWM` (maximum)."""
    return 1024 * int(next(line for line in STATUS.read_text().splitlines() if line.startswith(field)).split()[1])


if __name__ == "__main__":
    print(json.dumps(alone(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))))

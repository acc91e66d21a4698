"""The loop on a GPU: torch's products and one Triton kernel a phase, step after step, as one CUDA graph.

Tensors of other devices than the CPU come here; what surrounds the loop is `Runner`'s own.
"""

import functools
import hashlib
import importlib.util
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType

import torch
from torch import Tensor

from ..compiler.schedule import Kernel, Place, Product
from ..compiler.triton.emit_triton import ROWS, Direction, Stage, emit
from ..storage.disk_cache import cached
from . import cuda_graphs
from .packing import Packing
from .program_runner import Runner

Step = Callable[[int, Mapping[str, int]], None]
"""Runs one part of a step, given how many rows it has and where those of each kind begin."""


@functools.cache
def missing(device: torch.device) -> str | None:
    """Why Triton cannot run there, found out by running the smallest kernel; None where it can."""
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed (pip install triton)"
    try:  # it may find no C compiler, or too old a GPU
        from ..compiler.triton.kernel_functions import probe

        like = torch.zeros(1, device=device)
        with torch.cuda.device_of(like):  # type: ignore[no-untyped-call]
            probe[1,](like)
        return None if like.item() == 1 else "Triton computes wrongly"
    except Exception as error:
        return f"Triton fails: {(str(error).strip().splitlines() or [type(error).__name__])[0]}"


class TritonRunner(Runner):
    """A step that has been traced, planned and written as Triton kernels for one type of numbers."""

    def compile(self, kernels: Mapping[str, Kernel]) -> list[Direction]:  # type: ignore[override]
        """Writes the kernels; Triton compiles each when it is first called."""
        text, directions = emit(kernels, double=self.numbers.double)
        self.module, self.replays = _module(text), cuda_graphs.Replays()
        return directions

    def call(self, direction: Direction, packing: Packing, named: dict[str, Tensor], like: Tensor) -> None:  # type: ignore[override]
        """Runs one direction; adds to ``named`` the memory that it writes and that is not there yet."""
        for name in direction.buffers:
            if name not in named:
                named[name] = self.memory(name, packing, packing.batch, like)
        counts, starts = packing.counts.tolist(), packing.starts.tolist()
        work = functools.partial(self.steps, direction, packing.batch, counts, starts, named)
        with torch.no_grad(), torch.cuda.device_of(like):  # type: ignore[no-untyped-call]
            if cuda_graphs.possible(like):
                memory = (named[name] for name in direction.buffers)
                places = tuple((tensor.data_ptr(), tensor.shape, tensor.stride()) for tensor in memory)
                self.replays.run((direction.backward, places, packing.batch, *counts), work)
            else:
                work()

    def steps(
        self, direction: Direction, batch: int, counts: list[int], starts: list[int], named: Mapping[str, Tensor]
    ) -> None:
        """All steps, one after another."""
        parts = [part for stage in direction.stages for part in self.parts(stage, named)]
        for step in range(len(counts)):
            t = len(counts) - 1 - step if direction.backward else step
            first = {
                "now": starts[t],
                "before": batch + starts[t - 1] if t else 0,
                "after": batch + starts[t],
                "in": step % 2 * batch,
                "out": (step + 1) % 2 * batch,
            }
            for part in parts:
                part(counts[t], first)

    def parts(self, stage: Stage, named: Mapping[str, Tensor]) -> list[Step]:
        """The products of a phase, and its kernel."""
        found = [self.product(product, named) for product in stage.products]
        fused = stage.fused
        if fused is None:
            return found
        kernel, tensors = getattr(self.module, fused.name), [named[name] for name in fused.buffers]

        def run(rows: int, first: Mapping[str, int]) -> None:
            kernel[rows, fused.blocks](
                *tensors, *(first[kind] for kind in ROWS), num_warps=fused.warps, enable_fp_fusion=True
            )

        return [*found, run]

    def product(self, product: Product, named: Mapping[str, Tensor]) -> Step:
        """One product. Where matrices are reduced, so are the rows they meet and what comes of it, as by autocast."""
        matrix = named[f"matrix{product.matrix.constant}"][:, product.matrix.start : product.matrix.stop]
        matrix = matrix.t() if product.matrix.transposed else matrix
        matrix = matrix.bfloat16() if self.numbers.reduced else matrix
        source, target = (
            named[place.buffer.name].view(-1, place.buffer.width)[:, place.start : place.start + width]
            for place, width in ((product.rows, product.depth), (product.place, product.width))
        )

        def at(tensor: Tensor, place: Place, rows: int, first: Mapping[str, int]) -> Tensor:
            return tensor.narrow(0, first[place.buffer.rows], rows)

        def run(rows: int, first: Mapping[str, int]) -> None:
            given, result = at(source, product.rows, rows, first), at(target, product.place, rows, first)
            if self.numbers.reduced:
                found = given.bfloat16() @ matrix
                result.add_(found) if product.add else result.copy_(found)
            elif product.add:
                result.addmm_(given, matrix)
            else:
                torch.mm(given, matrix, out=result)

        return run


@functools.cache
def _module(text: str) -> ModuleType:
    """A text as a module; Triton wants to read it from a file."""
    name = f"triton-{hashlib.sha256(text.encode()).hexdigest()[:24]}"

    def write(folder: Path) -> None:
        (folder / "kernels.py").write_text(text, encoding="utf-8")

    spec = importlib.util.spec_from_file_location(name, cached(name, write) / "kernels.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module

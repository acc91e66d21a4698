"""Runs a program on a GPU: PyTorch's products and one Triton kernel per phase, step after step, as one CUDA graph.

A loop that runs again on the same memory is replayed with one call instead of several per step. PyTorch's allocator
gives a training step the memory of the step before, so the same loop soon runs on the same addresses. A graph keeps
none of this memory alive. Everything outside the loop is done by `CompiledLoop`.
"""

import functools
import hashlib
import importlib.util
import warnings
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from pathlib import Path
from types import ModuleType

import torch
from torch import Tensor

from ..compiler.buffers import Buffer, BufferKind
from ..compiler.fallback_reasons import Reason, UnsupportedError
from ..compiler.program import Kernel, Product
from ..compiler.triton.emit_triton import ROWS, Direction, Stage, emit
from ..core.errors import first_line
from ..storage.disk_cache import cached
from .compiled_loop import CompiledLoop, Storage
from .packing import SequencePacking

Work = Callable[[], None]

MAX_GRAPHS = 64
"""Graphs kept for one cell; beyond this number the least recently used is dropped."""


def can_capture(like: Tensor) -> bool:
    """Return whether work on such tensors can be captured now."""
    return like.is_cuda and not torch.cuda.is_current_stream_capturing()


def capture(work: Work) -> Work:
    """Capture work as a graph that can be replayed, or raise RuntimeError; the work is not done yet."""
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):  # type: ignore[no-untyped-call]
        graph.capture_begin(capture_error_mode="thread_local")
        try:
            work()
        finally:
            graph.capture_end()
    return graph.replay


class Replays:
    """Runs work the first time, which may compile kernels, captures it the second time, and then replays it."""

    def __init__(self) -> None:
        self.graphs: OrderedDict[Hashable, Work | None] = OrderedDict()
        self.has_failed = False

    def run(self, key: Hashable, work: Work) -> None:
        """Do the work; ``key`` stands for the memory it uses and everything else that it depends on."""
        if self.has_failed:
            return work()

        # taken out and put back at the end, so that the graphs that were used last are kept
        has_run, replay = key in self.graphs, self.graphs.pop(key, None)
        if has_run and replay is None:
            try:
                # a loop that cannot be captured is as right without a graph, only slower
                replay = capture(work)
            except RuntimeError as error:
                self.has_failed = True
                reason = first_line(error) or "unknown"
                problem = "a loop cannot be captured as a CUDA graph, and therefore runs step by step"
                warnings.warn(f"{problem}: {reason}", stacklevel=2)
                return work()
        self.graphs[key] = replay
        while len(self.graphs) > MAX_GRAPHS:
            self.graphs.popitem(last=False)
        return work() if replay is None else replay()


Launch = Callable[[int, Mapping[str, int]], None]
"""Runs one operation of a step, given its number of rows and the first row of each kind."""


class TritonLoop(CompiledLoop):
    """A step that is traced, planned and emitted as Triton kernels for one type of numbers."""

    def compile(self, kernels: Mapping[str, Kernel]) -> tuple[list[Buffer], list[Buffer]]:
        """Emit the kernels, which Triton compiles when they are first called; return the buffers of each direction."""
        if self.program.attentions:
            raise UnsupportedError([Reason("attention to a memory is not compiled for a GPU", about_step=False)])
        text, self.directions = emit(kernels, double=self.numbers.double)
        self.module, self.replays = _module(text), Replays()
        forward, backward = self.directions
        return forward.buffers, backward.buffers

    def call(self, packing: SequencePacking, storage: Storage, like: Tensor, *, backward: bool) -> None:
        """Run one direction; see `CompiledLoop.call`."""
        direction = self.directions[backward]
        for buffer in direction.buffers:
            if buffer not in storage:
                storage[buffer] = self.allocate(buffer, packing, packing.batch, like)
        counts, starts = packing.counts.tolist(), packing.starts.tolist()
        work = functools.partial(self.steps, direction, packing.batch, counts, starts, storage)
        with torch.no_grad(), torch.cuda.device_of(like):  # type: ignore[no-untyped-call]
            if can_capture(like):
                tensors = (storage[buffer] for buffer in direction.buffers)
                addresses = tuple((tensor.data_ptr(), tensor.shape, tensor.stride()) for tensor in tensors)
                self.replays.run((direction.backward, addresses, packing.batch, *counts), work)
            else:
                work()

    def steps(self, direction: Direction, batch: int, counts: list[int], starts: list[int], storage: Storage) -> None:
        """Run all steps, one after another."""
        launches = [launch for stage in direction.stages for launch in self.launches(stage, storage)]
        for step in range(len(counts)):
            t = len(counts) - 1 - step if direction.backward else step
            first = {
                "now": starts[t],
                "before": batch + starts[t - 1] if t else 0,
                "after": batch + starts[t],
                "in": step % 2 * batch,
                "out": (step + 1) % 2 * batch,
            }
            for launch in launches:
                launch(counts[t], first)

    def launches(self, stage: Stage, storage: Storage) -> list[Launch]:
        """Return the products of a phase, and its kernel."""
        products = [self.product(product, storage) for product in stage.products]
        fused = stage.fused
        if fused is None:
            return products
        kernel, tensors = getattr(self.module, fused.name), [storage[buffer] for buffer in fused.buffers]

        def run(rows: int, first: Mapping[str, int]) -> None:
            kernel[rows, fused.blocks](
                *tensors, *(first[kind] for kind in ROWS), num_warps=fused.warps, enable_fp_fusion=True
            )

        return [*products, run]

    def product(self, product: Product, storage: Storage) -> Launch:
        """Return one product. If matrices are bfloat16, so are the rows and the result, as under autocast."""
        matrix = storage[Buffer(BufferKind.MATRIX, product.matrix.constant)]
        matrix = matrix[:, product.matrix.start : product.matrix.stop]
        matrix = matrix.t() if product.matrix.transposed else matrix
        matrix = matrix.bfloat16() if self.numbers.reduced else matrix
        source, target = (
            storage[slot.buffer].view(-1, slot.width)[:, slot.start : slot.start + width]
            for slot, width in ((product.rows, product.depth), (product.slot, product.width))
        )

        def run(rows: int, first: Mapping[str, int]) -> None:
            factor = source.narrow(0, first[product.rows.rows], rows)
            result = target.narrow(0, first[product.slot.rows], rows)
            if self.numbers.reduced:
                reduced = factor.bfloat16() @ matrix
                result.add_(reduced) if product.add else result.copy_(reduced)
            elif product.add:
                result.addmm_(factor, matrix)
            else:
                torch.mm(factor, matrix, out=result)

        return run


@functools.cache
def _module(text: str) -> ModuleType:
    """Import a text as a module; Triton needs the text in a file."""
    name = f"triton-{hashlib.sha256(text.encode()).hexdigest()[:24]}"

    def write(folder: Path) -> None:
        (folder / "kernels.py").write_text(text, encoding="utf-8")

    spec = importlib.util.spec_from_file_location(name, cached(name, write) / "kernels.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module

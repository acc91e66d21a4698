"""In compiled code a row of a batch has the bits that it has alone, whatever processor the compiler tunes for.

Left to itself, a compiler fuses multiplications and additions in some loops and not in others; see `cpp/kernel.h`.
"""

import ctypes
import itertools
import shlex
import subprocess
from collections.abc import Collection, Iterable, Iterator, Sequence

import pytest
import torch
from torch import Tensor, nn

import seriatim
from seriatim.compiler.cpp import toolchain as compiler
from seriatim.core.contract import RecurrentCell
from seriatim.core.state import State, map_state, select_state, state_leaves
from seriatim.layers.registry import BUILT_IN
from seriatim.models.language_model import LanguageModel
from seriatim.recurrence import compiled_loop, explain, uncompiled
from seriatim.recurrence.fast_path import run_step
from seriatim.recurrence.round_weights import round_weights
from seriatim.recurrence.weight_formats import GROUP

from ..exhaustive import parameters
from ..quick_compiler import compiled_for_use
from .test_attentional_steps import DECODERS, WORDS
from .test_attentional_steps import made as attentional

_compiled = pytest.fixture(autouse=True, scope="module")(compiled_for_use)
BATCH, SIZES = 17, (1, 2, 3, 5, 8)
"""Rows of a batch and of parts of it, with every remainder of a tile."""
TUNED = ("native", "generic", "haswell", "znver1", "znver3")
NAMES = [name for name in seriatim.layers.names() if name != "prior"]
CELLS = [name for name in NAMES if issubclass(BUILT_IN[name], RecurrentCell)]
FORMATS = ("float32", "bfloat16", "int8", "int4")


@pytest.fixture
def tune(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Compile for the processor of the parameter, with the instructions of this one."""
    if request.param != "native":
        command, option = compiler.compiler(), f"-mtune={request.param}"
        assert command is not None
        trial = [*command, option, "-fsyntax-only", "-x", "c++", "-"]
        if subprocess.run(trial, input=b"", capture_output=True, check=False).returncode:
            pytest.skip(f"the compiler has no option {option}")
        monkeypatch.setenv("CXX", shlex.join([*command, option]))
        compiler.typed_library.cache_clear()
    yield
    compiler.typed_library.cache_clear()


def tuned(arguments: str, kinds: Iterable[tuple[str, ...]], few: Collection[tuple[str, ...]]) -> pytest.MarkDecorator:
    """Each kind tuned for this processor, ``few`` of them in ``make test``, and these for all others, too."""
    cases = [(*kind, tune) for kind in kinds for tune in TUNED if tune == "native" or kind in few]
    everyday = [(*kind, "native") for kind in few]
    marked = [
        pytest.param(*case, id="-".join(case), marks=() if case in everyday else pytest.mark.exhaustive)
        for case in cases
    ]
    return pytest.mark.parametrize((*arguments.split(), "tune"), marked, indirect=["tune"])


def equal(values: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
    return all(map(torch.equal, values, others))


_found: dict[tuple[str, ...], Sequence[Tensor]] = {}


def same_when_tuned(kind: tuple[str, ...], values: Sequence[Tensor]) -> None:
    """Compare values with those of the same kind in code that was tuned for another processor."""
    assert equal(values, _found.setdefault(kind, values))


def same_rows(kind: tuple[str, ...], model: nn.Module, inputs: Tensor, state: State) -> None:
    """Compare a step of a batch with the steps of its first rows, and of each row alone."""
    whole = run_step(model, inputs, state)
    assert whole is not None, explain(model)
    same_when_tuned(kind, [whole[0], *state_leaves(whole[1])])
    parts = [torch.arange(size) for size in SIZES] + [torch.tensor([row]) for row in range(len(inputs))]
    for rows in parts:
        part = run_step(model, inputs[rows], select_state(state, rows))
        assert part is not None
        expected = [whole[0][rows], *state_leaves(select_state(whole[1], rows))]
        assert equal([part[0], *state_leaves(part[1])], expected), f"{len(rows)} rows"


def language_model(name: str, size: int) -> LanguageModel:
    torch.manual_seed(0)
    model = LanguageModel(seriatim.layer(name, size, size, num_layers=2), 39, tie_weights=True).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # some are zeros at first
            parameter.add_(torch.randn(parameter.shape) * 0.02)
    return model


@tuned(
    "name weight_format",
    itertools.product(NAMES, ("float64", *FORMATS)),
    list(itertools.product(("lstm", "mamba", "transformer"), FORMATS)),
)
@torch.inference_mode()
def test_rows_of_a_step(name: str, weight_format: str, tune: None) -> None:
    for size in (20, 24):
        model = language_model(name, size)
        if weight_format in FORMATS:
            round_weights(model, weight_format)
        else:
            model.double()
        tokens = torch.randint(39, (BATCH, 6))
        with uncompiled():
            _, state = model(tokens[:, :5], lengths=torch.arange(BATCH) % 6)
        same_rows((name, weight_format, str(size)), model, tokens[:, 5], state)


@tuned("case", ((case,) for case in DECODERS), [("additive",), ("location, input feeding",)])
@torch.inference_mode()
def test_rows_of_a_step_with_attention(case: str, tune: None) -> None:
    model = attentional(case).float()
    with uncompiled():
        state = model.encode(torch.randint(WORDS, (BATCH, 7)), torch.arange(BATCH) % 8)
    same_rows((case,), model, torch.randint(WORDS, (BATCH,)), state)


@pytest.mark.exhaustive
@tuned("name numbers", itertools.product(CELLS, ("float32", "float64", "bfloat16")), [("lstm-layernorm", "float32")])
def test_rows_of_a_loop(name: str, numbers: str, tune: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where PyTorch computes what comes before the loop row by row: its own bits depend on how many rows there are."""
    together = compiled_loop._compute_group

    def alone(group, constants, inputs, cache, by_onednn):
        known = [leaf for leaf in cache if leaf.op == "inputs"]
        return torch.cat(
            [together(group, constants, row, dict.fromkeys(known, row), by_onednn) for row in inputs.split(1)]
        )

    monkeypatch.setattr(compiled_loop, "_compute_group", alone)
    torch.manual_seed(0)
    layer = (
        seriatim.layer(name, 5, 20, num_layers=1).to(torch.float64 if numbers == "float64" else torch.float32).eval()
    )
    inputs = torch.randn(BATCH, 6, 5, dtype=next(layer.parameters()).dtype)
    lengths = torch.arange(BATCH) % 7
    start = map_state(lambda leaf: torch.randn_like(leaf), layer.initial_state(BATCH))

    def run(rows: Tensor) -> list[Tensor]:
        state = map_state(lambda leaf: leaf.clone().requires_grad_(), select_state(start, rows))
        with torch.autocast("cpu", torch.bfloat16, enabled=numbers == "bfloat16"):
            outputs, end = layer(inputs[rows], state, lengths=lengths[rows])
        total = sum(leaf.sin().sum() for leaf in (outputs, *state_leaves(end)))
        return [outputs, *state_leaves(end), *torch.autograd.grad(total, state_leaves(state))]

    assert "runs in compiled code" in explain(layer)
    whole = run(torch.arange(BATCH))
    same_when_tuned((name, numbers, "loop"), whole)
    for rows in [torch.arange(size) for size in SIZES] + [torch.tensor([row]) for row in range(1, BATCH)]:
        if lengths[rows].max() > 0:
            assert equal(run(rows), [value[rows] for value in whole]), f"{len(rows)} rows"


KERNEL = """
typedef {real} real;
#include "kernel.h"
#include "attention.h"
#include "nibbles.h"
template <typename S, typename P>
static void times(count_t rows, const real* a, const S* matrix, real* c, count_t depth, count_t width) {{
  P* packed = new P[depth * (width + PANEL)];
  pack(matrix, width, 1, depth, 0, width, packed);
  product<true>(rows, a, depth, packed, c, width, depth, width, false);
  delete[] packed;
}}
extern "C" void times_real(count_t rows, const real* a, const real* matrix, real* c, count_t depth, count_t width) {{
  times<real, real>(rows, a, matrix, c, depth, width);
}}
extern "C" void times_half(count_t rows, const real* a, const real* matrix, real* c, count_t depth, count_t width) {{
  times<real, half_t>(rows, a, matrix, c, depth, width);
}}
extern "C" void times_byte(count_t rows, const real* a, const byte_t* matrix, real* c, count_t depth, count_t width) {{
  times<byte_t, byte_t>(rows, a, matrix, c, depth, width);
}}
extern "C" void times_nibble(count_t rows, const real* a, const byte_t* matrix, real* c, count_t depth, count_t width,
                             const uint16_t* factors) {{
  std::vector<Nibbles> packed(panels_of(width) * groups_of(depth));
  pack_nibbles(matrix, width, 1, factors, depth, width, 0, width, packed.data());
  multiply_nibbles(rows, a, depth, packed.data(), c, width, depth, 0, width);
}}
extern "C" void attend(count_t n, const real* entries, real* weights, real* to, count_t size) {{
  const Entries m{{entries, entries, size, size, n, n, size, size}};
  attend_entries(m, Scoring{{real(0.3), entries, nullptr, 0}}, entries, nullptr, weights, to);
  attend_entries(m, Scoring{{real(0.3), nullptr, nullptr, 0}}, to, nullptr, weights, to + size);
}}
"""


def kernel_results(dtype: torch.dtype) -> list[Tensor]:
    """Products of every width, depth and number of rows, after comparing rows with the same ones alone; attention."""
    kernel = compiler.library(KERNEL.format(real="double" if dtype == torch.float64 else "float"))
    assert kernel is not None

    def call(name: str, *values: Tensor | int) -> None:
        getattr(kernel, name)(
            *(ctypes.c_void_p(v.data_ptr()) if isinstance(v, Tensor) else ctypes.c_int64(v) for v in values)
        )

    found = []
    torch.manual_seed(0)
    for width, depth, kind in itertools.product((1, 7, 8, 20, 24, 48, 61, 121), (1, 20), ("real", "half", "byte")):
        rows, start = torch.randn(BATCH, depth, dtype=dtype), torch.randn(BATCH, width, dtype=dtype)
        matrix = torch.randn(depth, width, dtype=dtype)
        matrix = (matrix * 40).clamp(-127, 127).to(torch.int8) if kind == "byte" else matrix
        whole = start.clone()
        call(f"times_{kind}", BATCH, rows, matrix, whole, depth, width)
        for size in SIZES:
            part = start[:size].clone()
            call(f"times_{kind}", size, rows, matrix, part, depth, width)
            assert torch.equal(part, whole[:size]), (width, depth, kind, size)
        found.append(whole)
    for width, depth in itertools.product((1, 24, 61, 121), (1, 20, 32, 77)):
        rows, whole = torch.randn(BATCH, depth, dtype=dtype), torch.zeros(BATCH, width, dtype=dtype)
        integers = torch.randint(-8, 8, (depth, width), dtype=torch.int8)
        factors = torch.randn(-(-depth // GROUP), width).bfloat16()
        call("times_nibble", BATCH, rows, integers, whole, depth, width, factors)
        terms = integers.double() * factors.double().repeat_interleave(GROUP, 0)[:depth]
        error = (whole - rows.double() @ terms).abs()
        assert (error <= rows.abs().amax(1, keepdim=True) / 32639 * terms.abs().sum(0) + 1e-6).all()
        for size in SIZES:
            part = torch.zeros(size, width, dtype=dtype)
            call("times_nibble", size, rows, integers, part, depth, width, factors)
            assert torch.equal(part, whole[:size]), (width, depth, size)
        found.append(whole)
    rows, part = torch.full((1, 77), float("nan"), dtype=dtype), torch.zeros(1, 121, dtype=dtype)
    call("times_nibble", 1, rows, integers, part, 77, 121, factors)
    assert part.isnan().all()
    for n, size in itertools.product((1, 5, 40), (3, 32, 77)):
        entries, weights, to = (torch.randn(*shape, dtype=dtype) for shape in ((n, size), (n,), (2, size)))
        call("attend", n, entries, weights, to, size)
        found += [weights, to]
    return found


@pytest.mark.exhaustive
@pytest.mark.parametrize("tune", parameters(TUNED, everyday=("generic", "znver3")), indirect=True)
@pytest.mark.parametrize("dtype", parameters((torch.float32, torch.float64), everyday=[torch.float32]))
def test_products_and_attention(dtype: torch.dtype, tune: None) -> None:
    same_when_tuned(("kernel", str(dtype)), kernel_results(dtype))

"""Functions for generated Triton kernels: functions of one value, and reductions of rows. All of them propagate NaN.

The names are those in ``kernel.h``; functions that Triton has are left out. Only generated kernels import this file,
because it needs Triton.
"""

# mypy: ignore-errors
# ruff: noqa: D103

import triton
import triton.language as tl


@triton.jit
def probe(x):
    tl.store(x, 1.0)


@triton.jit
def f_expm1(x):  # by its Taylor series where e^x - 1 would cancel
    series = 1.0 + x * (1.0 / 14)
    for k in tl.static_range(12):
        series = 1.0 + series * x * (1.0 / (13 - k))
    return tl.where(tl.abs(x) < 0.35, series * x, tl.exp(x) - 1.0)


@triton.jit
def f_log1p(x):  # log(1 + x) = 2 artanh(x / (2 + x)), a series where 1 + x would round x away
    s = x / (2.0 + x)
    q = s * s
    series = q * (1.0 / 25)
    for k in tl.static_range(11):
        series = q * (1.0 / (23 - 2 * k) + series)
    return tl.where(tl.abs(x) < 0.35, 2.0 * (s + s * series), tl.log(1.0 + x))


@triton.jit
def f_softplus(x):
    return tl.where(x <= 0.0, 0.0, x) + f_log1p(tl.exp(-tl.abs(x)))


@triton.jit
def f_sigmoid(x):
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def f_tanh(x):
    t = -f_expm1(-2.0 * tl.abs(x))
    y = t / (2.0 - t)
    return tl.where(x < 0.0, -y, y)


@triton.jit
def f_sign(x):
    return tl.where(x > 0.0, 1.0, tl.where(x < 0.0, -1.0, x))


@triton.jit
def f_power(x, y):
    size = tl.exp(y * tl.log(tl.abs(x)))
    is_integer, is_odd = tl.floor(y) == y, tl.floor(0.5 * y) * 2.0 != y
    signed = tl.where(is_integer, tl.where(is_odd, -size, size), float("nan"))
    return tl.where(y == 0.0, 1.0, tl.where(x < 0.0, signed, size))


@triton.jit
def f_maximum(a, b):
    return tl.where(a > b, a, tl.where(a == a, b, a))


@triton.jit
def f_minimum(a, b):
    return tl.where(a < b, a, tl.where(a == a, b, a))


@triton.jit
def _add(a, b):
    return a + b


@triton.jit
def row_sum(x):
    return tl.reduce(x, 0, _add)


@triton.jit
def row_amax(x):
    return tl.reduce(x, 0, f_maximum)

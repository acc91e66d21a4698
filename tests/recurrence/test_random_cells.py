"""Cells made at random run the same in compiled code and as a loop."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ..quick_compiler import quickly
from .own_cells import agree
from .random_cells import Plan, Planned, plans

_quickly = pytest.fixture(autouse=True, scope="module")(quickly)


BASE = settings(deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
CASES = given(plan=plans(), lengths=st.none() | st.lists(st.integers(0, 4), min_size=3, max_size=3))


@pytest.mark.exhaustive
@settings(BASE, max_examples=6)
@CASES
def test_random_cells(plan: Plan, lengths: list[int] | None) -> None:
    check(plan, lengths)


@pytest.mark.exhaustive
@settings(BASE, max_examples=40)
@CASES
def test_many_random_cells(plan: Plan, lengths: list[int] | None) -> None:
    check(plan, lengths)


def check(plan: Plan, lengths: list[int] | None) -> None:
    torch.manual_seed(1)
    agree(Planned(plan), time=4, batch=3, lengths=lengths)

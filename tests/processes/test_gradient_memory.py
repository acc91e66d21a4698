"""With `parallel: data`, gradients are held once: they lie in the buckets that travel."""

from collections.abc import Iterator

import pytest
import torch
from torch import distributed

from seriatim.training.parallel import DataParallel


@pytest.fixture
def one_rank() -> Iterator[None]:
    """A process group of this process alone."""
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


def test_gradients_lie_in_the_buckets(one_rank) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    parallel = DataParallel(model)
    for _ in range(2):
        for parameter in model.parameters():
            parameter.grad = None
        parallel.module(torch.ones(2, 4)).sum().backward()
        storages = {parameter.grad.untyped_storage().data_ptr() for parameter in model.parameters()}
        assert len(storages) == 1

"""A batch is copied to a GPU through pinned memory; everywhere else it is copied as usual."""

from unittest.mock import MagicMock

import torch

from seriatim.core.device_copies import to_device


def test_a_copy_to_a_gpu_is_pinned_and_not_waited_for() -> None:
    values = MagicMock(device=torch.device("cpu"))
    copied = to_device(values, torch.device("cuda", 1))
    values.pin_memory.assert_called_once_with()
    values.pin_memory().to.assert_called_once_with(torch.device("cuda", 1), non_blocking=True)
    assert copied is values.pin_memory().to()


def test_values_that_are_on_the_device_stay_there() -> None:
    values = torch.arange(3)
    assert to_device(values, torch.device("cpu")) is values
    assert to_device(values, torch.device("meta")).is_meta

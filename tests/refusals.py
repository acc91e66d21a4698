"""What a refusal must say: the kind of the problem and its place, whatever the words are."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from seriatim.core.errors import InputError


@contextmanager
def refused(kind: str, place: str = "") -> Iterator[pytest.ExceptionInfo[InputError]]:
    """Expect an `InputError` of a kind, whose place ends with ``place``: a key, an option, a file and its line."""
    with pytest.raises(InputError) as caught:
        yield caught
    error = caught.value
    assert (error.kind, error.place.endswith(place)) == (kind, True), f"{error.kind}, {error.place}: {error}"
    assert error.remedy, error

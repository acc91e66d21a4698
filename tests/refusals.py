"""What a refusal must say: the kind of the problem and its place, whatever the words are."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from seriatim.core.errors import InputError


@contextmanager
def refused(kind: str, place: str = "", value: str = "") -> Iterator[pytest.ExceptionInfo[InputError]]:
    """Expect an `InputError` of a kind.

    Args:
        kind: what is wrong, in a word.
        place: the end of the place: a key, an option, a file and its line.
        value: what the message must hold besides: the name that was meant, the setting to change, a figure.
    """
    with pytest.raises(InputError) as caught:
        yield caught
    error = caught.value
    assert (error.kind, error.place.endswith(place)) == (kind, True), f"{error.kind}, {error.place}: {error}"
    assert error.remedy, error
    assert value in str(error), error

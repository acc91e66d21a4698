"""Stop strings end a text however it is divided into pieces."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seriatim.core.errors import InputError
from seriatim.decoding.sampling import StopStrings, check_stop_strings

TEXTS = st.text("abc", max_size=14)


def obvious(text: str, stops: list[str]) -> str:
    """The text before the stop string that is complete first, the longest of several."""
    for end in range(len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            return text[: end - len(max(found, key=len))]
    return text


@given(st.lists(TEXTS, max_size=6), st.lists(st.text("abc", min_size=1, max_size=4), max_size=3))
def test_pieces_are_the_whole_text(pieces: list[str], strings: list[str]) -> None:
    stops, expected, released = StopStrings(strings), obvious("".join(pieces), strings), ""
    for i, piece in enumerate(pieces):
        released += stops.feed(piece)
        assert expected.startswith(released)
        so_far = obvious("".join(pieces[: i + 1]), strings)
        withheld = max((n for n in range(4) if any(stop.startswith(so_far[-n:]) for stop in strings) and n), default=0)
        assert stops.has_ended or len(released) >= len(so_far) - withheld  # no more than needed is withheld
    assert released + stops.finish() == expected


def test_a_list_of_texts_is_needed() -> None:
    assert check_stop_strings(["a", "bc"]) == ("a", "bc")
    for wrong in ("text", [""], [1], 5, ["\udcff"]):
        with pytest.raises(InputError, match=r"^stop: "):
            check_stop_strings(wrong)

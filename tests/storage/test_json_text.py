"""JSON that other programs read line by line."""

import json
import math

from hypothesis import given
from hypothesis import strategies as st

from seriatim.storage.files import json_line

VALUES = st.recursive(st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8)


@given(VALUES)
def test_a_value_is_one_line_and_comes_back(value: object) -> None:
    text = json_line(value)
    assert len(text.splitlines()) == 1
    assert json.loads(text) == value


def test_characters_stay_readable_and_numbers_are_those_of_json() -> None:
    assert json_line(["é\u2028", math.nan, math.inf]) == '["é\\u2028", null, null]'

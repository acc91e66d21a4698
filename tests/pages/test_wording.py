"""Shares, quotations and names of data in sentences."""

import re

import numpy as np
import pytest

from seriatim.pages.wording import isolated, percent, quoted, same_digits, short_name, without_isolates


def test_only_nothing_is_written_as_nothing_and_only_all_as_all() -> None:
    assert [percent(share) for share in (0, 0.0001, 0.0042, 0.03, 0.16, 0.9996, 1)] == [
        *("0 %", "under 0.1 %", "0.4 %", "3 %", "16 %", "over 99.9 %", "100 %")
    ]
    for share in np.random.default_rng(0).uniform(0, 1, 200):
        assert re.fullmatch(r"(under |over )?\d+(\.[1-9])? %", percent(share))
        assert percent(share) not in ("0 %", "100 %")


def test_quotations_show_white_space_and_keep_their_direction() -> None:
    assert without_isolates(quoted("a b")) == "“a␣b”"
    assert without_isolates(isolated("אב")) == "אב"
    assert quoted("אב") != "“אב”"


@pytest.mark.parametrize("folder", ["", "/home/x/data/", "../data/"])
def test_names_of_data_have_no_folders(folder: str) -> None:
    assert short_name(f"{folder}train.txt") == "train.txt"
    assert short_name(f"{folder}train.en,{folder}train.de") == "train.en, train.de"
    assert short_name(f"10% of {folder}train.txt") == "10 % of train.txt"
    assert short_name("builtin:python-docs, part test") == "builtin:python-docs, part test"


def test_a_column_keeps_its_digits_and_no_positive_number_is_written_as_nothing() -> None:
    assert same_digits([0.0018, 1.34, 2.57, 5.0]) == ["<0.1", "1.3", "2.6", "5.0"]
    assert same_digits([0.0, 0.06, 1.0, 2.0]) == ["0.0", "0.1", "1.0", "2.0"]

"""Shares, quotations and names of data in sentences."""

import re

import numpy as np
import pytest

from seriatim.pages.wording import isolated, percent, percent_and_interval, quoted, short_name, without_isolates


def test_only_nothing_is_written_as_nothing_and_only_all_as_all() -> None:
    assert [percent(share) for share in (0, 0.0001, 0.0042, 0.03, 0.16, 0.9996, 1)] == [
        *("0 %", "under 0.1 %", "0.4 %", "3 %", "16 %", "over 99.9 %", "100 %")
    ]
    for share in np.random.default_rng(0).uniform(0, 1, 200):
        assert re.fullmatch(r"(under |over )?\d+(\.[1-9])? %", percent(share))
        assert percent(share) not in ("0 %", "100 %")


@pytest.mark.parametrize("bounds", [(0.32, 0.4), (0.351, 0.363)])
def test_a_share_has_the_digits_of_its_interval(bounds: tuple[float, float]) -> None:
    value, interval = percent_and_interval(0.36, *bounds)
    numbers = re.findall(r"[\d.]+(?= to| %$|$)", interval)
    assert len({len(number.partition(".")[2]) for number in [value.removesuffix(" %"), *numbers]}) == 1
    assert interval.startswith("95 % interval ")
    assert interval.endswith(" %")


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

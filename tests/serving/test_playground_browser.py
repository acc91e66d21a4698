"""The page in headless Chromium, with a real server; `benchmarks/playground.py` does the same by hand."""

import os
import sys
from pathlib import Path

import pytest

from .conftest import serving

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.exhaustive
def test_the_page_works_in_a_browser(runs, inspected, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import chromium
    from playground_checks import check

    try:
        program = chromium.find_chromium(os.environ.get("CHROMIUM"))
    except SystemExit:
        pytest.skip("Chromium is not installed")
    models = {"bytes": runs["byte-stream"], **{name: inspected[name] for name in ("classify", "tag")}}
    with serving({**models, "other": runs["byte-stream"]}) as served, chromium.start_browser(program) as browser:
        problems = {name: problem for name, problem in check(browser, served.address) if problem}
        assert problems == {}
        served.wait_until(lambda: all(served.running(name) == 0 for name in ("bytes", "other")), 1)
    for name in ("chromium", "playground_checks", "playground_page"):
        sys.modules.pop(name, None)

"""The tables of `docs/scaling.md` are those that the benchmark computes from the measured figures."""

import json
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
PAGE = BENCHMARKS.parent / "docs" / "scaling.md"


@pytest.fixture
def benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the modules of the benchmarks importable, for one test."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(BENCHMARKS)):
            del sys.modules[name]


def test_the_tables_of_the_page_are_computed(benchmarks) -> None:
    import scaling_estimate

    text = PAGE.read_text(encoding="utf-8")
    found = scaling_estimate.tables(json.loads(scaling_estimate.FIGURES.read_text(encoding="utf-8")))
    assert text.count("<!-- table: ") == len(found)
    for name, lines in found.items():
        assert f"<!-- table: {name} -->\n\n" + "\n".join(lines) + "\n\n<!-- end of table -->" in text


def test_a_step_takes_at_least_its_computation_and_its_communication(benchmarks) -> None:
    from scaling_simulation import Layer, Network, simulate_step

    layers = [Layer(1e6 * (i + 1), 0.01) for i in range(4)]
    for ranks in (1, 2, 8):
        for bandwidth in (1e6, 1e9, 1e15):
            for parallel in ("data", "fsdp"):
                step = simulate_step(layers, ranks, Network(bandwidth, 0.0), parallel)
                alone = max(step.compute_seconds, step.network_seconds)
                assert alone <= step.seconds * (1 + 1e-9)
                assert step.seconds <= (step.compute_seconds + step.network_seconds) * (1 + 1e-9)
                if ranks == 1 or bandwidth == 1e15:
                    assert step.seconds == pytest.approx(step.compute_seconds, rel=1e-3)

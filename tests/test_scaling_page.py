"""The tables of `docs/scaling.md` are those that the benchmark computes from the measured figures."""

import sys
from pathlib import Path
from types import SimpleNamespace

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


@pytest.mark.exhaustive
def test_the_tables_of_the_page_are_computed(benchmarks) -> None:
    import scaling_estimate

    text = PAGE.read_text(encoding="utf-8")
    found = scaling_estimate.tables(scaling_estimate.known())
    assert text.count("<!-- table: ") == len(found)
    for name, lines in found.items():
        assert f"<!-- table: {name} -->\n\n" + "\n".join(lines) + "\n\n<!-- end of table -->" in text


def test_a_step_takes_at_least_its_computation_and_its_communication(benchmarks) -> None:
    from scaling_simulation import Layer, Model, Network, simulate_step

    model = Model([Layer(1e6 * (i + 1), 0.01) for i in range(4)], Layer(2e6, 0.02))
    for ranks in (1, 2, 8):
        for bandwidth in (1e6, 1e9, 1e15):
            for parallel in ("data", "fsdp"):
                for micro_batches in (1, 3):
                    step = simulate_step(model, ranks, Network(bandwidth, 0.0), parallel, micro_batches)
                    alone = max(step.compute_seconds, step.network_seconds)
                    assert step.compute_seconds == pytest.approx(3 * micro_batches * model.forward_seconds)
                    assert step.network_seconds == pytest.approx(step.network_bytes / bandwidth)
                    assert alone <= step.seconds * (1 + 1e-9)
                    assert step.seconds <= (step.compute_seconds + step.network_seconds) * (1 + 1e-9)
                    if ranks == 1 or bandwidth == 1e15:
                        assert step.seconds == pytest.approx(step.compute_seconds, rel=1e-3)


def test_the_next_layer_is_gathered_while_one_computes_backward(benchmarks) -> None:
    """Four layers: a gather and a scatter take 1 s, forward 1 s, backward 2 s. Only the first and the last wait."""
    from scaling_simulation import PARAMETER_BYTES, Layer, Model, Network, simulate_step

    network = Network(PARAMETER_BYTES / 2, 0.0)  # a layer of one parameter takes a second between two ranks
    layers = [Layer(1.0, 1.0)] * 4
    assert simulate_step(Model(layers), 2, network, "fsdp").seconds == 14.0
    assert simulate_step(Model(layers), 2, network, "fsdp", micro_batches=2).seconds == 27.0  # 13 without scatters
    assert simulate_step(Model(layers), 2, network, "data").seconds == 20.0  # one bucket, after the computation
    # The root is gathered first and scattered last, once each; it computes 3 s.
    assert simulate_step(Model(layers, Layer(1.0, 1.0)), 2, network, "fsdp").seconds == 20.0


def test_memory_that_accumulation_needs(benchmarks) -> None:
    from scaling_simulation import Layer, Model, memory_of_rank

    model = Model([Layer(1e6, 1.0)] * 4)
    for parallel, shards in (("data", 1), ("fsdp", 8)):
        one, two = (memory_of_rank(model, 8, parallel, number, 0.0) for number in (1, 2))
        assert one["parameters, gradients, Adam"] == 4 * 4 * 4e6 / shards
        assert sum(two.values()) - sum(one.values()) == 4 * 4e6  # whole gradients, also with parts of parameters


def test_processors_divide_a_share_of_the_work(benchmarks) -> None:
    from counting_simulation import Machine, Phase

    machine = Machine(cores=4, memory=1.0, disk=1.0, network=1.0)
    phase = Phase("count", 1, 100.0, 0.8, 30.0, 0.0, 0.0)
    assert phase.times(machine)["processors"] == pytest.approx(40.0)  # 20 s of one core, 80 s of four
    assert phase.limit(machine) == "processors"


@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
def test_the_share_that_two_cores_divide_is_that_of_amdahl(benchmarks, monkeypatch, share: float) -> None:
    import counting_measurement

    clock = [0.0]

    def work(cores: int) -> None:
        clock[0] += 8 * (1 - share + share / cores)

    monkeypatch.setattr(counting_measurement, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    assert counting_measurement.measured_work(work) == pytest.approx((8, share))

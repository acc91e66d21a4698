"""The benchmark of GPUs runs on a CPU, in Triton's interpreter, and finds equal values."""

from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")
BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import gpu

    monkeypatch.setattr(torch, "compile", lambda module, **_: module)  # it takes most of the time
    return gpu


def test_all_ways_agree_in_the_interpreter(gpu) -> None:
    with gpu.interpreted():
        results = gpu.measure(gpu.TINY, "cpu")
    assert len(results) == len(gpu.CONTESTANTS) + len(gpu.TINY.texts)
    assert all(each["agrees"] < 1e-5 for each in results.values())
    *speeds, agreement = gpu.claims_of(results, "no time")
    assert agreement.reached
    assert len([claim for claim in speeds if claim.reached is not None]) == len(results)
    assert {claim.theirs for claim in speeds if claim.reached is None} == {"no time"}


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is measured")
def test_without_a_gpu_nothing_is_claimed(gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    saved = {}
    monkeypatch.setattr(gpu.record, "save", lambda name, **fields: saved.update({name: fields["claims"]}))
    gpu.main([])
    assert {claim.reached for claim in saved["gpu"]} == {None}
    assert len(saved["gpu"]) > len(gpu.CONTESTANTS)

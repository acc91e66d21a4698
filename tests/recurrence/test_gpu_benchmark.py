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
    monkeypatch.setattr(gpu.record, "save", lambda *_, **__: pytest.fail("nothing was measured"))
    return gpu


def test_all_ways_agree_in_the_interpreter(gpu) -> None:
    with gpu.interpreted():
        results = gpu.measure(gpu.TINY, "cpu")
    assert len(results) == len(gpu.CONTESTANTS) + len(gpu.TINY.texts)
    assert all(each["agrees"] < 1e-5 for each in results.values())
    claims = gpu.claims_of(results)
    assert claims[f"values agree to {gpu.TOLERANCE:g}"]
    assert len(claims) == 1 + len(results)


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is measured")
def test_without_a_gpu_nothing_is_claimed(gpu, capsys: pytest.CaptureFixture[str]) -> None:
    gpu.main([])
    assert capsys.readouterr().out.startswith("not measured")

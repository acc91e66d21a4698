"""SIGTERM and Ctrl-C: a training saves and exits with 128 + the signal's number; a second one quits at once."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import seriatim
from seriatim.cli import main
from seriatim.interruption import Interrupted, noted
from seriatim.training.checkpoints import checkpoints
from seriatim.training.loop import Trainer
from seriatim.training.reporting import Reporter

from ..conftest import small_config
from ..test_training import same


@pytest.fixture(autouse=True)
def usual_handlers() -> Iterator[None]:
    """Where tests run in the background, SIGINT is ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


class Stopped(Reporter):
    """Sends a signal in the middle of an epoch."""

    def __init__(self, number: int, step: int) -> None:
        self.number, self.at = number, step

    def step(self, record) -> None:
        if record["step"] == self.at:
            os.kill(os.getpid(), self.number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_what_was_learned_is_saved_and_goes_on_to_the_same_bits(texts, tmp_path: Path, number: int) -> None:
    training = {"schedule": "constant", "steps": 20}
    whole = seriatim.train(small_config(texts, tmp_path / "whole", training=training))
    before = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    with pytest.raises(Interrupted, match="at step 7"):
        seriatim.train(small_config(texts, tmp_path / "cut", training=training), reporter=Stopped(number, 7))
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)] == before
    assert checkpoints(tmp_path / "cut" / "checkpoints")[-1].name == "step-000000007"
    assert same(whole, seriatim.resume(tmp_path / "cut"))


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_the_command_says_so(texts, tmp_path: Path, number: int, code: int, monkeypatch, capsys) -> None:
    after_step = Trainer.after_step

    def signalled(trainer: Trainer) -> None:
        after_step(trainer)
        os.kill(os.getpid(), number)

    monkeypatch.setattr(Trainer, "after_step", signalled)
    given = ["train", "lm", "--data", texts["train"], "--model.hidden_size", "8", "--out", str(tmp_path / "run")]
    assert main([*given, "--quiet"]) == code
    message = "seriatim: error: interrupted at step 1, which is saved; go on with: seriatim train --resume RUN\n"
    assert capsys.readouterr().err.endswith(message)


@pytest.mark.parametrize("at", ["the last step", "the last validation"])
def test_at_the_very_end_it_is_saved_too(texts, tmp_path: Path, at: str) -> None:
    class Late(Stopped):
        def validation(self, record) -> None:
            if at == "the last validation":
                os.kill(os.getpid(), self.number)

    reporter = Late(signal.SIGTERM, 9 if at == "the last step" else 0)
    with pytest.raises(Interrupted, match="at step 9, which is saved"):
        seriatim.train(small_config(texts, tmp_path / "run", training={"steps": 9}), reporter=reporter)
    assert checkpoints(tmp_path / "run" / "checkpoints")[-1].name == "step-000000009"
    assert seriatim.resume(tmp_path / "run").summary["steps"] == 9


def test_a_second_one_quits_at_once() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        with noted() as came:
            assert came() is None
            os.kill(os.getpid(), number)
            assert came() == number
            with pytest.raises(KeyboardInterrupt):
                os.kill(os.getpid(), signal.SIGINT)
            assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL

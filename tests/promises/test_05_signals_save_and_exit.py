"""SIGTERM and Ctrl-C: a training saves and exits with 128 + the signal's number; a second one quits at once."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import seriatim
from seriatim.cli.main import _interrupted, main
from seriatim.processes.signals import Interrupted, signals_deferred
from seriatim.training.checkpoints import checkpoints
from seriatim.training.loop import Trainer
from seriatim.training.reporting import Reporter

from ..conftest import FULL_DISK, needs_full_disk, small_config
from ..exhaustive import parameters
from ..training.test_training import same


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


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_what_was_learned_is_saved_and_goes_on_to_the_same_bits(texts, tmp_path: Path, number: int) -> None:
    training = {"schedule": "constant", "steps": 10}
    whole = seriatim.train(small_config(texts, tmp_path / "whole", training=training))
    before = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    with pytest.raises(Interrupted, match="at step 7"):
        seriatim.train(small_config(texts, tmp_path / "cut", training=training), reporter=Stopped(number, 7))
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)] == before
    assert checkpoints(tmp_path / "cut" / "checkpoints")[-1].name == "step-000000007"
    assert same(whole, seriatim.resume(tmp_path / "cut"))


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_the_command_says_so(texts, tmp_path: Path, number: int, code: int, monkeypatch, capsys) -> None:
    after_step = Trainer.after_step

    def signalled(trainer: Trainer) -> None:
        after_step(trainer)
        os.kill(os.getpid(), number)

    monkeypatch.setattr(Trainer, "after_step", signalled)
    given = ["train", "lm", "--data", texts["train"], "--model.hidden_size", "8", "--out", str(tmp_path / "run")]
    assert main([*given, "--quiet"]) == code
    command = f"seriatim train --resume {tmp_path / 'run'}"
    message = f"seriatim: error: interrupted at step 1, which is saved; go on with: {command}\n"
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
        with signals_deferred() as came:
            assert came() is None
            os.kill(os.getpid(), number)
            assert came() == number
            with pytest.raises(KeyboardInterrupt):
                os.kill(os.getpid(), signal.SIGINT)
            assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


HOOKED = """
import os, signal, sys

class Hook:
    def find_spec(self, name, path=None, target=None):
        if name == MODULE:
            os.kill(os.getpid(), signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)
sys.meta_path.insert(0, Hook())
from seriatim.__main__ import run
sys.argv[1:] = ["layers"]
sys.exit(run())
"""


@pytest.mark.parametrize(
    "module",
    parameters(
        ("seriatim.cli.main", "argparse", "seriatim.cli.options", "seriatim.core.errors"),
        everyday=("seriatim.cli.main", "argparse"),
    ),
)
def test_an_interrupted_import_leaves_no_traceback(module: str) -> None:
    code = HOOKED.replace("MODULE", repr(module))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "seriatim: error: interrupted\n")


DOCS = Path(seriatim.__file__).parent / "docs"
CRASHING = """
import atexit, os, sys, threading
from seriatim.__main__ import run

class Crash:
    def __del__(self, crash=os.abort):
        crash()

kept = Crash()  # until the interpreter ends
threading.Thread(target=threading.Event().wait).start()  # as Python cannot end
atexit.register(os.write, 2, b"cleaned up")
sys.argv[1:] = ARGUMENTS
sys.exit(run())
"""


@pytest.mark.parametrize(("page", "expected"), [("reliability", 0), ("nothing", 2)])
def test_what_crashes_after_the_last_line_does_not_change_the_exit_code(page: str, expected: int) -> None:
    code = CRASHING.replace("ARGUMENTS", repr(["docs", page]))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == expected
    assert done.stderr.endswith("cleaned up")
    assert bool(done.stdout) == (expected == 0)
    if expected == 0:
        assert done.stdout.rstrip().endswith((DOCS / f"{page}.md").read_text().rstrip()[-40:])


def test_an_interruption_that_an_import_turns_into_an_error_is_one() -> None:
    """As NumPy does with whatever comes while its C code is loaded."""
    error = ImportError("cannot import")
    error.__context__ = KeyboardInterrupt()
    assert _interrupted(error)
    assert not _interrupted(ImportError("cannot import"))


@pytest.mark.exhaustive
@pytest.mark.parametrize("stream", ["a closed pipe", "none", pytest.param("a full disk", marks=needs_full_disk)])
def test_a_progress_line_that_cannot_be_written_is_dropped(texts, tmp_path: Path, stream: str) -> None:
    given = ["train", "lm", "--data", texts["train"], "--model.hidden_size", "8", "--training.steps", "3"]
    if stream == "a closed pipe":
        read, errors = os.pipe()
        os.close(read)
    else:
        errors = os.open(FULL_DISK if stream == "a full disk" else os.devnull, os.O_WRONLY)
    closed = "import os; os.close(2); " if stream == "none" else ""
    code = f"{closed}import sys; from seriatim.__main__ import run; sys.exit(run())"
    command = [sys.executable, "-c", code, *given, "--out", str(tmp_path / "run")]
    assert subprocess.run(command, stderr=errors, check=False).returncode == 0
    os.close(errors)
    assert (tmp_path / "run" / "summary.json").exists()


@pytest.mark.parametrize("error", [BrokenPipeError(), OSError(28, "full"), ValueError("I/O operation on closed file")])
def test_a_reporter_that_cannot_write_is_left_out(texts, tmp_path: Path, error: Exception) -> None:
    calls = []

    class Failing(Reporter):
        def step(self, record) -> None:
            calls.append(record["step"])
            raise error

    run = seriatim.train(small_config(texts, tmp_path / "run", training={"steps": 3}), reporter=Failing())
    assert (run.summary["steps"], calls) == (3, [1])


def test_other_errors_of_a_reporter_are_raised(texts, tmp_path: Path) -> None:
    class Failing(Reporter):
        def step(self, record) -> None:
            raise ValueError("a fault of the reporter")

    with pytest.raises(ValueError, match="a fault of the reporter"):
        seriatim.train(small_config(texts, tmp_path / "run"), reporter=Failing())

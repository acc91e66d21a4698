"""Reporters: what a training shows inside a notebook, on a console and elsewhere."""

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import seriatim
from seriatim.training.reporting import NotebookReporter, default_reporter

from ..conftest import small_config


class Cell:
    """The output of a notebook's cell: what it showed, first to last."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def display(self, data: dict[str, str], *, raw: bool, display_id: bool) -> "Cell":
        assert (raw, display_id) == (True, True)
        assert not self.texts, "one output, which is updated"
        self.texts.append(data["text/plain"])
        return self

    def update(self, data: dict[str, str], *, raw: bool) -> None:
        self.texts.append(data["text/plain"])


@pytest.fixture
def cell(monkeypatch: pytest.MonkeyPatch) -> Cell:
    """Makes this process look like the kernel of a notebook."""
    found, kernel, display = Cell(), SimpleNamespace(kernel=object()), ModuleType("IPython.display")
    package: Any = ModuleType("IPython")
    package.get_ipython = lambda: kernel
    display.display = found.display  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", package)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    return found


def test_a_notebook_shows_progress_in_one_output(texts, tmp_path: Path, cell: Cell, capsys, monkeypatch) -> None:
    monkeypatch.setattr("seriatim.training.reporting.UPDATE_SECONDS", 0.0)
    seriatim.train(small_config(texts, tmp_path / "run", training={"steps": 3}))
    assert any("step 2 " in text.splitlines()[-1] and "left" in text for text in cell.texts)
    assert "done: 3 steps" in cell.texts[-1]
    assert not any(line.startswith("step 3 ") for line in cell.texts[-1].splitlines())
    assert capsys.readouterr() == ("", "")


def test_a_notebook_can_be_quiet(texts, tmp_path: Path, cell: Cell) -> None:
    seriatim.train(small_config(texts, tmp_path / "run", training={"steps": 3}), reporter=seriatim.Reporter())
    assert cell.texts == []


def test_a_script_and_a_terminal_shell_stay_quiet(texts, tmp_path: Path, capsys, monkeypatch) -> None:
    shell: Any = ModuleType("IPython")
    shell.get_ipython = lambda: SimpleNamespace()  # IPython on a terminal has no kernel
    monkeypatch.setitem(sys.modules, "IPython", shell)
    assert not isinstance(default_reporter(), NotebookReporter)
    seriatim.train(small_config(texts, tmp_path / "run", training={"steps": 3}))
    assert capsys.readouterr() == ("", "")


def test_the_reporter_of_the_console_is_public(texts, tmp_path: Path, capsys) -> None:
    seriatim.train(small_config(texts, tmp_path / "run", training={"steps": 3}), reporter=seriatim.ConsoleReporter())
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "done: 3 steps" in printed.err

"""The command where the surroundings are poor: closed, full and foreign streams, no UTF-8, no home, no compiler."""

import json
import os
import pty
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

import seriatim
from seriatim.cli.console import show, table_of
from seriatim.cli.main import main
from seriatim.compiler.cpp import toolchain as compiler
from seriatim.core.random_masks import dropout_mask
from seriatim.processes.child import run_module
from seriatim.recurrence import uncompiled
from seriatim.storage import disk_cache as cache

from ..conftest import FULL_DISK, needs_full_disk
from ..golden.answers import GOLDEN
from ..refusals import refused


def shell(code: str, redirection: str = "", **environment: str) -> subprocess.CompletedProcess:
    command = f'exec {sys.executable} -c "$CODE" {redirection}'
    values = {**os.environ, **environment, "CODE": f"import sys; from seriatim.cli.main import main; {code}"}
    return subprocess.run(["bash", "-c", command], capture_output=True, env=values, check=False)


def test_closed_streams_are_named_in_one_line() -> None:
    done = shell("sys.exit(main([]))", ">&-")
    assert done.returncode == 2
    assert done.stderr == b"seriatim: error: standard output is closed; open it, or send it to a file\n"
    code = "from seriatim.cli.generate import read_prompt; main([]); read_prompt(None)"
    done = shell(code, "<&-")
    assert b"UnavailableError: standard input is closed; open it, or give a file" in done.stderr
    done = shell("sys.exit(main(['trian']))", "2>&-")
    assert (done.returncode, done.stdout) == (2, b""), "messages do not go elsewhere"


def test_what_is_opened_does_not_take_the_number_of_a_closed_stream(tmp_path: Path) -> None:
    path = tmp_path / "file"
    done = shell(f"code = main([]); file = open({str(path)!r}, 'w'); sys.exit(file.fileno())", ">&- <&- 2>&-")
    assert done.returncode > 2


def test_answers_are_utf8_whatever_the_locale_says() -> None:
    done = shell(
        "main([]); print(chr(233) + chr(26085) + chr(0xD800))", LC_ALL="C", PYTHONIOENCODING="ascii", PYTHONUTF8="0"
    )
    assert done.stderr == b""
    assert done.stdout.decode().splitlines()[-1] == "é日\\ud800"


def test_a_user_without_a_home_has_a_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    for name in ("SERIATIM_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(cache, "_told", set())
    with pytest.warns(UserWarning, match="because the user has no home folder; set"):
        assert cache.cache_folder().parent == tmp_path


def test_a_compiler_that_cannot_be_read_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    for value in ("g++ 'x", "", "no-such-compiler -O3"):
        monkeypatch.setenv("CXX", value)
        assert compiler.compiler() is None
        compiler._warn.cache_clear()
        with pytest.warns(compiler.UncompiledWarning, match="is not a command that can be run"):
            assert compiler.library("int x;") is None
    compiler._warn.cache_clear()


@pytest.mark.parametrize("p", [0.999999, 1 - 1e-12])
def test_a_dropout_next_to_one_is_finite(p: float) -> None:
    assert dropout_mask((1000,), p, torch.zeros(1)).isfinite().all()


def full_disk() -> int:
    return os.open(FULL_DISK, os.O_WRONLY)


def closed_pipe() -> int:
    read, write = os.pipe()
    os.close(read)
    return write


PRINTING = {
    "help": ["--help"],
    "version": ["--version"],
    "help of a verb": ["predict", "--help"],
    "nothing": [],
    "docs": ["docs"],
    "layers": ["layers", "--layer", "lstm"],
    "layers as JSON": ["layers", "--layer", "lstm", "--json"],
    "check": ["check", "lm", "--data", str(GOLDEN / "data" / "text.txt")],
    "check as JSON": ["check", "lm", "--data", str(GOLDEN / "data" / "text.txt"), "--json"],
    "evaluate": ["evaluate", str(GOLDEN / "lm-ngram"), "--data", str(GOLDEN / "data" / "text.txt")],
    "evaluate as JSON": ["evaluate", str(GOLDEN / "lm-ngram"), "--data", str(GOLDEN / "data" / "text.txt"), "--json"],
    "predict": ["predict", str(GOLDEN / "classify-mean"), str(GOLDEN / "data" / "text.txt")],
    "predict as JSON": ["predict", str(GOLDEN / "classify-mean"), str(GOLDEN / "data" / "text.txt"), "--json"],
    "generate": ["generate", str(GOLDEN / "lm-ngram"), "--max-tokens", "3"],
    "generate as JSON": ["generate", str(GOLDEN / "lm-ngram"), "--max-tokens", "3", "--samples", "2", "--json"],
    "surprisal": ["surprisal", str(GOLDEN / "lm-ngram"), str(GOLDEN / "data" / "valid-text.txt")],
}


def code_of(arguments: list[str]) -> object:
    with uncompiled():
        try:
            return main(arguments)
        except SystemExit as error:
            return error.code


@pytest.mark.parametrize(
    ("sink", "code", "said"),
    [pytest.param(full_disk, 1, "standard output: No space left", marks=needs_full_disk), (closed_pipe, 0, "")],
    ids=["full disk", "closed pipe"],
)
@pytest.mark.parametrize("arguments", PRINTING.values(), ids=PRINTING)
def test_output_that_cannot_be_written(
    arguments: list[str], sink: Callable[[], int], code: int, said: str, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    """A full disk is a failure that is named; a reader that has seen enough is none."""
    with monkeypatch.context() as patched, os.fdopen(sink(), "w") as stream:
        patched.setattr("sys.stdout", stream)
        assert code_of(arguments) == code
    errors = capsys.readouterr().err
    assert said in errors
    assert errors.count("\n") == bool(said)


@pytest.mark.parametrize("arguments", [[], ["docs", "training"], ["--help"]], ids=str)
@pytest.mark.parametrize(("sink", "code"), [(full_disk, 1), (closed_pipe, 0)])
def test_the_interpreter_has_nothing_to_add(arguments: list[str], sink: Callable[[], int], code: int) -> None:
    """What is left in a buffer when Python ends would change the exit code."""
    output, command = sink(), [sys.executable, "-m", "seriatim", *arguments]
    done = subprocess.run(command, stdout=output, stderr=subprocess.PIPE, text=True, check=False)
    os.close(output)
    assert (done.returncode, done.stderr.count("\n")) == (code, code)


@pytest.mark.parametrize("sink", [full_disk, closed_pipe])
def test_messages_that_cannot_be_written_are_dropped(sink: Callable[[], int], monkeypatch, capsys) -> None:
    with os.fdopen(sink(), "w") as stream:
        monkeypatch.setattr("sys.stderr", stream)
        assert main(["layers", "--layer", "lstn"]) == 2
        assert main(PRINTING["predict"]) == 0
    assert capsys.readouterr().out


ORDERS = "\x1b[31m \x1b]0;title\x07 \x9b2J \u202eabc\u2066 \x7f a\u0085b\u2028c \u200f"
"""What terminals obey: colours, a title, an erased screen, another direction, a deleted character, lines."""
KEPT = "é 日本 \u200cمی\u200d 👩\u200d👩 e\u0301 a\tb"
"""What they show, with what joins characters."""


@contextmanager
def terminal(monkeypatch: pytest.MonkeyPatch, name: str) -> Iterator[Callable[[], str]]:
    """A terminal in the place of a stream; yields a function that returns what it received."""
    master, slave = pty.openpty()
    settings = termios.tcgetattr(slave)
    settings[1] &= ~termios.OPOST  # line ends arrive as they are
    termios.tcsetattr(slave, termios.TCSANOW, settings)
    os.set_blocking(master, False)

    def received() -> str:
        stream.flush()
        content = b""
        try:
            while block := os.read(master, 1 << 16):
                content += block
        except BlockingIOError:
            return content.decode()
        return content.decode()

    with monkeypatch.context() as patched, os.fdopen(slave, "w", encoding="utf-8") as stream:
        patched.setattr(name, stream)
        yield received
    os.close(master)


SHOWING = {
    "predict": ["predict", str(GOLDEN / "mlm-gru"), "FILE"],
    "predict as JSON": ["predict", str(GOLDEN / "mlm-gru"), "FILE", "--json"],
    "predict tags": ["predict", str(GOLDEN / "tag-words"), "COLUMNS"],
    "surprisal": ["surprisal", str(GOLDEN / "lm-rnn"), "FILE"],
    "surprisal of characters": ["surprisal", str(GOLDEN / "lm-rnn"), "FILE", "--by", "character"],
    "generate": ["generate", str(GOLDEN / "lm-rnn"), "--prompt", ORDERS + KEPT, "--max-tokens", "20", "--seed", "1"],
    "generate from prompts": ["generate", str(GOLDEN / "lm-rnn"), "--prompts", "FILE", "--max-tokens", "1"],
    "check": ["check", "lm", "--data", "FILE"],
}


@pytest.mark.filterwarnings("ignore:.*C1 control")
@pytest.mark.parametrize("arguments", SHOWING.values(), ids=SHOWING)
def test_a_terminal_is_shown_what_it_would_obey(arguments: list[str], tmp_path: Path, monkeypatch, capsys) -> None:
    """And a file or a pipe gets the text unchanged."""
    path = tmp_path / "\x1b[2Ja.txt"
    path.write_text(f"{ORDERS} the sea\n{KEPT} the\n")
    columns = tmp_path / "\x07a.conll"
    columns.write_text(f"{ORDERS.replace(' ', '')}\tB-WHO\nthe\tO\n")
    arguments = [{"FILE": str(path), "COLUMNS": str(columns)}.get(argument, argument) for argument in arguments]
    with uncompiled():
        assert main(arguments) == 0
        plain = capsys.readouterr().out
        with terminal(monkeypatch, "sys.stdout") as received:
            assert main(arguments) == 0
            shown = received()
    assert not {*shown} & {*"\x1b\x07\x9b\u202e\u2066\x7f\x85\u2028\u200f"}
    assert "\\x1b" in shown or "\\u001b" in shown
    if arguments[0] != "check":  # whose table is printable everywhere
        assert "\x7f" in plain
        assert len(shown.splitlines()) == plain.count("\n")
    if "--json" in arguments:
        assert [json.loads(line)["text"] for line in shown.splitlines()] == path.read_text().split("\n")[:-1]


def test_a_terminal_keeps_what_it_shows(tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "a.txt"
    path.write_text(f"{KEPT}\n")
    with terminal(monkeypatch, "sys.stdout") as received:
        assert main(["predict", str(GOLDEN / "mlm-gru"), str(path)]) == 0
        assert received() == f"{KEPT}\n"


@pytest.mark.parametrize(
    "arguments",
    [["check", "lm", "--data", "no\x1b]0;x\x07file"], [ORDERS], ["evaluate", f"run{ORDERS}", "--data", "x"]],
    ids=["a file", "a verb", "a run"],
)
def test_an_error_gives_a_terminal_no_orders(arguments: list[str], monkeypatch) -> None:
    with terminal(monkeypatch, "sys.stderr") as received:
        assert main(arguments) == 2
        shown = received()
    assert shown.rstrip("\n").isprintable()
    assert "\\x1b" in shown


def test_a_table_is_plain_text_on_a_terminal(monkeypatch) -> None:
    with terminal(monkeypatch, "sys.stdout") as received:
        table = table_of("name", "value")
        table.add_row("\x1b[31mred", "1")
        show(table)
        assert "\x1b" not in received()


def test_a_current_folder_that_was_deleted_is_named(tmp_path: Path, monkeypatch, capsys) -> None:
    """Before PyTorch is imported, which ends the process there."""
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    for arguments in ([], ["layers"], ["train", "--help"], ["docs"], PRINTING["predict"]):
        assert code_of(arguments) == 2
        assert capsys.readouterr().err.startswith("seriatim: error: the current folder was deleted; ")
    for name in ("load", "Recurrent"):
        with refused("missing"):
            getattr(seriatim, name)
    with refused("missing"):
        run_module("seriatim.comparison.worker", {}, lambda _: None, lambda: None)
    assert "load" in dir(seriatim)


def test_the_command_in_a_deleted_folder(tmp_path: Path) -> None:
    command = f"cd {tmp_path}; rmdir {tmp_path}; exec {sys.executable} -m seriatim train --help"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.count("\n"), done.stdout) == (2, 1, "")

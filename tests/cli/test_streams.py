"""The command where the surroundings are poor: closed streams, no UTF-8, no home, no usable compiler."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from seriatim.compiler.cpp import toolchain as compiler
from seriatim.core.random_masks import dropout_mask
from seriatim.storage import disk_cache as cache


def shell(code: str, redirection: str = "", **environment: str) -> subprocess.CompletedProcess:
    command = f'exec {sys.executable} -c "$CODE" {redirection}'
    values = {**os.environ, **environment, "CODE": f"import sys; from seriatim.cli.main import main; {code}"}
    return subprocess.run(["bash", "-c", command], capture_output=True, env=values, check=False)


def test_closed_streams_are_named_in_one_line() -> None:
    done = shell("sys.exit(main([]))", ">&-")
    assert done.returncode == 2
    assert done.stderr == b"seriatim: error: standard output is closed; open it, or send it to a file\n"
    code = "from seriatim.cli.generate_verb import read_prompt; main([]); read_prompt()"
    done = shell(code, "<&-")
    assert b"InputError: standard input is closed; open it, or give a file" in done.stderr
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

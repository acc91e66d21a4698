"""The command shows how much of a large text is read, unless it is quiet."""

from pathlib import Path

import pytest

from seriatim.cli.main import main


@pytest.mark.exhaustive
@pytest.mark.parametrize("quiet", [False, True])
def test_reading_is_shown(tmp_path: Path, quiet: bool, monkeypatch, capsys) -> None:
    monkeypatch.setenv("SERIATIM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("seriatim.data.encoding.PARALLEL_BYTES", 1)
    monkeypatch.setattr("seriatim.data.encoding.worker_count", lambda: 1)
    monkeypatch.setattr("seriatim.data.source_content.SECONDS", 0.0)
    (tmp_path / "a.txt").write_text("one two three\n" * 100)
    command = ["train", "lm", "--data", str(tmp_path / "a.txt"), "--valid", "none", "--out", str(tmp_path / "run")]
    command += ["--hidden_size", "4", "--embedding_size", "4", "--steps", "1", "--training.baseline", "none"]
    assert main([*command, *(["--quiet"] if quiet else [])]) == 0
    shown = capsys.readouterr().err
    assert (f"{tmp_path / 'a.txt'}: 0.0 of 0.0 MB" in shown) != quiet

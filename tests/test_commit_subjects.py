"""The script that checks commit subjects accepts imperatives and names every other problem."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent.parent / "scripts" / "check_commit_subjects.py"
spec = importlib.util.spec_from_file_location("check_commit_subjects", SCRIPT)
assert spec is not None
assert spec.loader is not None
checker = importlib.util.module_from_spec(spec)
spec.loader.exec_module(checker)


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command in ``folder`` and return its output."""
    return subprocess.run(arguments, cwd=folder, capture_output=True, text=True, check=False)


def repository(folder: Path, *subjects: str) -> Path:
    """Make a repository with one empty commit for each subject."""
    folder.mkdir()
    run(folder, "git", "init", "-q")
    for subject in subjects:
        identity = ("-c", "user.name=Test", "-c", "user.email=test@example.org", "-c", "commit.gpgsign=false")
        committed = run(folder, "git", *identity, "commit", "-q", "--no-verify", "--allow-empty", "-m", subject)
        assert committed.returncode == 0, committed.stderr
    return folder


@pytest.mark.parametrize(
    "subject",
    [
        "Add a layer",
        "Process empty lines",
        "Embed positions",
        "Feed the stream in pieces",
        "Focus the report",
        "Fix it",
        "decoding: stop beams at the end symbol",
    ],
)
def test_an_imperative_is_accepted(subject: str) -> None:
    assert checker.problem(subject) is None


@pytest.mark.parametrize(
    ("subject", "words"),
    [
        ("Added a layer", "past tense"),
        ("Adds a layer", "third person"),
        ("Adding a layer", "gerund"),
        ("add a layer", "capital"),
        ("Add a layer.", "full stop"),
        ("Add " + "a" * 69, "73 characters"),
        ("The layer is faster", "not a verb"),
        ("layers: Add one", "capital"),
        ("layers: added one", "past tense"),
        ("layers: ", "capital"),
        ("Layers: add one", "not a verb"),
        ("", "empty"),
    ],
)
def test_every_other_subject_is_refused(subject: str, words: str) -> None:
    assert words in (checker.problem(subject) or "")


def test_the_longest_allowed_subject_is_accepted() -> None:
    assert checker.problem("Add " + "a" * 68) is None


def test_a_message_file_is_read_without_comments(tmp_path: Path) -> None:
    message = tmp_path / "COMMIT_EDITMSG"
    message.write_text("\n# a comment\nAdd a layer\n\nAdded because it was missing.\n")
    assert checker.main(["--message", str(message)]) == 0
    message.write_text("Added a layer\n")
    assert checker.main(["--message", str(message)]) == 1


def test_commits_after_the_base_are_checked_and_earlier_ones_are_not(tmp_path: Path) -> None:
    folder = repository(tmp_path / "repository", "Added a file", "Add a second file", "Adds a third file")
    result = run(folder, sys.executable, str(SCRIPT), "--since", "HEAD~2")
    assert result.returncode == 1
    assert "Adds a third file" in result.stderr
    assert "Added a file" not in result.stderr
    assert run(folder, sys.executable, str(SCRIPT), "--since", "HEAD~1").returncode == 1
    assert run(folder, sys.executable, str(SCRIPT), "--since", "HEAD").returncode == 0


def test_a_shallow_clone_without_the_base_passes(tmp_path: Path) -> None:
    folder = repository(tmp_path / "repository", "Add one file", "Added another file", "Add a third file")
    base = run(folder, "git", "rev-parse", "HEAD~2").stdout.strip()
    cloned = run(tmp_path, "git", "clone", "-q", "--depth", "1", f"file://{folder}", "shallow")
    assert cloned.returncode == 0, cloned.stderr
    result = run(tmp_path / "shallow", sys.executable, str(SCRIPT), "--since", base)
    assert result.returncode == 0
    assert "not checked" in result.stdout
    assert run(folder, sys.executable, str(SCRIPT), "--since", base).returncode == 1

"""Check the subject lines of commits: imperative mood, a capital letter or an area in front, at most 72 characters.

Usage::

    python scripts/check_commit_subjects.py --message FILE    # check one message, as the hook of pre-commit does
    python scripts/check_commit_subjects.py --since COMMIT    # check the commits that HEAD has and COMMIT does not

The exit code is 0 if all subjects are correct, 1 if one is not, and 2 if git fails. If a shallow
clone lacks COMMIT, the script says that it checked nothing, and the exit code is 0.
"""

import argparse
import re
import subprocess
import sys
from pathlib import Path

MAX_LENGTH = 72
NOT_VERBS = re.compile(
    "a|an|the|this|that|these|those|it|its|we|i|you|what|why|how|when|where|which|who|if|no|not|more|some|new|one|two|"
    "all|in|on|at|of|for|from|with|and|or|wip"
)
AREA = re.compile(r"[a-z][a-z0-9_/-]*: (?=[a-z])")
"""An area in front of the verb, such as ``decoding: ``; the verb then begins with a small letter."""
ENDINGS = {"ed": "past tense", "ing": "gerund", "s": "third person"}
IMPERATIVES = re.compile(
    "embed|exceed|feed|heed|need|proceed|seed|shed|shred|speed|spread|succeed|weed|"
    "bring|cling|ping|ring|sing|sling|spring|sting|string|swing|alias|bias|canvas"
)
"""Imperatives, and nouns used as verbs, that end like an inflected form."""


def problem(subject: str) -> str | None:
    """Return what is wrong with a subject line, or None if it follows the rules."""
    if not subject.strip():
        return "the subject is empty; write what the commit does"
    if len(subject) > MAX_LENGTH:
        return f"the subject has {len(subject)} characters; use at most {MAX_LENGTH} and move details to the body"
    if subject.endswith("."):
        return "the subject ends with a full stop; remove it"
    area = AREA.match(subject)
    first = subject[area.end() if area else 0 :].split()[0]
    if not area and not first[0].isupper():
        return f"the subject begins with {first!r}; begin with a capital letter"
    verb = first.lower()
    if not verb.isalpha() or NOT_VERBS.fullmatch(verb):
        return (
            f"the subject begins with {first!r}, which is not a verb; begin with an imperative such as 'Add' or 'Fix'"
        )
    if IMPERATIVES.fullmatch(verb) or verb.endswith(("ss", "us", "is")):
        return None
    for ending, form in ENDINGS.items():
        if verb.endswith(ending):
            return f"the subject begins with {first!r} ({form}); use the imperative, such as 'Add' or 'Fix'"
    return None


def first_line(message: str) -> str:
    """Return the subject line of a commit message, without git's comment lines."""
    lines = (line for line in message.splitlines() if line.strip() and not line.startswith("#"))
    return next(lines, "")


def subjects_since(base: str) -> list[tuple[str, str]] | None:
    """Return the abbreviated hash and the subject of each commit after ``base``; None if this clone lacks ``base``."""
    known = subprocess.run(["git", "cat-file", "-e", f"{base}^{{commit}}"], capture_output=True, check=False)
    if known.returncode:
        return None
    command = ["git", "log", "--no-merges", "--format=%h %s", f"{base}..HEAD"]
    log = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    commits = (line.partition(" ") for line in log.splitlines())
    return [(commit, subject) for commit, _, subject in commits]


def main(arguments: list[str] | None = None) -> int:
    """Check one message or a range of commits and return the exit code."""
    parser = argparse.ArgumentParser(description="Check the subject lines of commits.")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--message", metavar="FILE", type=Path, help="a file that holds one commit message")
    source.add_argument(
        "--since", metavar="COMMIT", help="check the commits that HEAD has and this commit does not have"
    )
    options = parser.parse_args(arguments)
    if options.message is not None:
        subject = first_line(options.message.read_text(encoding="utf-8"))
        if subject.startswith("Merge "):
            return 0
        commits: list[tuple[str, str]] | None = [(str(options.message), subject)]
    else:
        try:
            commits = subjects_since(options.since)
        except (OSError, subprocess.CalledProcessError) as error:
            print(f"git log failed: {error}", file=sys.stderr)
            return 2
    if commits is None:
        print(f"commit {options.since} is not in this clone; commit subjects were not checked")
        return 0
    problems = [(commit, subject, text) for commit, subject in commits if (text := problem(subject))]
    for commit, subject, text in problems:
        print(f"{commit}: {text}: {subject!r}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())

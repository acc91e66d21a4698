"""The pages of the documentation run as they are written and print what they show."""

import contextlib
import io
import linecache
import re
from pathlib import Path

import pytest
import torch

import seriatim
from seriatim.cli.main import build_parser
from seriatim.tasks import TASKS

from .conftest import sentences

DOCS = Path(__file__).parent.parent / "docs"
PAGES = sorted(DOCS.glob("*.md"))
SERVED = "serving.md"
"""Its programs need a server; `tests/serving/test_serving_page.py` runs them."""
BLOCK = re.compile(r"```python\n(.*?)```(?:\n\n```text\n(.*?)```)?", re.DOTALL)


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize("page", [page for page in PAGES if page.name != SERVED], ids=lambda page: page.name)
def test_a_page_runs_and_prints_what_it_shows(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As written, but for the steps of a training, the length of its text, and the processes of a comparison."""

    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text("\n".join(["The text so far", *sentences(200)]) + "\n")
    torch.manual_seed(0)
    names: dict[str, object] = {}
    registered = set(seriatim.layers.REGISTRY)
    try:
        for code, shown in BLOCK.findall(page.read_text(encoding="utf-8")):
            source = code.replace('"steps": 200', '"steps": 2')
            source = re.sub('"builtin:python-docs(:valid)?"', '"text.txt"', source)
            printed = io.StringIO()
            linecache.cache["cells.py"] = (len(source), None, source.splitlines(keepends=True), "cells.py")
            with contextlib.redirect_stdout(printed):
                exec(compile(source, "cells.py", "exec"), names)
            if shown:
                assert printed.getvalue() == shown
    finally:
        for name in set(seriatim.layers.REGISTRY) - registered:
            del seriatim.layers.REGISTRY[name]


def test_every_option_of_compare_is_listed() -> None:
    page = (DOCS / "comparing.md").read_text(encoding="utf-8")
    for action in build_parser()[1]["compare"]._actions:
        for flag in action.option_strings:
            assert flag in ("-h", "--help") or f"`{flag}" in page, flag


@pytest.mark.parametrize("name", TASKS)
def test_every_option_of_a_task_is_listed(name: str) -> None:
    page = (DOCS / "options.md").read_text(encoding="utf-8")
    options = TASKS[name].options
    for field in options.model_fields if options is not None else ():
        assert f"`{field}`" in page, f"{name}: {field}"


@pytest.mark.parametrize(
    "page", [*PAGES, DOCS.parent / "CONTRIBUTING.md", DOCS.parent / "README.md"], ids=lambda p: p.name
)
def test_a_file_that_a_page_names_exists(page: Path) -> None:
    """Paths are relative to the repository, to the package or to the layers."""
    root = DOCS.parent
    places = (root, root / "src" / "seriatim")
    for path in re.findall(r"`((?:[a-z_0-9]+/)+[a-z_0-9]*(?:\.py)?)`", page.read_text(encoding="utf-8")):
        if path.endswith((".py", "/")) and not path.startswith(("site/", "checkpoints/")):
            assert any((place / path).exists() for place in places), path


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_table_has_a_header_and_rows_of_the_same_width(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for table in re.findall(r"(?:^\|.*\n)+", text, flags=re.MULTILINE):
        header, rule, *rows = [re.sub(r"`[^`\n]*`", "", line) for line in table.splitlines()] + [""] * 2
        assert re.fullmatch(r"(\|[-: ]+)+\|", rule), header
        widths = {len(re.findall(r"(?<!\\)\|", row)) for row in (header, *filter(None, rows))}
        assert len(widths) == 1, header

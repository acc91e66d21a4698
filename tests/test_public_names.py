"""`dir(seriatim)` is the documented interface and nothing else."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import seriatim

API = Path(__file__).parent.parent / "docs" / "api"
DOCUMENTED = set(re.findall(r"^::: seriatim\.(\w+)$", "".join(page.read_text() for page in API.glob("*.md")), re.M))


def test_dir_lists_the_public_names_only() -> None:
    assert dir(seriatim) == sorted(seriatim.__all__)
    assert len(set(seriatim.__all__)) == len(seriatim.__all__)


def test_every_public_name_is_in_the_reference_and_nothing_else() -> None:
    assert {*seriatim.__all__} - {"__version__"} == DOCUMENTED


def test_the_overview_of_the_reference_names_every_public_name() -> None:
    overview = (API / "index.md").read_text()
    assert set(re.findall(r"\[seriatim\.(\w+)\]", overview)) == DOCUMENTED


@pytest.mark.parametrize("name", seriatim.__all__)
def test_a_public_name_can_be_imported_and_is_documented(name: str) -> None:
    public = getattr(seriatim, name)
    assert name in ("__version__", "State") or public.__doc__


def test_an_unknown_name_raises_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        seriatim.no_such_name  # noqa: B018


def test_listing_the_names_imports_nothing() -> None:
    code = "import sys, seriatim; dir(seriatim); seriatim.__all__; print('torch' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "False"

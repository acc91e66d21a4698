"""The house is in order: imports point one way, the command starts quickly."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import seriatim

SOURCE = Path(seriatim.__file__).parent
LEVELS = (
    ("version",),
    ("core",),
    ("storage",),
    ("config",),
    ("data",),
    ("compiler",),
    ("recurrence", "unroll"),
    ("layers",),
    ("models",),
    ("decoding", "evaluation"),
    ("training",),
    ("tasks",),
    ("runs",),
    ("report",),
    ("inspection",),
    ("comparison",),
    ("interchange",),
    ("cli",),
    ("__main__",),
)
LEVEL = {name: i for i, names in enumerate(LEVELS) for name in names}
FEW = 25
"""Entries of the package, at most."""
FILES = sorted(path for path in SOURCE.rglob("*.py") if path != SOURCE / "__init__.py")


def imported(path: Path) -> set[str]:
    """Top-level parts of the package that a file imports."""
    inside = list(path.relative_to(SOURCE).parts)
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = inside[: len(inside) - node.level]
            target = [*base, *(node.module.split(".") if node.module else [])]
            names = [target[0]] if target else [alias.name for alias in node.names]
            found.update(name for name in names if name in LEVEL)
    return found


def part(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_point_one_way(path: Path) -> None:
    name = part(path)
    assert name in LEVEL, f"{name} has no level"
    for other in imported(path):
        assert LEVEL[other] <= LEVEL[name], f"{name} imports {other}, which stands above it"


def test_the_package_has_few_parts() -> None:
    assert len([path for path in SOURCE.iterdir() if path.name != "__pycache__"]) <= FEW


def test_no_architecture_is_named_outside_layers() -> None:
    names = {cls.__name__ for cls in seriatim.layers.REGISTRY.values()}
    for path in FILES:
        if part(path) != "layers":
            used = {node.id for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Name)}
            assert not names & used, f"{path.name} names {names & used}"


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from seriatim.cli.main import main; main(['--help']); print(sorted(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "usage: seriatim" in done.stdout
    for heavy in ("torch", "numpy", "pydantic", "yaml", "rich", "tokenizers"):
        assert f"'{heavy}'" not in done.stderr


def test_public_names() -> None:
    for name in seriatim.__all__:
        assert getattr(seriatim, name) is not None
    assert callable(seriatim.layer)
    assert seriatim.layer("gru", 2, 3).output_size == 3
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        seriatim.nothing  # noqa: B018

"""The structure of the package: imports point one way without circles, and the command starts quickly."""

import ast
import importlib.util
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import seriatim

SOURCE = Path(seriatim.__file__).parent
LEVELS = (
    ("version",),
    ("core",),
    ("storage",),
    ("config",),
    ("processes",),
    ("data",),
    ("compiler",),
    ("recurrence",),
    ("layers",),
    ("testing",),
    ("models",),
    ("counting",),
    ("decoding", "evaluation"),
    ("tasks",),
    ("training",),
    ("runs",),
    ("pages",),
    ("inspection",),
    ("comparison",),
    ("interchange",),
    ("serving",),
    ("cli",),
    ("__main__",),
)
LEVEL = {name: i for i, names in enumerate(LEVELS) for name in names}
MAX_ENTRIES = 28
"""The largest number of entries of the package."""
FILES = sorted(path for path in SOURCE.rglob("*.py") if path != SOURCE / "__init__.py")
MAX_ANY = 150
"""The largest number of occurrences of ``Any`` in the package."""
MAX_CODE_LINES = 47_950
"""The ceiling of the source: what is added must be paid for by what is deleted."""
MAX_METHODS, MAX_CHAIN, MAX_CHAIN_OF_LAYERS = 25, 3, 5
"""The largest number of methods of a class with those of its bases, and of classes in a chain of bases."""


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def part(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def name_of(path: Path) -> str:
    return path.relative_to(SOURCE).as_posix()


@cache
def imported(path: Path) -> set[Path]:
    """The files that a file imports anywhere: at the top, within functions and for type checkers only."""
    folder = path.relative_to(SOURCE).parts[:-1]
    files = set()
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = SOURCE.joinpath(*folder[: len(folder) - node.level + 1], *(node.module or "").split("."))
            names = [base / alias.name for alias in node.names]
            files.update(file for file in map(file_of, names) if file is not None)
            if not all(map(file_of, names)) and (file := file_of(base)) is not None:
                files.add(file)
    return files


@cache
def file_of(module: Path) -> Path | None:
    candidates = (module.with_name(f"{module.name}.py"), module / "__init__.py")
    return next((path for path in candidates if path.is_file()), None)


def circles(graph: dict[Path, set[Path]]) -> list[list[Path]]:
    """The groups of files that import one another: the strongly connected components (Tarjan, 1972)."""
    index: dict[Path, int] = {}
    low: dict[Path, int] = {}
    stack: list[Path] = []
    groups = []

    def visit(node: Path) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in graph[node]:
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            at = stack.index(node)
            groups.append(stack[at:])
            del stack[at:]

    for node in graph:
        if node not in index:
            visit(node)
    return [group for group in groups if len(group) > 1 or group[0] in graph[group[0]]]


def test_imports_point_one_way() -> None:
    assert {part(path) for path in FILES} <= set(LEVEL)
    upward = {
        (name_of(path), other)
        for path in FILES
        for other in {part(file) for file in imported(path)} - {"__init__"}
        if LEVEL[other] > LEVEL[part(path)]
    }
    assert upward == set()


def test_files_import_without_circles() -> None:
    graph = {path: imported(path) & set(FILES) for path in FILES}
    assert [[name_of(path) for path in group] for group in circles(graph)] == []


def test_circles_are_detected() -> None:
    a, b, c = Path("a"), Path("b"), Path("c")
    assert circles({a: {b}, b: {c}, c: set()}) == []
    assert sorted(circles({a: {b}, b: {c}, c: {b}})[0]) == [b, c]
    assert circles({a: {a}}) == [[a]]


def test_the_package_has_few_parts() -> None:
    assert len([path for path in SOURCE.iterdir() if path.name != "__pycache__"]) <= MAX_ENTRIES


def test_no_architecture_is_named_outside_layers() -> None:
    names = {cls.__name__ for cls in seriatim.layers.REGISTRY.values()}
    for path in FILES:
        if part(path) not in ("layers", "testing"):
            used = {node.id for node in ast.walk(parsed(path)) if isinstance(node, ast.Name)}
            assert not names & used, f"{path.name} names {names & used}"


def names_a_task(path: Path) -> bool:
    """Whether a file compares with or looks up the name of a task or of the n-gram model, or imports one task."""
    from seriatim.tasks import TASKS

    special = {*TASKS, "ngram"}
    single = {file_of(SOURCE.joinpath(*kind.open.__module__.split(".")[1:])) for kind in TASKS.values()}
    for node in ast.walk(parsed(path)):
        operands: list[ast.expr | None] = []
        if isinstance(node, ast.Compare):
            operands = [node.left, *node.comparators]
        elif isinstance(node, ast.Dict):
            operands = list(node.keys)
        elif isinstance(node, ast.MatchValue):
            operands = [node.value]
        inner = [part for operand in operands if operand is not None for part in elements(operand)]
        if any(isinstance(part, ast.Constant) and part.value in special for part in inner):
            return True
    return bool(imported(path) & single)


def elements(node: ast.expr) -> list[ast.expr]:
    return node.elts if isinstance(node, ast.Tuple | ast.List | ast.Set) else [node]


def test_no_task_is_named_above_the_tasks() -> None:
    named = {
        name_of(path) for path in FILES if part(path) in ("inspection", "comparison", "cli") and names_a_task(path)
    }
    assert named == set()


def test_any_is_rare() -> None:
    count = sum(len(re.findall(r"\bAny\b", path.read_text(encoding="utf-8"))) for path in SOURCE.rglob("*.py"))
    assert count <= MAX_ANY


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from seriatim.cli.main import main; main(['--help']); print(sorted(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "usage: seriatim" in done.stdout
    for heavy in (
        "torch",
        "numpy",
        "pydantic",
        "yaml",
        "rich",
        "tokenizers",
        "fastapi",
        "starlette",
        "prometheus_client",
    ):
        assert f"'{heavy}'" not in done.stderr


def test_a_command_starts_without_what_only_ranks_need() -> None:
    """The modules of sharded tensors take a third of the time of a start."""
    code = "import sys; import seriatim.runs.train; print([name for name in sys.modules if name.startswith(HEAVY)])"
    heavy = ("torch.distributed.tensor", "torch.distributed.fsdp", "sympy", "torch._dynamo")
    done = subprocess.run(
        [sys.executable, "-c", f"HEAVY = {heavy}; {code}"], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_public_names() -> None:
    for name in seriatim.__all__:
        assert getattr(seriatim, name) is not None
    assert callable(seriatim.layer)
    assert seriatim.layer("gru", 2, 3).output_size == 3
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        seriatim.nothing  # noqa: B018


def test_the_source_keeps_its_size_and_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = importlib.util.spec_from_file_location("size", Path(__file__).parent.parent / "scripts" / "size.py")
    assert spec is not None
    assert spec.loader is not None
    size = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "size", size)  # where dataclasses look for their module
    spec.loader.exec_module(size)
    shape = size.measure(SOURCE)
    assert shape.code.total() <= MAX_CODE_LINES
    assert shape.long_files == []
    assert {key for key in shape.classes if len(shape.methods(key)) > MAX_METHODS} == set()
    limits = {"layers": MAX_CHAIN_OF_LAYERS, "models": MAX_CHAIN_OF_LAYERS}
    assert {key for key in shape.classes if shape.depth(key) > limits.get(key[0].partition("/")[0], MAX_CHAIN)} == set()
    assert shape.ignored["override"] == shape.ignored["assignment"] == 0
    assert len(shape.names_in_several_files()) <= 3

    # A new task is short: the one that the tests write as a user would.
    assert 0 < size.measure(Path(__file__).parent / "tasks").code["outside_task.py"] <= 120

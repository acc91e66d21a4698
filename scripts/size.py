"""Print the size and the shape of the source: lines of code by folder, chains of classes, methods, ignored errors.

    python scripts/size.py [FOLDER]

A line of code holds something that is neither a comment nor a docstring. The methods of a class are those that it and
its bases in this tree define; a chain is the number of such classes from a class up to its farthest base.
`tests/test_architecture.py` holds the limits.
"""

import ast
import re
import sys
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src" / "seriatim"
LONG = 600
"""The number of lines from which on a file is long."""
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
Key = tuple[str, str]  # the file and the name of a class


@dataclass
class Shape:
    """The size and the shape of a source tree."""

    files: int = 0
    long_files: list[str] = field(default_factory=list)
    code: Counter[str] = field(default_factory=Counter)  # lines by folder
    comments: int = 0  # lines that hold nothing but a comment
    docstrings: int = 0  # lines
    ignored: Counter[str] = field(default_factory=Counter)  # errors of mypy by kind
    classes: dict[Key, tuple[list[str], set[str]]] = field(default_factory=dict)  # the names of bases, and methods

    @cached_property
    def by_name(self) -> dict[str, list[Key]]:
        """The classes of each name."""
        found: dict[str, list[Key]] = defaultdict(list)
        for key in self.classes:
            found[key[1]].append(key)
        return found

    def bases(self, key: Key) -> list[Key]:
        """Return the bases of a class in this tree; of several of a name, the one in its own folder."""
        found = [self.by_name.get(name, []) for name in self.classes[key][0]]
        near = [[other for other in keys if folder_of(other[0]) == folder_of(key[0])] or keys for keys in found]
        return [keys[0] for keys in near if keys and keys[0] != key]

    def depth(self, key: Key) -> int:
        """Return the length of the longest chain that ends with a class."""
        return 1 + max(map(self.depth, self.bases(key)), default=0)

    def methods(self, key: Key) -> set[str]:
        """Return the names of the methods of a class and of its bases."""
        return self.classes[key][1].union(*map(self.methods, self.bases(key)))

    def names_in_several_files(self) -> list[str]:
        """Return the names of classes that occur in more than one file."""
        return sorted(name for name, keys in self.by_name.items() if len({file for file, _ in keys}) > 1)


def folder_of(file: str) -> str:
    """Return the first folder of a path."""
    return file.partition("/")[0]


def measure(root: Path = SOURCE) -> Shape:
    """Return the shape of the Python files in a folder."""
    shape = Shape()
    for path in sorted(root.rglob("*.py")):
        _add(shape, path.relative_to(root).as_posix(), path.read_text(encoding="utf-8"))
    return shape


def _add(shape: Shape, name: str, text: str) -> None:
    """Add one file."""
    tree, lines = ast.parse(text), text.splitlines()
    shape.files += 1
    shape.long_files += [name] * (len(lines) > LONG)

    documented: set[int] = set()
    strings: set[int] = set()  # lines of a string of several, which may look like comments
    for node in ast.walk(tree):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            documented.update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
        if isinstance(node, ast.ClassDef):
            bases = [re.split(r"[\[(]", ast.unparse(base))[0].rpartition(".")[2] for base in node.bases]
            own = {part.name for part in node.body if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef)}
            shape.classes[name, node.name] = bases, own
        if isinstance(node, ast.Constant | ast.JoinedStr) and (node.end_lineno or 0) > node.lineno:
            strings.update(range(node.lineno, (node.end_lineno or 0) + 1))

    # A tokenizer would give the same numbers in ten times the time.
    code: set[int] = set()
    for number, line in enumerate(lines, 1):
        if number in strings or line.strip()[:1] not in ("", "#"):
            code.add(number)
        shape.comments += number not in strings and line.strip().startswith("#")
        if ignored := re.search(r"# type: ignore\[([^\]]*)", line):
            shape.ignored.update(kind.strip() for kind in ignored[1].split(","))
    shape.code[folder_of(name)] += len(code - documented)
    shape.docstrings += len(documented)


def main() -> None:
    """Print the shape of the source."""
    shape = measure(Path(sys.argv[1]) if sys.argv[1:] else SOURCE)
    total = shape.code.total()
    print(f"{total:,} lines of code in {shape.files} files ({len(shape.long_files)} past {LONG} lines)")
    print(f"{shape.docstrings:,} lines of docstrings, {1000 * shape.comments / total:.1f} comment lines per 1,000")
    print(", ".join(f"{folder} {count:,}" for folder, count in shape.code.most_common()))
    deepest = sorted(shape.classes, key=shape.depth, reverse=True)[:5]
    print("longest chains:", ", ".join(f"{key[1]} {shape.depth(key)}" for key in deepest))
    widest = sorted(shape.classes, key=lambda key: len(shape.methods(key)), reverse=True)[:5]
    print("most methods:", ", ".join(f"{key[1]} {len(shape.methods(key))}" for key in widest))
    print("class names in several files:", ", ".join(shape.names_in_several_files()) or "none")
    print("ignored errors of mypy:", ", ".join(f"{kind} {count}" for kind, count in shape.ignored.most_common()))


if __name__ == "__main__":
    main()

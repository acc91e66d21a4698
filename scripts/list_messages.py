"""List every message of an error that users can see, with its kind, as `tests/messages.txt` keeps them for review.

    python scripts/list_messages.py > tests/messages.txt

What stands in braces is filled in. A message that another function puts together is listed there as that expression.
"""

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

from seriatim.core import errors

SOURCE = Path(errors.__file__).parent.parent
KINDS = {name: kind.kind for name, kind in vars(errors).items() if isinstance(kind, type) and hasattr(kind, "kind")}


def template(node: ast.expr) -> str:
    """Return a text with the names of what is filled in, or another expression as it is written."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(map(template, node.values))
    if isinstance(node, ast.FormattedValue):
        return f"{{{ast.unparse(node.value)}}}"
    return f"<{ast.unparse(node)}>"


def messages(root: Path = SOURCE) -> Iterator[tuple[str, str, str]]:
    """Iterate over the file, the kind and the template of every message."""
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root).as_posix()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call) or not node.args:
                continue
            called = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
            if called in KINDS:
                yield name, KINDS[called] or "any", template(node.args[0])


def listed(found: Iterable[tuple[str, str, str]]) -> str:
    """Return messages, a line each, below the name of their file."""
    lines, last = list[str](), ""
    for file, kind, text in found:
        lines += [f"\n{file}"] if file != last else []
        lines.append(f"  {kind}: {text}")
        last = file
    return "\n".join(lines).lstrip("\n") + "\n"


if __name__ == "__main__":
    print(listed(messages()), end="")

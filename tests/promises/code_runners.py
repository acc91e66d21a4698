"""What in a syntax tree unpickles, executes text, or loads programs, under whatever name it was imported."""

import ast

MODULES = {"pickle", "cPickle", "_pickle", "dill", "joblib", "marshal", "shelve", "cloudpickle", "runpy", "code"}
BUILTINS = {"eval", "exec", "compile", "__import__", "__builtins__"}
NAMES = {
    "torch": {"load", "save", "jit.load", "hub.load", "package", "serialization.load"},
    "numpy": {"load", "save", "savez", "savez_compressed"},
    "yaml": {
        *("load", "load_all", "unsafe_load", "unsafe_load_all", "full_load", "full_load_all"),
        *("Loader", "UnsafeLoader", "FullLoader", "CLoader"),
    },
    "os": {"system", "popen", "execv", "execve", "execvp", "spawnv"},
    "subprocess": {"run", "Popen", "call", "check_call", "check_output", "getoutput"},
    "ctypes": {"CDLL", "PyDLL", "cdll", "cdll.LoadLibrary"},
    "importlib": {"import_module", "util.module_from_spec"},
    "builtins": {"eval", "exec", "compile", "__import__"},
}
USUAL = {"np": "numpy"}
"""What a snippet may leave unsaid."""


def found_in(tree: ast.AST) -> set[str]:
    """The full names of what should not be there."""
    known = _imported(tree)
    found = {name for name in known.values() if name.partition(".")[0] in MODULES or _is_refused(name)}
    called = {id(node.func): node for node in ast.walk(tree) if isinstance(node, ast.Call)}
    types = {id(part) for node in ast.walk(tree) for part in _annotations(node)}
    for node in ast.walk(tree):
        name, call = _full(node, known), called.get(id(node))
        if name and _is_refused(name) and id(node) not in types and not _is_harmless(name, call):
            shell = call is not None and any(keyword.arg == "shell" for keyword in call.keywords)
            found.add(f"{name} with a shell" if shell else name)
    return found


def _annotations(node: ast.AST) -> list[ast.AST]:
    """What stands where a type does."""
    given = [getattr(node, "annotation", None), getattr(node, "returns", None)]
    return [part for one in given if one is not None for part in ast.walk(one)]


def _imported(tree: ast.AST) -> dict[str, str]:
    """Names in a file to what they stand for elsewhere."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                found[alias.asname or alias.name.split(".")[0]] = (
                    alias.name if alias.asname else alias.name.split(".")[0]
                )
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    return found


def _full(node: ast.AST, known: dict[str, str]) -> str:
    """``t.jit.load`` as ``torch.jit.load``; also ``getattr(torch, "load")``; empty where it is no name."""
    if isinstance(node, ast.Name):
        return known.get(node.id, USUAL.get(node.id, node.id))
    if isinstance(node, ast.Attribute):
        before = _full(node.value, known)
        return f"{before}.{node.attr}" if before else ""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "getattr":
        literal = node.args[1] if len(node.args) > 1 else None
        if isinstance(literal, ast.Constant):
            return f"{_full(node.args[0], known)}.{literal.value}"
    return ""


def _is_refused(name: str) -> bool:
    first, _, rest = name.partition(".")
    return name in BUILTINS or rest in NAMES.get(first, ())


def _is_harmless(name: str, call: ast.Call | None) -> bool:
    """Arrays without objects; modules of the package itself."""
    if call is None:
        return False
    if name == "numpy.load":
        settings = {keyword.arg: keyword.value for keyword in call.keywords}
        pickled = settings.get("allow_pickle")
        return isinstance(pickled, ast.Constant) and pickled.value is False
    if name == "importlib.import_module" and isinstance(call.args[0], ast.JoinedStr | ast.Constant):
        text = call.args[0].values[0] if isinstance(call.args[0], ast.JoinedStr) else call.args[0]
        return isinstance(text, ast.Constant) and str(text.value).startswith(".")
    return False

"""Where the class `Task` was, from which tasks derived; a task is composed of parts in `seriatim.tasks` now."""

from ..core.errors import ContractError


def __getattr__(name: str) -> object:
    """Name the new interface to code that imports the former one."""
    if name.startswith("__"):
        raise AttributeError(name)
    raise ContractError(
        f"{__name__}.{name}: a task is no subclass any more; compose a seriatim.tasks.TaskKind, see docs/api/tasks.md"
    )

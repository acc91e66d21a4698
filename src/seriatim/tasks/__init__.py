"""The tasks by name: what each reads, trains, measures and answers.

To add a task, write a file of this package that composes the parts of a `seriatim.tasks.task.TaskKind` and names it
``KIND``, and add a line to `names`; a task outside the package is added by `register`. The functions of `registry` are
imported when they are first used, since they need PyTorch and the command line lists the tasks without it.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .registry import FITTED as FITTED
    from .registry import TASKS as TASKS
    from .registry import check_outside_layers as check_outside_layers
    from .registry import chosen_baseline as chosen_baseline
    from .registry import find_kind as find_kind
    from .registry import kind_of as kind_of
    from .registry import layer_names as layer_names
    from .registry import new_task as new_task
    from .registry import open_task as open_task
    from .registry import register as register
    from .registry import shared_options as shared_options
    from .registry import with_defaults as with_defaults
    from .registry import with_imported_layers as with_imported_layers


def __getattr__(name: str) -> object:
    if name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(".registry", __name__), name)
